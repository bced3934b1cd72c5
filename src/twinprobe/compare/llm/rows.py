"""The rows of one token: which files of my run are compared with which of the golden one, and what is left over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from twinprobe.compare.llm.plan import API, LAYER, LOGITS, MODULE, Place, Plan, plain_files
from twinprobe.runs.llm.described import Known
from twinprobe.runs.llm.files import INPUT, OUTPUT, Files, TensorFile

if TYPE_CHECKING:
    import polars as pl

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


__all__ = ["API", "EQUAL_NAMES", "LAYER", "LOGITS", "MODULE", "Row", "Rows", "rows_of"]
