"""Mapping files of plain lines, one name each side: data mapping (-dm) and cell mapping (-cm)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import partial
from pathlib import Path

from twinprobe._align.calls import Callee, RunCalls
from twinprobe._align.links import NONE, CallLinks, Pairs
from twinprobe._align.mapping.yaml_files import FlatFile, Line, Names, Remarks, read_flat
from twinprobe._align.rows import DATA_RULE
from twinprobe._runs.run import Run
from twinprobe._runs.whole_files import write_whole

# Data mapping (-dm): single values, named one by one.

# What a generated file writes for a value that has no partner.
NO_PARTNER = "N/A"
# So many lines tell in which direction a file was written.
_TRIED_VALUES = 2000
_EXTENSIONS = (".npy", ".pt")


def read_data_file(path: Path) -> FlatFile:
    """Read ``{row name}: {row name}`` lines."""
    return FlatFile(path, read_flat(path, "write one 'target value: golden value' pair per line"))


def link_data(call_links: CallLinks, file: FlatFile) -> None:
    """Claim the rows that the file names; a line may also name two whole calls."""
    remarks = Remarks(file.path)

    def fits(left: _Lookup, right: _Lookup) -> int:
        return sum(left.knows(line.left) and right.knows(line.right) for line in file.lines[:_TRIED_VALUES])

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


# How the lines of a cell mapping file turn a cell's name into a module's.

_Span = tuple[int, int, Line]


class CellNames:
    """Applies the lines to names and remembers which of them ever did something.

    A line whose left side is the whole name wins. Otherwise each line replaces its first occurrence in the original
    name: on whole segments where there are such, else inside a word.
    """

    def __init__(self, lines: list[Line], names: Collection[str], known: Collection[str]) -> None:
        self._by_left = {line.left: line for line in lines}
        self._known = known
        whole = set(names)
        # Only strings are looked for inside words: a full name is no part of one.
        self._strings = [line for line in lines if line.left not in whole]
        self.hits: set[Line] = set()
        self.inside: dict[Line, str] = {}

    def rename(self, name: str) -> tuple[str, list[Line]]:
        """The name in the other run's words, and the lines that made it."""
        whole = self._by_left.get(name)
        if whole is not None:
            self.hits.add(whole)
            return whole.right, [whole]
        words = _apart(self._segment_hits(name), [])
        inside = [span for span in self._string_hits(name) if all(span[2] is not word[2] for word in words)]
        both = _apart(inside, words)
        renamed = _apply(name, both)
        # A string that is only part of a word is a guess; it is taken back where the plain reading exists.
        if len(both) > len(words) and renamed not in self._known:
            plain = _apply(name, words)
            if plain in self._known:
                both, renamed = words, plain
        self.hits.update(line for _, _, line in both)
        for span in both:
            if span not in words:
                self.inside.setdefault(span[2], name)
        return renamed, [line for _, _, line in both]

    def _segment_hits(self, name: str) -> list[_Span]:
        """The first place of each line that hits whole segments."""
        starts = [0, *(at + 1 for at, sign in enumerate(name) if sign == ".")]
        ends = [*(start - 1 for start in starts[1:]), len(name)]
        found: dict[str, _Span] = {}
        for first, begin in enumerate(starts):
            for end in ends[first:]:
                line = self._by_left.get(name[begin:end])
                if line is not None and line.left not in found:
                    found[line.left] = (begin, end, line)
        return list(found.values())

    def _string_hits(self, name: str) -> list[_Span]:
        found = ((name.find(line.left), line) for line in self._strings)
        return [(start, start + len(line.left), line) for start, line in found if start >= 0]


def _apart(spans: list[_Span], kept: list[_Span]) -> list[_Span]:
    """What does not overlap with what is kept already; of two that overlap, the longer one stays."""
    kept = list(kept)
    for span in sorted(spans, key=lambda item: item[0] - item[1]):
        if all(span[1] <= other[0] or other[1] <= span[0] for other in kept):
            kept.append(span)
    return sorted(kept, key=lambda item: item[0])


def _apply(name: str, spans: list[_Span]) -> str:
    for begin, end, line in reversed(spans):
        name = name[:begin] + line.right + name[end:]
    return name


# So many lines tell in which direction a file was written.
_TRIED_CELLS = 1000
MAPPED, SAME, CELL, PATH = "cell mapping", "name", "cell to module", "cell path"


