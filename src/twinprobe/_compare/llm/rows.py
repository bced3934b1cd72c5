"""The rows of one token: which files of my run are compared with which of the golden one, and what is left over."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from twinprobe._align.mapping.layer_tree import Flow, in_call_order
from twinprobe._align.ops.links import Spot
from twinprobe._align.ops.operators import Side, match_operators
from twinprobe._align.ops.regions import Shapes, regions
from twinprobe._align.ops.table import OperatorTable, kind_of
from twinprobe._runs.llm.dump import LlmDump, Token
from twinprobe._runs.llm.files import ATB, INPUT, OUTPUT, Files, TensorFile
from twinprobe._runs.llm.tensor import Known
from twinprobe._runs.llm.tree import EXECUTION, ORDER, OpNode
from twinprobe._runs.table import INPUT as TAKEN
from twinprobe._runs.table import OUTPUT as GIVEN
from twinprobe._runs.table import TENSOR
from twinprobe.errors import DamagedTensor

if TYPE_CHECKING:
    import polars as pl


_TELLING, _WIDEST = 4096, 16  # elements, and bytes of one at most
LAYER, MODULE, API, LOGITS = "layer", "module", "api", "logits"
_MODULES = frozenset({"attention", "mlp"})

# One tensor by the folder of its operator, input or output, and its place among those.
Place = tuple[str, str, int]
_Sides = tuple[tuple[TensorFile, ...], tuple[TensorFile, ...]]


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
    last: tuple[str | None, Files, Files, Rows] | None = field(default=None, repr=False)
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
    """One token of a dump while it is being looked at: files, operators in the order of their calls, shapes."""

    def __init__(self, dump: LlmDump, token: Token, files: Files | None = None) -> None:
        self.dump, self.folder = dump, dump.folder(token)
        self.files: Files = self.folder.files if files is None else files
        self._shapes: dict[str, Shapes] = {}
        tree = dump.tree(token, self.files)
        in_order = dump.kind == ATB or tree.param.get(ORDER) == EXECUTION
        self.tree = tree if in_order else in_call_order(tree, self._flow_of)

    def side(self) -> Side:
        """As the aligner sees it."""
        return Side(self.tree, self.shapes_of, len(self.dump.layout.devices), numbered=self.dump.kind == ATB)

    def shapes_of(self, node: OpNode) -> Shapes:
        """The shapes of an operator's inputs and outputs; a file that cannot be read has none."""
        found = self._shapes.get(node.folder)
        if found is None:
            inputs, outputs = self._each(self.shape, node)
            found = [shape or () for shape in inputs], [shape or () for shape in outputs]
            self._shapes[node.folder] = found
        return found

    def _flow_of(self, node: OpNode) -> Flow:
        inputs, outputs = self._each(self.digest, node)
        return frozenset(inputs) - {None}, frozenset(outputs) - {None}

    def _each(self, look: Callable[[TensorFile], Any], node: OpNode) -> tuple[list[Any], list[Any]]:
        """What a look at each input and at each output of an operator tells, None for a file that cannot be read."""
        sides: tuple[list[Any], list[Any]] = [], []
        for io, found in zip((INPUT, OUTPUT), sides, strict=True):
            for file in plain_files(self.files.get(node.folder, ()), io):
                try:
                    found.append(look(file))
                except DamagedTensor:
                    found.append(None)
        return sides

    def shape(self, file: TensorFile) -> tuple[int, ...]:
        """The shape of a tensor, without its elements."""
        if file.file.endswith(".bin"):
            return self.folder.header(file).shape
        return self.folder.open(file, enough=0).shape

    def digest(self, file: TensorFile) -> int | None:
        """A number by which tensors are told apart; a few thousand elements do, and the size goes in as well."""
        tensor = self.folder.open(file, enough=_TELLING * _WIDEST)
        if tensor.data.size < 2:
            return None
        return zlib.crc32(tensor.data[:_TELLING].tobytes(), prod(tensor.shape))


