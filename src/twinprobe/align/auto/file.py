"""alignment.json: the full result of an alignment, to be read, edited and given to compare and graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from twinprobe.align.auto.alignment import KINDS, SAME, Alignment, Relation
from twinprobe.errors import BadInput

FORMAT = "twinprobe alignment 1"
_MOST_BYTES = 1 << 30


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


def read_alignment(path: Path) -> Alignment:
    """Read an alignment.json, as written or edited by hand."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadInput("is too large for an alignment", where=path)
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except FileNotFoundError:
        raise BadInput("does not exist", where=path, hint="twinprobe align A B -o DIR writes one") from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = 'expected {"relations": [{"target": "...", "golden": "..."}]}'
        raise BadInput(f"is no alignment: {error}", where=path, hint=hint) from None
    if document.format != FORMAT:
        raise BadInput(f"its format is {document.format!r}", where=path, hint=f"expected {FORMAT!r}")
    relations = [_relation(path, at, entry) for at, entry in enumerate(document.relations)]
    _check_once(path, relations)
    return Alignment(relations=relations)


def _relation(path: Path, at: int, entry: _Entry) -> Relation:
    target, golden = _names(entry.target), _names(entry.golden)
    where = f"{path}: relations[{at}]"
    if not target or not golden:
        raise BadInput(
            "a relation needs calls on both sides", where=where, hint="remove it, or name a call on each side"
        )
    if entry.kind not in KINDS:
        raise BadInput(f"kind {entry.kind!r} is not known", where=where, hint=f"one of {', '.join(KINDS)}")
    return Relation(target, golden, entry.rule, entry.reason, entry.confidence, entry.kind, entry.axis, entry.inside)


def _names(names: str | list[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_once(path: Path, relations: list[Relation]) -> None:
    for side in ("target", "golden"):
        seen: dict[str, int] = {}
        for at, relation in enumerate(relations):
            for name in getattr(relation, side):
                if name in seen:
                    raise BadInput(
                        f"{name!r} is a {side} call of relations[{seen[name]}] already",
                        where=f"{path}: relations[{at}]", hint="each call belongs to one relation",
                    )  # fmt: skip
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
