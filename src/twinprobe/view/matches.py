"""Matches made by hand: kept in a small file beside the graph, never in the graph itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from twinprobe.errors import BadInput
from twinprobe.graph.read_db import TARGET
from twinprobe.graph.safe_sqlite import cache_folder
from twinprobe.report.atomic import replacing

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


def load(path: Path, key: str) -> Matches:
    """The matches of one graph of a file."""
    stored = _read(path).graphs.get(key, _Stored())
    return Matches(dict(stored.added), set(stored.removed))


def change(path: Path, key: str, edit: Any) -> Matches:
    """Read, edit and write under a lock; returns what now holds."""
    with _lock:
        file = _read(path)
        stored = file.graphs.get(key, _Stored())
        matches = Matches(dict(stored.added), set(stored.removed))
        edit(matches)
        file.graphs[key] = _Stored(matches.added, sorted(matches.removed))
        _write(path, msgspec.json.format(msgspec.json.encode(file), indent=1))
        return matches


def pairs_in(content: bytes) -> dict[str, str]:
    """The pairs of an imported file: a JSON object of names, as this page and older tools export it."""
    try:
        return msgspec.json.decode(content, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"is no file of matches: {error}", hint="it must be a JSON object of node names") from error


def _places(path: Path) -> Iterable[Path]:
    yield path.with_name(path.name + _ENDING)
    yield (
        cache_folder("matches")
        / f"{sha256(str(path.resolve()).encode('utf-8', 'surrogateescape')).hexdigest()}{_ENDING}"
    )


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


def _write(path: Path, content: bytes) -> None:
    beside, cached = _places(path)
    try:
        with replacing(beside) as temporary:
            temporary.write_bytes(content)
    except BadInput:  # a read-only folder
        with replacing(cached) as temporary:
            temporary.write_bytes(content)
