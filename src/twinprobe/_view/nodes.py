"""Nodes as the page gets them: how bad each is, its match by hand, briefly for the tree, in full for the details."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from twinprobe._graph.read.db import GOLDEN, TARGET, Config, Graph, cache_folder, last_link, parsed
from twinprobe._graph.read.open import Source
from twinprobe._report.files import replacing
from twinprobe.errors import BadInput

WORST = 1e30  # stands for nan and inf, which JSON cannot carry
_KINDS = {
    "NormRelativeErr": "relative", "MaxRelativeErr": "relative", "MinRelativeErr": "relative",
    "MeanRelativeErr": "relative", "Max diff": "absolute", "Min diff": "absolute", "Mean diff": "absolute",
    "L2norm diff": "absolute", "Cosine": "complement", "EucDist": "absolute", "MaxAbsErr": "absolute",
    "One Thousandth Err Ratio": "complement", "Five Thousandths Err Ratio": "complement",
}  # fmt: skip
OWN_ERROR = "error"
METRICS = (OWN_ERROR, *_KINDS)
_MISSING = frozenset({"", "n/a", "none", "null", "unsupported", "-"})


@dataclass(frozen=True)
class Band:
    """A range of the precision index with the colour and name that the file gives it."""

    low: float
    high: float
    color: str
    label: str


def bands(colors: dict[str, dict[str, Any]]) -> list[Band]:
    """The bands of a file, the harmless one first.

    Which end is worse depends on the writer's version and mode; that darker is worse holds for all of them.
    """
    found = []
    for color, entry in colors.items():
        span = entry.get("value")
        if not re.fullmatch(r"#[0-9a-fA-F]{6}", color) or not isinstance(span, list) or len(span) != 2:
            continue
        low, high = span
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            found.append(Band(float(low), float(high), color, str(entry.get("accuracy_level") or "")))

    def lightness(band: Band) -> float:
        red, green, blue = (int(band.color[start : start + 2], 16) for start in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    return sorted(found, key=lightness, reverse=True)


def level_of(precision: Any, known: list[Band]) -> int | None:
    """The number of the band that a precision index falls in; None where nothing was compared."""
    if not isinstance(precision, (int, float)) or not known or math.isnan(precision):
        return None
    for number, band in enumerate(known):
        if band.low <= precision < band.high or band.low == precision == band.high:
            return number
    return min(range(len(known)), key=lambda n: min(abs(precision - known[n].low), abs(precision - known[n].high)))


def badness(text: str, metric: str) -> float | None:
    """A metric as written in a file, turned so that 0 is perfect and more is worse."""
    text = text.split(",", 1)[0].strip()  # "0.0%, the value is small": an old writer added remarks
    if text.lower() in _MISSING:
        return None
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return WORST
    return max(0.0, 1 - value) if _KINDS.get(metric) == "complement" else abs(value)


def worst_in(text: str, metric: str) -> float | None:
    """The worst value of a metric in the JSON text of some tensors, found without decoding it."""
    found = [badness(value, metric) for value in _pattern(metric).findall(text)]
    return max((value for value in found if value is not None), default=None)


@lru_cache(maxsize=64)
def _pattern(metric: str) -> re.Pattern[str]:
    return re.compile(r'"' + re.escape(metric) + r'": ?"([^"\\]*)"')


# Matches made by hand are kept in a small file beside the graph, never in the graph itself.
_ENDING = ".matches.json"
_LARGEST = 64 << 20
_lock = threading.Lock()


class _Stored(msgspec.Struct):
    added: dict[str, str] = {}
    removed: list[str] = []


class _File(msgspec.Struct):
    graphs: dict[str, _Stored] = {}


@dataclass
class Matches:
    """Pairs added and taken away by hand in one graph; keys are names of the run under test."""

    added: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._back = {golden: target for target, golden in self.added.items()}

    def partner(self, side: str, name: str, stored: str | None) -> str | None:
        """The matching node, given what the file says."""
        if side == TARGET:
            return self.added.get(name, None if name in self.removed else stored)
        if name in self._back:
            return self._back[name]
        return None if stored in self.removed or stored in self.added else stored

    def is_manual(self, side: str, name: str) -> bool:
        """Whether this node's match was made by hand."""
        return name in (self.added if side == TARGET else self._back)

    def add(self, target: str, golden: str, golden_was: str | None) -> None:
        """Match two nodes; the reference's former partner loses it."""
        former = self._back.get(golden, golden_was)
        if former is not None and former != target:
            self.remove(former)
        self.removed.discard(target)
        self._back.pop(self.added.get(target, ""), None)
        self.added[target] = golden
        self._back[golden] = target

    def remove(self, target: str) -> None:
        """Part a node from its partner, however they were matched."""
        self._back.pop(self.added.pop(target, ""), None)
        self.removed.add(target)


def load_matches(path: Path, key: str) -> Matches:
    """The matches of one graph of a file."""
    return _matches(_read(path), key)


