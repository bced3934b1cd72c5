"""API mapping (-am): calls of APIs that compute the same, by the user's file and the built-in table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from twinprobe._align.calls import Callee, RunCalls
from twinprobe._align.links import CallLinks
from twinprobe._align.mapping.api_names import IndexMap, family, torch_name
from twinprobe._align.mapping.yaml_files import (
    KINDS,
    Mapping,
    Names,
    Node,
    Remarks,
    Sequence,
    Text,
    flat_lines,
    location,
    read_yaml,
    text_of,
)
from twinprobe._runs.names import BACKWARD, FORWARD
from twinprobe.errors import BadInput

# The user's API mapping file: which API is which, and the lists of arguments and outputs that correspond.

_SECTIONS = {
    "args": "args", "arg": "args", "inputs": "args", "input": "args",
    "outputs": "outputs", "output": "outputs",
    "parameters": "parameters", "parameter": "parameters",
    "parameters_grad": "parameters_grad",
}  # fmt: skip
_SUFFIXES = {"args": ".input.", "outputs": ".output.", "parameters": ".parameters.", "parameters_grad": "."}
_TURNED = {"args": "outputs", "outputs": "args"}
_KNOWN = Names([f"{side}_{key}" for side in ("ms", "pt") for key in ("api", *_SECTIONS)])
_HINT = "write ms_api and pt_api, one mapping or a list of them"


@dataclass
class Listed:
    """One index list: its items and its line."""

    items: list[str]
    line: int


@dataclass
class ApiEntry:
    """One API of the left (MindSpore) side, the one it is on the right, and the lists as written."""

    line: int
    left: str
    right: str
    lists: dict[str, tuple[Listed, Listed]] = field(default_factory=dict)


@dataclass
class ApiFile:
    """A whole file, read and checked as far as it goes without the runs."""

    path: Path
    entries: list[ApiEntry]
    early: list[tuple[int, str]]


@dataclass
class UserApis:
    """Which API stands for which of the other run, on the side that the file's left column names."""

    target: dict[str, str] = field(default_factory=dict)
    golden: dict[str, str] = field(default_factory=dict)


def read_api_file(path: Path) -> ApiFile:
    """Read an API mapping: one mapping, a list of them, or plain ``left: right`` lines."""
    node = read_yaml(path)
    early: list[tuple[int, str]] = []
    if isinstance(node, Mapping) and not {"ms_api", "pt_api"} & node.items.keys():
        entries = [ApiEntry(line.number, line.left, line.right) for line in flat_lines(path, node, _HINT)]
    else:
        nodes = node.items if isinstance(node, Sequence) else [node]
        entries = [_entry(path, item, early) for item in nodes]
    if not entries:
        raise BadInput("holds no API", where=path, hint=_HINT)
    return ApiFile(path, entries, early)


def _entry(path: Path, node: Node, early: list[tuple[int, str]]) -> ApiEntry:
    if not isinstance(node, Mapping):
        raise BadInput(f"is {KINDS[type(node)]}, an API was expected", where=location(path, node.line), hint=_HINT)
    names: dict[str, str] = {}
    lists: dict[str, dict[str, Listed]] = {}
    for key, (line, value) in node.items.items():
        side, _, what = key.partition("_")
        if side in ("ms", "pt") and what == "api":
            names[side] = text_of(path, value, key)
        elif side in ("ms", "pt") and what in _SECTIONS:
            lists.setdefault(_SECTIONS[what], {})[side] = Listed(_items(path, key, value), line)
        else:
            early.append((line, f"the key {key!r} is not known{_KNOWN.hint(key)}"))
    for side in ("ms", "pt"):
        if side not in names:
            raise BadInput(f"an entry has no {side}_api", where=location(path, node.line), hint=_HINT)
    entry = ApiEntry(node.line, names["ms"], names["pt"])
    for section, sides in lists.items():
        left, right = sides.get("ms"), sides.get("pt")
        if left is None or right is None:
            lone = left or right
            assert lone is not None
            early.append((lone.line, f"only one of ms_{section} and pt_{section} is given: the list is not used"))
        elif len(left.items) != len(right.items):
            early.append((
                max(left.line, right.line),
                f"ms_{section} lists {len(left.items)} and pt_{section} {len(right.items)} of {entry.left} and "
                f"{entry.right}: lists of different lengths are not used",
            ))  # fmt: skip
        else:
            entry.lists[section] = left, right
    return entry


