"""Data mapping (-dm): single values, named one by one."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

from twinprobe._align.calls import RunCalls
from twinprobe._align.links import NONE, CallLinks, Pairs
from twinprobe._align.mapping.yaml_files import FlatFile, Line, Names, Remarks, read_flat
from twinprobe._align.rows import DATA_RULE
from twinprobe._runs.run import Run
from twinprobe._runs.whole_files import write_whole

# What a generated file writes for a value that has no partner.
NO_PARTNER = "N/A"
# So many lines tell in which direction a file was written.
_TRIED = 2000
_EXTENSIONS = (".npy", ".pt")


def read_data_file(path: Path) -> FlatFile:
    """Read ``{row name}: {row name}`` lines."""
    return FlatFile(path, read_flat(path, "write one 'target value: golden value' pair per line"))


def link_data(call_links: CallLinks, file: FlatFile) -> None:
    """Claim the rows that the file names; a line may also name two whole calls."""
    remarks = Remarks(file.path)

    def fits(left: _Lookup, right: _Lookup) -> int:
        return sum(left.knows(line.left) and right.knows(line.right) for line in file.lines[:_TRIED])

    left, right, mirrored = remarks.sides(_Lookup(call_links.target), _Lookup(call_links.golden), fits)
    used: dict[int, int] = {}
    for line in file.lines:
        _claim(call_links, line, left, right, mirrored, remarks, used)
    call_links.follow_forward()
    call_links.notes.extend(remarks.texts())


def _claim(
    call_links: CallLinks,
    line: Line,
    left: _Lookup,
    right: _Lookup,
    mirrored: bool,
    remarks: Remarks,
    used: dict[int, int],
) -> None:
    if line.left in left.ops and line.right in right.ops:
        one, other = left.ops[line.left], right.ops[line.right]
        call_links.link(*((other, one) if mirrored else (one, other)), DATA_RULE)
        return
    row = left.row(line.left)
    if row == NONE:
        _nothing(remarks, line, line.left, left, "keys that name no value")
        return
    if line.right == NO_PARTNER:
        if not mirrored:
            call_links.rows[row] = NONE
        return
    partner = right.row(line.right)
    if partner == NONE:
        _nothing(remarks, line, line.right, right, "values that exist nowhere")
        return
    if partner in used:
        remarks.add(line.number, f"{line.right} was named in line {used[partner]} already", "values named twice")
        if mirrored:
            return
    used.setdefault(partner, line.number)
    target, golden = (partner, row) if mirrored else (row, partner)
    if target not in call_links.rows:
        call_links.rows[target] = golden


def _nothing(remarks: Remarks, line: Line, name: str, lookup: _Lookup, kind: str) -> None:
    text = f"{name!r} was not recorded in {lookup.side.run.path}"
    remarks.add(line.number, text, kind, partial(lookup.names.hint, name))


class _Lookup:
    """The rows of a run by every name that people write for them."""

    def __init__(self, side: RunCalls) -> None:
        self.side = side
        self.ops = side.number_of
        names = side.run.table["name"].to_list()
        self._rows = {name: row for row, name in reversed(list(enumerate(names)))}
        self.names = Names(self._rows)

    def knows(self, name: str) -> bool:
        return name in self._rows or name in self.ops or self.row(name) != NONE

    def row(self, name: str) -> int:
        found = self._rows.get(name)
        if found is None:
            found = next((self._rows[other] for other in _spellings(name) if other in self._rows), NONE)
        return found


def _spellings(name: str) -> list[str]:
    """Other ways to write a row: with or without the number of the gradients, .kwargs. for .input., the file's name."""
    for extension in _EXTENSIONS:
        name = name.removesuffix(extension)
    found = [name]
    head, mark, tail = name.partition(".parameters_grad.")
    if mark:
        number, dot, rest = tail.partition(".")
        found.append(f"{head}{mark}{rest}" if dot and number.isdecimal() else f"{head}{mark}0.{tail}")
    for mine, other in ((".kwargs.", ".input."), (".input.", ".kwargs.")):
        if mine in name:
            found.append(name.replace(mine, other, 1))
    return found


# The data mapping that a layer mapping leaves behind, to be read, corrected and given back with -dm.

_PLAIN = r"^[A-Za-z_][A-Za-z0-9_./-]*$"


def write_data_mapping(path: Path, target: Run, golden: Run, pairs: Pairs) -> None:
    """Write every target row and its partner, N/A where it has none."""
    names, others = _quoted(target), _quoted(golden)
    others.append(NO_PARTNER)  # what the row number -1 finds
    partners = pairs.golden[: len(names)].tolist()
    lines = dict(zip(reversed(names), (others[at] for at in reversed(partners)), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([f"{name}: {lines.pop(name)}" for name in names if name in lines]) + "\n"
    write_whole(path, lambda place: place.write_text(text, encoding="utf-8"), sync=True)


def _quoted(run: Run) -> list[str]:
    """The rows' names as YAML scalars."""
    column = run.table["name"]
    names: list[str] = column.to_list()
    if column.str.contains(_PLAIN).all():
        return names
    return [name if re.match(_PLAIN, name) and "\n" not in name else json.dumps(name) for name in names]
