"""The forward calls of a run as a tree: what was called inside what, in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from twinprobe.align.mapping.api_names import family, torch_name
from twinprobe.align.mapping.layer_tree import MAX_DEPTH
from twinprobe.align.side import Side, split
from twinprobe.runs.names import CONTAINERS, FORWARD

ROOT = 0
NONE = -1


@dataclass
class CallTree:
    """Nodes in columns. Node 0 is the run itself; children stand in the order of execution."""

    side: Side
    name: list[str] = field(default_factory=lambda: [""])
    op: list[int] = field(default_factory=lambda: [NONE])
    parent: list[int] = field(default_factory=lambda: [NONE])
    depth: list[int] = field(default_factory=lambda: [0])
    is_module: list[bool] = field(default_factory=lambda: [True])
    path: list[str] = field(default_factory=lambda: [""])
    cls: list[str] = field(default_factory=lambda: [""])
    family: list[str] = field(default_factory=lambda: [""])
    children: list[list[int]] = field(default_factory=lambda: [[]])
    # Where a node stands among its parent's children.
    place: list[int] = field(default_factory=list)
    has_hierarchy: bool = False

    def __len__(self) -> int:
        return len(self.name)

    def module_children(self, node: int) -> list[int]:
        """The module calls directly inside this one."""
        return [child for child in self.children[node] if self.is_module[child]]

    @cached_property
    def in_order(self) -> list[int]:
        """All nodes, each before what it encloses, otherwise in the order of execution."""
        found, stack = [], [ROOT]
        while stack:
            node = stack.pop()
            found.append(node)
            stack.extend(reversed(self.children[node]))
        return found

    @cached_property
    def modules(self) -> list[int]:
        """All module calls, without the run itself."""
        return [node for node in range(1, len(self)) if self.is_module[node]]


def call_tree(side: Side) -> CallTree:
    """Build the tree of a run's forward calls from construct.json, or from the module paths where there is none."""
    tree = CallTree(side, has_hierarchy=side.has_hierarchy)
    numbers: dict[str, int] = {}
    for op, name in enumerate(side.ops):
        if side.direction[op] == FORWARD:
            numbers[name] = _add(tree, name, op)
    parents = _parents_by_path(side) if not side.has_hierarchy else side.run.parents
    for node in range(1, len(tree)):
        _attach(tree, node, parents, numbers)
    _settle(tree)
    return tree


def _add(tree: CallTree, name: str, op: int) -> int:
    if op != NONE:
        head = tree.side.head_of[op]
        is_module, path, cls = head.is_module, head.body, head.cls
    else:
        head_name = split(name)[0]
        prefix, _, whole = head_name.partition(".")
        is_module = True
        path, _, cls = whole.rpartition(".") if prefix in CONTAINERS else (head_name, "", "")
    tree.name.append(name)
    tree.op.append(op)
    tree.parent.append(ROOT)
    tree.depth.append(0)
    tree.is_module.append(is_module)
    tree.path.append(path)
    tree.cls.append(cls)
    tree.family.append("" if is_module else family(torch_name(head, is_mindspore=tree.side.is_mindspore)))
    tree.children.append([])
    return len(tree.name) - 1


def _attach(tree: CallTree, node: int, parents: dict[str, str | None], numbers: dict[str, int]) -> None:
    """Give a node its parent; modules that enclose calls without values of their own become nodes too."""
    for _ in range(MAX_DEPTH):
        name = parents.get(tree.name[node])
        if not name:
            return
        known = numbers.get(name)
        if known is not None:
            tree.parent[node] = known
            return
        if split(name)[1] not in (FORWARD, ""):
            return
        known = numbers[name] = _add(tree, name, NONE)
        tree.parent[node] = known
        node = known


def _settle(tree: CallTree) -> None:
    """Depths, children in order; a circle of parents, which only a broken file has, is cut open."""
    state = [0] * len(tree)  # 0 new, 1 on the way, 2 known
    state[ROOT] = 2
    for start in range(1, len(tree)):
        way, node = [], start
        while state[node] == 0:
            state[node] = 1
            way.append(node)
            node = tree.parent[node]
        if state[node] == 1:
            tree.parent[node] = ROOT
            tree.depth[node] = 1
        for step in reversed(way):
            tree.depth[step] = tree.depth[tree.parent[step]] + 1
            state[step] = 2
    last = [op if op != NONE else -1 for op in tree.op]
    for node in sorted(range(1, len(tree)), key=lambda at: -tree.depth[at]):
        parent = tree.parent[node]
        if tree.op[parent] == NONE:
            last[parent] = max(last[parent], last[node])
    for node in sorted(range(1, len(tree)), key=lambda at: last[at]):
        tree.children[tree.parent[node]].append(node)
    tree.place = [0] * len(tree)
    for siblings in tree.children:
        for place, node in enumerate(siblings):
            tree.place[node] = place


def _parents_by_path(side: Side) -> dict[str, str | None]:
    """Module calls nested by their paths: the call of the nearest enclosing path that ends next."""
    by_path = {head.body: head for head in side.modules if FORWARD in head.calls}
    found: dict[str, str | None] = {}
    for head in by_path.values():
        path = head.body.rpartition(".")[0]
        while path and path not in by_path:
            path = path.rpartition(".")[0]
        if not path:
            continue
        later = sorted(by_path[path].calls[FORWARD].values())
        for op in head.calls[FORWARD].values():
            around = next((call for call in later if call > op), None)
            found[side.ops[op]] = side.ops[around] if around is not None else None
    return found
