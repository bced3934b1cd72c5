"""Which tensor is which: one row per distinct content, found again by storage identity and version."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from twinprobe.record.rows import Note, Row
from twinprobe.record.torch.device import DeviceRows
from twinprobe.record.torch.host import host_digest, host_statistics
from twinprobe.record.torch.kinds import describe, measurable, plain_type
from twinprobe.record.torch.quiet import Quiet
from twinprobe.record.torch.storages import StorageNumbers

DEVICE_TYPES = {"cuda"}  # measured where they are; a test adds the host, under Triton's interpreter
_tensor_type = torch.Tensor
_parameter_type = torch.nn.Parameter
_strided = torch.strided
_functorch_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor
_HOST = torch.device("cpu")
_FREED = {"remark": "its memory was freed"}  # as sharded parameters are between their uses
_inherited: list[Any] = []
Key = tuple[Any, ...]


class TensorBook:
    """Notes tensors. A tensor already noted with the same storage, view and version gets the same row again."""

    def __init__(self, *, values: bool, digest: str | None) -> None:
        self._values = values
        self._digest = digest
        self._numbers = StorageNumbers()
        self._known_numbers = self._numbers.known
        self._notes: dict[Key, Note] = {}
        self._devices: dict[torch.device, DeviceRows] = {}
        self._lock = threading.RLock()
        self._dtypes: dict[torch.dtype, str] = {}
        self.may_wait = False

    def note(self, tensor: torch.Tensor, save: bool = False) -> Note:
        """Note one tensor as it is now. Nothing of it may be dispatched to a mode: call with torch functions off.

        What was noted before comes back as the same object: notes without a file are never changed.
        """
        kind = type(tensor)
        if (
            (kind is not _tensor_type and kind is not _parameter_type)
            or tensor.layout is not _strided
            or tensor.is_quantized
            or tensor.is_nested
            or not (tensor.is_cuda or tensor.is_cpu or measurable(tensor))
            or _functorch_wrapped(tensor)
        ):
            return self._unusual(tensor, save)
        if tensor.is_inference() or tensor.is_neg() or tensor.is_conj():  # no version, or not what memory says
            return self._fresh(tensor, tensor.shape, save, None)
        storage = tensor.untyped_storage()
        number = self._known_numbers.get(storage._cdata)
        if number is None:
            if self._numbers.many:
                self._purge()
            number = self._numbers(storage)
        shape = tensor.shape
        key = (number, tensor.storage_offset(), shape, tensor.stride(), tensor.dtype, tensor._version)
        known = self._notes.get(key)
        if known is None:
            known = self._fresh(tensor, shape, False, key[5])
            if known.row is None:
                return known
            self._notes[key] = known
        if save:
            self._keep(tensor, known.row)
        elif known.requires_grad is tensor.requires_grad:
            return known
        return Note("torch.Tensor", known.dtype, shape, known.row, tensor.requires_grad, save)

    def _fresh(self, tensor: torch.Tensor, shape: torch.Size, save: bool, version: int | None) -> Note:
        dtype = tensor.dtype
        name = self._dtypes.get(dtype)
        if name is None:
            name = self._dtypes[dtype] = str(dtype)
        if tensor._is_zerotensor():  # takes no memory
            tensor, version = torch.zeros_like(tensor.detach()), None
        elif not tensor.untyped_storage().data_ptr() and tensor.numel():
            return Note("torch.Tensor", name, shape, None, tensor.requires_grad, False, None, _FREED)
        row = Row()
        self._measure(tensor, row, version)
        if save:
            self._keep(tensor, row)
        return Note("torch.Tensor", name, shape, row, tensor.requires_grad, save)

    def _unusual(self, tensor: torch.Tensor, save: bool) -> Note:
        text, extra = describe(tensor)
        content = plain_type(tensor)
        row = None
        if content is not None and type(content) in (_tensor_type, _parameter_type) and measurable(content):
            row = self.note(content, save).row
        shape = tuple(int(size) for size in tensor.shape) if not _ragged(tensor) else ()
        return Note(text, str(tensor.dtype), shape, row, bool(tensor.requires_grad), save, None, extra)

    @staticmethod
    def _keep(tensor: torch.Tensor, row: Row | None) -> None:
        if row is not None and row.payload is None and row.file is None and tensor.numel():
            row.payload = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)

    def _measure(self, tensor: torch.Tensor, row: Row, version: int | None) -> None:
        if not tensor.numel() or not (self._values or self._digest):
            return
        if tensor.is_cuda or tensor.device.type in DEVICE_TYPES:
            self._on_device(_resolved(tensor) if version is None else tensor.detach(), row, version)
            return
        if version is None or not tensor.is_cpu:
            tensor = _resolved(tensor).to(_HOST)
        if self._values:
            row.values = host_statistics(tensor)
        if self._digest:
            row.digest = host_digest(tensor.detach(), self._digest)

    def _on_device(self, data: torch.Tensor, row: Row, version: int | None) -> None:
        with self._lock:
            device = data.device
            rows = self._devices.get(device)
            if rows is None:
                rows = self._devices[device] = DeviceRows(device, values=self._values, digest=self._digest)
            rows.add(data, row, version)
            if not self.may_wait:
                rows.launch()

    def settle(self) -> None:
        """Something is about to change memory: measure what waits, now."""
        for rows in self._devices.values():
            if rows.waiting:
                with self._lock, Quiet():
                    rows.launch()

    def forget(self) -> None:
        """Memory may have changed without a new version: believe no row any more."""
        self.settle()
        self._numbers.clear()
        self._notes = {}

    def forget_storage(self, tensor: torch.Tensor) -> None:
        """One tensor's memory may change without a new version."""
        self.settle()
        with Quiet():
            self._forget_rows_of(tensor)

    def _forget_rows_of(self, tensor: torch.Tensor) -> None:
        if type(tensor) in (torch.Tensor, _parameter_type) and tensor.layout is torch.strided:
            self._numbers.renumber(tensor.untyped_storage())

    @property
    def deferred(self) -> bool:
        """Whether results are still on a device."""
        return bool(self._devices)

    def collect(self) -> Callable[[], None] | None:
        """End of a stretch: forget everything; returns the job that fills rows from the device."""
        self.forget()
        with self._lock, Quiet():
            jobs = [rows.collect() for rows in self._devices.values()]

        def fill() -> None:
            for job in jobs:
                job()

        return fill if jobs else None

    def let_go(self) -> None:
        """This process is a forked child: what waits for a device belongs to the parent, and nothing may free it."""
        _inherited.append(self._devices)
        self._devices = {}
        self._lock = threading.RLock()

    def _purge(self) -> None:
        standing = self._numbers.purge()
        self._notes = {key: note for key, note in self._notes.items() if key[0] in standing}


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The values as the program sees them; memory may hold their negatives or conjugates."""
    return tensor.detach().resolve_conj().resolve_neg()


def _ragged(tensor: torch.Tensor) -> bool:
    return bool(getattr(tensor, "is_nested", False))
