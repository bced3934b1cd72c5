"""MindSpore's tensors as notes. Reading one waits for the operations before it, and reports their errors."""

from __future__ import annotations

from collections.abc import Hashable
from importlib import import_module
from typing import Any, ClassVar

import mindspore as ms
import numpy as np
from numpy.typing import NDArray

from twinprobe._record.eager.host_rows import ProgramFault, RowCache
from twinprobe._record.entries import Note, Row, logger
from twinprobe._runs.dtypes import STORAGE

_asnumpy = ms.Tensor.asnumpy  # held here, because the methods on the class are replaced while a program is recorded
_data_ptr = getattr(ms.Tensor, "data_ptr", None)
_COUNTS = hasattr(ms.Tensor, "_version")
_dtypes: dict[Any, tuple[str, str]] = {}


def dtype_names(tensor: Any) -> tuple[str, str]:
    """``Float32`` as a dump writes it and ``float32`` as the kernels call it."""
    dtype = tensor.dtype
    names = _dtypes.get(dtype)
    if names is None:
        names = _dtypes[dtype] = (str(dtype), str(dtype).lower())
    return names


class Reading:
    """Reading a tensor, even its dtype, waits for the operation that makes it: an error here is the program's."""

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


class MindSporeTensors(RowCache):
    """Notes tensors. One that is as it was gets the same row again, unless it is a parameter."""

    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""
        with Reading():
            shown, name = dtype_names(tensor)
            shape = tuple(tensor.shape)
            # What MindSpore itself knows of writes: it counts some, and an exchange of the memory shows in the address.
            stamp = (tensor._version if _COUNTS else 0, _data_ptr(tensor) if _data_ptr is not None else 0)
        row = self.row_of(tensor, tensor, name, stamp, save) if name in STORAGE else None
        return Note("mindspore.Tensor", shown, shape, row, None, save)

    def keep(self, tensor: Any, stamp: Hashable, row: Row) -> None:
        if not isinstance(tensor, ms.Parameter):
            super().keep(tensor, stamp, row)

    def read(self, content: Any, name: str) -> NDArray[Any]:
        with Reading():
            array: NDArray[Any] = _asnumpy(content)
        return array if array.dtype == np.dtype(STORAGE[name]) else array.view(STORAGE[name])


def memory_of(tensor: Any) -> tuple[int, tuple[int, ...]]:
    """The address and the strides, in elements, of a tensor that has been computed."""
    with Reading():
        _asnumpy(tensor)  # waits
        return int(tensor.data_ptr()), tuple(tensor.stride())


# Names that moved between MindSpore versions, found once.


def first_of(*places: str) -> Any:
    """The first of these ``module:name`` that exists; None if none does."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            value = getattr(import_module(module), name, None)
        except ImportError:
            continue
        if value is not None:
            return value
    return None


executor = first_of("mindspore.graph.api:_pynative_executor", "mindspore.common.api:_pynative_executor")
JitExecutor = first_of(
    "mindspore.graph.api:_JitExecutor",
    "mindspore.common.api:_JitExecutor",
    "mindspore.common.api:_MindsporeFunctionExecutor",
)
GraphExecutor = first_of("mindspore.graph.api:_CellGraphExecutor", "mindspore.common.api:_CellGraphExecutor")
