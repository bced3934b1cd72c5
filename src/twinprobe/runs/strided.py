"""Elements in another order than the file has them, put in order without the file in memory beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.runs.contents import Held

# Bytes of a file that are held while they are put in order.
PIECE = 64 << 20

Axes = list[tuple[int, int]]  # for each axis its length and the bytes from one place to the next
Read = Callable[[int, int], tuple[Held, int]]  # from a byte on so many: a buffer, and where they begin in it


def in_order(read: Read, axes: Axes, stored: np.dtype[Any]) -> NDArray[Any]:
    """The elements of a strided view as a new C-ordered array in the machine's byte order."""
    out = np.empty(tuple(n for n, _ in axes), stored.newbyteorder("="))
    strides = tuple(step for _, step in axes)
    for at, start, length in _pieces(axes, stored.itemsize):
        part: NDArray[Any] = out[at] if at else out
        base, first = read(start, length)
        part[...] = np.ndarray(part.shape, stored, buffer=base, offset=first, strides=strides)
    return out


def _pieces(axes: Axes, width: int) -> Iterator[tuple[tuple[slice, ...], int, int]]:
    """Parts of the array with the stretches of the file that hold them, along the axis with the longest steps."""
    longest = max(range(len(axes)), key=lambda at: axes[at][1], default=None)
    if longest is None:
        yield (), 0, width
        return
    count, step = axes[longest]
    rest = width + sum((n - 1) * other for at, (n, other) in enumerate(axes) if at != longest)
    # Where one place reaches far into the next ones, much is read twice; not more than a quarter of all.
    at_once = max(1, (max(PIECE, 4 * rest) - rest) // step) if step else count
    for first in range(0, count, at_once):
        last = min(first + at_once, count)
        index = tuple(slice(first, last) if at == longest else slice(None) for at in range(len(axes)))
        yield index, first * step, (last - first - 1) * step + rest
