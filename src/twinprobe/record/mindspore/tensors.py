"""MindSpore's tensors as notes. Reading one waits for the operations before it, and reports their errors."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import mindspore as ms
import numpy as np
from numpy.typing import NDArray

from twinprobe.record.eager.faults import ProgramFault
from twinprobe.record.eager.host_rows import HostRows, widened
from twinprobe.record.problems import logger
from twinprobe.record.rows import Note, Row
from twinprobe.runs.host_tensor import STORAGE

_PURGE_AT = 8192
_asnumpy = ms.Tensor.asnumpy  # held here, because the methods on the class are replaced while a program is recorded
_dtypes: dict[Any, tuple[str, str]] = {}


def dtype_names(tensor: Any) -> tuple[str, str]:
    """``Float32`` as a dump writes it and ``float32`` as the kernels call it."""
    dtype = tensor.dtype
    known = _dtypes.get(dtype)
    if known is None:
        known = _dtypes[dtype] = (str(dtype), str(dtype).lower())
    return known


class Reading:
    """Looking at a tensor, even at its dtype, waits for what makes it: an error that shows here is the program's."""

    __slots__ = ()
    _said: ClassVar[bool] = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception):
            return
        if not Reading._said:
            Reading._said = True
            logger.warning(
                "MindSpore reports an error of an operation that ran before this point (%s). It is the program's, not "
                "the recorder's: kernels run asynchronously. mindspore.runtime.launch_blocking() shows where",
                str(error).strip().partition("\n")[0],
            )
        raise ProgramFault(error) from error


class MindSporeTensors:
    """Notes tensors. MindSpore keeps no version of a tensor's content, so a row is used again only while ``reuse``
    says that every write is seen, and never for a parameter. Where a program has an array of a tensor's own memory,
    nobody sees what it writes there: no row is used again until the next step."""

    def __init__(self, rows: HostRows) -> None:
        self._rows = rows
        self._known: dict[int, tuple[weakref.ref[Any], Row]] = {}
        self.reuse = False
        self._shared = False

    def array_taken(self) -> None:
        """The program holds memory of some tensor now."""
        self._shared = True
        self._known.clear()

    def next_step(self) -> None:
        """Tensors of the last step are gone."""
        self._shared = False
        self._known.clear()

    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""
        with Reading():
            shown, name = dtype_names(tensor)
            shape = tuple(int(size) for size in tensor.shape)
        row = self._row(tensor, name, save) if name in STORAGE else None
        return Note("mindspore.Tensor", shown, shape, row, None, save)

    def forget(self) -> None:
        """Believe no row any more."""
        self._known.clear()

    def _row(self, tensor: Any, name: str, save: bool) -> Row:
        known = self._known.get(id(tensor)) if self.reuse else None
        row = known[1] if known is not None and known[0]() is tensor else None
        if row is not None and not (save and row.payload is None and row.file is None):
            return row
        array = self._read(tensor, name) if self._rows.wanted or save else None
        if row is None:
            row = Row() if array is None else self._rows.row(array, name)
            self._remember(tensor, row)
        if save and array is not None and array.size:
            row.payload = widened(array) if name == "bfloat16" else np.array(array)
        return row

    def _remember(self, tensor: Any, row: Row) -> None:
        if self.reuse and not self._shared and not isinstance(tensor, ms.Parameter):
            if len(self._known) >= _PURGE_AT:
                self._known.clear()
            self._known[id(tensor)] = (weakref.ref(tensor), row)

    def _read(self, tensor: Any, name: str) -> NDArray[Any]:
        with Reading():
            array: NDArray[Any] = _asnumpy(tensor)
        return array if array.dtype == np.dtype(STORAGE[name]) else array.view(STORAGE[name])
