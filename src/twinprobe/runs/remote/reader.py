"""A remote file as a file object: what is read is fetched, nothing else."""

from __future__ import annotations

import io
import os
from typing import Protocol


class Ranges(Protocol):
    """Whatever hands out ranges of bytes."""

    def read_range(self, start: int, stop: int) -> bytes: ...


class RangeReader(io.RawIOBase):
    """The raw side of a buffered reader; how much is read ahead is the buffer's size."""

    def __init__(self, source: Ranges, size: int) -> None:
        super().__init__()
        self._source, self._size, self._at = source, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + (0, self._at, self._size)[whence]
        if at < 0:
            raise OSError(22, "before the beginning")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        stop = min(self._at + len(target), self._size)
        if stop <= self._at:
            return 0
        piece = self._source.read_range(self._at, stop)
        target[: len(piece)] = piece
        self._at = stop
        return len(piece)
