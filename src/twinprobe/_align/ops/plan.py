"""The alignment of two tokens of inference dumps, in a form that every later token of the same models shares."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from twinprobe._align.ops.links import Link, Region, Scores, TensorSlot
from twinprobe._align.ops.regions import Flow, Shapes, ShapesOf, in_call_order, regions
from twinprobe._align.ops.table import OperatorTable, kind_of
from twinprobe._runs.llm.dump import LlmDump, Token
from twinprobe._runs.llm.files import ATB, INPUT, OUTPUT, RecordedTensor, TensorFile, recorded_statistics
from twinprobe._runs.llm.tree import EXECUTION, ORDER, OpNode
from twinprobe.errors import DamagedTensor

# Which operators of one inference run are which of the other: by equal names, else by structure.

# The links of a whole model, layer by layer: layers that are built alike are matched once.


class Linker:
    """Collects links, region by region. Layers that are built alike are matched once."""

    def __init__(self, target_shapes: ShapesOf, golden_shapes: ShapesOf, scores: Scores, table: OperatorTable) -> None:
        self._shapes = (target_shapes, golden_shapes)
        self._scores = scores
        self._table = table
        # By what layers are made of: the operators of the first such layers, and their links.
        self._known: dict[object, tuple[tuple[list[OpNode], list[OpNode]], list[Link]]] = {}
        self.links: list[Link] = []

    def region(self, target: list[OpNode], golden: list[OpNode], around: tuple[list[OpNode], list[OpNode]]) -> None:
        """Match what lies before or after the layers; ``around``: the whole model and what else encloses the layers."""
        region = Region(self._shapes, self._scores, self._table)
        links = region.match(target, golden, None)
        for side in (0, 1):
            region.chains(around[side], side)  # adds to the same links
        self.links += links

    def layer(self, target: OpNode, golden: OpNode) -> None:
        """Match one layer with its counterpart."""
        nodes = list(target.walk()), list(golden.walk())
        kind = (_build(target), _build(golden))
        if kind in self._known:
            first, links = self._known[kind]
            here, there = (
                {id(node): now for node, now in zip(*side, strict=True)} for side in zip(first, nodes, strict=True)
            )
            links = [_moved(link, here, there) for link in links]
        else:
            region = Region(self._shapes, self._scores, self._table)
            links = region.match(target.children, golden.children, (target, golden))
            if links:
                self._known[kind] = nodes, links
        self.links += links


def _moved(link: Link, target: dict[int, OpNode], golden: dict[int, OpNode]) -> Link:
    """The same link between the operators of another layer that is built alike."""
    return Link(
        tuple(replace(slot, node=target[id(slot.node)]) for slot in link.target),
        tuple(replace(slot, node=golden[id(slot.node)]) for slot in link.golden),
        link.rule,
    )


def _build(layer: OpNode) -> tuple[object, ...]:
    """What a layer is made of; which of its operators were called counts too."""
    return tuple((node.op_type, len(node.children), node.called) for node in layer.walk())


# Names correspond where at least one operator in twenty of the smaller side has a partner.
_MEETING = 20


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """One run: its operators in the order of their calls, the shapes that were recorded, and on how many cards.

    ``numbered`` says that names are numbers of operators, as engines give them, and not chosen by a person.
    """

    tree: OpNode
    shapes_of: ShapesOf
    cards: int = 1
    numbered: bool = False


@dataclass(slots=True)
class Matching:
    """Pairs of operators with equal names, or links between single tensors; and what the user should know."""

    nodes: list[tuple[OpNode, OpNode]]
    links: list[Link]
    notes: list[str]


def match_operators(target: OperatorRun, golden: OperatorRun, table: OperatorTable) -> Matching:
    """Match two runs of one model."""
    pairs = _equal_names(target, golden)
    if pairs:
        return Matching(pairs, [], [])
    linker = Linker(target.shapes_of, golden.shapes_of, Scores(table, cards=max(target.cards, golden.cards)), table)
    parts, others = regions(target.tree), regions(golden.tree)
    notes = []
    if len(parts.layers) != len(others.layers):
        notes.append(
            f"my run has {len(parts.layers)} layers, the golden one {len(others.layers)}: "
            "only the first of them are compared; are they of the same model?"
        )
    linker.region(parts.before, others.before, ([], []))
    for layer, other in zip(parts.layers, others.layers, strict=False):
        linker.layer(layer, other)
    linker.region(parts.after, others.after, (parts.around, others.around))
    return Matching([], linker.links, notes)


def _equal_names(target: OperatorRun, golden: OperatorRun) -> list[tuple[OpNode, OpNode]]:
    target_nodes = {node.folder: node for node in target.tree.walk()}
    golden_nodes = {node.folder: node for node in golden.tree.walk()}
    common = (target_nodes.keys() & golden_nodes.keys()) - {""}
    telling = len(common - {"root"})  # every model has a root
    fewer = min(len(target_nodes), len(golden_nodes)) - 1
    # Where a graph has other operators, equal numbers soon mean different ones.
    enough = telling * 10 >= fewer * 9 if target.numbered else telling * _MEETING >= fewer
    if target.numbered != golden.numbered or not common or not enough:
        return []
    return [(node, golden_nodes[node.folder]) for node in target.tree.finished() if node.folder in common]


# Two tokens, opened as far as the alignment needs, and the plan that comes of it.

_TELLING, _WIDEST = 4096, 16  # elements, and bytes of one at most
LAYER, MODULE, API = "layer", "module", "api"
_MODULES = frozenset({"attention", "mlp"})

# One tensor by the folder of its operator, input or output, and its place among those.
Place = tuple[str, str, int]


class Call(NamedTuple):
    """One operator."""

    folder: str
    name: str
    op_type: str
    level: str = API
    collective: bool = False


class PlannedLink(NamedTuple):
    """Tensors to compare: lists where one side fuses what the other has apart. ``partial``: cards hold summands."""

    target: tuple[Place, ...]
    golden: tuple[Place, ...]
    rule: str
    partial: bool = False


@dataclass(slots=True, eq=False)
class Plan:
    """All that a worker needs to compare a token. ``same_names`` pairs operators, ``links`` single tensors."""

    calls: list[Call]
    golden_calls: dict[str, Call]
    same_names: list[tuple[str, str]]
    links: list[PlannedLink]
    across: bool
    notes: list[str] = field(default_factory=list)
    last: Any = field(default=None, repr=False)
    """The level and files of the token before, and its rows."""
    _packed: bytes = b""

    def __reduce__(self) -> tuple[Callable[[bytes], Plan], tuple[bytes]]:
        """Every token of a model takes its plan to its worker: packed once, and unpacked once in each process."""
        if not self._packed:
            parts = self.calls, self.golden_calls, self.same_names, self.links, self.across, self.notes
            self._packed = pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)
        return _unpacked, (self._packed,)


@lru_cache(maxsize=4)
def _unpacked(packed: bytes) -> Plan:
    return Plan(*pickle.loads(packed))


class OpenedToken:
    """One token of a dump while it is being looked at: files, operators in the order of their calls, shapes.

    With ``statistics``, what was recorded of its tensors stands in for them.
    """

    def __init__(self, dump: LlmDump, token: Token, *, statistics: bool = False) -> None:
        self._dump, self._folder = dump, dump.folder(token)
        self._files, self._recorded = recorded_statistics(self._folder) if statistics else (self._folder.files, {})
        self._shapes: dict[str, Shapes] = {}
        tree = dump.tree(token, self._files)
        in_order = dump.kind == ATB or tree.param.get(ORDER) == EXECUTION
        self.tree = tree if in_order else in_call_order(tree, self._flow_of)

    def side(self) -> OperatorRun:
        """As the aligner sees it."""
        return OperatorRun(self.tree, self._shapes_of, len(self._dump.layout.devices), numbered=self._dump.kind == ATB)

    def _shapes_of(self, node: OpNode) -> Shapes:
        """The shapes of an operator's inputs and outputs; a file that cannot be read has none."""
        found = self._shapes.get(node.folder)
        if found is None:
            inputs, outputs = self._each(self._shape, node)
            found = self._shapes[node.folder] = [shape or () for shape in inputs], [shape or () for shape in outputs]
        return found

    def _flow_of(self, node: OpNode) -> Flow:
        inputs, outputs = self._each(self._digest, node)
        return frozenset(inputs) - {None}, frozenset(outputs) - {None}

    def _each(self, look: Callable[[TensorFile], Any], node: OpNode) -> tuple[list[Any], list[Any]]:
        """What a look at each input and at each output of an operator tells, None for a file that cannot be read."""
        sides: tuple[list[Any], list[Any]] = [], []
        for io, found in zip((INPUT, OUTPUT), sides, strict=True):
            for file in plain_files(self._files.get(node.folder, ()), io):
                try:
                    found.append(look(file))
                except DamagedTensor:
                    found.append(None)
        return sides

    def _shape(self, file: TensorFile) -> tuple[int, ...]:
        """The shape of a tensor, without its elements."""
        known: RecordedTensor | None = self._recorded.get(file.file)
        return known.shape if known is not None else self._folder.shape(file)

    def _digest(self, file: TensorFile) -> int | None:
        """A number that tells tensors apart, from the size and a few thousand elements."""
        known = self._recorded.get(file.file)
        if known is not None:  # equal statistics are as good as equal tensors for telling what feeds what
            return hash(known.values)
        tensor = self._folder.open(file, enough=_TELLING * _WIDEST)
        if tensor.data.size < 2:
            return None
        return zlib.crc32(tensor.data[:_TELLING].tobytes(), prod(tensor.shape))


