"""The forward calls of a run as a tree: what was called inside what, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import prod
from typing import TypeVar

from twinprobe._align.auto.fingerprints import Fingerprints
from twinprobe._align.auto.words import (
    CONV,
    LAYER_CALLS,
    LINEAR,
    POINTWISE,
    above,
    class_kind,
    convolution,
    layer_kind,
    meaning,
    surroundings,
)
from twinprobe._align.calls import RunCalls, Shape, split
from twinprobe._align.links import NONE
from twinprobe._align.mapping.api_names import family, torch_name
from twinprobe._align.mapping.layer_tree import MAX_DEPTH
from twinprobe._align.rows import spelled
from twinprobe._runs.names import CONTAINERS, FORWARD
from twinprobe._runs.table import INPUT

ROOT = 0
Number = TypeVar("Number", int, float)


@dataclass
class CallTree:
    """Nodes in columns. Node 0 is the run itself; children stand in the order of execution."""

    side: RunCalls
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

    def opened(self, nodes: Sequence[int], opens: Callable[[int], bool]) -> Iterator[int]:
        """These nodes in their order; in place of each one that is to be opened, what lies directly inside it."""
        stack = list(reversed(nodes))
        while stack:
            node = stack.pop()
            if opens(node):
                stack.extend(reversed(self.children[node]))
            else:
                yield node

    def totals(self, own: list[Number]) -> list[Number]:
        """For each node the sum over itself and all that lies inside it."""
        found = own.copy()
        for node in reversed(self.in_order):
            if node != ROOT:
                found[self.parent[node]] += found[node]
        return found

    @cached_property
    def modules(self) -> list[int]:
        """All module calls, without the run itself."""
        return [node for node in range(1, len(self)) if self.is_module[node]]


def call_tree(side: RunCalls, *, nested: bool | None = None) -> CallTree:
    """Build the tree of a run's forward calls from construct.json, or from the module paths where there is none.

    ``nested`` is given as False where the other run has no construct.json, so that both are taken alike.
    """
    nested = side.has_hierarchy if nested is None else nested
    tree = CallTree(side, has_hierarchy=nested)
    numbers: dict[str, int] = {}
    for op, name in enumerate(side.ops):
        if side.direction[op] == FORWARD:
            numbers[name] = _add(tree, name, op)
    parents = side.run.parents if nested else _parents_by_path(side)
    for node in range(1, len(tree)):
        _attach(tree, node, parents, numbers)
    _settle(tree)
    return tree


def _add(tree: CallTree, name: str, op: int) -> int:
    if op != NONE:
        callee = tree.side.callee_of[op]
        is_module, path, cls = callee.is_module, callee.body, callee.cls
    else:
        callee_name = split(name)[0]
        prefix, _, whole = callee_name.partition(".")
        is_module = True
        path, _, cls = whole.rpartition(".") if prefix in CONTAINERS else (callee_name, "", "")
    tree.name.append(name)
    tree.op.append(op)
    tree.parent.append(ROOT)
    tree.depth.append(0)
    tree.is_module.append(is_module)
    tree.path.append(path)
    tree.cls.append(cls)
    tree.family.append("" if is_module else family(torch_name(callee, is_mindspore=tree.side.is_mindspore)))
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


def _parents_by_path(side: RunCalls) -> dict[str, str | None]:
    """Module calls nested by their paths: the call of the nearest enclosing path that ends next."""
    by_path = {callee.body: callee for callee in side.modules if FORWARD in callee.calls}
    found: dict[str, str | None] = {}
    for callee in by_path.values():
        path = callee.body.rpartition(".")[0]
        while path and path not in by_path:
            path = path.rpartition(".")[0]
        if not path:
            continue
        later = sorted(by_path[path].calls[FORWARD].values())
        for op in callee.calls[FORWARD].values():
            around = next((call for call in later if call > op), None)
            found[side.ops[op]] = side.ops[around] if around is not None else None
    return found


# The layers of a run: module calls (or API calls) that hold parameters and enclose no other layer, as they ran.
#
# They are the backbone of an alignment: few, ordered, and with shapes that do not lie.

# Functions that only look at a tensor in another way, or move it.
_VIEWS = frozenset({
    "reshape", "view", "permute", "transpose", "contiguous", "to", "float", "flatten", "unflatten", "unsqueeze",
    "squeeze", "expand", "split", "chunk", "getitem", "__getitem__", "clone", "type_as", "repeat_interleave", "shape",
    "Shape", "size",
})  # fmt: skip
_STRONG = frozenset({"linear", "norm", "embedding", "conv"})
_RANK = {name: rank for rank, name in enumerate(("q", "k", "v", "gate", "w1", "up", "w3"))}


@dataclass(slots=True)
class Layer:
    """One layer and what is known of it. A group of layers that read the same tensor may stand as one."""

    nodes: tuple[int, ...]
    kind: str
    path: str
    cls: str
    meaning: str
    around: str
    # Shapes of the parameters; what goes in and comes out of a linear layer, whichever way its weight is stored.
    weights: tuple[Shape, ...]
    features: tuple[int, int] | None
    weight_rows: tuple[int, ...]
    bias_rows: tuple[int, ...]
    input_row: int
    output_rows: tuple[int, ...]
    # Equal for linear layers of one module that read the same tensor; what reads this layer's output.
    branch: object = None
    readers: frozenset[str] = frozenset()

    @property
    def node(self) -> int:
        """The first call."""
        return self.nodes[0]


class Facts:
    """One run as automatic alignment sees it: the tree of its calls, their values, and its layers."""

    def __init__(self, tree: CallTree) -> None:
        self.tree = tree
        self.fingerprints = Fingerprints(tree.side)
        self.weights = [self._weights(node) for node in range(len(tree))]
        self.is_layer = self._find_layers()
        self.layers = self._in_order()

    def input_row(self, node: int) -> int:
        """The first tensor that a call takes."""
        op = self.tree.op[node]
        return int(self.fingerprints.first_input[op]) if op != NONE else NONE

    def output_row(self, node: int) -> int:
        """The first tensor that a call gives."""
        op = self.tree.op[node]
        return int(self.fingerprints.first_output[op]) if op != NONE else NONE

    def _weights(self, node: int) -> list[int]:
        tree = self.tree
        if tree.is_module[node]:
            return self.fingerprints.parameters(tree.op[node])
        if tree.family[node] in LAYER_CALLS:
            return self.fingerprints.rows(tree.op[node], INPUT)[1:]
        return []

    def _find_layers(self) -> list[bool]:
        tree = self.tree
        found = [False] * len(tree)
        below = [False] * len(tree)
        for node in reversed(tree.in_order):
            if node == ROOT or not tree.is_module[node]:
                continue
            if not below[node]:
                # What is named like a layer may be made of other modules.
                named = class_kind(tree.cls[node]) in _STRONG and not tree.module_children(node)
                found[node] = bool(self.weights[node]) or named
                if found[node] and self._matrix_calls(node) > 1:
                    found[node], below[node] = False, True  # holds the weights of several layers: these are its calls
            if found[node] or below[node]:
                below[tree.parent[node]] = True
        inside = [False] * len(tree)
        for node in tree.in_order:
            parent = tree.parent[node]
            if parent == NONE:
                continue
            inside[node] = inside[parent] or found[parent]
            if not tree.is_module[node] and not inside[node] and self.weights[node]:
                found[node] = True
        return found

    def _matrix_calls(self, node: int) -> int:
        """How many linear maps and convolutions a module computes by calls of its own."""
        calls = (child for child in self.tree.children[node] if not self.tree.is_module[child])
        return sum(bool(self.weights[call]) and LAYER_CALLS[self.tree.family[call]] in (LINEAR, CONV) for call in calls)

    def _in_order(self) -> list[Layer]:
        nodes = [node for node in self.tree.in_order if self.is_layer[node]]
        layers = [self._layer(node) for node in nodes]
        # Linear layers of one module that read the same tensor run side by side: their order is the writer's taste.
        ordered: list[Layer] = []
        done: set[int] = set()
        by_parent: dict[object, list[Layer]] = {}
        for layer in layers:
            layer.branch = self._branch(layer)
            by_parent.setdefault(layer.branch, []).append(layer)
        readers = _Readers(self) if len(by_parent) < len(layers) else None
        for layer in layers:
            if layer.node in done:
                continue
            group = by_parent[layer.branch]
            if len(group) > 1 and readers is not None:
                for one in group:
                    one.readers = readers.of(one.output_rows[0])
            if len(group) > 1 and all(one.meaning in _RANK for one in group):
                group = sorted(group, key=lambda one: _RANK[one.meaning])
            ordered += group
            done.update(one.node for one in group)
        return ordered

    def as_run(self) -> list[Layer]:
        """The layers in the order in which they ran."""
        places = {node: at for at, node in enumerate(self.tree.in_order)}
        return sorted(self.layers, key=lambda layer: places[layer.node])

    def _branch(self, layer: Layer) -> tuple[int, object]:
        """Equal for linear layers of one module that read the same tensor."""
        read = self.fingerprints.tensor(layer.input_row) if layer.kind == LINEAR else None
        return (layer.node if read is None else -1 - self.tree.parent[layer.node]), read

    def _layer(self, node: int) -> Layer:
        tree, fingerprints = self.tree, self.fingerprints
        rows = self.weights[node]
        shapes = {row: shape for row in rows if (shape := fingerprints.shape(row)) is not None}
        if tree.is_module[node]:
            kind = layer_kind(fingerprints, tree.op[node], tree.cls[node], list(shapes.values()))
        else:
            kind = LAYER_CALLS[tree.family[node]]
        path = self.path(node)
        taken, given = self.input_row(node), self.output_row(node)
        weight, bias = self._named(rows, shapes)
        if kind == CONV:
            kind = convolution(shapes.get(weight, ()), fingerprints.shape(taken), fingerprints.shape(given))
        if kind == POINTWISE and weight in shapes:  # on all of its input at once, whatever that looks like
            wide = shapes[weight]
            shapes[weight] = wide[0], prod(wide[1:]), *(1 for _ in wide[2:])
        return Layer(
            nodes=(node,), kind=kind, path=path, cls=tree.cls[node],
            meaning=meaning(path), around=surroundings(above(path)),
            weights=tuple(shapes.values()), features=self._features(kind, shapes.get(weight), taken, given),
            weight_rows=(weight,), bias_rows=(bias,), input_row=taken, output_rows=(given,),
        )  # fmt: skip

    def path(self, node: int) -> str:
        """The path of a module call; of an API call, the path around it and the API's name."""
        tree = self.tree
        return tree.path[node] if tree.is_module[node] else f"{tree.path[tree.parent[node]]}.{tree.family[node]}"

    def _named(self, rows: list[int], shapes: dict[int, Shape]) -> tuple[int, int]:
        """The weight and the bias among the parameters."""
        names = {row: spelled(self.fingerprints.side.names[row].rpartition(".")[2]) for row in rows}
        weight = next((row for row in rows if names[row] == "weight"), NONE)
        if weight == NONE and rows:
            weight = max(rows, key=lambda row: len(shapes.get(row, ())))
        bias = next((row for row in rows if names[row] == "bias" and row != weight), NONE)
        if bias == NONE:
            bias = next((row for row in rows if row != weight and len(shapes.get(row, ())) == 1), NONE)
        return weight, bias

    def _features(self, kind: str, weight: Shape | None, taken: int, given: int) -> tuple[int, int] | None:
        if kind != LINEAR or weight is None or len(weight) != 2:
            return None
        into, out = self.fingerprints.shape(taken), self.fingerprints.shape(given)
        if into and out and {into[-1], out[-1]} == set(weight):
            return into[-1], out[-1]
        return None


