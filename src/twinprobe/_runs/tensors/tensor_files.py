"""The one way to open a tensor file: it is never trusted, never executed, and not read before it is looked at."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from stat import S_ISREG

from twinprobe._runs.places import inside, remote
from twinprobe._runs.remote.contents import RemoteContents
from twinprobe._runs.tensors.elements import Contents, HostTensor, LocalContents
from twinprobe._runs.tensors.npy_file import read_npy
from twinprobe._runs.tensors.pt_file import read_pt
from twinprobe._runs.whole_files import READING
from twinprobe.errors import DamagedTensor

_READERS = {".pt": read_pt, ".pth": read_pt, ".npy": read_npy}

# Up to here all of a file is read at once.
SMALL_FILE = 64 << 10


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


def damage_of(path: Path | str, error: DamagedTensor | OSError | MemoryError) -> DamagedTensor:
    """What went wrong while a file was opened, with its name."""
    shown = str(path) if str(path).isprintable() else repr(str(path))
    if isinstance(error, DamagedTensor):
        return DamagedTensor(error.what, where=shown, hint=error.hint)
    if isinstance(error, MemoryError):
        return DamagedTensor("needs more memory than this machine has free", where=shown)
    what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error.strerror}"
    return DamagedTensor(what, where=shown)


def contents(path: Path | str, *, enough: int | None = None, at_once: int | None = None) -> Contents:
    """The contents of a file, as far as possible without reading them. A text names a file of this machine."""
    elsewhere = None if isinstance(path, str) else remote(path)
    if elsewhere is not None:
        return RemoteContents(elsewhere, enough)
    try:
        handle = os.open(path, READING)
    except ValueError:
        raise DamagedTensor("has characters that no file name can have") from None
    try:
        status = os.fstat(handle)
        if not S_ISREG(status.st_mode):
            raise DamagedTensor("is not a regular file")
        if status.st_size == 0:
            raise DamagedTensor("is empty", hint="the run that wrote it may have been killed")
        if status.st_size <= SMALL_FILE:
            return os.read(handle, SMALL_FILE)
        opened, handle = handle, -1  # closed by the contents, when nobody needs them any more
        return LocalContents(opened, status, at_once)
    finally:
        if handle >= 0:
            os.close(handle)


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
                load: Loader = partial(_load, *file, at_once)
                size = 0 if remote(file[0]) is None else _size(*file)
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


def _load(folder: Path, name: str, at_once: int | None) -> HostTensor:
    return open_tensor(inside(folder, name), at_once=at_once)


def _size(folder: Path, name: str) -> int:
    try:
        return inside(folder, name).stat().st_size
    except (OSError, DamagedTensor):
        return 0
