"""Small tensor files of one folder, read one after the other into memory that is used again and again."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe.runs.llm.described import DTYPES, HEAD, Described, described_atb, described_torch

# A larger file gains nothing from going with others.
LARGEST = 64 << 10
_ROOM = 1 << 19
_ALIGNED = 64
_FULL = _ROOM - LARGEST - _ALIGNED
# Neither a link nor a fifo is followed here.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def can_read_small_files() -> bool:
    """Whether this system opens files from their folder on without following links, and reads into given memory."""
    return hasattr(os, "readv") and os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


class Held(NamedTuple):
    """A file in memory: at which element of its dtype it begins there, and what it is."""

    first: int
    what: Described


class SmallFiles:
    """Reads files of one folder; use it in a ``with`` statement."""

    def __init__(self, folder: str) -> None:
        self._folder = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.octets: NDArray[np.uint8] = np.empty(_ROOM, np.uint8)
        self._view = self.octets.data
        self.used = 0
        # ATB headers have no padding. Where the last file's elements began, the next one's will.
        self._lead = 0

    def __enter__(self) -> SmallFiles:
        return self

    def __exit__(self, *_problem: object) -> None:
        os.close(self._folder)

    @property
    def is_full(self) -> bool:
        """Whether the memory has to be given back, by setting ``used``, before another file is read."""
        return self.used > _FULL

    def read(self, name: str) -> Held | None:
        """A file whose elements lie in it as kernels take them; None for all others, large ones and damaged ones."""
        at = self.used + self._lead
        view = self._view[at : at + LARGEST]
        try:
            handle = os.open(name, _FLAGS, dir_fd=self._folder)
            try:
                length = os.readv(handle, (view,))
            finally:
                os.close(handle)
        except (OSError, ValueError):
            return None
        if length == LARGEST:
            return None
        if name.endswith(".bin"):
            what = described_atb(view[: min(length, HEAD)].tobytes(), length)
        elif name.endswith((".pth", ".pt")):
            what = described_torch(view[:length].tobytes())
        else:
            what = None
        return None if what is None else self._placed(at, length, what)

    def _placed(self, at: int, length: int, what: Described) -> Held:
        first, width = at + what.start, DTYPES[what.dtype]
        if first % _ALIGNED:
            size = what.elements * width
            self.octets[self.used : self.used + size] = self.octets[first : first + size].copy()
            first = self.used
            self._lead = -what.start % _ALIGNED
        self.used = (at + length + _ALIGNED - 1) & -_ALIGNED
        return Held(first // width, what)
