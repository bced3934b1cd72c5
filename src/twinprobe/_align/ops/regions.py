"""The layers of a model, what runs before and after them, and the smallest recorded units of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from twinprobe._align.ops.table import kind_of
from twinprobe._runs.llm.tree import OpNode

# Inputs and outputs that were recorded of an operator, as shapes in order.
Shapes = tuple[list[tuple[int, ...]], list[tuple[int, ...]]]
ShapesOf = Callable[[OpNode], Shapes]

_NO_LAYERS = frozenset({"embedding", "head", "norm", "linear", "rotary"})


@dataclass(slots=True)
class Regions:
    """A model in three parts, each a list of subtrees in order."""

    before: list[OpNode] = field(default_factory=list)
    layers: list[OpNode] = field(default_factory=list)
    after: list[OpNode] = field(default_factory=list)
    around: list[OpNode] = field(default_factory=list)
    """The whole model and what else encloses the layers, from the outside in."""


def regions(tree: OpNode) -> Regions:
    """Cut a model at its layers; a model without layers is all ``before``."""
    layers = find_layers(tree)
    found = Regions(layers=layers)
    if not layers:
        found.before = list(tree.children) or [tree]
        return found
    members = {id(layer) for layer in layers}
    found.around = _path_to(tree, members)
    on_path = {id(one) for one in found.around} | members
    for node in found.around:
        seen = False
        after = []
        for child in node.children:
            if id(child) in on_path:
                seen = True
            elif seen:
                after.append(child)
            else:
                found.before.append(child)
        found.after = after + found.after
    return found


def find_layers(tree: OpNode) -> list[OpNode]:
    """The repeated layers of a model, be there one or a hundred.

    Modules: the numbered list that holds the most. Operators of an engine: the large composite ones at the top.
    """
    sizes = _sizes(tree)
    lists = [node for node in tree.walk() if _is_list(node)]
    if lists:
        return max(lists, key=lambda node: sizes[id(node)]).children
    node = tree
    while len(node.children) == 1 and any(child.children for child in node.children[0].children):
        node = node.children[0]
    parts = [child for child in node.children if child.children and kind_of(child.op_type) not in _NO_LAYERS]
    largest = max((sizes[id(part)] for part in parts), default=0)
    return [part for part in parts if 2 * sizes[id(part)] >= largest]


def _is_list(node: OpNode) -> bool:
    """Whether this is a numbered list of modules that have parts of their own."""
    return (
        bool(node.children)
        and all(child.name.rpartition(".")[2].isdecimal() and "." in child.name for child in node.children)
        and any(child.children for child in node.children)
    )


def _sizes(tree: OpNode) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for node in tree.finished():
        sizes[id(node)] = 1 + sum(sizes[id(child)] for child in node.children)
    return sizes


def _path_to(tree: OpNode, members: set[int]) -> list[OpNode]:
    """The nodes from the top down to the parent of the layers."""
    for child in tree.children:
        if id(child) in members:
            return [tree]
    for child in tree.children:
        below = _path_to(child, members)
        if below:
            return [tree, *below]
    return []


@dataclass(slots=True, eq=False)
class Unit:
    """A recorded operator with nothing recorded below it, as the sequence alignment sees it."""

    node: OpNode
    parent: OpNode | None
    kind: str
    around: str
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    is_last: bool = False
    """Whether it is the last of its kind in its parent."""


def units(subtrees: list[OpNode], shapes_of: ShapesOf) -> list[Unit]:
    """The recorded units of some subtrees, in order."""
    found: list[Unit] = []
    for node in subtrees:
        _collect(node, None, shapes_of, found)
    last: dict[tuple[int, str], Unit] = {}
    for unit in found:
        last[(id(unit.parent), unit.kind)] = unit
    for unit in last.values():
        unit.is_last = True
    return found


def _collect(node: OpNode, parent: OpNode | None, shapes_of: ShapesOf, found: list[Unit]) -> None:
    before = len(found)
    for child in node.children:
        _collect(child, node, shapes_of, found)
    if len(found) > before or not node.called:
        return
    inputs, outputs = shapes_of(node)
    if outputs:
        found.append(Unit(node, parent, kind_of_node(node), _around(parent), inputs, outputs))


def kind_of_node(node: OpNode) -> str:
    """What an operator does by its type; by its name where the type says nothing."""
    last = node.name.rpartition("/")[2].rpartition(".")[2]
    by_name = kind_of(last)
    if by_name == "head":
        return by_name
    kind = kind_of(node.op_type)
    unknown = kind == node.op_type.lower().replace("operation", "")
    return by_name if unknown and by_name != last.lower() else kind


def _around(parent: OpNode | None) -> str:
    return kind_of_node(parent) if parent is not None else ""
