"""The layers of a model that take part in copying weights, and their structure in the form of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinprobe.live.frameworks import adapter_of
from twinprobe.live.frameworks.adapter import Adapter
from twinprobe.live.layer_map import LayerMap
from twinprobe.live.special_layers import kind_of
from twinprobe.runs.leaf import Leaf, settle
from twinprobe.runs.run import Run
from twinprobe.runs.table import PARAMETER, TableBuilder

WHOLE = ("attention", "LSTM", "GRU", "RNN")  # kinds of layers that are one thing, whatever is inside


@dataclass
class Tree:
    """The layers of a model that take part, each with what it holds."""

    adapter: Adapter
    model: Any
    layers: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, dict[str, Any]] = field(default_factory=dict)
    partners: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, layer_map: LayerMap) -> Tree:
        tree = cls(adapter_of(model), model)
        closed: list[str] = []
        for path, layer in tree.adapter.modules(model):
            if any(not outer or path.startswith(f"{outer}.") for outer in closed):
                continue
            if layer_map.partner(layer) is not None or layer_map.is_ignored_inside(layer):
                closed.append(path)
                continue
            if layer_map.is_ignored(layer):
                continue
            tree.layers[path] = layer
            tree.weights[path] = dict(tree.adapter.parameters(layer))
            if kind_of(layer) in WHOLE:
                closed.append(path)
                tree.weights[path] = {
                    f"{inner}.{name}": one
                    for inner, below in tree.adapter.modules(layer)
                    for name, one in tree.adapter.parameters(below).items()
                }
        return tree

    @property
    def holding(self) -> list[str]:
        return [path for path, weights in self.weights.items() if weights]


def sizes_of(tensors: Iterable[Any]) -> list[list[int]]:
    """What tensors look like, whichever way round they are stored."""
    return sorted(sorted(int(size) for size in tensor.shape) for tensor in tensors)


def structure(tree: Tree) -> Run:
    """The layers of a model as if each had been called once, in the order of definition."""
    name = {
        path: ".".join(filter(None, (tree.adapter.container, path, type(layer).__name__))) + ".forward.0"
        for path, layer in tree.layers.items()
    }
    parents = {name[path]: name.get(_around(path, name)) if path else None for path in name}
    order = _inside_first(list(name))
    builder = TableBuilder()
    for op, path in enumerate(order):
        layer = tree.layers[path]
        for parameter, tensor in tree.weights[path].items():
            shape = [int(size) for size in tensor.shape]
            if len(shape) == 2 and tree.adapter.is_transposed(layer, parameter):
                shape.reverse()
            leaf = Leaf("Tensor", "float32", shape)
            builder.add(op, PARAMETER, f"{name[path]}.parameters.{parameter}", settle(leaf, parameter))
    run = Run(
        Path(type(tree.model).__name__), "statistics", "L0", tree.adapter.name,
        [name[path] for path in order], builder.build(), [],
    )  # fmt: skip
    run.__dict__["parents"] = parents
    return run


def _around(path: str, known: dict[str, str]) -> str:
    while path:
        path = path.rpartition(".")[0]
        if path in known:
            break
    return path


def _inside_first(paths: list[str]) -> list[str]:
    """Each path after those inside it, as calls end; otherwise in the order given."""
    children: dict[str, list[str]] = {}
    known = set(paths)
    for path in paths:
        if path:
            parent = path.rpartition(".")[0]
            while parent and parent not in known:
                parent = parent.rpartition(".")[0]
            children.setdefault(parent, []).append(path)
    order: list[str] = []

    def visit(path: str) -> None:
        for child in children.get(path, []):
            visit(child)
        if path in known:
            order.append(path)

    visit("")
    return order