def plain_files(files: Iterable[TensorFile], io: str) -> list[TensorFile]:
    """The inputs or outputs themselves, without what lies in containers inside them."""
    chosen = [file for file in files if file.io == io]
    return [file for file in chosen if not file.is_nested] or chosen


def make_plan(target: OpenedToken, golden: OpenedToken, table: OperatorTable) -> Plan:
    """Align the operators of a pair of tokens."""
    sides = target.side(), golden.side()
    matching = match_operators(*sides, table)
    # Operators right before a sum over all cards: each card holds a summand.
    after = {
        id(node)
        for side in sides
        for parent in side.tree.walk()
        for node, following in pairwise(parent.children)
        if "allreduce" in following.op_type.lower()
    }

    def places(slots: tuple[TensorSlot, ...]) -> tuple[Place, ...]:
        return tuple((slot.node.folder, slot.io, slot.at) for slot in slots)

    links = []
    for link in matching.links:
        partial = any(id(slot.node) in after for slot in (*link.target, *link.golden))
        links.append(PlannedLink(places(link.target), places(link.golden), link.rule, partial))
    return Plan(
        calls=_calls(target.tree),
        golden_calls={call.folder: call for call in _calls(golden.tree)},
        same_names=[(node.folder, other.folder) for node, other in matching.nodes],
        links=links,
        across=sides[0].numbered != sides[1].numbered or not matching.nodes,
        notes=matching.notes,
    )


def _calls(tree: OpNode) -> list[Call]:
    """The operators in the order in which they end, each with the level at which reports show it."""
    parts = regions(tree)
    tops = {id(node) for node in (*parts.before, *parts.layers, *parts.after)}
    inner = {id(child) for layer in parts.layers for child in layer.children}
    calls = []
    for node in tree.finished():
        kind = kind_of(node.op_type)
        level = API
        if id(node) in tops:
            level = LAYER
        elif id(node) in inner and (kind in _MODULES or kind_of(node.name.rpartition(".")[2]) in _MODULES):
            level = MODULE
        calls.append(Call(node.folder, node.name or node.folder, node.op_type, level, kind == "collective"))
    return calls
