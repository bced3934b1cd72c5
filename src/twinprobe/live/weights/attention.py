"""Attention that users write themselves: four linear layers under the usual names."""

from __future__ import annotations

from typing import Any

from twinprobe.live.weights.layouts import Layout, separate_attention
from twinprobe.live.weights.stores import Store

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
