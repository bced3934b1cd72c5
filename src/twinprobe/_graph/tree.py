"""The hierarchy of a run: modules, the calls inside them, and what lies between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

from twinprobe._runs.dump_json import Stacks, read_micro_steps
from twinprobe._runs.names import DIRECTIONS, GRADIENTS, is_module, is_number
from twinprobe._runs.run import Run

Parents = dict[str, str | None]

_FRAME = re.compile(r"File ([^,]*), line \d+, in (\w+)")
_RECOMPUTE_FILE = re.compile(r"checkpoint|recompute|tensor_parallel/random")
_RECOMPUTE_FUNCTIONS = frozenset({"backward", "unpack_hook", "recompute_fn", "recompute", "_recompute", "re_forward"})


def repaired_parents(run: Run) -> Parents:
    """The enclosing call of each call, gradients of parameters included; None stands for the root.

    A recorder cannot know them all. A backward call starts when a gradient arrives, often before (or without) its
    enclosing module's own backward; an activation that is recomputed runs its module's forward once more in the middle
    of the backward pass.
    """
    known = run.parents
    recomputing = {index for index, frames in enumerate(run.stacks.frames) if any(map(_recomputes, frames))}
    repaired: Parents = {}
    for name, parent in known.items():
        if ".backward" in name:
            repaired[name] = _backward_parent(name, parent, known)
        elif parent is None and recomputing and run.stacks.of_op.get(name) in recomputing and is_module(name):
            repaired[name] = turned(known.get(first_call(name)), known)
        else:
            repaired[name] = parent
    _add_gradients(repaired, run.ops)
    return repaired


def forward_twin(name: str) -> str:
    """The forward call that a backward call belongs to."""
    head, backward, tail = name.rpartition(".backward")
    return f"{head}.forward{tail}" if backward else name


def first_call(name: str) -> str:
    """The first call of the same module."""
    return f"{name.rpartition('.')[0]}.0"


def is_gradient(name: str) -> bool:
    """Whether a name means the gradients of a module's parameters."""
    return GRADIENTS in name and GRADIENTS in name.rsplit(".", 2)[-2:]


def turned(parent: str | None, known: Parents) -> str | None:
    """The backward call of a forward module call, where one was recorded."""
    if parent is None:
        return None
    head, forward, tail = parent.rpartition(".forward")
    if not forward:
        return parent if parent in known else None
    return next((name for name in (f"{head}.backward{tail}", f"{head}.backward.0") if name in known), None)


def _backward_parent(name: str, parent: str | None, known: Parents) -> str | None:
    """The recorded one, unless there is none, its path says no, or the forward call lay deeper inside of it."""
    twin = forward_twin(name)
    if twin not in known and is_module(name):
        twin = first_call(twin)
    better = turned(known.get(twin), known)
    if twin not in known or better == name:
        return parent
    if parent is None:
        return better
    if not is_module(parent):
        return parent
    path = _path(parent)
    # Modules that work in place are seen under a parent whose path is not the beginning of theirs.
    if is_module(name) and not _path(name).startswith(f"{path}.") and path != parent.partition(".")[0]:
        return better
    # MindSpore hangs all that follows an embedding's first gradient on the module around the embedding.
    return better if better and _path(better).startswith(f"{path}.") else parent


def _path(name: str) -> str:
    return name.rsplit(".", 3)[0]


def _recomputes(frame: str) -> bool:
    """Whether a line of a stack is the recomputation of a checkpoint."""
    match = _FRAME.match(frame)
    return match is not None and match[2] in _RECOMPUTE_FUNCTIONS and _RECOMPUTE_FILE.search(match[1]) is not None