class _Readers:
    """Which functions read a tensor, in whatever shape: views of a tensor have its statistics."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._known: dict[object, set[str]] = {}
        tree = facts.tree
        for node in range(1, len(tree)):
            function = tree.family[node].rpartition(".")[2] if not tree.is_module[node] else ""
            if function and function not in _VIEWS:
                for row in facts.fingerprints.rows(tree.op[node], INPUT):
                    self._known.setdefault(self._key(row), set()).add(function)

    def of(self, row: int) -> frozenset[str]:
        """The functions that read this row's tensor."""
        return frozenset(self._known.get(self._key(row), ())) if row != NONE else frozenset()

    def _key(self, row: int) -> object:
        fingerprints = self._facts.fingerprints
        return (
            (float(fingerprints.numel[row]), *fingerprints.stats[row].tolist()) if fingerprints.telling[row] else None
        )


def groups_of(layers: list[Layer], tree: CallTree, size: int) -> list[tuple[int, Layer]]:
    """Runs of so many linear layers of one module with one input width, each as one layer: (its last place, it)."""
    found = []
    for _, run in groupby(enumerate(layers), key=lambda item: _run_key(item[1], tree, item[0])):
        places = [place for place, _ in run]
        for at in range(len(places) - size + 1):
            members = [layers[place] for place in places[at : at + size]]
            found.append((places[at + size - 1], _merged(members)))
    return found


