"""What of one run is compared with what of the other: worked out once per pair of models, used for every token."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from twinprobe.align.mapping.call_order import Flow, in_call_order
from twinprobe.align.ops.operators import Link, Side, Spot, match_operators
from twinprobe.align.ops.regions import Shapes, regions
from twinprobe.align.ops.table import OperatorTable, kind_of
from twinprobe.errors import DamagedTensor
from twinprobe.runs.llm.dump import ATB, LlmDump, Token
from twinprobe.runs.llm.files import INPUT, OUTPUT, Files, TensorFile, under
from twinprobe.runs.llm.tensor import open_llm_header, open_llm_tensor
from twinprobe.runs.llm.tree import EXECUTION, ORDER, OpNode

_TELLING, _WIDEST = 4096, 16  # elements, and bytes of one at most
LAYER, MODULE, API, LOGITS = "layer", "module", "api", "logits"
_MODULES = frozenset({"attention", "mlp"})

ShapeOf = Callable[[TensorFile], tuple[int, ...]]
DigestOf = Callable[[TensorFile], int | None]
# One tensor by the folder of its operator, input or output, and its place among those.
Place = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Call:
    """One operator."""

    folder: str
    name: str
    op_type: str
    level: str
    collective: bool = False


@dataclass(frozen=True, slots=True)
class PlannedLink:
    """Tensors to compare: lists where one side fuses what the other has apart. ``partial``: cards hold summands."""

    my: tuple[Place, ...]
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


class Opened:
    """One token of a dump while it is being looked at: files, operators in the order of their calls, shapes.

    All but the first two may be given where the tensors themselves were not kept.
    """

    def __init__(
        self,
        dump: LlmDump,
        token: Token,
        files: Files | None = None,
        shape_of: ShapeOf | None = None,
        digest_of: DigestOf | None = None,
    ) -> None:
        self._dump, self._token = dump, token
        self.files: Files = dump.files(token) if files is None else files
        self._shape_of = shape_of or self._shape
        self._digest_of = digest_of or self._digest
        self._shapes: dict[str, Shapes] = {}
        tree = dump.tree(token, self.files)
        in_order = dump.kind == ATB or tree.param.get(ORDER) == EXECUTION
        self.tree = tree if in_order else in_call_order(tree, self._flow_of)

    def side(self, cards: int) -> Side:
        """As the aligner sees it."""
        return Side(self.tree, self.shapes_of, cards, numbered=self._dump.kind == ATB)

    def shapes_of(self, node: OpNode) -> Shapes:
        """The shapes of an operator's inputs and outputs; a file that cannot be read has none."""
        found = self._shapes.get(node.folder)
        if found is None:
            inputs, outputs = ([self._try_shape(file) for file in self._plain(node, io)] for io in (INPUT, OUTPUT))
            found = self._shapes[node.folder] = (inputs, outputs)
        return found

    def _plain(self, node: OpNode, io: str) -> list[TensorFile]:
        return plain_files(self.files.get(node.folder, ()), io)

    def _try_shape(self, file: TensorFile) -> tuple[int, ...]:
        try:
            return self._shape_of(file)
        except DamagedTensor:
            return ()

    def _shape(self, file: TensorFile) -> tuple[int, ...]:
        if file.file.endswith(".bin"):
            return open_llm_header(self._dump.root, self._name(file), linked=file.linked).shape
        return open_llm_tensor(self._dump.root, self._name(file), linked=file.linked, enough=0).shape

    def _name(self, file: TensorFile) -> str:
        return under(self._token.folder, file)

    def _flow_of(self, node: OpNode) -> Flow:
        files = self.files.get(node.folder, ())
        taken, given = (
            frozenset(digest for digest in map(self._try_digest, plain_files(files, io)) if digest is not None)
            for io in (INPUT, OUTPUT)
        )
        return taken, given

    def _try_digest(self, file: TensorFile) -> int | None:
        try:
            return self._digest_of(file)
        except DamagedTensor:
            return None

    def _digest(self, file: TensorFile) -> int | None:
        tensor = open_llm_tensor(self._dump.root, self._name(file), linked=file.linked, enough=_TELLING * _WIDEST)
        if tensor.data.size < 2:
            return None
        # A few thousand elements tell tensors apart; the size goes in as well.
        head = tensor.data[:_TELLING].tobytes()
        return zlib.crc32(head, prod(tensor.shape))


def plain_files(files: Iterable[TensorFile], io: str) -> list[TensorFile]:
    """The inputs or outputs themselves, without what lies in containers inside them."""
    chosen = [file for file in files if file.io == io]
    plain = [file for file in chosen if not file.is_nested]
    return plain or chosen


def make_plan(my: LlmDump, golden: LlmDump, tokens: tuple[Token, Token], table: OperatorTable) -> Plan:
    """Align the operators of a pair of tokens."""
    return plan_of(my, golden, (Opened(my, tokens[0]), Opened(golden, tokens[1])), table)


def plan_of(my: LlmDump, golden: LlmDump, opened: tuple[Opened, Opened], table: OperatorTable) -> Plan:
    """Align the operators of a pair of tokens that are open already."""
    mine, theirs = opened
    cards = len(my.layout.devices), len(golden.layout.devices)
    matching = match_operators(mine.side(cards[0]), theirs.side(cards[1]), table)
    after = _operator_after(mine.tree) | _operator_after(theirs.tree)
    return Plan(
        calls=_calls(mine.tree),
        golden_calls={call.folder: call for call in _calls(theirs.tree)},
        same_names=[(node.folder, other.folder) for node, other in matching.nodes],
        links=[_planned(link, after) for link in matching.links],
        across=my.kind != golden.kind or not matching.nodes,
        notes=matching.notes,
    )


def _planned(link: Link, after: dict[int, str]) -> PlannedLink:
    partial = any(after.get(id(spot.node)) == "allreduce" for spot in (*link.my, *link.golden))
    return PlannedLink(_places(link.my), _places(link.golden), link.rule, partial)


def _places(spots: tuple[Spot, ...]) -> tuple[Place, ...]:
    return tuple((spot.node.folder, spot.io, spot.at) for spot in spots)


def _operator_after(tree: OpNode) -> dict[int, str]:
    """For operators right before a sum over all cards: that it is one."""
    found = {}
    for node in tree.walk():
        for one, next_one in zip(node.children, node.children[1:], strict=False):
            if "allreduce" in next_one.op_type.lower():
                found[id(one)] = "allreduce"
    return found


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
