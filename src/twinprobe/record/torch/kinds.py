"""Kinds of tensors: what each is called in a dump, and which plain tensor holds its values, if one does."""

from __future__ import annotations

from typing import Any

import torch

_PLAIN_DEVICES = frozenset({"cpu", "cuda", "mps", "npu", "xpu", "hpu"})


def measurable(tensor: torch.Tensor) -> bool:
    """Whether the values can be read straight from memory."""
    if tensor.layout is not torch.strided or tensor.device.type not in _PLAIN_DEVICES:
        return False
    return not (tensor.is_quantized or _functorch_level(tensor) or tensor.is_nested)


def describe(tensor: torch.Tensor) -> tuple[str, dict[str, Any] | None]:
    """The type text of an unusual tensor and its extra fields."""
    if _functorch_level(tensor):
        batched = torch._C._functorch.is_batchedtensor(tensor)
        return ("BatchedTensor" if batched else "GradTrackingTensor"), None
    kind = type(tensor)
    if kind.__name__ == "DTensor":
        return "torch.distributed.tensor.DTensor", _layout_of(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return "torch.Tensor", None
    if kind.__module__.startswith("torch.") and kind.__name__ in {
        "FakeTensor",
        "AsyncCollectiveTensor",
        "NestedTensor",
    }:
        return f"{kind.__module__}.{kind.__name__}", None
    return "torch.Tensor", None


def plain_type(tensor: torch.Tensor) -> torch.Tensor | None:  # noqa: PLR0911
    """The plain tensor that holds an unusual tensor's values; None when there are none to read."""
    if _functorch_level(tensor):
        return None
    name = type(tensor).__name__
    if name == "FakeTensor" or tensor.device.type == "meta":
        return None
    if name == "DTensor":
        local = tensor.to_local()
        return local if type(local) is torch.Tensor else plain_type(local)
    if name == "AsyncCollectiveTensor":
        return None  # reading it would wait for the collective
    with torch.no_grad():
        if tensor.is_quantized:
            return tensor.dequantize()
        if tensor.is_nested:
            return tensor.values() if tensor.layout is torch.jagged else None
        if tensor.layout is torch.sparse_coo:
            return tensor._values()
        if tensor.layout is not torch.strided:
            return tensor.values() if hasattr(tensor, "values") else None
        plain = tensor.as_subclass(torch.Tensor)
    return plain if measurable(plain) and _has_memory(plain) else None


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.data_ptr()) or not tensor.numel()
    except RuntimeError:
        return False


def _functorch_level(tensor: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _layout_of(tensor: Any) -> dict[str, Any]:
    placements = []
    for placement in tensor.placements:
        if placement.is_shard():
            placements.append({"Shard": {"dim": placement.dim}})
        elif placement.is_replicate():
            placements.append({"Replicate": {}})
        else:
            placements.append({"Partial": {"reduce_op": str(getattr(placement, "reduce_op", "sum"))}})
    return {"device_mesh": tensor.device_mesh.mesh.tolist(), "placements": placements}
