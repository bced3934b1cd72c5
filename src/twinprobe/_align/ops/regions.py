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
    sizes: dict[int, int] = {}
    for node in tree.finished():
        sizes[id(node)] = 1 + sum(sizes[id(child)] for child in node.children)
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


def _path_to(tree: OpNode, members: set[int]) -> list[OpNode]:
    """The nodes from the top down to the parent of the layers."""
    if any(id(child) in members for child in tree.children):
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
        found.append(Unit(node, parent, kind_of_node(node), kind_of_node(parent) if parent else "", inputs, outputs))


def kind_of_node(node: OpNode) -> str:
    """What an operator does by its type; by its name where the type says nothing."""
    last = node.name.rpartition("/")[2].rpartition(".")[2]
    by_name = kind_of(last)
    if by_name == "head":
        return by_name
    kind = kind_of(node.op_type)
    unknown = kind == node.op_type.lower().replace("operation", "")
    return by_name if unknown and by_name != last.lower() else kind


# In which order the modules of a tree ran, where the dump lists them as they were defined.
#
# A tensor that leaves one module and enters another orders the two. Layers of one kind run alike, so one of each kind
# is looked at and the rest follow it.

# What went in and what came out of a module, as digests of the tensors' contents.
Flow = tuple[frozenset[int], frozenset[int]]
FlowOf = Callable[[OpNode], Flow]


def in_call_order(tree: OpNode, flow_of: FlowOf) -> OpNode:
    """The tree with the children of every node in the order of their calls, as far as tensors tell; else as it was."""
    return _ordered(tree, flow_of, {}, {})


def _ordered(node: OpNode, flow_of: FlowOf, known: dict[object, list[int]], kinds: dict[int, object]) -> OpNode:
    if not node.children:
        return node
    kind = _kind(node, kinds)
    order = known.get(kind)
    if order is None:
        order = _order(node, flow_of)
        if any(flow_of(child) != _NOTHING for child in node.children):
            known[kind] = order
    children = [_ordered(node.children[at], flow_of, known, kinds) for at in order]
    return OpNode(node.name, node.op_type, node.folder, children, node.param, node.inputs, node.outputs, node.called)


_NOTHING: Flow = (frozenset(), frozenset())


def _kind(node: OpNode, kinds: dict[int, object]) -> object:
    """What a module is made of: modules of one kind have the same kinds of modules under the same names."""
    found = kinds.get(id(node))
    if found is None:
        parts = tuple((child.name.rpartition(".")[2], _kind(child, kinds)) for child in node.children)
        found = kinds[id(node)] = hash((node.op_type, parts))
    return found


def _order(node: OpNode, flow_of: FlowOf) -> list[int]:
    """Places of the children in the order of their calls: a chain from the module's input first, to its output last."""
    children = node.children
    if all(child.name.rpartition(".")[2].isdecimal() for child in children):
        return list(range(len(children)))  # numbered layers
    flows = [_flow_below(child, flow_of) for child in children]
    taken, given = flow_of(node)
    before = [
        {
            at
            for at in range(len(children))
            if at != to and flows[at][1] & flows[to][0] and not flows[at][1] & flows[at][0]
        }
        for to in range(len(children))
    ]
    groups = _groups(before)
    ranks = {}
    for group in groups:
        starts = any(flows[at][0] & taken for at in group)
        ends = any(flows[at][1] & given for at in group)
        silent = all(flows[at] == _NOTHING for at in group)
        rank = 1 if starts and ends else 0 if starts else 3 if silent else 2 if ends else 1
        ranks.update(dict.fromkeys(group, (rank, min(group))))
    return _sorted(before, ranks)


def _flow_below(node: OpNode, flow_of: FlowOf) -> Flow:
    """A container that is never called (a list of layers) has the inputs and outputs of its parts."""
    flow = flow_of(node)
    if flow != _NOTHING or not node.children:
        return flow
    parts = [_flow_below(child, flow_of) for child in (node.children[0], node.children[-1])]
    return parts[0][0], parts[-1][1]


def _groups(before: list[set[int]]) -> list[list[int]]:
    """Children that tensors connect, whatever the direction."""
    group = list(range(len(before)))

    def top(at: int) -> int:
        while group[at] != at:
            at = group[at]
        return at

    for to, earlier in enumerate(before):
        for one in earlier:
            group[top(one)] = top(to)
    found: dict[int, list[int]] = {}
    for one in range(len(before)):
        found.setdefault(top(one), []).append(one)
    return list(found.values())


def _sorted(before: list[set[int]], ranks: dict[int, tuple[int, int]]) -> list[int]:
    """A topological order; of those that may come next, the one with the lowest rank, then the first defined."""
    left = set(range(len(before)))
    order: list[int] = []
    while left:
        free = [at for at in left if not before[at] & left] or list(left)  # a circle of tensors: as defined
        chosen = min(free, key=lambda at: (ranks[at], at))
        order.append(chosen)
        left.remove(chosen)
    return order
