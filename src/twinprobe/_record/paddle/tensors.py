"""Paddle's tensors as notes: read from host memory without a copy where it allows that, measured once per content."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from twinprobe._record.eager.host_rows import HostRows, KnownRows
from twinprobe._record.rows import Note, Row
from twinprobe._runs.dtypes import NATIVE, STORAGE, widened

_ZERO_COPY = 1 << 14  # elements; below, a copy is cheaper than the exchange protocol
# Held here, because the methods on the class are replaced while a program is recorded.
_numpy = paddle.Tensor.numpy
_detach = paddle.Tensor.detach
_data_ptr = paddle.Tensor.data_ptr
_dlpack = getattr(paddle.Tensor, "__dlpack__", None)  # younger than the rest
_dlpack_device = getattr(paddle.Tensor, "__dlpack_device__", None)


class _Exchange:
    """What numpy.from_dlpack asks for, answered by the original methods."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        assert _dlpack is not None
        return _dlpack(self._tensor)

    def __dlpack_device__(self) -> Any:
        assert _dlpack_device is not None
        return _dlpack_device(self._tensor)


_names: dict[Any, str] = {}


def dtype_name(tensor: Any) -> str:
    """``float32`` for paddle.float32."""
    dtype = tensor.dtype
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = str(dtype).rpartition(".")[2]
    return name


def host_array(tensor: Any, name: str) -> NDArray[Any] | None:
    """The storage elements of a dense tensor; bfloat16 comes as its bits. None where there is nothing to read."""
    if not tensor._is_initialized() or name not in STORAGE:
        return None
    big = _dlpack is not None and prod(tensor.shape) >= _ZERO_COPY
    if big and name in NATIVE and name != "bool" and tensor.place.is_cpu_place():
        return np.from_dlpack(_Exchange(_detach(tensor)))
    array: NDArray[Any] = _numpy(tensor)
    return array if array.dtype == np.dtype(STORAGE[name]) else array.view(STORAGE[name])


class PaddleTensors(KnownRows):
    """Notes tensors. One that is as it was gets the same row again."""

    def __init__(self, rows: HostRows) -> None:
        super().__init__()
        self._measures = rows

    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""
        name = dtype_name(tensor)
        content, extra = _dense(tensor)
        row = self._row(tensor, content, name, save) if content is not None else None
        shape = tuple(int(size) for size in tensor.shape)
        return Note("paddle.Tensor", f"paddle.{name}", shape, row, not tensor.stop_gradient, save, None, extra)

    def _row(self, tensor: Any, content: Any, name: str, save: bool) -> Row:
        stamp = (tensor.inplace_version, _data_ptr(content) if content._is_initialized() else 0)
        row = self.find(tensor, stamp)
        if row is not None and not (save and row.payload is None and row.file is None):
            return row
        array = host_array(content, name) if self._measures.wanted or save else None
        if row is None:
            row = Row() if array is None else self._measures.row(array, name)
            self.keep(tensor, stamp, row)
        if save and array is not None and array.size:
            row.payload = widened(array) if name == "bfloat16" else np.array(array)
        return row


def _dense(tensor: Any) -> tuple[Any, dict[str, Any] | None]:
    """The dense tensor that holds the values: the local part of a distributed one, the values of a sparse one."""
    if tensor.is_dense():
        return tensor, None
    if tensor.is_dist():
        local = tensor._local_value()
        return local, {"placements": str(tensor.placements)}
    if tensor.is_sparse():
        return tensor.values(), {"sparse": True}
    return None, {"selected_rows": True}