def change_matches(path: Path, key: str, edit: Callable[[Matches], None]) -> Matches:
    """Read, edit and write under a lock; returns what now holds."""
    with _lock:
        file = _read(path)
        matches = _matches(file, key)
        edit(matches)
        file.graphs[key] = _Stored(matches.added, sorted(matches.removed))
        content = msgspec.json.format(msgspec.json.encode(file), indent=1)
        beside, cached = _places(path)
        try:
            with replacing(beside) as temporary:
                temporary.write_bytes(content)
        except BadInput:  # a read-only folder
            with replacing(cached) as temporary:
                temporary.write_bytes(content)
        return matches


def _matches(file: _File, key: str) -> Matches:
    stored = file.graphs.get(key, _Stored())
    return Matches(dict(stored.added), set(stored.removed))


def _places(path: Path) -> tuple[Path, Path]:
    digest = sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return path.with_name(path.name + _ENDING), cache_folder("matches") / f"{digest}{_ENDING}"


def _read(path: Path) -> _File:
    there = [place for place in _places(path) if place.is_file() and not place.is_symlink()]
    for place in sorted(there, key=lambda place: -place.stat().st_mtime):
        try:
            if place.stat().st_size > _LARGEST:
                raise OSError("it is too large")
            return msgspec.json.decode(place.read_bytes(), type=_File)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"the file of hand-made matches cannot be read: {error}", where=place,
                           hint="repair or delete it") from error  # fmt: skip
    return _File()


PAGE = 200
_DEEPEST = 200


