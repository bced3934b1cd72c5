"""What a function does to memory, told by the function object: decided once for each, then looked up."""

from __future__ import annotations

from typing import Any

import torch

from twinprobe.record.torch.api_lists import IMPURE_NAMES

# WRITES: an argument may change, with a new version. REACHES: hands out the memory itself, to be written unseen.
# UNSEEN: arguments may change without a new version. BACKWARD: runs the gradient engine.
PLAIN, WRITES, REACHES, UNSEEN, BACKWARD = range(5)

_REACHING = frozenset({"data_ptr", "untyped_storage", "storage", "numpy", "__array__", "__dlpack__"})
_REACHING_GETTERS = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in ("data", "__cuda_array_interface__")
    if hasattr(getattr(torch.Tensor, name, None), "__get__")
)
_NOT_IN_PLACE = frozenset(
    {"__invert__", "__index__", "__int__", "__iter__", "__init__", "requires_grad_", "retain_grad"}
)


def effect_of(func: Any) -> int:
    """What calling this function means for tensors that wait to be measured."""
    if func is torch.Tensor.backward or func is torch.autograd.backward:
        return BACKWARD
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return _effect_of_operator(func)
    if getattr(func, "__module__", None) == "torch.distributed.distributed_c10d":
        return UNSEEN
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return REACHES if func in _REACHING_GETTERS else PLAIN
    if name in _REACHING:
        return REACHES
    return WRITES if writes_by_name(name) else PLAIN


def writes_by_name(name: str) -> bool:
    """Whether a function of this name changes an argument: ``add_``, ``__iadd__``, ``__setitem__``, ``batch_norm``."""
    if name in IMPURE_NAMES:
        return True
    if name in _NOT_IN_PLACE:
        return False
    if name.endswith("__"):
        return name.startswith("__i") or name == "__setitem__"
    return name.endswith("_")


def _effect_of_operator(func: Any) -> int:
    if isinstance(func, torch._ops.OpOverload):
        overloads = [func]
    else:
        overloads = [getattr(func, name) for name in func.overloads()]
    if not any(one._schema.is_mutable for one in overloads):
        return PLAIN
    return WRITES if all(one.namespace == "aten" for one in overloads) else UNSEEN


def writes_by_keyword(kwargs: Any) -> bool:
    """``out=`` and ``inplace=True``."""
    return bool(kwargs) and (kwargs.get("out") is not None or bool(kwargs.get("inplace")))
