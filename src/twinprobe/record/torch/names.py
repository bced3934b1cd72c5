"""What a function is called in a dump, and how much its calls matter; looked up once per function object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from twinprobe.record.torch.api_lists import CORE_NAMES, IMPURE_NAMES, LOW_NAMES, MINOR_NAMES, NEVER_NAMES

CORE, FOCUS, LOW, MINOR = 0, 1, 2, 3

_RANDOM_FILL = frozenset({"uniform_", "normal_"})
_HIDDEN_SPACES = frozenset({"profiler", "prim", "prims", "debugprims"})
_VF_NAMES = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"})


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """A function that is recorded: ``Functional`` and ``linear``, how much it matters, what it does to memory."""

    type: str
    name: str
    rank: int
    in_place: bool
    prefix: str


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

    def add(self, func: Any, api: Api) -> None:
        """Record a function that the table would not know by itself."""
        self._known[func] = api

    def knows(self, func: Any) -> bool:
        return self._known.get(func) is not None

    def _find(self, func: Any) -> Api | None:
        if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            space, _, name = _qualified(func).partition("::")
            return None if space in _HIDDEN_SPACES else make_api(_space_name(space), name.partition(".")[0])
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
    bare = name.rpartition(".")[2]
    if name in CORE_NAMES or kind == "Distributed":
        rank = CORE
    elif bare in LOW_NAMES:
        rank = LOW
    elif bare in MINOR_NAMES:
        rank = MINOR
    else:
        rank = FOCUS
    in_place = (bare.endswith("_") and not bare.endswith("__")) or bare == "__setitem__" or bare.startswith("__i")
    in_place = (in_place and bare not in {"__invert__", "__index__"}) or bare in IMPURE_NAMES
    return Api(kind, name, rank, in_place, f"{kind}.{name}.")


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


def _space_name(space: str) -> str:
    return {"aten": "Aten", "npu": "NPU"}.get(space, space)


def _qualified(func: Any) -> str:
    if isinstance(func, torch._ops.OpOverloadPacket):
        return str(func._qualified_op_name)
    return str(func.name())
