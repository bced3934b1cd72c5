"""Which tensor is which: one row per distinct content, found again by storage identity and version."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from twinprobe.record.rows import Note, Row
from twinprobe.record.torch.device import DeviceRows
from twinprobe.record.torch.host import host_digest, host_statistics
from twinprobe.record.torch.kinds import describe, measurable, plain_type
from twinprobe.record.torch.quiet import Quiet

DEVICE_TYPES = {"cuda"}  # measured where they are; a test adds the host, under Triton's interpreter
_PURGE_AT = 8192
_parameter_type = torch.nn.Parameter
Key = tuple[Any, ...]


class TensorBook:
    """Notes tensors. A tensor already noted with the same storage, view and version gets the same row again.

    Storages are told apart by a live weak reference, never by address: freed addresses come back.
    """

    def __init__(self, *, values: bool, digest: str | None) -> None:
        self._values = values
        self._digest = digest
        self._storages: dict[int, tuple[StorageWeakRef, dict[Key, Row]]] = {}
        self._devices: dict[torch.device, DeviceRows] = {}
        self._lock = threading.RLock()
        self._dtypes: dict[torch.dtype, str] = {}
        self.may_wait = False

    def note(self, tensor: torch.Tensor, *, save: bool = False) -> Note:
        """Note one tensor as it is now. Nothing of it may be dispatched to a mode: call with torch functions off."""
        kind = type(tensor)
        if kind is not torch.Tensor and kind is not _parameter_type:
            return self._unusual(tensor, save)
        if not measurable(tensor):
            return self._unusual(tensor, save)
        dtype = tensor.dtype
        name = self._dtypes.get(dtype)
        if name is None:
            name = self._dtypes[dtype] = str(dtype)
        row = self._row(tensor, save)
        return Note("torch.Tensor", name, tuple(tensor.shape), row, tensor.requires_grad, save)

    def _unusual(self, tensor: torch.Tensor, save: bool) -> Note:
        text, extra = describe(tensor)
        row = None
        content = plain_type(tensor)
        if content is not None:
            row = self._row(content, save)
        shape = tuple(int(size) for size in tensor.shape) if not _ragged(tensor) else ()
        return Note(text, str(tensor.dtype), shape, row, bool(tensor.requires_grad), save, None, extra)

    def _row(self, tensor: torch.Tensor, save: bool) -> Row:
        if tensor.is_inference():  # has no version: every sight counts as new
            row = Row()
            self._measure(tensor, row, None)
        else:
            known = self._known_rows(tensor)
            version = tensor._version
            odd = tensor.is_conj() or tensor.is_neg()
            key = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, version, odd)
            found = known.get(key)
            if found is None:
                row = Row()
                self._measure(tensor, row, version)
                known[key] = row
            else:
                row = found
        if save and row.payload is None and row.file is None and tensor.numel():
            row.payload = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return row

    def _known_rows(self, tensor: torch.Tensor) -> dict[Key, Row]:
        storage = tensor.untyped_storage()
        identity = storage._cdata
        known = self._storages.get(identity)
        if known is None:
            if len(self._storages) >= _PURGE_AT:
                self._purge()
            known = self._storages[identity] = (StorageWeakRef(storage), {})
        return known[1]

    def _measure(self, tensor: torch.Tensor, row: Row, version: int | None) -> None:
        if not tensor.numel() or not (self._values or self._digest):
            return
        data = tensor.detach()
        if data.is_conj() or data.is_neg():
            data, version = data.resolve_conj().resolve_neg(), None
        if data.device.type in DEVICE_TYPES:
            self._on_device(data, row, version)
            return
        if data.device.type != "cpu":
            data = data.to("cpu")
        if self._values:
            row.values = host_statistics(data)
        if self._digest:
            row.digest = host_digest(data, self._digest)

    def _on_device(self, data: torch.Tensor, row: Row, version: int | None) -> None:
        with self._lock:
            rows = self._devices.get(data.device)
            if rows is None:
                rows = self._devices[data.device] = DeviceRows(data.device, values=self._values, digest=self._digest)
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
        self._storages = {}

    def forget_storage(self, tensor: torch.Tensor) -> None:
        """One tensor's memory may change without a new version."""
        self.settle()
        with Quiet():
            self._forget_rows_of(tensor)

    def _forget_rows_of(self, tensor: torch.Tensor) -> None:
        if type(tensor) in (torch.Tensor, _parameter_type) and tensor.layout is torch.strided:
            self._storages.pop(tensor.untyped_storage()._cdata, None)

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

    def _purge(self) -> None:
        self._storages = {at: known for at, known in self._storages.items() if not known[0].expired()}
        if len(self._storages) >= _PURGE_AT:
            self._storages.clear()


def _ragged(tensor: torch.Tensor) -> bool:
    return bool(getattr(tensor, "is_nested", False))
