"""A tensor file that is read piece by piece, each piece measured while the processor's cache still holds it."""

from __future__ import annotations

import os
from stat import S_ISREG

from twinprobe.runs.llm.described import DTYPES, HEAD, Known
from twinprobe.runs.whole_file import READING

# Elements of still larger files are shared out among threads.
_LARGEST = 64 << 20
FLAGS = READING | getattr(os, "O_NOFOLLOW", 0)


class NotLarge(Exception):
    """The file is not one of those that are read piece by piece, or changes under our eyes."""


class LargeFile:
    """An ATB file whose elements lie in it as kernels take them; use it in a ``with`` statement."""

    def __init__(self, folder: int, name: str, known: Known) -> None:
        """Open a file by its name from an open folder on; raises NotLarge for all that has to be read otherwise."""
        try:
            self._handle = os.open(name, FLAGS, dir_fd=folder)
        except (OSError, ValueError):
            raise NotLarge from None
        try:
            self._status = os.fstat(self._handle)
            head = memoryview(os.pread(self._handle, HEAD, 0))
            size = self._status.st_size
            sound = S_ISREG(self._status.st_mode) and size <= _LARGEST and name.endswith(".bin")
            what = known.described(name, head, 0, size) if sound else None
            if what is None:
                raise NotLarge
        except (OSError, NotLarge):
            os.close(self._handle)
            raise NotLarge from None
        self.what = what

    def __enter__(self) -> LargeFile:
        return self

    def __exit__(self, *_problem: object) -> None:
        os.close(self._handle)

    def read(self, first: int, count: int, memory: memoryview) -> None:
        """Read elements from one on into memory that is large enough for them."""
        width = DTYPES[self.what.dtype]
        start, size = self.what.start + first * width, count * width
        filled = 0
        while filled < size:
            try:
                got = os.preadv(self._handle, (memory[filled:size],), start + filled)
            except OSError:
                raise NotLarge from None
            if not got:
                raise NotLarge
            filled += got

    def check(self) -> None:
        """Raise NotLarge if the file has changed since it was opened."""
        now = os.fstat(self._handle)
        if (now.st_size, now.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise NotLarge
