"""The rows of one token: which files of my run are compared with which of the golden one, and what is left over."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING

from twinprobe._align.mapping.layer_tree import Flow, in_call_order
from twinprobe._align.ops.links import Link, Spot
from twinprobe._align.ops.operators import Side, match_operators
from twinprobe._align.ops.regions import Shapes, regions
from twinprobe._align.ops.table import OperatorTable, kind_of
from twinprobe._runs.llm.dump import ATB, LlmDump, Token
from twinprobe._runs.llm.files import INPUT, OUTPUT, Files, TensorFile, under
from twinprobe._runs.llm.tensor import Known, open_llm_header, open_llm_tensor
from twinprobe._runs.llm.tree import EXECUTION, ORDER, OpNode
from twinprobe.errors import DamagedTensor

if TYPE_CHECKING:
    import polars as pl

# What of one run is compared with what of the other: worked out once per pair of models, used for every token.

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


EQUAL_NAMES = "name"


@dataclass(slots=True)
class Row:
    """One line of the report before it is measured. ``call`` is -1 for tensors that only the golden run has."""

    my: tuple[TensorFile, ...]
    golden: tuple[TensorFile, ...]
    my_type: str
    golden_type: str
    call: int
    level: str
    rule: str = ""
    partial: bool = False

    @property
    def is_input(self) -> bool:
        return (self.my or self.golden)[0].io == INPUT


class Rows(list[Row]):
    """The rows of a token, and of every token with the same files: what follows from the rows alone is kept."""

    @cached_property
    def names(self) -> list[tuple[str, str] | None]:
        """My and the golden file where one of each is compared as it is, and neither is a link."""
        return [_names(row) for row in self]

    @cached_property
    def described(self) -> tuple[Known, Known]:
        """What my files and the golden ones said of themselves at the last token."""
        return Known(), Known()

    @cached_property
    def kept(self) -> dict[str, pl.DataFrame]:
        """Columns of tables that others have made of these rows."""
        return {}


class _LastRows:
    """The rows of the token before: most tokens of a run have the same files."""

    def __init__(self) -> None:
        self._known: tuple[Plan, Files, Files, str | None, Rows] | None = None

    def of(self, plan: Plan, my: Files, golden: Files, level: str | None) -> Rows:
        known = self._known
        if known is None or known[0] is not plan or known[3] != level or known[1] != my or known[2] != golden:
            known = self._known = plan, my, golden, level, Rows(_made(plan, my, golden, level))
        return known[4]


_last = _LastRows()


def rows_of(plan: Plan, my: Files, golden: Files, level: str | None) -> Rows:
    """All rows of a token in the order of my calls, those that only the golden run has at the end."""
    return _last.of(plan, my, golden, level)


def _made(plan: Plan, my: Files, golden: Files, level: str | None) -> list[Row]:
    rows = _Rows(plan, my, golden)
    rows.by_name()
    rows.by_link()
    found = rows.in_order()
    if level in (None, API):
        return found
    if level == LOGITS:
        return _logits(found)
    return [row for row in found if row.level == level and not row.is_input and row.call >= 0]


class _Rows:
    def __init__(self, plan: Plan, my: Files, golden: Files) -> None:
        self._plan = plan
        self._files = my, golden
        self._calls = {call.folder: at for at, call in enumerate(plan.calls)}
        self._found: list[Row] = []
        self._used: tuple[set[str], set[str]] = (set(), set())

    def by_name(self) -> None:
        """Operators of equal names: tensors at equal places."""
        for folder, other in self._plan.same_names:
            theirs = {(file.io, _whole(file)): file for file in self._files[1].get(other, ())}
            for file in self._files[0].get(folder, ()):
                partner = theirs.get((file.io, _whole(file)))
                if partner is not None:
                    self._add((file,), (partner,), folder, other, EQUAL_NAMES, partial=False)

    def by_link(self) -> None:
        """Tensors that the alignment linked, where this token has them."""
        for link in self._plan.links:
            mine = [self._file(0, place) for place in link.my]
            theirs = [self._file(1, place) for place in link.golden]
            if mine and theirs and None not in mine and None not in theirs:
                my = tuple(file for file in mine if file is not None)
                golden = tuple(file for file in theirs if file is not None)
                self._add(my, golden, link.my[0][0], link.golden[0][0], link.rule, partial=link.partial)

    def _file(self, side: int, place: Place) -> TensorFile | None:
        folder, io, at = place
        files = plain_files(self._files[side].get(folder, ()), io)
        return files[at] if at < len(files) else None

    def _add(
        self,
        my: tuple[TensorFile, ...],
        golden: tuple[TensorFile, ...],
        folder: str,
        other: str,
        rule: str,
        *,
        partial: bool,
    ) -> None:
        call = self._calls[folder]
        known, partner = self._plan.calls[call], self._plan.golden_calls[other]
        level = known.level if known.level == partner.level else API
        self._found.append(Row(my, golden, known.op_type, partner.op_type, call, level, rule, partial))
        for used, files in zip(self._used, (my, golden), strict=True):
            used.update(file.file for file in files)

    def in_order(self) -> list[Row]:
        """Inputs of a call before its outputs; then what is left over on either side."""
        mine = [row for at, call in enumerate(self._plan.calls) for row in self._left(0, call.folder, at)]
        rows = sorted(self._found + mine, key=lambda row: (row.call, not row.is_input, _place_of(row)))
        golden = [row for folder in self._files[1] for row in self._left(1, folder, -1)]
        return rows + golden

    def _left(self, side: int, folder: str, call: int) -> list[Row]:
        """Tensors without counterpart. Engines share neither all inputs nor what lies in containers: not told there."""
        files = [file for file in self._files[side].get(folder, ()) if file.file not in self._used[side]]
        if self._plan.across:
            files = [file for file in files if file.io == OUTPUT and not file.is_nested]
        known = self._plan.calls[call] if call >= 0 else self._plan.golden_calls.get(folder)
        kind, level = (known.op_type, known.level) if known else ("", API)
        if side == 0:
            return [Row((file,), (), kind, "", call, level) for file in files]
        return [Row((), (file,), "", kind, call, level) for file in files]


def _names(row: Row) -> tuple[str, str] | None:
    if len(row.my) != 1 or len(row.golden) != 1 or row.partial or row.my[0].linked or row.golden[0].linked:
        return None
    return row.my[0].file, row.golden[0].file


def _whole(file: TensorFile) -> tuple[int | str, ...]:
    """A bare output and the first of a tuple are the same place."""
    return file.place or (0,)


def _place_of(row: Row) -> tuple[tuple[int, int, str], ...]:
    return row.my[0].order


def _logits(rows: list[Row]) -> list[Row]:
    """The output of the last operator outside the whole model: what the next token is chosen by."""
    compared = [row for row in rows if row.golden and row.my and not row.is_input and row.level == LAYER]
    if not compared:
        return []
    last = max(row.call for row in compared)
    return [row for row in compared if row.call == last and not row.my[0].is_nested]