def read_cell_file(path: Path) -> FlatFile:
    """Read ``{path}.{class}: {path}.{class}`` or ``{string}: {string}`` lines."""
    return FlatFile(path, read_flat(path, "write one 'cell: module' pair per line"))


def link_cells(call_links: CallLinks, file: FlatFile | None = None) -> None:
    """Link cells with modules: by the file first, then by equal path and class, then by equal path."""
    if file is not None:
        _link_by_file(call_links, file)
    golden = {callee.whole: callee for callee in call_links.golden.modules if _is_free(call_links.back, callee)}
    for callee in call_links.target.modules:
        other = golden.get(callee.whole)
        if other is not None and _is_free(call_links.partner, callee):
            call_links.link_callees(callee, other, SAME if callee.name == other.name else CELL)
    _link_by_path(call_links)
    call_links.follow_forward()


def _is_free(links: list[int], callee: Callee) -> bool:
    return all(links[op] == NONE for calls in callee.calls.values() for op in calls.values())


def _link_by_path(call_links: CallLinks) -> None:
    target = _by_path([callee for callee in call_links.target.modules if _is_free(call_links.partner, callee)])
    golden = _by_path([callee for callee in call_links.golden.modules if _is_free(call_links.back, callee)])
    for path, callees in target.items():
        others = golden.get(path, [])
        if path and len(callees) == len(others) == 1:
            call_links.link_callees(callees[0], others[0], PATH)


def _by_path(callees: list[Callee]) -> dict[str, list[Callee]]:
    paths: dict[str, list[Callee]] = {}
    for callee in callees:
        paths.setdefault(callee.body, []).append(callee)
    return paths


def _link_by_file(call_links: CallLinks, file: FlatFile) -> None:
    remarks = Remarks(file.path)
    left, right, mirrored = remarks.sides(call_links.target, call_links.golden, partial(_score, file))
    known = {callee.whole: callee for callee in right.modules}
    by_path = _by_path(right.modules)
    names = CellNames(file.lines, [callee.whole for callee in left.modules], known.keys())
    used: dict[str, str] = {}
    for callee in left.modules:
        name, lines = names.rename(callee.whole)
        if not lines:
            continue
        others = [known[name]] if name in known else by_path.get(name.rpartition(".")[0], [])
        if len(others) != 1:
            continue
        other = others[0]
        if other.name in used:
            remarks.add(lines[0].number, f"{callee.whole} meets {other.whole}, which {used[other.name]} has met before")
            continue
        used[other.name] = callee.whole
        call_links.link_callees(*((other, callee) if mirrored else (callee, other)), MAPPED)
    _remark(remarks, names, file, left, right)
    call_links.notes.extend(remarks.texts())


def _score(file: FlatFile, left: RunCalls, right: RunCalls) -> int:
    """How many of the file's lines fit the two runs in this direction."""
    mine, theirs = _Text(left), _Text(right)
    return sum(line.left in mine and line.right in theirs for line in file.lines[:_TRIED_CELLS])


class _Text:
    """All names of a run's modules, asked whether a string occurs in any of them."""

    def __init__(self, side: RunCalls) -> None:
        self._names = {callee.whole for callee in side.modules}
        self._joined = "\n".join(self._names)

    def __contains__(self, text: str) -> bool:
        return text in self._names or text in self._joined


def _remark(remarks: Remarks, names: CellNames, file: FlatFile, left: RunCalls, right: RunCalls) -> None:
    """Say which lines did nothing, which lead nowhere, and which hit inside a word."""
    theirs = _Text(right)
    mine, known = Names(_words(left)), Names(_words(right))
    for line in file.lines:
        if line not in names.hits:
            text = f"{line.left!r} matches no cell"
            remarks.add(line.number, text, "keys that match no cell", partial(mine.hint, line.left))
        elif line.right not in theirs:
            text = f"{line.right!r} occurs in no module of the other run"
            remarks.add(line.number, text, "values that exist nowhere", partial(known.hint, line.right))
        if line in names.inside:
            text = f"{line.left!r} is only part of a word in {names.inside[line]!r}, and was replaced there"
            remarks.add(line.number, text, "strings inside a word")


def _words(side: RunCalls) -> list[str]:
    """Whole names and their single segments: what a line of the file may name."""
    names = [callee.whole for callee in side.modules]
    return names + list(dict.fromkeys(part for name in names for part in name.split(".") if not part.isdecimal()))
