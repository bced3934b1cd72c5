"""The contents of a tensor file: in memory, on this machine and read where they are looked at, or elsewhere."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe.runs.local_contents import LocalContents
from twinprobe.runs.remote.contents import RemoteContents

# Up to here the elements are read at once, unless less is asked for. Of larger files they are read strip by strip, as
# they are measured: memory for all of them may be lacking.
LARGEST_READ = 256 << 20

Held = bytes | NDArray[np.uint8]
Contents = bytes | LocalContents | RemoteContents


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
    """``count`` elements from the byte ``start`` on; of a large file FileElements, unless they are wanted whole."""
    if isinstance(data, LocalContents) and not whole and count * dtype.itemsize > (data.at_once or LARGEST_READ):
        from twinprobe.runs.file_elements import FileElements

        return cast("NDArray[Any]", FileElements(data, dtype, count, start))
    base, at = stretch(data, start, count * dtype.itemsize, whole=whole)
    return np.frombuffer(base, dtype, count, at)
