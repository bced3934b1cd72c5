"""Tensors in host memory to rows: statistics and checksum in one pass each, and once per content."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.sketch import measured
from twinprobe._measure.statistics import crc32, statistics, xor64
from twinprobe._record.entries import KERNELS_AFTER, Note, Row, load_kernels_beside
from twinprobe._runs.dtypes import STORAGE, widened
from twinprobe._runs.tensors.elements import HostTensor


class ProgramFault(Exception):
    """Reading a tensor raised what an operation of the program had left behind. ``error`` belongs to the program."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class HostRows:
    """Measures arrays. ``values`` and ``digest`` say what the summary mode asks for."""

    def __init__(self, *, values: bool, digest: str | None, sketch: bool = False) -> None:
        self._values = values
        self._sketch = sketch
        self._digest = digest
        self._measured = 0
        self.widens = False  # checksums of bfloat16 are taken of float32 bytes

    @property
    def wanted(self) -> bool:
        """Whether anything at all is measured."""
        return self._values or self._digest is not None

    def row(self, array: NDArray[Any], dtype: str) -> Row:
        """Measure an array of storage elements; ``dtype`` says what they mean."""
        row = Row()
        if not array.size or dtype not in STORAGE or not self.wanted:
            return row
        self._measured += 1
        if self._measured == KERNELS_AFTER:
            load_kernels_beside()
        flat = np.ascontiguousarray(array).reshape(-1)
        host = HostTensor(dtype, tuple(array.shape), flat)
        if self._sketch:
            row.values, row.sketch = measured(host)
        elif self._values:
            row.values = statistics(host)
        if self._digest:
            if self.widens and dtype == "bfloat16":
                host = HostTensor("float32", host.shape, widened(host.data))
            row.digest = crc32(host) if self._digest == "md5" else xor64(host)
        return row

    def array_note(self, array: NDArray[Any], *, save: bool) -> Note:
        """The note of a NumPy array among the arguments."""
        measurable = array.dtype.kind in "biufc" and array.dtype.name in STORAGE
        row = self.row(array, array.dtype.name) if measurable else Row()
        if save and measurable and array.size:
            row.payload = array.copy()
        return Note("numpy.ndarray", str(array.dtype), tuple(array.shape), row, None, save)


_PURGE_AT = 8192


class RowCache(ABC):
    """Notes tensors. One that was measured in this step gets the same row again while nothing can have written to it.

    No framework counts every write: MindSpore's own version misses assignments to elements and primitives, Paddle's
    misses ``set_value``, ``copy_``, the optimisers and the running statistics of a normalisation. So a row is reused
    only while all functions that write are watched, and each call of one of them discards all rows.
    """

    def __init__(self, measures: HostRows) -> None:
        self._measures = measures
        # By the id of a tensor: the tensor, what the framework itself can tell (version and address), its row.
        self._rows: dict[int, tuple[weakref.ref[Any], Hashable, Row]] = {}
        self._trusted = False

    @abstractmethod
    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""

    def note_sum(self, gradient: Any, *, save: bool) -> Note:
        """Note the gradient of a parameter, summed up over its uses: nothing more is added to it in this pass."""
        return self.note(gradient, save=save)

    @abstractmethod
    def read(self, content: Any, name: str) -> NDArray[Any] | None:
        """The storage elements of a dense tensor; bfloat16 comes as its bits. None where there is nothing to read."""

    def row_of(self, tensor: Any, content: Any, name: str, stamp: Hashable, save: bool) -> Row:
        """The row of a tensor, whose values are in ``content``; with its real values where they are to be saved."""
        cached = self._rows.get(id(tensor))
        row = cached[2] if cached is not None and cached[0]() is tensor and cached[1] == stamp else None
        if row is not None and not (save and row.payload is None and not (row.file or row.summary)):
            return row
        array = self.read(content, name) if self._measures.wanted or save else None
        if row is None:
            row = Row() if array is None else self._measures.row(array, name)
            self.keep(tensor, stamp, row)
        if save and array is not None and array.size:
            row.payload = widened(array) if name == "bfloat16" else np.array(array)
        return row

    def trust(self) -> None:
        """All functions that write are watched from here on."""
        self.forget()
        self._trusted = True

    def distrust(self) -> None:
        """Writes may go unseen: use nothing again until trust()."""
        self._trusted = False
        self.forget()

    def settle(self) -> None:  # noqa: B027  these are measured at once
        """Something is about to be written; for rows that are not measured yet."""

    def forget(self) -> None:
        """Something may have been written."""
        self._rows.clear()

    def keep(self, tensor: Any, stamp: Hashable, row: Row) -> None:
        """Remember a row."""
        if self._trusted:
            if len(self._rows) >= _PURGE_AT:
                self._rows.clear()
            self._rows[id(tensor)] = (weakref.ref(tensor), stamp, row)
