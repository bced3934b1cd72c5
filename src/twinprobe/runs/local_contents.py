"""The bytes of a tensor file on this machine, read where they are looked at.

A mapped file that somebody shortens kills the process that looks at it (SIGBUS); a read of it is merely short.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import overload

import numpy as np
from numpy.typing import NDArray

from twinprobe.errors import DamagedTensor

_HEAD = 4096
# One call of the system reads no more than 2 GiB.
_AT_ONCE = 1 << 30


class LocalContents:
    """Slices are read as they are asked for; elements go to memory that is used again as soon as nobody looks at it."""

    __slots__ = ("_changed", "_file", "_head", "_size", "at_once")

    def __init__(self, handle: int, status: os.stat_result, at_once: int | None = None) -> None:
        """Takes over the handle of an open file."""
        self.at_once = at_once
        """The most bytes of elements that are read at once, if somebody has said."""
        self._file = io.FileIO(handle)
        self._size, self._changed = status.st_size, status.st_mtime_ns
        self._head = self._file.read(_HEAD) or b""

    def __del__(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> bytes: ...
    def __getitem__(self, at: int | slice) -> int | bytes:
        if not isinstance(at, slice):
            return self[at : at + 1][0]
        start, stop, step = at.indices(self._size)
        assert step == 1
        if stop <= len(self._head):
            return self._head[start:stop]
        return self.stretch(start, stop).tobytes() if stop > start else b""

    def stretch(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes of a range in memory of their own, aligned for every dtype."""
        out = _buffers.take(stop - start)
        view, filled = out.data, 0
        while filled < len(out):
            count = self._read_into(view[filled : filled + _AT_ONCE], start + filled)
            if not count:
                raise DamagedTensor("became shorter while it was read", hint="wait until its run has finished")
            filled += count
        now = os.fstat(self._file.fileno())
        if now.st_size != self._size or now.st_mtime_ns != self._changed:
            raise DamagedTensor("changed while it was read", hint="wait until its run has finished")
        out.flags.writeable = False
        return out

    def _read_into(self, view: memoryview, start: int) -> int | None:
        """Read from a place on. Several threads may do so at once, so the file's own position is not used."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [view], start)
        with _moving:
            self._file.seek(start)
            return self._file.readinto(view)


class _Buffers(threading.local):
    """Two pieces of memory for each thread, one a side. Fresh memory costs more than reading into it."""

    most_bytes = 256 << 20

    def __init__(self) -> None:
        self._kept: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """So many bytes that nobody else looks at."""
        kept = self._kept
        for at in range(len(kept)):
            if kept[at].size >= size and sys.getrefcount(kept[at]) == _UNUSED:
                return kept[at][:size]
        fresh = np.empty(size, np.uint8)
        if size <= self.most_bytes:
            if len(kept) >= 2:
                del kept[0]
            kept.append(fresh)
        return fresh[:]


def _count_of_unused() -> int:
    kept = [np.empty(1, np.uint8)]
    return sys.getrefcount(kept[0])


_UNUSED = _count_of_unused()
_buffers = _Buffers()
_moving = threading.Lock()
