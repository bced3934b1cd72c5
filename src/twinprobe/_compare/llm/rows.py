"""The rows of one token: its tensor files as two ordinary tables, and which rows belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twinprobe._align.links import NONE, RULE, Pairs
from twinprobe._align.ops.plan import API, LAYER, Call, Place, Plan, plain_files
from twinprobe._compare.pair_table import pair_table
from twinprobe._lazy import polars as pl
from twinprobe._runs.llm.files import INPUT, OUTPUT, Files, RecordedTensor, TensorFile
from twinprobe._runs.run import TENSORS, Run
from twinprobe._runs.table import ABSENT, FLOAT, STATS, Leaf, TableBuilder
from twinprobe._runs.table import INPUT as TAKEN
from twinprobe._runs.table import OUTPUT as GIVEN
from twinprobe._runs.tensors.small_files import HeaderCache

if TYPE_CHECKING:
    from pathlib import Path


LOGITS = "logits"
TARGET_ONLY, GOLDEN_ONLY = "no counterpart in the golden dump.", "no counterpart in my dump."
BETWEEN = "\0"  # stands between the names of several files


class Row(NamedTuple):
    """One line of the report: rows of the two tables, several of one where the other side fuses them."""

    sides: tuple[tuple[int, ...], tuple[int, ...]]
    rule: str = ""
    partial: bool = False
    """Whether every card holds a summand of the tensor."""
    level: str = API

    @property
    def target(self) -> tuple[int, ...]:
        return self.sides[0]

    @property
    def golden(self) -> tuple[int, ...]:
        return self.sides[1]


class TokenFiles(NamedTuple):
    """The operators of a token, and its files in the order of the table, each with the number of its operator."""

    calls: Sequence[Call]
    files: Sequence[tuple[int, TensorFile]]

    def call(self, row: int) -> Call:
        return self.calls[self.files[row][0]]

    def table(self, recorded: Mapping[str, RecordedTensor]) -> pl.DataFrame:
        """The table of a run, with what was recorded of each file, if anything."""
        builder = TableBuilder()
        for call, file in self.files:
            leaf = Leaf("Tensor", data_name=file.file)
            known = recorded.get(file.file)
            if known is not None:
                leaf.dtype, leaf.shown_shape = known.dtype, str(list(known.shape))
                leaf.Max, leaf.Min, leaf.Mean, leaf.Norm = known.values
            builder.add(call, TAKEN if file.io == INPUT else GIVEN, file.file, leaf)
        # What was not recorded is absent: nobody wrote "None".
        kinds = [pl.when(pl.col(f"{stat}_kind") == FLOAT).then(FLOAT).otherwise(ABSENT) for stat in STATS]
        texts = [pl.lit(None, pl.String).alias(f"{stat}_text") for stat in STATS]
        columns = [kind.cast(pl.UInt8).alias(f"{stat}_kind") for kind, stat in zip(kinds, STATS, strict=True)]
        return builder.build().with_columns(*columns, *texts)


class Rows:
    """The rows of a token, and of every token with the same files: what follows from them is worked out once."""

    def __init__(self, target: TokenFiles, golden: TokenFiles, rows: Sequence[Row]) -> None:
        self.both, self.rows = (target, golden), rows
        # The rules know collectives by the recorders' prefix.
        self._ops = [f"Distributed.{call.name}.0.forward" if call.collective else call.name for call in target.calls]

    def __len__(self) -> int:
        return len(self.rows)

    def files(self, index: int) -> tuple[tuple[TensorFile, ...], tuple[TensorFile, ...]]:
        """The files of a row on both sides."""
        target, golden = (
            tuple(side.files[number][1] for number in numbers)
            for side, numbers in zip(self.both, self.rows[index].sides, strict=True)
        )
        return target, golden

    def run(self, path: Path, mode: str) -> Run:
        """The target of one token, as the judge sees it."""
        return Run(path, mode, "", "", self._ops, self.tensor_pairs, [])

    @cached_property
    def tensor_pairs(self) -> pl.DataFrame:
        """The pair table of tensors, of which nothing is known before they are read."""
        return self.pairs(TENSORS, ({}, {}))

    def pairs(self, mode: str, recorded: Sequence[Mapping[str, RecordedTensor]]) -> pl.DataFrame:
        """Both tables side by side, with what was recorded of each side's files."""
        from pathlib import Path

        runs = [
            Run(Path(), mode, "", "", self._ops, side.table(known), [])
            for side, known in zip(self.both, recorded, strict=True)
        ]
        target, golden = (np.array([(row.sides[side] or (NONE,))[0] for row in self.rows], np.int32) for side in (0, 1))
        fused = {at: row.sides for at, row in enumerate(self.rows) if max(map(len, row.sides)) > 1}
        rules = [row.rule for row in self.rows]
        return pair_table(runs[0], runs[1], Pairs(target, golden, rules, groups=fused))

    @cached_property
    def names(self) -> list[tuple[str, str] | None]:
        """The target's and the golden file where one of each is compared as it is, and neither is a link."""
        found: list[tuple[str, str] | None] = []
        for index, row in enumerate(self.rows):
            target, golden = self.files(index)
            alone = len(target) == len(golden) == 1 and not row.partial
            plain = alone and not target[0].linked and not golden[0].linked
            found.append((target[0].file, golden[0].file) if plain else None)
        return found

    @cached_property
    def described(self) -> tuple[HeaderCache, HeaderCache]:
        """What the files of both sides said of themselves at the last token."""
        return HeaderCache(), HeaderCache()

    @cached_property
    def texts(self) -> pl.DataFrame:
        """The columns of the report that follow from the rows alone; files of one row stand behind one another."""
        columns: dict[str, list[str | None]] = {}
        for at, name in enumerate(("target", "golden")):
            side, numbers = self.both[at], [row.sides[at] for row in self.rows]
            columns[f"{name}_files"] = [BETWEEN.join(side.files[one][1].file for one in row) or None for row in numbers]
            columns[f"{name}_type"] = [side.call(row[0]).op_type if row else "" for row in numbers]
        columns["level"] = [row.level for row in self.rows]
        columns["rule"] = [row.rule for row in self.rows]
        columns["alone"] = [TARGET_ONLY if not row.golden else "" if row.target else GOLDEN_ONLY for row in self.rows]
        return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