def plain_files(files: Iterable[TensorFile], io: str) -> list[TensorFile]:
    """The inputs or outputs themselves, without what lies in containers inside them."""
    chosen = [file for file in files if file.io == io]
    plain = [file for file in chosen if not file.is_nested]
    return plain or chosen


def make_plan(target: OpenedToken, golden: OpenedToken, table: OperatorTable) -> Plan:
    """Align the operators of a pair of tokens."""
    matching = match_operators(target.side(), golden.side(), table)
    # Operators right before a sum over all cards: each card holds a summand.
    after = {
        id(node)
        for tree in (target.tree, golden.tree)
        for parent in tree.walk()
        for node, following in pairwise(parent.children)
        if "allreduce" in following.op_type.lower()
    }
    return Plan(
        calls=_calls(target.tree),
        golden_calls={call.folder: call for call in _calls(golden.tree)},
        same_names=[(node.folder, other.folder) for node, other in matching.nodes],
        links=[
            PlannedLink(
                _places(link.target),
                _places(link.golden),
                link.rule,
                partial=any(id(spot.node) in after for spot in (*link.target, *link.golden)),
            )
            for link in matching.links
        ],
        across=target.dump.kind != golden.dump.kind or not matching.nodes,
        notes=matching.notes,
    )


def _places(spots: tuple[Spot, ...]) -> tuple[Place, ...]:
    return tuple((spot.node.folder, spot.io, spot.at) for spot in spots)


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
TARGET_ONLY, GOLDEN_ONLY = "no counterpart in the golden dump.", "no counterpart in my dump."
BETWEEN = "\0"  # stands between the names of several files


@dataclass(slots=True)
class Row:
    """One line of the report before it is measured. ``call`` is -1 for tensors that only the golden run has."""

    target: tuple[TensorFile, ...]
    golden: tuple[TensorFile, ...]
    target_type: str
    golden_type: str
    call: int
    level: str
    rule: str = ""
    partial: bool = False

    @property
    def is_input(self) -> bool:
        return (self.target or self.golden)[0].io == INPUT


class Rows(list[Row]):
    """The rows of a token, and of every token with the same files: what follows from the rows alone is kept."""

    @cached_property
    def names(self) -> list[tuple[str, str] | None]:
        """My and the golden file where one of each is compared as it is, and neither is a link."""
        found: list[tuple[str, str] | None] = []
        for row in self:
            alone = len(row.target) == len(row.golden) == 1 and not row.partial
            plain = alone and not row.target[0].linked and not row.golden[0].linked
            found.append((row.target[0].file, row.golden[0].file) if plain else None)
        return found

    @cached_property
    def described(self) -> tuple[Known, Known]:
        """What my files and the golden ones said of themselves at the last token."""
        return Known(), Known()

    @cached_property
    def texts(self) -> pl.DataFrame:
        """The columns of the report that follow from the rows alone; files of one row stand behind one another."""
        import polars as pl

        columns = {
            "target_files": [BETWEEN.join(file.file for file in row.target) or None for row in self],
            "golden_files": [BETWEEN.join(file.file for file in row.golden) or None for row in self],
            "target_type": [row.target_type for row in self],
            "golden_type": [row.golden_type for row in self],
            "level": [row.level for row in self],
            "rule": [row.rule for row in self],
            "alone": [TARGET_ONLY if not row.golden else GOLDEN_ONLY if not row.target else "" for row in self],
        }
        return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))

    @cached_property
    def pairs(self) -> pl.DataFrame:
        """The columns of a pair table that follow from the rows alone."""
        import polars as pl

        columns: dict[str, tuple[list[Any], Any]] = {
            "t_row": ([index if row.target else None for index, row in enumerate(self)], pl.Int32),
            "g_row": ([index if row.golden else None for index, row in enumerate(self)], pl.Int32),
            "t_kind": ([TENSOR if row.target else None for row in self], pl.UInt8),
            "g_kind": ([TENSOR if row.golden else None for row in self], pl.UInt8),
            "t_op": ([row.call if row.target else None for row in self], pl.Int32),
            "t_role": ([(TAKEN if row.is_input else GIVEN) if row.target else None for row in self], pl.UInt8),
            "g_name": ([row.golden[0].file if row.golden else None for row in self], pl.String),
        }
        nothing = [None] * len(self)
        columns |= dict.fromkeys(("t_max_text", "g_max_text"), (nothing, pl.String))
        columns |= dict.fromkeys(("t_requires_grad", "g_requires_grad"), (nothing, pl.Boolean))
        return pl.DataFrame([pl.Series(name, values, dtype=dtype) for name, (values, dtype) in columns.items()])


