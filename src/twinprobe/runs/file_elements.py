"""The elements of a file that is too large to hold: an array whose slices are read when they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.runs.local_contents import LocalContents


class FileElements:
    """Looks like a flat, read-only array in the machine's byte order.

    A slice is read into memory of its own, which is what kernels ask for, strip by strip. Whatever else is asked of an
    array reads all of the elements. A file that changes between two slices is a DamagedTensor for whoever reads on.
    """

    __slots__ = ("_file", "_start", "_stored", "dtype", "size")
    ndim = 1
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, file: LocalContents, stored: np.dtype[Any], count: int, start: int) -> None:
        self._file, self._stored, self._start = file, stored, start
        self.dtype: np.dtype[Any] = stored.newbyteorder("=")
        self.size = count

    @property
    def shape(self) -> tuple[int]:
        return (self.size,)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    @property
    def flags(self) -> Any:
        """Those that every slice has: aligned, and not to be written to."""
        none = np.empty(1, self.dtype)[:0]
        none.flags.writeable = False
        return none.flags

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice) and at.step in (None, 1):
            start, stop, _ = at.indices(self.size)
            return self._read(start, max(start, stop))
        if isinstance(at, int | np.integer):
            place = range(self.size)[int(at)]
            return self._read(place, place + 1)[0]
        return self.whole()[at]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self.whole()
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # numpy asks for its protocols, and must not get those of an array
        return getattr(self.whole(), name)

    def __eq__(self, other: object) -> Any:
        return self.whole() == np.asarray(other)

    def whole(self) -> NDArray[Any]:
        """All elements, in memory."""
        return self._read(0, self.size)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        width = self.dtype.itemsize
        octets = self._file.stretch(self._start + start * width, self._start + stop * width)
        found = octets.view(self._stored)
        if not self._stored.isnative:
            found = found.astype(self.dtype)
            found.flags.writeable = False
        return found