def _run_key(layer: Layer, tree: CallTree, place: int) -> tuple[int, ...]:
    if layer.kind != LINEAR or layer.features is None:
        return (-1, place)
    return tree.parent[layer.node], layer.features[0]


def _merged(members: list[Layer]) -> Layer:
    first = members[0]
    assert first.features is not None
    width = sum(layer.features[1] for layer in members if layer.features is not None)
    return Layer(
        nodes=tuple(node for layer in members for node in layer.nodes),
        kind=LINEAR, path=first.path, cls=first.cls, meaning=_together({layer.meaning for layer in members}),
        around=first.around, weights=((width, first.features[0]),), features=(first.features[0], width),
        weight_rows=tuple(row for layer in members for row in layer.weight_rows),
        bias_rows=tuple(row for layer in members for row in layer.bias_rows),
        input_row=first.input_row, output_rows=tuple(row for layer in members for row in layer.output_rows),
    )  # fmt: skip


def _together(meanings: set[str]) -> str:
    """What parts are called when they are one: q, k and v are qkv."""
    for parts, whole in (("q k v", "qkv"), ("k v", "kv"), ("gate up", "gateup"), ("w1 w3", "gateup")):
        if meanings == set(parts.split()):
            return whole
    return "apart" if len(meanings - {""}) > 1 else ""
