"""The one way to open a tensor file: it is never trusted, never executed, and not read before it is looked at."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from twinprobe._runs.places import inside, remote
from twinprobe._runs.tensors.containers import MARK, tensors_in
from twinprobe._runs.tensors.elements import HostTensor, contents, damage_of
from twinprobe._runs.tensors.npy_file import read_npy
from twinprobe._runs.tensors.pt_file import read_pt
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
            hint = "known are .pt, .pth and .npy"
            raise DamagedTensor(f"is no tensor file: its suffix is {path.suffix!r}", hint=hint)
        return reader(contents(path, enough=enough, at_once=at_once))
    except (DamagedTensor, OSError, MemoryError) as error:
        raise damage_of(path, error) from None


def open_named(folder: Path, name: str, at_once: int | None = None) -> HostTensor:
    """The tensor that a dump names: a file in its folder, or ``FILE::KEY``, one of the tensors in such a file."""
    file, mark, key = name.partition(MARK)
    path = inside(folder, file)
    if not mark:
        return open_tensor(path, at_once=at_once)
    found = tensors_in(path).get(key)
    if found is None:
        raise DamagedTensor(f"holds no tensor {key[:200]!r}", where=path)
    try:
        return found.read()
    except (DamagedTensor, OSError, MemoryError) as error:
        raise damage_of(f"{path}{MARK}{key}", error) from None


def named_size(folder: Path, name: str) -> int:
    """About how many bytes such a tensor has; what cannot be read counts as nothing."""
    file, mark, key = name.partition(MARK)
    try:
        path = inside(folder, file)
        return tensors_in(path)[key].size if mark else path.stat().st_size
    except (OSError, DamagedTensor, KeyError):
        return 0


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
