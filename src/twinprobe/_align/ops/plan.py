"""The alignment of two tokens of inference dumps, in a form that every later token of the same models shares."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from twinprobe._align.ops.links import TensorSlot
from twinprobe._align.ops.operators import OperatorRun, match_operators
from twinprobe._align.ops.regions import Flow, Shapes, in_call_order, regions
from twinprobe._align.ops.table import OperatorTable, kind_of
from twinprobe._runs.llm.dump import LlmDump, Token
from twinprobe._runs.llm.files import ATB, INPUT, OUTPUT, TensorFile
from twinprobe._runs.llm.statistics import RecordedTensor, recorded_statistics
from twinprobe._runs.llm.tree import EXECUTION, ORDER, OpNode
from twinprobe.errors import DamagedTensor

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
