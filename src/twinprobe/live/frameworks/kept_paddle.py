"""Paddle's tensors, kept as they are noted: nothing is measured, and each is copied once."""

from __future__ import annotations

from typing import Any

import paddle

from twinprobe.record.eager.host_rows import HostRows
from twinprobe.record.paddle.adapter import PaddleAdapter
from twinprobe.record.paddle.tensors import PaddleTensors
from twinprobe.record.rows import Note, Row

# Held here, because methods are replaced while a model is recorded.
_numpy = paddle.Tensor.numpy  # a copy already
_data_ptr = paddle.Tensor.data_ptr
_PLAIN = {paddle.float32: "paddle.float32", paddle.float64: "paddle.float64", paddle.int64: "paddle.int64"}


class KeptTensors(PaddleTensors):
    """The common tensors by a shorter way; all others as ever."""

    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""
        name = _PLAIN.get(tensor.dtype)
        if name is None or not save or not tensor.is_dense() or not tensor._is_initialized():
            return super().note(tensor, save=save)
        stamp = tensor.inplace_version, _data_ptr(tensor)
        row = self.find(tensor, stamp)
        if row is None:
            row = Row()
            array = _numpy(tensor)
            row.payload = array if array.size else None
            self.keep(tensor, stamp, row)
        return Note("paddle.Tensor", name, tuple(tensor.shape), row, not tensor.stop_gradient, save)


class KeepingAdapter(PaddleAdapter):
    """Paddle as the live recorder sees it."""

    def __init__(self, rows: HostRows) -> None:
        super().__init__(rows)
        self._tensors = KeptTensors(rows)
