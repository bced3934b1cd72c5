"""alignment.json: the full result of an alignment, to be read, edited and given to compare and graph."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from twinprobe.align.auto.alignment import KINDS, SAME, Alignment, Relation
from twinprobe.align.auto.relation_pieces import large_document
from twinprobe.errors import BadInput
from twinprobe.runs.file_blocks import FileBlocks

FORMAT = "twinprobe alignment 1"
_MOST_BYTES = 1 << 30
_WHOLE = 2 << 20  # up to here it is decoded at once
# What relations may take in memory, for each byte of the file; and what one takes, and each of its texts.
_ROOM, _ROOM_PER_BYTE, _RELATION, _TEXT = 36 << 20, 2.7, 370, 57
_MOST_KNOWN = 4096


class _Entry(msgspec.Struct, omit_defaults=True):
    """A relation as people write it: one name or a list of names on either side; the rest is optional."""

    target: str | list[str]
    golden: str | list[str]
    kind: str = SAME
    rule: str = "edited"
    reason: str = ""
    confidence: float = 1.0
    axis: int | None = None
    inside: str = ""


class _Document(msgspec.Struct):
    relations: list[_Entry]
    format: str = FORMAT


_decoder = msgspec.json.Decoder(list[_Entry])


def read_alignment(path: Path) -> Alignment:
    """Read an alignment.json, as written or edited by hand."""
    if not path.exists():
        raise BadInput("does not exist", where=path, hint="twinprobe align A B -o DIR writes one")
    try:
        relations = _read(path)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = 'expected {"relations": [{"target": "...", "golden": "..."}]}'
        raise BadInput(f"is no alignment: {error}", where=path, hint=hint) from None
    for side in ("target", "golden"):
        _check_once(path, relations, side)
    return Alignment(relations=relations)


def _read(path: Path) -> list[Relation]:
    file = FileBlocks(path)
    if file.size > _MOST_BYTES:
        raise BadInput("is too large for an alignment", where=path)
    if file.size <= _WHOLE:
        document = msgspec.json.decode(file.range(0, file.size), type=_Document)
        written_as, pieces = document.format, iter((document.relations,))
    else:
        keys, pieces = large_document(file, _decoder)
        written_as = keys.get("format", FORMAT)
    if written_as != FORMAT:
        raise BadInput(f"its format is {written_as!r}", where=path, hint=f"expected {FORMAT!r}")
    room, relations, known = _ROOM + _ROOM_PER_BYTE * file.size, list[Relation](), dict[str, str]()
    for entry in chain.from_iterable(pieces):
        at = len(relations)
        relation = _relation(path, at, entry, known)
        relations.append(relation)
        # Rules, reasons and kinds are shared by most.
        room -= _RELATION + sum(map(_cost, (*relation.target, *relation.golden)))
        room -= 0 if relation.reason in known else _cost(relation.reason)
        if room < 0:
            what = "is one relation too many: alignments of this size have longer ones"
            raise BadInput(what, where=f"{path}: relations[{at}]")
    return relations


def _cost(text: str) -> int:
    return _TEXT + (len(text) if text.isascii() else 4 * len(text))


def _relation(path: Path, at: int, entry: _Entry, known: dict[str, str]) -> Relation:
    target, golden = _names(entry.target), _names(entry.golden)
    where = f"{path}: relations[{at}]"
    if not target or not golden:
        raise BadInput(
            "a relation needs calls on both sides", where=where, hint="remove it, or name a call on each side"
        )
    if entry.kind not in KINDS:
        raise BadInput(f"kind {entry.kind!r} is not known", where=where, hint=f"one of {', '.join(KINDS)}")
    # Most relations share these words: they are kept once.
    words = [entry.rule, entry.reason, entry.kind, entry.inside]
    if len(known) < _MOST_KNOWN:
        words = [known.setdefault(word, word) for word in words]
    rule, reason, kind, inside = words
    return Relation(target, golden, rule, reason, entry.confidence, kind, entry.axis, inside)


def _names(names: str | list[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_once(path: Path, relations: list[Relation], side: str) -> None:
    # Looked for by hashes, which take little room; names are compared only where two of them are equal.
    hashes = np.fromiter((hash(name) for one in relations for name in getattr(one, side)), np.int64)
    hashes.sort()
    twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    seen: dict[str, int] = {}
    for at, relation in enumerate(relations if twice else ()):
        for name in getattr(relation, side):
            if name in seen:
                raise BadInput(
                    f"{name!r} is a {side} call of relations[{seen[name]}] already",
                    where=f"{path}: relations[{at}]", hint="each call belongs to one relation",
                )  # fmt: skip
            if hash(name) in twice:
                seen[name] = at


def to_document(alignment: Alignment) -> dict[str, Any]:
    """An alignment as plain values, for alignment.json."""
    return {
        "format": FORMAT,
        "modules": {"target": alignment.modules[0], "golden": alignment.modules[1]},
        "aligned_modules": {"target": alignment.matched_modules[0], "golden": alignment.matched_modules[1]},
        "rules": alignment.by_rule(),
        "notes": alignment.notes,
        "relations": [_plain(relation) for relation in alignment.relations],
        "unmatched": {
            "target": [{"name": alone.name, "why": alone.why} for alone in alignment.target_alone],
            "golden": [{"name": alone.name, "why": alone.why} for alone in alignment.golden_alone],
        },
    }


def _plain(relation: Relation) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "target": list(relation.target), "golden": list(relation.golden), "kind": relation.kind,
        "rule": relation.rule, "reason": relation.reason, "confidence": relation.confidence,
    }  # fmt: skip
    if relation.axis is not None:
        entry["axis"] = relation.axis
    if relation.inside:
        entry["inside"] = relation.inside
    return entry