def rows_of(plan: Plan, target: Files, golden: Files, level: str | None) -> Rows:
    """All rows of a token in the order of my calls, those that only the golden run has at the end."""
    last = plan.last
    if last is not None and last[:3] == (level, target, golden):  # most tokens of a run have the same files
        return last[3]
    found = _Matching(plan, target, golden)
    found.by_name()
    found.by_link()
    rows = found.in_order()
    if level == LOGITS:
        rows = _logits(rows)
    elif level not in (None, API):
        rows = [row for row in rows if row.level == level and not row.is_input and row.call >= 0]
    plan.last = level, target, golden, Rows(rows)
    return plan.last[3]


class _Matching:
    """The rows of a token while its files are matched."""

    def __init__(self, plan: Plan, target: Files, golden: Files) -> None:
        self._plan = plan
        self._files = target, golden
        self._calls = {call.folder: index for index, call in enumerate(plan.calls)}
        self._found: list[Row] = []
        self._used: tuple[set[str], set[str]] = (set(), set())

    def by_name(self) -> None:
        """Operators of equal names: tensors at equal places."""
        for folder, other in self._plan.same_names:
            # A bare output and the first of a tuple are the same place.
            partners = {(file.io, file.place or (0,)): file for file in self._files[1].get(other, ())}
            for file in self._files[0].get(folder, ()):
                partner = partners.get((file.io, file.place or (0,)))
                if partner is not None:
                    self._add((folder, other), ((file,), (partner,)), EQUAL_NAMES)

    def by_link(self) -> None:
        """Tensors that the alignment linked, where this token has them."""
        for link in self._plan.links:
            target, golden = self._linked(0, link.target), self._linked(1, link.golden)
            if target and golden:
                self._add((link.target[0][0], link.golden[0][0]), (target, golden), link.rule, partial=link.partial)

    def _linked(self, side: int, places: tuple[Place, ...]) -> tuple[TensorFile, ...]:
        """The files at these places; none where one is missing."""
        found = []
        for folder, io, at in places:
            found += plain_files(self._files[side].get(folder, ()), io)[at : at + 1]
        return tuple(found) if len(found) == len(places) else ()

    def _add(self, folders: tuple[str, str], files: _Sides, rule: str, *, partial: bool = False) -> None:
        call = self._calls[folders[0]]
        known, partner = self._plan.calls[call], self._plan.golden_calls[folders[1]]
        level = known.level if known.level == partner.level else API
        self._found.append(Row(*files, known.op_type, partner.op_type, call, level, rule, partial))
        for used, listed in zip(self._used, files, strict=True):
            used.update(file.file for file in listed)

    def in_order(self) -> list[Row]:
        """Inputs of a call before its outputs; then what is left over on either side."""
        alone = [row for index, call in enumerate(self._plan.calls) for row in self._left(0, call.folder, index)]
        rows = sorted(self._found + alone, key=lambda row: (row.call, not row.is_input, row.target[0].order))
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


def _logits(rows: list[Row]) -> list[Row]:
    """The output of the last operator outside the whole model: what the next token is chosen by."""
    compared = [row for row in rows if row.golden and row.target and not row.is_input and row.level == LAYER]
    if not compared:
        return []
    last = max(row.call for row in compared)
    return [row for row in compared if row.call == last and not row.target[0].is_nested]
