"""The one way to open a tensor file: it is never trusted, never executed, and not read before it is looked at."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._runs.tensors.containers import MARK, tensors_in
from twinprobe._runs.tensors.elements import GatheredElements, HostTensor, contents, damage_of
from twinprobe._runs.tensors.npy_file import read_npy
from twinprobe._runs.tensors.pt_file import read_pt
from twinprobe._runs.whole_files import inside, remote
from twinprobe.errors import DamagedTensor

_READERS = {".pt": read_pt, ".pth": read_pt, ".npy": read_npy}


def open_tensor(path: Path, *, enough: int | None = None, at_once: int | None = None) -> HostTensor:
    """Open one ``.pt``, ``.pth`` or ``.npy`` file; whatever is wrong with it is a DamagedTensor that names the file.

    Of a remote file only the ranges with the tensor are fetched. ``enough`` says how many bytes of the elements will
    be looked at, if not all: the rest is not fetched then.
    Nothing is mapped, since a mapped file that somebody shortens kills the process. Above ``at_once`` bytes (256 MiB)
    the elements are read strip by strip, as they are looked at; compressed, strided and Fortran-ordered ones are copied
    into memory, within a bound set by the size of the file.
    """
    try:
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            hint = "expected .pt, .pth or .npy"
            raise DamagedTensor(f"is not a tensor file: its suffix is {path.suffix!r}", hint=hint)
        return reader(contents(path, enough=enough, at_once=at_once))
    except (DamagedTensor, OSError, MemoryError) as error:
        raise damage_of(path, error) from None


def open_named(folder: Path, name: str, at_once: int | None = None) -> HostTensor:
    """The tensor that a dump names: a file in its folder, or ``FILE::KEY``, one of the tensors in such a file."""
    if name.startswith(TOKENS):
        return _gathered(folder, name, at_once)
    file, mark, key = name.partition(MARK)
    path = inside(folder, file)
    if not mark:
        return open_tensor(path, at_once=at_once)
    stored = tensors_in(path).get(key)
    if stored is None:
        raise DamagedTensor(f"holds no tensor {key[:200]!r}", where=path)
    try:
        return stored.read()
    except (DamagedTensor, OSError, MemoryError) as error:
        raise damage_of(f"{path}{MARK}{key}", error) from None


def named_size(folder: Path, name: str) -> int:
    """About how many bytes such a tensor has; what cannot be read counts as nothing."""
    if name.startswith(TOKENS):
        return sum(named_size(folder, file) for file in token_files(name))
    file, mark, key = name.partition(MARK)
    try:
        path = inside(folder, file)
        return tensors_in(path)[key].size if mark else path.stat().st_size
    except (OSError, DamagedTensor, KeyError):
        return 0


# Tensors whose rows are tokens, gathered from the tensors of several calls: [tokens, features].
#
# What stands for the file of such a tensor is TOKENS and a list: [file, axes of row and column] of each part, and
# stretches of tokens [part, row, column, how many]. The row's axis is -1 where rows are not told apart, and -2 where
# both are one axis, whose rows have the length that then stands behind the axes.

TOKENS = "[tokens]"


def token_name(parts: list[Any], stretches: list[list[int]]) -> str:
    """What stands for the file of a gathered tensor."""
    return TOKENS + json.dumps([parts, stretches], separators=(",", ":"))


def token_files(name: str) -> list[str]:
    """The files that such a name stands for."""
    try:
        return [part[0] for part in json.loads(name[len(TOKENS) :])[0] if isinstance(part[0], str)]
    except (ValueError, TypeError, IndexError, RecursionError):
        return []


def _gathered(folder: Path, name: str, at_once: int | None) -> HostTensor:
    try:
        parts, stretches = json.loads(name[len(TOKENS) :])
        tensors = [open_named(folder, file, at_once) for file, *_ in parts if not file.startswith(TOKENS)]
        if len({tensor.dtype for tensor in tensors}) > 1:
            raise ValueError("the calls have different dtypes")
        spans = np.asarray(stretches, dtype=np.int64).reshape(-1, 4)
        views = [_by_token(tensor, *axes) for tensor, (_, *axes) in zip(tensors, parts, strict=True)]
        features = prod(views[0][1])
        of, row, column, count = spans.T
        width = np.array([view[2] for view in views])[of]
        tokens = np.array([view[0].size // max(features, 1) for view in views])[of]
        first = np.where(np.array([view[3] for view in views])[of], row * width, 0) + column
        if (spans < 0).any() or (column + count > width).any() or (first + count > tokens).any():
            raise ValueError("a token lies outside its tensor")
        if len({prod(view[1]) for view in views}) > 1:
            raise ValueError("the calls have tokens of different sizes")
        data: Any = GatheredElements([view[0] for view in views], of, first * features, count * features)
        if at_once is None or data.size * data.dtype.itemsize <= at_once:
            data = data.whole()
        return HostTensor(tensors[0].dtype, (int(count.sum()), features), data)
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise DamagedTensor(f"cannot be gathered by tokens: {error}", where=(token_files(name) or [""])[0]) from None


def _by_token(tensor: HostTensor, row: int, column: int, length: int = 0) -> tuple[Any, tuple[int, ...], int, bool]:
    """A flat array with token behind token, the shape of a token's features, the columns of a row, whether rows count.

    Only what has its tokens in other axes than the first is copied.
    """
    shape = tensor.shape
    if row == -2:
        features = shape[:column] + shape[column + 1 :]
        data = tensor.data if column == 0 else np.moveaxis(np.asarray(tensor.data[:]).reshape(shape), column, 0)
        return (data if column == 0 else np.ascontiguousarray(data).reshape(-1)), features, length, True
    axes = [column] if row == -1 else [row, column]
    features = tuple(size for index, size in enumerate(shape) if index not in axes)
    if axes == list(range(len(axes))) or (row == -1 and prod(shape[:column]) == 1):
        return tensor.data, features, shape[column], row != -1
    moved = np.moveaxis(np.asarray(tensor.data[:]).reshape(shape), axes, list(range(len(axes))))
    return np.ascontiguousarray(moved).reshape(-1), features, shape[column], row != -1


# Loading many tensors: where files are far away, the next ones are fetched while one is measured.

Loader = Callable[[], HostTensor]

REQUESTS = 16
MOST_BYTES = 256 << 20
_MOST_WAITING = 4 * REQUESTS


def tensor_loaders(files: Iterable[tuple[Path, str]], *, at_once: int | None = None) -> Iterator[Loader]:
    """A loader for each file, given as the folder of the tensors and the name in it; ``at_once`` as in open_tensor.

    Local ones load when they are called. Remote ones are under way before, as far as ``MOST_BYTES`` of memory allow;
    one that is too large to wait there loads when it is called, so nothing here ever waits for who takes them.
    """
    lock, held = threading.Lock(), 0  # bytes that are fetched and not yet taken

    def take(future: Future[HostTensor], size: int) -> HostTensor:
        nonlocal held
        try:
            return future.result()
        finally:
            with lock:
                held -= size

    waiting: deque[Loader] = deque()
    rest = iter(files)
    pool: ThreadPoolExecutor | None = None
    try:
        while True:
            while len(waiting) < _MOST_WAITING and (file := next(rest, None)) is not None:
                load: Loader = partial(open_named, *file, at_once)
                size = 0 if remote(file[0]) is None else named_size(*file)
                with lock:
                    ahead = remote(file[0]) is not None and held + size <= MOST_BYTES
                    held += size if ahead else 0
                if ahead:
                    pool = pool or ThreadPoolExecutor(REQUESTS, thread_name_prefix="twinprobe-fetch")
                    load = partial(take, pool.submit(load), size)
                waiting.append(load)
            if not waiting:
                return
            yield waiting.popleft()
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
