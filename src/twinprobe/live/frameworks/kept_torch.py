"""PyTorch's tensors, kept as they are noted: nothing is measured, and a tensor that is met again is known at once."""

from __future__ import annotations

from typing import Any

import torch

from twinprobe.record.rows import Note, Row
from twinprobe.record.torch.tensors import TensorBook

_strided = torch.strided
_contiguous = torch.contiguous_format
_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor


class KeptTensors(TensorBook):
    """A copy of every tensor, made once for each version of it. The tensors are held until the run is over, so that
    nothing else can get the identity of one that is gone."""

    def __init__(self) -> None:
        super().__init__(values=False, digest=None)
        self._held: dict[int, tuple[torch.Tensor, int, Note]] = {}
        self._names: dict[torch.dtype, str] = {}

    def keep(self, tensor: torch.Tensor) -> Note:
        """Note a plain tensor or parameter and keep its content."""
        held = self._held.get(id(tensor))
        if held is not None and held[1] == tensor._version and held[2].requires_grad is tensor.requires_grad:
            return held[2]
        if not tensor.is_cpu or tensor.layout is not _strided or tensor.is_inference() or _is_odd(tensor):
            return self.note(tensor, save=True)
        dtype = tensor.dtype
        name = self._names.get(dtype)
        if name is None:
            name = self._names[dtype] = str(dtype)
        row = Row()
        if tensor.numel():
            row.payload = tensor.detach().clone(memory_format=_contiguous)
        note = Note("torch.Tensor", name, tensor.shape, row, tensor.requires_grad, True)
        self._held[id(tensor)] = tensor, tensor._version, note
        return note

    def forget(self) -> None:
        self._held.clear()
        super().forget()

    def forget_storage(self, tensor: torch.Tensor) -> None:
        self._held.clear()
        super().forget_storage(tensor)


def _is_odd(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_neg() or tensor.is_conj() or tensor.is_quantized or tensor.is_nested or _wrapped(tensor))
