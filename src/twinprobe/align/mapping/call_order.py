"""In which order the modules of a tree ran, where the dump lists them as they were defined.

A tensor that leaves one module and enters another orders the two. Layers of one kind run alike, so one of each kind is
looked at and the rest follow it.
"""

from __future__ import annotations

from collections.abc import Callable

from twinprobe.runs.llm.tree import OpNode

# What went in and what came out of a module, as digests of the tensors' contents.
Flow = tuple[frozenset[int], frozenset[int]]
FlowOf = Callable[[OpNode], Flow]


def in_call_order(tree: OpNode, flow_of: FlowOf) -> OpNode:
    """The tree with the children of every node in the order of their calls, as far as tensors tell; else as it was."""
    known: dict[object, list[int]] = {}
    return _ordered(tree, flow_of, known, {})


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
    """A container that is never called (a list of layers) takes and gives what its parts do."""
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
        for at in earlier:
            group[top(at)] = top(to)
    found: dict[int, list[int]] = {}
    for at in range(len(before)):
        found.setdefault(top(at), []).append(at)
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
