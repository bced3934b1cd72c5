"""What a PyTorch function is called in a dump, and what it does to memory; looked up once per function object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from twinprobe._record.calls import CORE, IMPURE_NAMES, NEVER_NAMES, Api, rank_of

_RANDOM_FILL = frozenset({"uniform_", "normal_"})
_HIDDEN_SPACES = frozenset({"profiler", "prim", "prims", "debugprims"})
_VF_NAMES = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"})


def _namespaces() -> Iterator[tuple[str, str, Any]]:
    yield "Functional", "", functional
    yield "Tensor", "", torch.Tensor
    yield "Torch", "", torch
    for part in ("linalg", "fft", "special", "nested", "sparse"):
        yield "Torch", f"{part}.", getattr(torch, part)


class ApiTable:
    """Function object to Api, or None for what is not recorded. Answers are kept."""

    def __init__(self) -> None:
        self._known: dict[Any, Api | None] = {}
        self._homes = _homes()

    def __call__(self, func: Any) -> Api | None:
        try:
            return self._known[func]
        except KeyError:
            found = self._known[func] = self._find(func)
            return found

    def _find(self, func: Any) -> Api | None:
        if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            is_packet = isinstance(func, torch._ops.OpOverloadPacket)
            space, _, name = str(func._qualified_op_name if is_packet else func.name()).partition("::")
            kind = {"aten": "Aten", "npu": "NPU"}.get(space, space)
            return None if space in _HIDDEN_SPACES else make_api(kind, name.partition(".")[0])
        own = getattr(func, "__name__", "")
        home = self._homes.get(func)
        if home is None or own in ("__get__", "__set__", "__delete__"):
            return None
        kind, name = home
        if name in NEVER_NAMES or name.rpartition(".")[2] in NEVER_NAMES:
            is_random = kind == "Tensor" and name in _RANDOM_FILL
            return make_api(kind, name) if is_random else None
        return make_api("VF" if kind == "Torch" and name in _VF_NAMES else kind, name)


def make_api(kind: str, name: str) -> Api:
    """An Api by type and name."""
    return Api(f"{kind}.{name}.", CORE if kind == "Distributed" else rank_of(name))


def _homes() -> dict[Any, tuple[str, str]]:
    homes: dict[Any, tuple[str, str]] = {}
    for kind, prefix, space in _namespaces():
        for name in dir(space):
            if (prefix and name.startswith("_")) or (kind == "Functional" and name.startswith("_")):
                continue
            func = getattr(space, name, None)
            if not callable(func) or isinstance(func, type):
                continue
            try:
                known = homes.get(func)
            except TypeError:
                continue
            if known is None or (known[0] == kind and getattr(func, "__name__", "") == name):
                homes[func] = (kind, prefix + name)
    return homes


# What a function does to memory, told by the function object: decided once for each, then looked up.

# WRITES: an argument may change, with a new version. REACHES: hands out the memory itself, to be written unseen.
# UNSEEN: arguments may change without a new version. BACKWARD: runs the gradient engine.
PLAIN, WRITES, REACHES, UNSEEN, BACKWARD = range(5)

# Those with an underscore give a tensor another shape or other memory, without a new version.
_REACHING = frozenset(
    {
        "data_ptr", "untyped_storage", "storage", "numpy", "__array__", "__dlpack__",
        "resize_", "resize_as_", "set_",
    }
)  # fmt: skip
_REACHING_PROPERTIES = frozenset(
    method
    for name in ("data", "__cuda_array_interface__")
    if hasattr(getattr(torch.Tensor, name, None), "__get__")
    for method in (getattr(torch.Tensor, name).__get__, getattr(torch.Tensor, name).__set__)
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
    if name in {"__get__", "__set__"}:
        return REACHES if func in _REACHING_PROPERTIES else PLAIN
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
    if any(one.namespace.lstrip("_").startswith("c10d_functional") for one in overloads):
        return UNSEEN  # what it gives is written later, without a new version
    if not any(one._schema.is_mutable for one in overloads):
        return PLAIN
    return WRITES if all(one.namespace == "aten" for one in overloads) else UNSEEN


def writes_by_keyword(kwargs: Any) -> bool:
    """``out=`` and ``inplace=True``."""
    return bool(kwargs) and (kwargs.get("out") is not None or bool(kwargs.get("inplace")))
