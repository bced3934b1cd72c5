"""Paddle's tensors as notes: read from host memory without a copy where it allows that, measured once per content."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from twinprobe._record.eager.host_rows import RowCache
from twinprobe._record.entries import Note
from twinprobe._runs.dtypes import NATIVE, STORAGE, dtype_name

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


class PaddleTensors(RowCache):
    """Notes tensors. One that is as it was gets the same row again."""

    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""
        name = dtype_name(tensor.dtype)
        content, extra = _dense(tensor)
        row = None
        if content is not None:
            stamp = (tensor.inplace_version, _data_ptr(content) if content._is_initialized() else 0)
            row = self.row_of(tensor, content, name, stamp, save)
        shape = tuple(int(size) for size in tensor.shape)
        return Note("paddle.Tensor", f"paddle.{name}", shape, row, not tensor.stop_gradient, save, None, extra)

    def read(self, content: Any, name: str) -> NDArray[Any] | None:
        if not content._is_initialized() or name not in STORAGE:
            return None
        big = _dlpack is not None and prod(content.shape) >= _ZERO_COPY
        if big and name in NATIVE and name != "bool" and content.place.is_cpu_place():
            return np.from_dlpack(_Exchange(_detach(content)))
        array: NDArray[Any] = _numpy(content)
        return array if array.dtype == np.dtype(STORAGE[name]) else array.view(STORAGE[name])


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