def _add_gradients(parents: Parents, ops: list[str]) -> None:
    """Put the gradients of a module's parameters under its last backward, else its last forward."""
    gradients = [name for name in ops if is_gradient(name)]
    if not gradients:
        return
    last: dict[str, str] = {}
    for name in parents:
        if is_module(name):
            head, _, call = name.rpartition(".")
            if is_number(call) and (head not in last or int(call) > int(last[head].rpartition(".")[2])):
                last[head] = name
    for name in gradients:
        module = name.rpartition(f".{GRADIENTS}")[0]
        parents.setdefault(name, last.get(f"{module}.backward") or last.get(f"{module}.forward"))


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

    def __post_init__(self) -> None:
        self.index = {name: node for node, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: str, kind: int) -> int:
        """Append a node without a parent."""
        node = self.index[name] = len(self.names)
        self.names.append(name)
        self.kinds.append(kind)
        self.parents.append(-1)
        self.children.append([])
        self.ops.append(-1)
        return node

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

    @cached_property
    def order(self) -> list[int]:
        """All nodes of a finished tree, children before their parent, the root last."""
        return self._depth_first(iter)[::-1]

    def pre_order(self) -> list[int]:
        """All nodes, each before its children."""
        return self._depth_first(reversed)

    def _depth_first(self, turned: Callable[[list[int]], Iterable[int]]) -> list[int]:
        order: list[int] = []
        waiting = [0]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting.extend(turned(self.children[node]))
        return order


def build_tree(run: Run) -> Tree:
    """The hierarchy of a run, with what the recorder left open put right and loose APIs gathered."""
    tree = _hang(repaired_parents(run), run.ops)
    _gather_apis(tree)
    for op, name in enumerate(run.ops):
        tree.ops[tree.index[name]] = op
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

    def numbered(name: str) -> int:
        node = tree.index.get(name)
        return tree.add(name, node_kind(name)) if node is None else node

    for child, parent in parents.items():
        if child != ROOT:
            above = 0 if parent is None else numbered(parent)
            tree.attach(numbered(child), above)
    for node in range(1, len(tree)):
        if tree.parents[node] < 0:  # named as a parent only
            tree.attach(node, 0)
    for name in ops:
        if name not in tree.index:
            tree.attach(tree.add(name, node_kind(name)), 0)
    # What the root does not reach is a circle of parents: it is cut open and hung under the root.
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
    return tree


def _gather_apis(tree: Tree) -> None:
    """Put two or more APIs in a row at the top level into a collection of their own."""
    top, tree.children[0] = tree.children[0], []
    made = 0
    for is_api, group in groupby(top, key=lambda node: tree.kinds[node] == API):
        nodes, above = list(group), 0
        if is_api and len(nodes) > 1:
            while f"{BETWEEN_MODULES}.{made}" in tree.index:
                made += 1
            above = tree.add(f"{BETWEEN_MODULES}.{made}", COLLECTION)
            tree.attach(above, 0)
        for node in nodes:
            tree.attach(node, above)


@dataclass(frozen=True)
class CallSites:
    """Distinct stacks, numbered in the order in which nodes first need them, and the number of each node's."""

    frames: list[list[str]]
    of_node: list[int]


def call_sites(stacks: Stacks, tree: Tree) -> CallSites:
    """The stack of each node; a backward call without one borrows its forward's."""
    sites = CallSites([], [0] * len(tree))
    numbers: dict[tuple[str, ...], int] = {}
    known: dict[int | None, int] = {}
    for node in tree.order:
        name = tree.names[node]
        stack = stacks.of_op.get(name)
        if stack is None and ".backward" in name:
            twin = forward_twin(name)
            stack = stacks.of_op.get(twin)
            if stack is None and is_module(twin):
                stack = stacks.of_op.get(first_call(twin))
        number = known.get(stack)
        if number is None:
            frames = [] if stack is None else stacks.frames[stack]
            number = known[stack] = numbers.setdefault(tuple(frames), len(sites.frames))
            if number == len(sites.frames):
                sites.frames.append(frames)
        sites.of_node[node] = number
    return sites


def assign_micro_steps(tree: Tree, construct: Path) -> None:
    """Give every node its micro step: the round of forward and backward inside the recorded step.

    A forward module after any other module begins the next round; APIs belong to the round they stand in. Megatron
    dumps say it themselves.
    """
    given = read_micro_steps(construct)
    tree.micro_steps = [0] * len(tree)
    current, others_seen = 0, False
    for node in tree.children[0]:
        name = tree.names[node]
        if tree.kinds[node] == MODULE:
            if ".forward" not in name:
                others_seen = True
            elif others_seen:
                current, others_seen = current + 1, False
        tree.micro_steps[node] = given.get(name, current)
    for node in tree.pre_order()[1:]:
        parent = tree.parents[node]
        if parent > 0:
            tree.micro_steps[node] = given.get(tree.names[node], tree.micro_steps[parent])