@dataclass(frozen=True)
class GraphView:
    """One graph as one request sees it: the file, the hand-made matches, the micro step and the metric in use."""

    source: Source
    step: int
    rank: int
    config: Config
    graph: Graph
    matches: Matches
    micro: int | None = None
    metric: str = ""

    @property
    def sides(self) -> tuple[str, ...]:
        """The graphs that there are."""
        return (TARGET, GOLDEN) if self.config.compared else (TARGET,)

    def brief(self, side: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the tree shows of some nodes."""
        known = bands(self.config.colors)
        extra = self.graph.knowledge(side, [str(row["node_name"]) for row in rows])
        if self.metric not in ("", OWN_ERROR) and side == TARGET:
            texts = self.graph.outputs_of(side, [row["node_order"] for row in rows])
            for row in rows:
                row["value"] = worst_in(texts.get(row["node_order"], ""), self.metric)
        return [self._node_of(side, row, known, extra.get(str(row["node_name"]), {})) for row in rows]

    def children(self, side: str, parent: str, offset: int, limit: int = PAGE) -> dict[str, Any]:
        """A page of a node's children."""
        micro = self.micro_under(side, parent)
        rows = self.graph.children(side, parent, offset, limit, micro)
        total = self.graph.child_count(side, parent, micro)
        return {"parent": parent, "total": total, "offset": offset, "nodes": self.brief(side, rows)}

    def path(self, side: str, name: str) -> list[dict[str, Any]]:
        """The nodes from the root down to this one; empty if the node is not there."""
        found: list[dict[str, Any]] = []
        seen: set[str] = set()
        row = self.graph.node(side, name)
        while row is not None and row["node_name"] not in seen and len(found) < _DEEPEST:
            seen.add(row["node_name"])
            found.append(row)
            row = self.graph.node(side, str(row["up_node"])) if row["up_node"] else None
        return found[::-1]

    def pages_to(self, side: str, name: str, *, inside: bool) -> list[dict[str, Any]]:
        """The pages of children that lead to a node, and with ``inside`` its own first page."""
        path = self.path(side, name)
        pages = []
        for parent, child in pairwise(path):
            micro = self.micro_under(side, parent["node_name"])
            place = self.graph.child_count(side, parent["node_name"], micro, before=child["node_order"])
            pages.append(self.children(side, parent["node_name"], place // PAGE * PAGE))
        if inside and path and not path[-1]["leaf"]:
            pages.append(self.children(side, name, 0))
        return pages

    def partner(self, side: str, row: dict[str, Any]) -> str | None:
        """The name of the matching node on the other side."""
        return self.matches.partner(side, str(row["node_name"]), last_link(row["matched_node_link"]))

    def detail(self, side: str, name: str) -> dict[str, Any]:
        """Everything about a node and its partner."""
        row = self.graph.node(side, name, full=True)
        if row is None:
            raise BadInput(f"there is no node {name!r} in this graph")
        partner, other = self.partner(side, row), GOLDEN if side == TARGET else TARGET
        mate = self.graph.node(other, partner, full=True) if partner else None
        return {side: self._full(side, row), other: self._full(other, mate) if mate else None}

    def _full(self, side: str, row: dict[str, Any]) -> dict[str, Any]:
        known = self.graph.knowledge(side, [str(row["node_name"])]).get(str(row["node_name"]), {})
        arguments = {key: found for key, found in parsed(known.get("arguments"), dict).items() if _is_measured(found)}
        return {
            **self.brief(side, [row])[0],
            "arguments": arguments if "arguments" in known else None,
            "parent": row["up_node"] or None,
            "inputs": _tensors(row["input_data"]),
            "outputs": _tensors(row["output_data"]),
            "stack": self.graph.stack(row),
            "merge": [str(line) for line in parsed(row["parallel_merge_info"], list)],
            "peers": _peers(row["matched_distributed"]),
            "folder": row["dump_data_dir"],
        }

    def _node_of(self, side: str, row: dict[str, Any], known: Any, extra: dict[str, Any]) -> dict[str, Any]:
        name = str(row["node_name"])
        match = self.partner(side, row)
        node = {
            "name": name,
            "order": row["node_order"],
            "type": str(row["node_type"]),
            "kids": 0 if row["leaf"] else self.graph.child_count(side, name, self.micro_under(side, name)),
            "level": level_of(row["precision_index"], known),
            "precision": row["precision_index"] if isinstance(row["precision_index"], (int, float)) else None,
            "overflow": row["overflow_level"],
            "micro": row["micro_step_id"],
            "match": match,
            "manual": self.matches.is_manual(side, name),
            "comm": bool(row["matched_distributed"]) and row["matched_distributed"] not in ("{}", "[]"),
            "by": extra.get("matched_by"),
            **{key: extra.get(key) for key in ("error", "verdict", "origin", "expected", "times")},
            "value": row.get("value", extra.get("error")),
        }
        return {key: value for key, value in node.items() if value is not None and value is not False and value != ""}

    def micro_under(self, side: str, parent: str) -> int | None:
        """The micro step to filter by: it divides the children of the root; below, all belong to one."""
        if self.micro is None:
            return None
        root = self.graph.root(side)
        return self.micro if root is not None and root["node_name"] == parent else None


def metrics_of(config: Config, graph: Graph) -> list[str]:
    """The metrics that this file can be coloured by, the most telling one first."""
    if not config.compared:
        return []
    sample = ""
    for seen, (_, text) in enumerate(graph.outputs(TARGET)):
        sample += text
        if len(sample) > 20_000 or seen > 200:
            break
    own = [OWN_ERROR] if config.knows_more else []
    return own + [metric for metric in METRICS if f'"{metric}"' in sample]


def _tensors(text: Any) -> list[dict[str, str]]:
    tensors = parsed(text, dict).items()
    known = ((name, values if isinstance(values, dict) else {}) for name, values in tensors)
    return [{**{key: str(value) for key, value in values.items()}, "name": name} for name, values in known]


def _is_measured(found: Any) -> bool:
    """Whether this is what TwinProbe writes of an argument: error, expected error, times noise."""
    return isinstance(found, list) and len(found) == 3 and all(isinstance(x, (int, float, type(None))) for x in found)


def _peers(text: Any) -> list[dict[str, Any]]:
    """Where a collective or a send continues: rank, node and how."""
    value = parsed(text, list) or [parsed(text, dict)]
    found = []
    for entry in value:
        nodes = entry.get("nodes_info") if isinstance(entry, dict) else None
        for rank, target in (nodes or {}).items() if isinstance(nodes, dict) else ():
            if str(rank).isdecimal() and isinstance(target, list) and len(target) > 1:
                kind = str(entry.get("communications_type", ""))
                found.append({"rank": int(rank), "node": str(target[1]), "index": str(target[0]), "kind": kind})
    return found


_STATISTICS = ("dtype", "shape", "Max", "Min", "Mean", "Norm")


def sibling_edges(tensors: Sequence[tuple[int, str, str]]) -> list[list[int]]:
    """Data flow between siblings: pairs of places in the order, giver first.

    A tensor that one gives and a later one takes is known by what was recorded of it; of several nodes that gave the
    same one the latest counts.
    """
    givers: dict[tuple[str, ...], int] = {}
    edges: dict[tuple[int, int], None] = {}
    for order, inputs, outputs in tensors:
        for tensor in _fingerprints(inputs):
            if tensor in givers:
                edges[givers[tensor], order] = None
        givers.update(dict.fromkeys(_fingerprints(outputs), order))
    return [list(edge) for edge in edges]


def _fingerprints(text: str) -> Iterator[tuple[str, ...]]:
    """What identifies each tensor; constants and scalars are too common to tell anything."""
    for name, entry in parsed(text, dict).items():
        if ".parameters." in name or not isinstance(entry, dict) or entry.get("shape") in (None, "[]", "()"):
            continue
        if entry.get("md5") not in (None, "", "00000000"):
            yield str(entry["shape"]), str(entry["md5"])
        elif entry.get("Max") not in (None, "null", "nan", entry.get("Min")):
            yield tuple(str(entry.get(key)) for key in _STATISTICS)
