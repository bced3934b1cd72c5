"""Layers that two frameworks build so differently that only a rule of its own copies their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinprobe.errors import BadInput
from twinprobe.live.frameworks import adapter_of

if TYPE_CHECKING:
    from twinprobe.live.layer_map import LayerMap

# By class names along the class hierarchy, so that subclasses count.
_SPECIAL = {
    "MultiheadAttention": "attention", "MultiHeadAttention": "attention",
    "LSTM": "LSTM", "GRU": "GRU", "RNN": "RNN", "SimpleRNN": "RNN",
    "_BatchNorm": "batch norm", "_BatchNormBase": "batch norm",
}  # fmt: skip


def kind_of(layer: Any) -> str:
    """What kind of special layer this is; empty for an ordinary one."""
    for one in type(layer).__mro__:
        kind = _SPECIAL.get(one.__name__)
        if kind:
            return kind
    return ""


def special_pairs(one: Any, other: Any, layer_map: LayerMap) -> list[tuple[Any, Any]]:
    """The special layers of two models, in the order of definition, paired by their place."""
    found = [special_layers(model, layer_map) for model in (one, other)]
    kinds = [[kind_of(layer) for layer in layers] for layers in found]
    if kinds[0] != kinds[1]:
        raise BadInput(
            f"LayerMap.auto found {_listed(kinds[0])} in {type(one).__name__} and {_listed(kinds[1])} in "
            f"{type(other).__name__}",
            hint="map them by hand with LayerMap.map",
        )
    return list(zip(*found, strict=True))


def special_layers(model: Any, layer_map: LayerMap) -> list[Any]:
    """The special layers of one model that a map does not name yet, in the order of definition."""
    found: list[Any] = []
    inside: list[str] = []
    for path, layer in adapter_of(model).modules(model):
        if any(path.startswith(f"{outer}.") for outer in inside):
            continue
        if layer_map.partner(layer) is not None or layer_map.is_ignored_inside(layer):
            inside.append(path)
        elif kind_of(layer):
            found.append(layer)
            inside.append(path)
    return found


def _listed(kinds: list[str]) -> str:
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no such layer"