def rows_of(plan: Plan, target: Files, golden: Files, level: str | None) -> Rows:
    """All rows of a token in the order of the target's calls, those that only the golden run has at the end."""
    last = plan.last
    if last is not None and last[:3] == (level, target, golden):  # most tokens of a run have the same files
        known: Rows = last[3]
        return known
    golden_calls = {folder: Call(folder, folder, "") for folder in golden} | plan.golden_calls
    sides = _side(plan.calls, target), _side(list(golden_calls.values()), golden)
    rows = _Matching(plan, (target, golden), sides).rows()
    if level == LOGITS:
        rows = _logits(sides[0], rows)
    elif level not in (None, API):
        rows = [row for row in rows if row.level == level and row.target and _is_output(sides[0], row)]
    plan.last = level, target, golden, Rows(*sides, rows)
    return rows_of(plan, target, golden, level)


def _side(calls: Sequence[Call], files: Files) -> TokenFiles:
    ordered = [sorted(files.get(call.folder, ()), key=lambda file: (file.io, file.order)) for call in calls]
    return TokenFiles(calls, [(at, file) for at, listed in enumerate(ordered) for file in listed])


def _is_output(side: TokenFiles, row: Row) -> bool:
    return side.files[row.target[0]][1].io == OUTPUT


def _logits(side: TokenFiles, rows: list[Row]) -> list[Row]:
    """The output of the last operator outside the whole model: what the next token is chosen by."""
    found = [row for row in rows if all(row.sides) and row.level == LAYER and _is_output(side, row)]
    files = {row: side.files[row.target[0]] for row in found}
    last = max((call for call, _ in files.values()), default=NONE)
    return [row for row, (call, file) in files.items() if call == last and not file.is_nested]


class _Matching:
    """Pairs the files of a token by the plan."""

    def __init__(self, plan: Plan, files: tuple[Files, Files], sides: tuple[TokenFiles, TokenFiles]) -> None:
        self._plan, self._files, self._sides = plan, files, sides
        self._numbers = [{file.file: at for at, (_, file) in enumerate(side.files)} for side in sides]

    def rows(self) -> list[Row]:
        """By names or by links, what is left over on the target's side among them, on the golden one's behind them."""
        found = [*self._by_name(), *self._by_link()]
        used = [{number for row in found for number in row.sides[side]} for side in (0, 1)]
        target, golden = (
            [number for number, (_, file) in enumerate(side.files) if number not in taken and self._counts(file)]
            for side, taken in zip(self._sides, used, strict=True)
        )
        found += [Row(((number,), ())) for number in target]
        found = sorted(found, key=lambda row: row.target[0]) + [Row(((), (number,))) for number in golden]
        return [row._replace(level=self._level(row)) for row in found]

    def _by_name(self) -> list[Row]:
        """Operators of equal names: tensors at equal places."""
        rows = []
        for folder, other in self._plan.same_names:
            # A bare output and the first of a tuple are the same place.
            partners = {(file.io, file.place or (0,)): file for file in self._files[1].get(other, ())}
            for file in self._files[0].get(folder, ()):
                partner = partners.get((file.io, file.place or (0,)))
                if partner is not None:
                    rows.append(Row(((self._numbers[0][file.file],), (self._numbers[1][partner.file],)), RULE))
        return rows

    def _by_link(self) -> list[Row]:
        """Tensors that the alignment linked, where this token has them."""
        links = [((self._linked(0, link.target), self._linked(1, link.golden)), link) for link in self._plan.links]
        return [Row(sides, link.rule, link.partial) for sides, link in links if all(sides)]

    def _linked(self, side: int, places: tuple[Place, ...]) -> tuple[int, ...]:
        """The rows at these places; none where one is missing."""
        found = []
        for folder, io, at in places:
            found += plain_files(self._files[side].get(folder, ()), io)[at : at + 1]
        return tuple(self._numbers[side][file.file] for file in found) if len(found) == len(places) else ()

    def _counts(self, file: TensorFile) -> bool:
        """Engines share neither all inputs nor what lies in containers: where they have no counterpart, say nothing."""
        return not self._plan.across or (file.io == OUTPUT and not file.is_nested)

    def _level(self, row: Row) -> str:
        levels = {side.call(numbers[0]).level for side, numbers in zip(self._sides, row.sides, strict=True) if numbers}
        return levels.pop() if len(levels) == 1 else API
