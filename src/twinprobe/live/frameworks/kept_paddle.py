"""Paddle's tensors, kept as they are noted: nothing is measured, and each is copied once at most."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import paddle

from twinprobe.live.aliases import aliases
from twinprobe.measure.gaps import address_of
from twinprobe.record.eager.host_rows import HostRows
from twinprobe.record.eager.patches import Replaced
from twinprobe.record.paddle.adapter import PaddleAdapter
from twinprobe.record.paddle.tensors import PaddleTensors
from twinprobe.record.rows import Note, Row

# Held here, because methods are replaced while a model is recorded.
_numpy = paddle.Tensor.numpy  # a copy already
_data_ptr = paddle.Tensor.data_ptr
_version = paddle.Tensor._inplace_version
_detach = paddle.Tensor.detach
_is_contiguous = paddle.Tensor.is_contiguous
_float32 = paddle.float32
_ONLY_HOST = not (
    paddle.is_compiled_with_cuda() or paddle.is_compiled_with_xpu() or paddle.device.get_all_custom_device_type()
)
_PLAIN = {paddle.float32: "paddle.float32", paddle.float64: "paddle.float64", paddle.int64: "paddle.int64"}


class KeptTensors(PaddleTensors):
    """The common tensors by a shorter way; all others as ever."""

    def __init__(self, rows: HostRows, adapter: KeepingAdapter) -> None:
        super().__init__(rows)
        self._adapter = adapter
        self.exposed = False  # memory was handed out: who has it writes unseen

    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""
        dtype = tensor.dtype
        name = "paddle.float32" if dtype is _float32 else _PLAIN.get(dtype)  # hashing one takes long
        if name is None or not save or not tensor.is_dense() or not tensor._is_initialized():
            return super().note(tensor, save=save)
        shape = tuple(tensor.shape)
        if self._adapter.recorder.passes:
            # Gradients are added up where they lie, and none is met twice as the same object: copied at once.
            copied = Row()
            if 0 not in shape:
                copied.payload = array = _numpy(tensor)
                copied.address = address_of(array)
            return Note("paddle.Tensor", name, shape, copied, not tensor.stop_gradient, save)
        stamp = _version(tensor), _data_ptr(tensor)
        row = self.find(tensor, stamp)
        if row is None:
            row = Row()
            if 0 not in shape:
                self._keep_content(tensor, tensor, stamp, row)
            self.keep(tensor, stamp, row)
        return Note("paddle.Tensor", name, shape, row, not tensor.stop_gradient, save)

    def note_sum(self, gradient: Any, *, save: bool) -> Note:
        """Note the gradient of a parameter. It becomes the parameter's, who may give its memory back."""
        if not save or gradient.dtype is not _float32 or not gradient.is_dense() or not gradient._is_initialized():
            return self.note(gradient, save=save)
        row, shape = Row(), tuple(gradient.shape)
        if 0 not in shape:
            self._keep_content(gradient, _detach(gradient), (_version(gradient), _data_ptr(gradient)), row)
        return Note("paddle.Tensor", "paddle.float32", shape, row, False, save)

    def _keep_content(self, tensor: Any, held: Any, stamp: tuple[int, int], row: Row) -> None:
        may_hold = not self.exposed and (_ONLY_HOST or tensor.place.is_cpu_place()) and _is_contiguous(tensor)
        if not (may_hold and aliases.hold(row, held, stamp[1], stamp[0], self)):
            row.payload = _numpy(tensor)

    version_of: Any = staticmethod(_version)

    def copy_of(self, tensor: Any) -> Any:
        return _numpy(tensor)

    def settle(self) -> None:
        aliases.settle()

    def trust(self) -> None:
        self.exposed = False
        super().trust()

    def distrust(self) -> None:
        # After the run, whoever runs next settles what it writes to.
        if not (aliases.allowed and not self._adapter.recorder.attached):
            self.settle()
        self.exposed = True
        super().distrust()


class KeepingAdapter(PaddleAdapter):
    """Paddle as the live recorder sees it."""

    def __init__(self, rows: HostRows) -> None:
        super().__init__(rows)
        self._tensors = kept = KeptTensors(rows, self)
        self.note: Any = kept.note  # one call less for each of thousands
        self.note_sum: Any = kept.note_sum

    def pass_hooks(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterable[Replaced]:
        passed = False

        def begins() -> None:
            nonlocal passed
            if passed:
                aliases.settle()  # a second pass adds to the gradients of the first where they lie
            passed = True
            begin()

        return super().pass_hooks(begins, end)