def _items(path: Path, key: str, node: Node) -> list[str]:
    if isinstance(node, Sequence):
        return [text_of(path, item, f"an item of {key}") for item in node.items]
    if isinstance(node, Text):
        return [] if node.is_null else node.value.replace(",", " ").split()
    raise BadInput(f"{key} is {KINDS[type(node)]}, a list was expected", where=location(path, node.line))


def user_apis(call_links: CallLinks, file: ApiFile) -> UserApis:
    """Set the file against the two runs: note what matches nothing, keep the argument lists with the links."""
    remarks = Remarks(file.path)
    for line, text in file.early:
        remarks.add(line, text)
    left, right, mirrored = _sides(call_links, file)
    users = UserApis()
    mine = users.golden if mirrored else users.target
    names = Names(left.callees), Names(right.callees)
    for entry in file.entries:
        if entry.left in mine:
            remarks.add(entry.line, f"{entry.left} was mapped above to {mine[entry.left]}: this entry is not used")
            continue
        missing = False
        for side, known, name, run in ((left, names[0], entry.left, "MindSpore"), (right, names[1], entry.right, "")):
            if name not in side.callees:
                missing = True
                where = (
                    run if call_links.across_frameworks and run else "target" if side is call_links.target else "golden"
                )
                text = f"{name} was not recorded in the {where} run"
                remarks.add(entry.line, text, "an API that was not recorded", partial(known.hint, name))
        if missing:
            continue
        mine[entry.left] = entry.right
        index_map = _index_map(entry, left, right, mirrored, remarks)
        pair = (entry.right, entry.left) if mirrored else (entry.left, entry.right)
        if index_map is not None:
            call_links.arguments[pair] = index_map
    call_links.notes.extend(remarks.texts())
    return users


def _sides(call_links: CallLinks, file: ApiFile) -> tuple[RunCalls, RunCalls, bool]:
    """Which run the left column names: the MindSpore one; between two of one kind, the one that has the names."""
    if call_links.across_frameworks:
        mirrored = call_links.golden.is_mindspore
    else:
        target, golden = call_links.target.callees, call_links.golden.callees
        as_written = sum(entry.left in target and entry.right in golden for entry in file.entries)
        swapped = sum(entry.left in golden and entry.right in target for entry in file.entries)
        mirrored = swapped > as_written
        if mirrored:
            call_links.notes.append(
                f"{file.path}: ms_api names the golden run, so the file is used the other way round"
            )
    return (call_links.golden, call_links.target, True) if mirrored else (call_links.target, call_links.golden, False)


def _index_map(entry: ApiEntry, left: RunCalls, right: RunCalls, mirrored: bool, remarks: Remarks) -> IndexMap | None:
    maps: dict[str, dict[str, str]] = {}
    for section, (ms, pt) in entry.lists.items():
        known = _recorded(left, entry.left, section), _recorded(right, entry.right, section)
        pairs: dict[str, str] = {}
        for one, other in zip(ms.items, pt.items, strict=True):
            if one in pairs or other in pairs.values():
                twice = f"ms_{section} {one}" if one in pairs else f"pt_{section} {other}"
                remarks.add(ms.line if one in pairs else pt.line, f"{twice} is listed twice: the first one is used")
                continue
            unknown = [
                (listed.line, f"{side}_{section} lists {index}, {name} has {_shown(has)} only: {alone} is not paired")
                for side, listed, index, has, name, alone in (
                    ("ms", ms, one, known[0], entry.left, f"pt_{section} {other}"),
                    ("pt", pt, other, known[1], entry.right, f"ms_{section} {one}"),
                )
                if has is not None and index not in has
            ]  # fmt: skip
            for line, text in unknown:
                remarks.add(line, text)
            if not unknown:
                pairs[one] = other
        maps[section] = {other: one for one, other in pairs.items()} if mirrored else pairs
    if not maps:
        return None
    others = {_SUFFIXES[section]: maps[section] for section in ("parameters", "parameters_grad") if section in maps}
    return IndexMap(maps.get("args"), maps.get("outputs"), others)


def _shown(indices: set[str]) -> str:
    return ", ".join(sorted(indices, key=lambda text: (len(text), text))) or "nothing"


def _recorded(side: RunCalls, name: str, section: str) -> set[str] | None:
    """The indices and keywords of an API in all its calls; None where there is nothing to check against.

    Where only backward calls were recorded, the gradients of the arguments are what these gave.
    """
    calls = side.callees[name].calls
    found = calls.get(FORWARD) or calls.get(BACKWARD)
    if not found or section == "parameters_grad":
        return None
    suffix = _SUFFIXES[section if FORWARD in calls else _TURNED.get(section, section)]
    return {
        row[len(suffix) :].partition(".")[0]
        for op in found.values()
        for row in side.suffixes(op)
        if row.startswith(suffix)
    }


