"""Reading and writing the weights of a model, one store per framework."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Protocol, cast

from twinprobe.errors import BadInput
from twinprobe.live.weights.layouts import Array, Layout


class Store(Protocol):
    """What copying needs to know of a framework."""

    def own(self, module: Any) -> dict[str, Any]:
        """Parameters and persistent buffers that belong to the module itself, by attribute."""

    def state(self, module: Any) -> dict[str, Any]:
        """What a forward pass may change in the module itself: all buffers, and running statistics."""

    def children(self, module: Any) -> dict[str, Any]:
        """Modules directly below, by attribute."""

    def layout(self, module: Any) -> Layout | None:
        """Where a layer of a known class keeps its weights."""

    def trainable(self, tensor: Any) -> bool:
        """Whether training changes it."""

    def is_buffer(self, module: Any, name: str) -> bool:
        """Whether the attribute is a buffer that the user registered, not a parameter."""

    def key(self, tensor: Any) -> object:
        """Equal for two tensors that are the same memory."""

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The shape as plain numbers."""

    def dtype(self, tensor: Any) -> str:
        """The dtype in NumPy's words, or bfloat16."""

    def read(self, tensor: Any) -> Array:
        """The values; bfloat16 and narrower as float32, which holds them exactly."""

    def memory(self, tensor: Any, /) -> Array | None:
        """The tensor's own memory, to be written to; None where that is not possible or would go unnoticed."""

    def write(self, tensor: Any, values: Array) -> None:
        """Set the values in place, in the tensor's own dtype and on its own device."""


_BASES = {"torch": ("nn", "Module"), "paddle": ("nn", "Layer"), "mindspore": ("nn", "Cell")}


def framework_of(model: Any) -> str:
    """torch, paddle or mindspore, told from the model's class without importing anything."""
    for name, (package, base) in _BASES.items():
        loaded = getattr(sys.modules.get(name), package, None)
        if loaded is not None and isinstance(model, getattr(loaded, base)):
            return name
    raise BadInput(
        f"weights cannot be copied to or from a {type(model).__name__}",
        hint="give a torch.nn.Module, a paddle.nn.Layer or a mindspore.nn.Cell",
    )


def store_of(model: Any) -> Store:
    """The store for a model's framework."""
    module = importlib.import_module(f"twinprobe.live.weights.{framework_of(model)}_store")
    return cast(Store, module.STORE)


def submodule(store: Store, model: Any, path: str) -> Any:
    """The module at a dotted path; the empty path is the model itself."""
    found = model
    for name in path.split(".") if path else ():
        children = store.children(found)
        if name not in children:
            raise BadInput(
                f"{type(model).__name__} has no module {path!r}: {type(found).__name__} holds"
                f" {', '.join(children) or 'no modules'}, not {name!r}"
            )
        found = children[name]
    return found
