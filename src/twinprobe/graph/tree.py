"""The hierarchy of a run: modules, the calls inside them, and what lies between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinprobe.graph.repairs import Parents, repaired_parents
from twinprobe.runs.names import DIRECTIONS
from twinprobe.runs.run import Run

ROOT = "DefaultModel"
BETWEEN_MODULES = "Apis_Between_Modules"
MODULE, API, COLLECTION = 0, 1, 9

_API_PREFIXES = frozenset({
    "Tensor", "Torch", "Functional", "NPU", "VF", "Distributed", "Aten", "Mint", "Primitive", "Jit", "MintFunctional",
    "MindSpeed", "MintDistributed",
})  # fmt: skip
_MODULE_PREFIXES = frozenset({"Module", "Cell", "optimizer", "clip_grad", ROOT})


@dataclass
class Tree:
    """Nodes by number, the root first, in the order in which the recorder names them."""

    names: list[str] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    micro_steps: list[int] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: str, kind: int) -> int:
        """Append a node without a parent."""
        at = self.index[name] = len(self.names)
        self.names.append(name)
        self.kinds.append(kind)
        self.parents.append(-1)
        self.children.append([])
        self.ops.append(-1)
        return at

    def attach(self, child: int, parent: int) -> None:
        """Make a node the last child of another."""
        self.parents[child] = parent
        self.children[parent].append(child)

    def path(self, node: int) -> list[int]:
        """The nodes from the root down to this one."""
        steps = []
        while node >= 0:
            steps.append(node)
            node = self.parents[node]
        return steps[::-1]

    def post_order(self) -> list[int]:
        """All nodes, children before their parent, the root last."""
        order: list[int] = []
        waiting = [0]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting.extend(self.children[node])
        return order[::-1]

    def pre_order(self) -> list[int]:
        """All nodes, each before its children."""
        order: list[int] = []
        waiting = [0]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting.extend(reversed(self.children[node]))
        return order


def build_tree(run: Run) -> Tree:
    """The hierarchy of a run, with what the recorder left open put right and loose APIs gathered."""
    tree = _hang(repaired_parents(run), run.ops)
    _gather_apis(tree)
    for at, name in enumerate(run.ops):
        tree.ops[tree.index[name]] = at
    return tree


def node_kind(name: str) -> int:
    """Module or API, by the name's prefix; an unknown prefix is an API where the name is written like one."""
    prefix = name.partition(".")[0]
    if prefix in _API_PREFIXES:
        return API
    if prefix in _MODULE_PREFIXES:
        return MODULE
    tail = name.rsplit(".", 2)
    return API if len(tail) == 3 and tail[2] in DIRECTIONS and tail[1].isdigit() else MODULE


def _hang(parents: Parents, ops: list[str]) -> Tree:
    tree = Tree()
    tree.add(ROOT, MODULE)
    links: list[tuple[int, int]] = []
    for child, parent in parents.items():
        if child == ROOT:
            continue
        above = 0 if parent is None else _find(tree, parent)
        links.append((_find(tree, child), above))
    placed = bytearray(len(tree))
    for below, above in links:
        placed[below] = 1
        tree.attach(below, above)
    placed[0] = 1
    for node in range(len(placed)):
        if not placed[node]:  # named as a parent only
            tree.attach(node, 0)
    for name in ops:
        if name not in tree.index:
            tree.attach(tree.add(name, node_kind(name)), 0)
    _cut_circles(tree)
    return tree


def _find(tree: Tree, name: str) -> int:
    at = tree.index.get(name)
    return tree.add(name, node_kind(name)) if at is None else at


def _cut_circles(tree: Tree) -> None:
    """Hang every group of nodes that cannot be reached from the root (a circle of parents) under it."""
    reached = bytearray(len(tree))
    waiting = [0]
    for start in range(len(tree)):
        while waiting:
            node = waiting.pop()
            reached[node] = 1
            waiting.extend(tree.children[node])
        if not reached[start]:
            tree.children[tree.parents[start]].remove(start)
            tree.attach(start, 0)
            waiting = [start]


def _gather_apis(tree: Tree) -> None:
    """Put two or more APIs in a row at the top level into a collection of their own."""
    groups: list[list[int]] = []
    for node in tree.children[0]:
        if tree.kinds[node] != API or not groups or tree.kinds[groups[-1][0]] != API:
            groups.append([node])
        else:
            groups[-1].append(node)
    tree.children[0] = []
    made = 0
    for group in groups:
        if len(group) == 1:
            tree.attach(group[0], 0)
            continue
        while f"{BETWEEN_MODULES}.{made}" in tree.index:
            made += 1
        collection = tree.add(f"{BETWEEN_MODULES}.{made}", COLLECTION)
        tree.attach(collection, 0)
        for node in group:
            tree.attach(node, collection)
