"""Tensor files of one folder, read one after the other into memory that is used again and again."""

from __future__ import annotations

import os
from stat import S_ISREG

import numpy as np
from numpy.typing import NDArray

from twinprobe.runs.llm.described import DTYPES, Described, Known
from twinprobe.runs.llm.large_file import FLAGS, LargeFile

# A larger file gains nothing from being read whole.
LARGEST = 4 << 20
# Elements of a larger file that are read and measured at once, while the cache holds them; whole pieces of a kernel.
CHUNK = 1 << 18
# What one call of the system reads; most files are smaller, and nobody has to ask for their size.
_AT_ONCE = 64 << 10
# Files are measured together as long as they stay in the second-level cache.
_FULL = 1 << 19
_ALIGNED = 64
_ROOM = _FULL + LARGEST + _AT_ONCE + _ALIGNED

# Fresh memory costs more than reading into it. There are no more pieces than were ever in use at once.
_spare: list[NDArray[np.uint8]] = []


def can_read_small_files() -> bool:
    """Whether this system opens files from their folder on without following links, and reads into given memory."""
    return hasattr(os, "preadv") and os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


class SmallFiles:
    """Reads files of one folder; use it in a ``with`` statement."""

    def __init__(self, folder: str, known: Known) -> None:
        self._folder = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._known = known
        self.octets: NDArray[np.uint8] = _spare.pop() if _spare else np.empty(_ROOM, np.uint8)
        self._view = self.octets.data
        self.used = 0
        # ATB headers have no padding. Where the last file's elements began, the next one's will.
        self._lead = 0

    def __enter__(self) -> SmallFiles:
        return self

    def __exit__(self, *_problem: object) -> None:
        os.close(self._folder)
        _spare.append(self.octets)

    @property
    def is_full(self) -> bool:
        """Whether the memory has to be given back, by setting ``used``, before another file is read."""
        return self.used > _FULL

    def read(self, name: str) -> tuple[int, Described] | None:
        """At which element of its dtype a file begins in memory, and what it is.

        None for files whose elements kernels cannot take as they lie there, damaged ones and links, and for large ones.
        """
        at = self.used + self._lead
        try:
            handle = os.open(name, FLAGS, dir_fd=self._folder)
            try:
                length = os.readv(handle, (self._view[at : at + _AT_ONCE],))
                if length == _AT_ONCE:
                    length = 0 if name.endswith(".bin") else self._rest(handle, at)
            finally:
                os.close(handle)
        except (OSError, ValueError):
            return None
        what = self._known.described(name, self._view, at, length)
        if what is None:
            return None
        self.used = (at + length + _ALIGNED - 1) & -_ALIGNED
        first = at + what.start
        if first % _ALIGNED:
            first = self._aligned(at, first, what)
        return first // DTYPES[what.dtype], what

    def open_large(self, name: str) -> LargeFile:
        """A file to be read piece by piece; raises NotLarge for all others."""
        return LargeFile(self._folder, name, self._known)

    def room(self) -> tuple[int, memoryview]:
        """Where the memory is free, and that memory: enough for a chunk of elements."""
        return self.used, self._view[self.used :]

    def _rest(self, handle: int, at: int) -> int:
        """Read on to the end; the length of the file, or 0 if it is too large or changes under our eyes."""
        before = os.fstat(handle)
        size = before.st_size
        if not S_ISREG(before.st_mode) or size > LARGEST:
            return 0
        length = _AT_ONCE
        while length < size:
            count = os.readv(handle, (self._view[at + length : at + size],))
            if not count:
                return 0
            length += count
        after = os.fstat(handle)
        return size if (after.st_size, after.st_mtime_ns) == (size, before.st_mtime_ns) else 0

    def _aligned(self, at: int, first: int, what: Described) -> int:
        """Move elements to a boundary, which compiled kernels need; the next file's will lie on one."""
        front = at - self._lead
        size = what.end - what.start
        moved = self.octets[first : first + size]
        self.octets[front : front + size] = moved.copy() if first < front + size else moved
        self._lead = -what.start % _ALIGNED
        return front