USER, BUILT_IN, SAME = "API mapping", "API table", "name"


@dataclass
class _Family:
    """All spellings of one function: unit (one API in common spelling) -> its callees on either side."""

    target: dict[str, list[Callee]] = field(default_factory=lambda: defaultdict(list))
    golden: dict[str, list[Callee]] = field(default_factory=lambda: defaultdict(list))


def link_apis(call_links: CallLinks, file: ApiFile | None = None) -> None:
    """Link free API calls. One API against one pairs by call number, several against one in order of appearance."""
    _Linker(call_links, user_apis(call_links, file) if file else UserApis()).link()


class _Linker:
    def __init__(self, call_links: CallLinks, users: UserApis) -> None:
        self._call_links = call_links
        self._users = users

    def link(self) -> None:
        families: dict[str, _Family] = defaultdict(_Family)
        for callee in self._call_links.target.apis:
            unit = self._users.target.get(callee.name) or self._common_name(self._call_links.target, callee)
            families[family(unit)].target[unit].append(callee)
        for callee in self._call_links.golden.apis:
            unit = self._users.golden.get(callee.name) or self._common_name(self._call_links.golden, callee)
            families[family(unit)].golden[unit].append(callee)
        both = [members for members in families.values() if members.target and members.golden]
        for direction in (FORWARD, BACKWARD):
            for members in both:
                self._link_family(members, direction)
            self._call_links.follow_forward()

    def _common_name(self, side: RunCalls, callee: Callee) -> str:
        # Within one framework every API stays itself: only the user's file says otherwise.
        return (
            torch_name(callee, is_mindspore=True)
            if side.is_mindspore and self._call_links.across_frameworks
            else callee.name
        )

    def _link_family(self, members: _Family, direction: str) -> None:
        target = self._without_inner_primitives(members.target)
        golden = self._without_inner_primitives(members.golden)
        counts = self._counts(target, direction, golden=False), self._counts(golden, direction, golden=True)
        totals = sum(counts[0].values()), sum(counts[1].values())
        if counts[0] != counts[1] and totals[0] == totals[1]:
            self._link_group(list(chain(*target.values())), list(chain(*golden.values())), direction)
            return
        for unit in target.keys() & golden.keys():
            self._link_group(target[unit], golden[unit], direction)

    def _counts(self, units: dict[str, list[Callee]], direction: str, *, golden: bool) -> dict[str, int]:
        counts = {
            unit: len(self._call_links.free(callees, direction, golden=golden)) for unit, callees in units.items()
        }
        return {unit: count for unit, count in counts.items() if count}

    @staticmethod
    def _without_inner_primitives(units: dict[str, list[Callee]]) -> dict[str, list[Callee]]:
        """Primitives are mostly parts of a Cell (MatMul of Dense), so they count only where nothing else does."""
        plain = {
            unit: [callee for callee in callees if callee.prefix != "Primitive"] for unit, callees in units.items()
        }
        plain = {unit: callees for unit, callees in plain.items() if callees}
        return plain or units

    def _link_group(self, target: list[Callee], golden: list[Callee], direction: str) -> None:
        call_links = self._call_links
        target_ops, golden_ops = call_links.free(target, direction), call_links.free(golden, direction, golden=True)
        primitives = any(callee.prefix == "Primitive" for callee in target + golden)
        if primitives and call_links.across_frameworks and len(target_ops) != len(golden_ops):
            return
        if len(target) == 1 and len(golden) == 1:
            places = {call_links.golden.call[op]: op for op in golden_ops}
            by_number = [
                (op, places[call_links.target.call[op]]) for op in target_ops if call_links.target.call[op] in places
            ]
            if by_number:
                self._link_pairs(by_number)
                return
        self._link_pairs(call_links.in_order(target_ops, golden_ops))

    def _link_pairs(self, pairs: list[tuple[int, int]]) -> None:
        call_links = self._call_links
        for op, other in pairs:
            if call_links.same_place(op, other):
                call_links.link(
                    op,
                    other,
                    self._reason(call_links.target.callee_of[op].name, call_links.golden.callee_of[other].name),
                )

    def _reason(self, target: str, golden: str) -> str:
        if self._users.target.get(target) == golden or self._users.golden.get(golden) == target:
            return USER
        return SAME if target == golden else BUILT_IN
