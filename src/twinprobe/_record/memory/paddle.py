"""Paddle's tensors, kept as they are noted: nothing is measured, and each is copied once at most."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import paddle

from twinprobe._measure.elements import address_of, same_bytes
from twinprobe._record.eager.apis import Replaced
from twinprobe._record.eager.host_rows import HostRows
from twinprobe._record.entries import Note, Row
from twinprobe._record.memory.engine import Holding, aliases
from twinprobe._record.paddle.framework import PaddleTensors
from twinprobe._record.paddle.recorder import PaddleRecorder

# Held here, because methods are replaced while a model is recorded.
_numpy = paddle.Tensor.numpy  # a copy already
_data_ptr = paddle.Tensor.data_ptr
_version = paddle.Tensor._inplace_version
_is_contiguous = paddle.Tensor.is_contiguous
_float32 = paddle.float32
ONLY_HOST = not (
    paddle.is_compiled_with_cuda() or paddle.is_compiled_with_xpu() or paddle.device.get_all_custom_device_type()
)
_PLAIN = {paddle.float32: "paddle.float32", paddle.float64: "paddle.float64", paddle.int64: "paddle.int64"}

Copied = tuple[int, np.ndarray, Row]  # where a gradient lay, its copy, and what has that
_NOTHING: Copied = 0, np.empty(0, np.float32), Row()


def _lies_open(tensor: Any) -> bool:
    """Whether it lies in host memory, dense and in C order."""
    return (ONLY_HOST or tensor.place.is_cpu_place()) and bool(_is_contiguous(tensor))


class KeptTensors(PaddleTensors):
    """Common tensors take a shorter way; all others are noted as in the base class.

    All are held until the run is over, so that nothing else can get the identity of one that is gone.
    """

    def __init__(self, rows: HostRows, recorder: KeepingRecorder) -> None:
        super().__init__(rows)
        self._recorder = recorder
        self._held: dict[int, Holding] = {}
        self._last = _NOTHING
        self.exposed = False  # memory was exposed: writes to it cannot be observed

    def note(self, tensor: Any, *, save: bool) -> Note:
        """Note one tensor as it is now."""
        held = self._held.get(id(tensor))
        if held is not None and held[2] == _version(tensor) and held[0].requires_grad is not tensor.stop_gradient:
            return held[0]
        dtype = tensor.dtype
        name = "paddle.float32" if dtype is _float32 else _PLAIN.get(dtype)  # hashing one takes long
        if name is None or not save or not tensor.is_dense() or not tensor._is_initialized():
            return super().note(tensor, save=save)
        shape = tuple(tensor.shape)
        if self._recorder.passes:
            # Gradients are added up where they lie, and none is met twice as the same object: copied at once.
            row = self._copied(tensor, shape)
            return Note("paddle.Tensor", name, shape, row, not tensor.stop_gradient, save)
        row = Row(None, None, tensor, _data_ptr(tensor) if dtype is _float32 else 0)
        note = Note("paddle.Tensor", name, shape, row, not tensor.stop_gradient, save)
        held = note, tensor, _version(tensor), self
        if self.exposed or 0 in shape or not _lies_open(tensor) or not aliases.hold(held):
            row.address = 0
            row.payload = _numpy(tensor) if 0 not in shape else None
        if self._trusted:
            self._held[id(tensor)] = held
        return note

    def note_sum(self, gradient: Any, *, save: bool) -> Note:
        """Note the gradient of a parameter, which may free its memory."""
        note = self.note(gradient, save=save)
        if note.row is not None and note.row.payload is gradient:
            aliases.mark_foreign(_data_ptr(gradient))
        return note

    def _copied(self, gradient: Any, shape: tuple[int, ...]) -> Row:
        """A copy, shared where a layer gets the very gradient that the layer behind it has just passed on."""
        plain = gradient.dtype is _float32 and _lies_open(gradient)
        address, array, row = self._last
        same_place = plain and array.shape == shape and _data_ptr(gradient) == address
        if same_place and same_bytes(address, row.address, array.nbytes):  # nothing was added to it since
            return row
        row = Row()
        if 0 not in shape:
            row.payload = array = _numpy(gradient)
            if plain:
                row.address = address_of(array)
                self._last = _data_ptr(gradient), array, row
        return row

    version_of: Any = staticmethod(_version)

    def copy_of(self, tensor: Any) -> Any:
        return _numpy(tensor)

    def settle(self) -> None:
        aliases.settle()

    def forget(self) -> None:
        self._held.clear()
        self._last = _NOTHING
        super().forget()

    def trust(self) -> None:
        self.exposed = False
        super().trust()

    def distrust(self) -> None:
        # After the run, the next run settles what it writes to.
        if not (aliases.allowed and not self._recorder.attached):
            self.settle()
        self.exposed = True
        super().distrust()


class KeepingRecorder(PaddleRecorder):
    """The recorder as live comparison uses it."""

    def make_cache(self, rows: HostRows) -> KeptTensors:
        return KeptTensors(rows, self)

    def pass_hooks(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterable[Replaced]:
        passed = False

        def begins() -> None:
            nonlocal passed
            if passed:
                aliases.settle()  # a second pass adds to the gradients of the first where they lie
            passed = True
            begin()

        return super().pass_hooks(begins, end)
