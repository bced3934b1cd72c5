"""The contents of a tensor file: in memory, mapped, or elsewhere and fetched range by range."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.runs.local_contents import LocalContents
from twinprobe.runs.remote.contents import RemoteContents

Held = bytes | mmap.mmap | NDArray[np.uint8]
Contents = bytes | mmap.mmap | LocalContents | RemoteContents


def stretch(data: Contents, start: int, length: int, *, whole: bool = True) -> tuple[Held, int]:
    """A buffer that holds these bytes, and where in it they begin; what is on this machine stays where it is.

    ``whole=False`` allows remote contents to leave out what their reader does not want to look at.
    """
    if isinstance(data, RemoteContents):
        return data.stretch(start, start + length, whole=whole), 0
    if isinstance(data, LocalContents):
        return data.stretch(start, start + length), 0
    return data, start


def elements(data: Contents, dtype: np.dtype[Any], count: int, start: int, *, whole: bool = False) -> NDArray[Any]:
    """``count`` elements from the byte ``start`` on."""
    base, at = stretch(data, start, count * dtype.itemsize, whole=whole)
    return np.frombuffer(base, dtype, count, at)
