"""Loading many tensors: where files are far away, the next ones are fetched while one is measured."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from twinprobe.errors import DamagedTensor
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.inside import inside
from twinprobe.runs.places import remote
from twinprobe.runs.tensor_files import open_tensor

Loader = Callable[[], HostTensor]

REQUESTS = 16
MOST_BYTES = 256 << 20
_MOST_WAITING = 4 * REQUESTS


def tensor_loaders(files: Iterable[tuple[Path, str]], *, at_once: int | None = None) -> Iterator[Loader]:
    """A loader for each file, given as the folder of the tensors and the name in it; ``at_once`` as in open_tensor.

    Local ones load when they are called. Remote ones are under way before, as far as ``MOST_BYTES`` of memory allow;
    one that is too large to wait there loads when it is called, so nothing here ever waits for who takes them.
    """
    held = _Held()
    waiting: deque[Loader] = deque()
    rest = iter(files)
    pool: ThreadPoolExecutor | None = None
    try:
        while True:
            while len(waiting) < _MOST_WAITING and (found := next(rest, None)) is not None:
                load = _loader(*found, at_once)
                if remote(found[0]) is None:
                    waiting.append(load)
                    continue
                pool = pool or ThreadPoolExecutor(REQUESTS, thread_name_prefix="twinprobe-fetch")
                size = _size(*found)
                waiting.append(_Fetched(pool.submit(load), held, size) if held.take(size) else load)
            if not waiting:
                return
            yield waiting.popleft()
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _loader(folder: Path, name: str, at_once: int | None) -> Loader:
    return lambda: open_tensor(inside(folder, name), at_once=at_once)


def _size(folder: Path, name: str) -> int:
    try:
        return inside(folder, name).stat().st_size
    except (OSError, DamagedTensor):
        return 0


class _Held:
    """How many bytes are fetched and not yet taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0

    def take(self, size: int) -> bool:
        with self._lock:
            if self._bytes + size > MOST_BYTES:
                return False
            self._bytes += size
            return True

    def give(self, size: int) -> None:
        with self._lock:
            self._bytes -= size


class _Fetched:
    """A loader whose tensor is under way already; its bytes count until somebody takes it, which happens once."""

    def __init__(self, future: Future[HostTensor], held: _Held, size: int) -> None:
        self._future: Future[HostTensor] | None = future
        self._held, self._size = held, size

    def __call__(self) -> HostTensor:
        future, self._future = self._future, None
        assert future is not None
        try:
            return future.result()
        finally:
            self._held.give(self._size)
