"""A layer as copying sees it: named weights, each with its tensor and the view that brings it to the common form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from twinprobe._live.weights.stores import AS_IS, Layout, Store, View, separate_attention

# What the frameworks call the same thing in layers that users write themselves.
_ALIASES = {
    "gamma": "weight", "scale": "weight", "embedding_table": "weight", "_weight": "weight", "w": "weight",
    "beta": "bias", "shift": "bias",
    "moving_mean": "running mean", "running_mean": "running mean", "_mean": "running mean",
    "moving_variance": "running variance", "running_var": "running variance", "_variance": "running variance",
}  # fmt: skip


@dataclass(slots=True)
class Held:
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
    held: Held
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


def joined(*names: str) -> str:
    """Dotted path of the parts that are not empty."""
    return ".".join(filter(None, names))


def modules_below(store: Store, module: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A module and all inside it, with their paths."""
    yield path, module
    for name, child in store.children(module).items():
        yield from modules_below(store, child, joined(path, name))


def held_below(store: Store, module: Any, path: str = "", *, deep: bool = True) -> list[Held]:
    """Parameters and buffers of a module, its own first, each under its full name."""
    front = f"{path}." if path else ""
    found = [
        Held(
            front + name, tensor, store.shape(tensor), store.key(tensor), store.trainable(tensor),
            store.is_buffer(module, name),
        )
        for name, tensor in store.own(module).items()
    ]  # fmt: skip
    if deep:
        for name, child in store.children(module).items():
            found += held_below(store, child, front + name)
    return found


def layer_at(store: Store, module: Any, path: str, layout: Layout | None = None) -> Layer:
    """The layer with all its weights; without a layout the one of its class is taken."""
    layout = layout or store.layout(module)
    if layout is None:
        return raw_layer(store, module, path)
    held = {one.name: one for one in held_below(store, module, path, deep=layout.whole)}
    slots = _slots(store, module, path, layout, held)
    covered = {slot.held.key for slot in slots.values()}
    others = _raw_slots([one for one in held.values() if one.key not in covered], path)
    return Layer(path, module, layout.family, slots, others, layout.whole)


def slots_below(store: Store, module: Any, path: str = "") -> Iterator[Slot]:
    """Every weight of a model in the common form."""
    layer = layer_at(store, module, path)
    yield from layer.weights
    if not layer.whole:
        for name, child in store.children(module).items():
            yield from slots_below(store, child, joined(path, name))


def raw_layer(store: Store, module: Any, path: str, *, deep: bool = False) -> Layer:
    """The layer without any rule: attributes as they are."""
    others = _raw_slots(held_below(store, module, path, deep=deep), path)
    return Layer(path, module, None, {}, others, deep)


def _raw_slots(held: list[Held], path: str) -> dict[str, Slot]:
    names = [(one.name[len(path) + 1 :] if path else one.name, one) for one in held]
    return {name: Slot(name, one) for name, one in names}


def _slots(store: Store, module: Any, path: str, layout: Layout, held: dict[str, Held]) -> dict[str, Slot]:
    slots = {}
    for part in layout.parts:
        found = held.get(joined(path, part.place))
        if found is not None:
            slots[part.name] = Slot(part.name, found, part.view, part.neutral)
    for name, place in layout.nested.items():
        below = _below(store, module, place)
        inner = None if below is None else store.layout(below)
        if inner is not None:
            nested = _slots(store, below, joined(path, place), inner, held)
            slots |= {f"{name}.{key}": Slot(f"{name}.{key}", s.held, s.view, s.neutral) for key, s in nested.items()}
    return slots


def _below(store: Store, module: Any, place: str) -> Any:
    for name in place.split("."):
        module = store.children(module).get(name)
        if module is None:
            return None
    return module


# Attention that users write themselves: four linear layers under the usual names.

_NAMES = {
    "q": ("q_proj", "query", "q", "wq", "to_q", "query_proj", "linear_q", "q_linear"),
    "k": ("k_proj", "key", "k", "wk", "to_k", "key_proj", "linear_k", "k_linear"),
    "v": ("v_proj", "value", "v", "wv", "to_v", "value_proj", "linear_v", "v_linear"),
    "out": ("out_proj", "o_proj", "out", "output", "o", "wo", "to_out", "proj", "dense", "linear_out", "out_linear"),
}
PROJECTIONS = frozenset(name for role in "qkv" for name in _NAMES[role])


def own_attention(store: Store, module: Any) -> Layout | None:
    """The layout of a module that projects with four linear layers and holds nothing else, or None."""
    children = store.children(module)
    with_weights = {name for name, child in children.items() if store.own(child) or store.children(child)}
    found = {}
    for role, names in _NAMES.items():
        name = next((one for one in names if one in with_weights), None)
        layout = None if name is None else store.layout(children[name])
        if name is None or layout is None or layout.family != "linear":
            return None
        found[role] = name
    if store.own(module) or with_weights != set(found.values()):
        return None
    return separate_attention(found["q"], found["k"], found["v"], found["out"])
