"""A layer as copying sees it: named weights, each with its tensor and the view that brings it to the common form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from twinprobe._live.frameworks.adapter import adapter_of
from twinprobe._live.frameworks.layouts import AS_IS, Layout, View, separate_attention
from twinprobe.errors import BadInput

# What the frameworks call the same thing in layers that users write themselves.
_ALIASES = {
    "gamma": "weight", "scale": "weight", "embedding_table": "weight", "_weight": "weight", "w": "weight",
    "beta": "bias", "shift": "bias",
    "moving_mean": "running mean", "running_mean": "running mean", "_mean": "running mean",
    "moving_variance": "running variance", "running_var": "running variance", "_variance": "running variance",
}  # fmt: skip


@dataclass(slots=True)
class StoredTensor:
    """One parameter or buffer of a model."""

    name: str
    tensor: Any = field(compare=False)
    shape: tuple[int, ...]
    key: object
    trainable: bool
    is_buffer: bool

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape)}"


@dataclass(slots=True)
class Slot:
    """One weight of a layer in the common form."""

    name: str
    held: StoredTensor
    view: View = AS_IS
    neutral: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape(self.held.shape)

    @property
    def alias(self) -> str:
        return _ALIASES.get(self.name, self.name)

    @property
    def seen(self) -> tuple[object, View]:
        """Equal for two slots that are the same memory seen in the same way."""
        return self.held.key, self.view


@dataclass
class Layer:
    """One side of an aligned pair."""

    path: str
    module: Any
    family: str | None
    slots: dict[str, Slot]  # by the names of the family
    others: dict[str, Slot]  # weights that no rule covers, by attribute
    whole: bool  # slots and others hold everything below the module, not only its own

    @property
    def weights(self) -> list[Slot]:
        """All of them."""
        return [*self.slots.values(), *self.others.values()]

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    @property
    def shown(self) -> str:
        """The layer in a sentence."""
        return f"{self.path or 'the model'} ({self.kind})"


def joined(*names: str) -> str:
    """Dotted path of the parts that are not empty."""
    return ".".join(filter(None, names))


def submodule(model: Any, path: str) -> Any:
    """The module at a dotted path; the empty path is the model itself."""
    adapter, module = adapter_of(model), model
    for name in path.split(".") if path else ():
        children = adapter.children(module)
        if name not in children:
            raise BadInput(
                f"{type(model).__name__} has no module {path!r}: {type(module).__name__} holds"
                f" {', '.join(children) or 'no modules'}, not {name!r}"
            )
        module = children[name]
    return module


def held_below(module: Any, path: str = "", *, deep: bool = True) -> list[StoredTensor]:
    """Parameters and buffers of a module, its own first, each under its full name."""
    adapter, front = adapter_of(module), f"{path}." if path else ""
    held = [
        StoredTensor(
            front + name, tensor, adapter.shape(tensor), adapter.key(tensor), adapter.trainable(tensor),
            adapter.is_buffer(module, name),
        )
        for name, tensor in adapter.weights(module).items()
    ]  # fmt: skip
    if deep:
        for name, child in adapter.children(module).items():
            held += held_below(child, front + name)
    return held


def layer_at(module: Any, path: str, layout: Layout | None = None) -> Layer:
    """The layer with all its weights; without a layout the one of its class is taken."""
    layout = layout or adapter_of(module).layout(module)
    if layout is None:
        return raw_layer(module, path)
    held = {weight.name: weight for weight in held_below(module, path, deep=layout.whole)}
    slots = _slots(module, path, layout, held)
    covered = {slot.held.key for slot in slots.values()}
    others = _raw_slots([weight for weight in held.values() if weight.key not in covered], path)
    return Layer(path, module, layout.family, slots, others, layout.whole)


def slots_below(module: Any, path: str = "") -> Iterator[Slot]:
    """Every weight of a model in the common form."""
    layer = layer_at(module, path)
    yield from layer.weights
    if not layer.whole:
        for name, child in adapter_of(module).children(module).items():
            yield from slots_below(child, joined(path, name))


def raw_layer(module: Any, path: str, *, deep: bool = False) -> Layer:
    """The layer without any rule: attributes as they are."""
    return Layer(path, module, None, {}, _raw_slots(held_below(module, path, deep=deep), path), deep)


def _raw_slots(held: list[StoredTensor], path: str) -> dict[str, Slot]:
    names = [(weight.name[len(path) + 1 :] if path else weight.name, weight) for weight in held]
    return {name: Slot(name, weight) for name, weight in names}


def _slots(module: Any, path: str, layout: Layout, held: dict[str, StoredTensor]) -> dict[str, Slot]:
    slots = {}
    for part in layout.parts:
        weight = held.get(joined(path, part.place))
        if weight is not None:
            slots[part.name] = Slot(part.name, weight, part.view, part.neutral)
    adapter = adapter_of(module)
    for name, place in layout.nested.items():
        below = module
        for step in place.split("."):
            below = adapter.children(below).get(step) if below is not None else None
        inner = None if below is None else adapter.layout(below)
        if inner is not None:
            nested = _slots(below, joined(path, place), inner, held)
            slots |= {f"{name}.{key}": Slot(f"{name}.{key}", s.held, s.view, s.neutral) for key, s in nested.items()}
    return slots


# Attention that users write themselves: four linear layers under the usual names.

_NAMES = {
    "q": ("q_proj", "query", "q", "wq", "to_q", "query_proj", "linear_q", "q_linear"),
    "k": ("k_proj", "key", "k", "wk", "to_k", "key_proj", "linear_k", "k_linear"),
    "v": ("v_proj", "value", "v", "wv", "to_v", "value_proj", "linear_v", "v_linear"),
    "out": ("out_proj", "o_proj", "out", "output", "o", "wo", "to_out", "proj", "dense", "linear_out", "out_linear"),
}
PROJECTIONS = frozenset(name for role in "qkv" for name in _NAMES[role])


def own_attention(module: Any) -> Layout | None:
    """The layout of a module that projects with four linear layers and holds nothing else, or None."""
    adapter = adapter_of(module)
    children = adapter.children(module)
    with_weights = {name for name, child in children.items() if adapter.weights(child) or adapter.children(child)}
    projections = {}
    for role, names in _NAMES.items():
        name = next((candidate for candidate in names if candidate in with_weights), None)
        layout = None if name is None else adapter.layout(children[name])
        if name is None or layout is None or layout.family != "linear":
            return None
        projections[role] = name
    if adapter.weights(module) or with_weights != set(projections.values()):
        return None
    return separate_attention(**projections)
