"""A host array to the row of a tensor: statistics and checksum, each in one pass."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.engine import KERNEL_BYTES, engine_for
from twinprobe._measure.statistics import crc32, statistics, xor64
from twinprobe._record.rows import Note, Row
from twinprobe._runs.dtypes import STORAGE, widened
from twinprobe._runs.tensors.elements import HostTensor

_KERNELS_AFTER = 256


class HostRows:
    """Measures arrays. ``values`` and ``digest`` say what the summary mode asks for."""

    def __init__(self, *, values: bool, digest: str | None) -> None:
        self._values = values
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
        self._count_towards_kernels()
        flat = np.ascontiguousarray(array).reshape(-1)
        host = HostTensor(dtype, tuple(array.shape), flat)
        if self._values:
            row.values = statistics(host)
        if self._digest:
            row.digest = self._checksum(host)
        return row

    def _count_towards_kernels(self) -> None:
        """Compiled kernels pay by the number of tensors too, not only by bytes: load them beside the training."""
        self._measured += 1
        if self._measured == _KERNELS_AFTER:
            with suppress(RuntimeError):  # the system may allow no more threads
                threading.Thread(target=_load_kernels, name="twinprobe-kernels", daemon=True).start()

    def _checksum(self, host: HostTensor) -> str | float | None:
        if self.widens and host.dtype == "bfloat16":
            host = HostTensor("float32", host.shape, widened(host.data))
        return crc32(host) if self._digest == "md5" else xor64(host)

    def array_note(self, array: NDArray[Any], *, save: bool) -> Note:
        """The note of a NumPy array among the arguments."""
        measurable = array.dtype.kind in "biufc" and array.dtype.name in STORAGE
        row = self.row(array, array.dtype.name) if measurable else Row()
        if save and measurable and array.size:
            row.payload = array.copy()
        return Note("numpy.ndarray", str(array.dtype), tuple(array.shape), row, None, save)


def _load_kernels() -> None:
    engine = engine_for(KERNEL_BYTES)
    statistics(HostTensor("float32", (64,), np.ones(64, dtype=np.float32)), engine=engine)


def save_array(payload: Any, stream: Any) -> None:
    """Write a host copy as .npy."""
    np.save(stream, payload, allow_pickle=False)


# Rows of tensors that were measured in this step, used again while nothing can have written to them.
#
# No framework counts every write: MindSpore's own version misses assignments to elements and primitives, Paddle's
# misses ``set_value``, ``copy_``, the optimisers and the running statistics of a normalisation. So a row is believed
# only while the functions that write are watched, and every one of them makes all rows forgotten.

_PURGE_AT = 8192


class KnownRows:
    """Rows by tensor object, for the class that notes tensors. ``stamp`` is what the framework itself can tell: version
    and address."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[weakref.ref[Any], Hashable, Row]] = {}
        self._trusted = False

    def trust(self) -> None:
        """All functions that write are watched from here on."""
        self.forget()
        self._trusted = True

    def distrust(self) -> None:
        """Writes may go unseen: use nothing again until trust()."""
        self._trusted = False
        self.forget()

    def settle(self) -> None:
        """Something is about to be written; for rows that are not measured yet."""

    def forget(self) -> None:
        """Something may have been written."""
        self._rows.clear()

    def find(self, tensor: Any, stamp: Hashable) -> Row | None:
        """The row of this very tensor, if it is as it was."""
        known = self._rows.get(id(tensor))
        return known[2] if known is not None and known[0]() is tensor and known[1] == stamp else None

    def keep(self, tensor: Any, stamp: Hashable, row: Row) -> None:
        """Remember a row."""
        if self._trusted:
            if len(self._rows) >= _PURGE_AT:
                self._rows.clear()
            self._rows[id(tensor)] = (weakref.ref(tensor), stamp, row)
