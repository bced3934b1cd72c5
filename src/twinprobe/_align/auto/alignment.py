"""The result of an alignment: which calls of one run belong to which of the other, why, and how sure that is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from twinprobe._align.mapping.layer_tree import TOP
from twinprobe._runs.json_pieces import PIECE, Bytes, FileBlocks, memory_budget, pieces_of, text_bytes
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe.errors import BadInput

# What a relation says about its two sides.
SAME = "same"  # one call each
FUSED = "fused"  # several calls of one side are one call of the other, concatenated
COMPOSITE = "composite"  # several calls of one side compute what one call of the other does
MODULE_CALL = "module and call"  # a module on one side, an API call on the other
RESIDUAL = "residual"  # one side's output has the residual added
KINDS = (SAME, FUSED, COMPOSITE, MODULE_CALL, RESIDUAL)

DOUBTFUL = 0.8


Call = TypeVar("Call", int, str)


@dataclass(slots=True)
class Relation(Generic[Call]):
    """Calls that belong together, by their names; while the rules are at work, by their nodes.

    ``axis`` is the dimension along which fused outputs are concatenated; ``inside`` the side whose module adds the
    residual itself.
    """

    target: tuple[Call, ...]
    golden: tuple[Call, ...]
    rule: str
    reason: str
    confidence: float
    kind: str = SAME
    axis: int | None = None
    inside: str = ""

    @property
    def one_to_one(self) -> bool:
        """Whether this is one call against one."""
        return len(self.target) == len(self.golden) == 1


@dataclass(slots=True)
class Unmatched:
    """A call without a partner, and why it has none."""

    name: str
    why: str


@dataclass
class Alignment:
    """How two runs fit."""

    relations: list[Relation[str]] = field(default_factory=list)
    target_unmatched: list[Unmatched] = field(default_factory=list)
    golden_unmatched: list[Unmatched] = field(default_factory=list)
    modules: tuple[int, int] = (0, 0)
    matched_modules: tuple[int, int] = (0, 0)
    best_score: float = 0.0
    notes: list[str] = field(default_factory=list)

    def by_rule(self) -> dict[str, int]:
        """How many relations each rule has found, the most fruitful first."""
        return dict(Counter(relation.rule for relation in self.relations).most_common())

    def doubtful(self) -> list[Relation[str]]:
        """Relations that a person should look at, the least sure first."""
        found = [relation for relation in self.relations if relation.confidence < DOUBTFUL]
        return sorted(found, key=lambda relation: relation.confidence)


def mirrored(alignment: Alignment) -> Alignment:
    """The same alignment with the sides changed."""
    inside = {"target": "golden", "golden": "target"}
    return Alignment(
        relations=[
            replace(one, target=one.golden, golden=one.target, inside=inside.get(one.inside, ""))
            for one in alignment.relations
        ],
        target_unmatched=alignment.golden_unmatched,
        golden_unmatched=alignment.target_unmatched,
        modules=alignment.modules[::-1],
        matched_modules=alignment.matched_modules[::-1],
        best_score=alignment.best_score,
        notes=alignment.notes,
    )


# The relations of a large alignment.json, piece by piece: its text is not in memory beside what is made of it.

_BEGIN = re.compile(rb'"relations"\s*:\s*\[')
_CUT = re.compile(rb"\}(\s*,\s*)(?=\{)")
_END = re.compile(rb"\}\s*\]")
_LONGEST, _MOST_ENDS = 4 << 20, 100

Entry = TypeVar("Entry")


def large_document(file: FileBlocks, decoder: msgspec.json.Decoder[list[Entry]]) -> tuple[Any, Iterator[list[Entry]]]:
    """The keys that stand before the relations, and the relations; msgspec's errors where something is none."""
    head = file.range(0, PIECE)
    begin = _BEGIN.search(head)
    if begin is None:
        raise msgspec.DecodeError('"relations" must come first')
    keys = msgspec.json.decode(head[: begin.start()].rstrip().removesuffix(b",") + b"}")
    return keys, _relations(file, begin.end(), decoder)


def _relations(file: FileBlocks, start: int, decoder: msgspec.json.Decoder[list[Entry]]) -> Iterator[list[Entry]]:
    def check(held: memoryview) -> None:
        if len(held) > _LONGEST:
            raise msgspec.DecodeError("a relation is longer than any")

    for piece, _ in pieces_of(file.blocks(start, file.size), _CUT, check):
        found, is_last = _decoded(piece, decoder)
        yield found
        if is_last:
            return
    raise msgspec.DecodeError("the relations do not end")


def _decoded(piece: Bytes, decoder: msgspec.json.Decoder[list[Entry]]) -> tuple[list[Entry], bool]:
    """The relations of a piece, and whether their list ends in it: other things may follow."""
    try:
        return decoder.decode(b"[" + piece + b"]"), False
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        for at, end in enumerate(_END.finditer(piece)):
            try:
                return decoder.decode(b"[" + piece[: end.start() + 1] + b"]"), True
            except msgspec.DecodeError:
                if at > _MOST_ENDS:
                    break
        raise error


# alignment.json: the full result of an alignment, to be read, edited and given to compare and graph.

FORMAT = "twinprobe alignment 1"
_MOST_BYTES = 1 << 30
_WHOLE = 2 << 20  # up to here it is decoded at once
# Memory for a small file; and what a relation takes, and each of its texts.
_ROOM, _RELATION, _TEXT = 36 << 20, 370, 57
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
        raise BadInput(f"is not an alignment: {error}", where=path, hint=hint) from None
    for side in ("target", "golden"):
        _check_once(path, relations, side)
    return Alignment(relations=relations)


def _read(path: Path) -> list[Relation[str]]:
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
    room, relations, known = memory_budget(file.size, _ROOM), list[Relation[str]](), dict[str, str]()
    for entry in chain.from_iterable(pieces):
        at = len(relations)
        relation = _relation(path, at, entry, known)
        relations.append(relation)
        # Rules, reasons and kinds are shared by most.
        texts = (*relation.target, *relation.golden, *(() if relation.reason in known else (relation.reason,)))
        room -= _RELATION + sum(_TEXT + text_bytes(text) for text in texts)
        if room < 0:
            what = "is one relation too many: alignments of this size have longer ones"
            raise BadInput(what, where=f"{path}: relations[{at}]")
    return relations


def _relation(path: Path, at: int, entry: _Entry, known: dict[str, str]) -> Relation[str]:
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


def _check_once(path: Path, relations: list[Relation[str]], side: str) -> None:
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
            "target": [{"name": alone.name, "why": alone.why} for alone in alignment.target_unmatched],
            "golden": [{"name": alone.name, "why": alone.why} for alone in alignment.golden_unmatched],
        },
    }


def _plain(relation: Relation[str]) -> dict[str, Any]:
    optional = {"axis": relation.axis, "inside": relation.inside or None}
    return {
        "target": list(relation.target), "golden": list(relation.golden), "kind": relation.kind,
        "rule": relation.rule, "reason": relation.reason, "confidence": relation.confidence,
        **{name: value for name, value in optional.items() if value is not None},
    }  # fmt: skip


# An alignment as layer mapping rules: renames of children, class by class, as ``-lm`` files hold them.


@dataclass
class LayerRules:
    """Class of the target -> child's name there -> its name in the golden run; and what this form cannot say."""

    classes: dict[str, dict[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def layer_rules(alignment: Alignment) -> LayerRules:
    """The renames that follow from all pairs of modules; where a class would need two names, the more frequent wins."""
    result = LayerRules()
    pairs = _module_pairs(alignment, result)
    votes: dict[tuple[str, str], Counter[str]] = {}
    for path, (golden, _) in pairs.items():
        cls, mine, theirs = _rule(path, golden, pairs)
        votes.setdefault((cls, mine), Counter())[theirs] += 1
    for (cls, mine), names in sorted(votes.items(), key=lambda item: (item[0][0] != TOP, item[0])):
        theirs = names.most_common(1)[0][0]
        if mine != theirs:
            result.classes.setdefault(cls, {})[mine] = theirs
        for other, count in names.most_common()[1:]:
            text = f"{cls}: {mine} is {other} in {count} of {names.total()} places, and {theirs} in the others"
            result.left_out.append(text)
    return result


def _module_pairs(alignment: Alignment, result: LayerRules) -> dict[str, tuple[str, str]]:
    """Path of a target module -> its partner's path and its own class, for modules that are paired one to one."""
    pairs: dict[str, tuple[str, str]] = {}
    for relation in alignment.relations:
        names = [parse_op(name) for name in (*relation.target, *relation.golden)]
        if relation.one_to_one and all(name.is_module and name.direction == FORWARD for name in names):
            known, _ = pairs.setdefault(names[0].body, (names[1].body, names[0].cls))
            if known != names[1].body:
                result.left_out.append(f"{_described(relation)} (another call of it belongs to {known})")
        elif any(name.is_module for name in names):
            result.left_out.append(_described(relation))
    return pairs


def _described(relation: Relation[str]) -> str:
    target, golden = (
        " + ".join(op.body if op.is_module else op.text for op in map(parse_op, side))
        for side in (relation.target, relation.golden)
    )
    return f"{relation.kind}: {target} is {golden}"


def _rule(path: str, other: str, pairs: dict[str, tuple[str, str]]) -> tuple[str, str, str]:
    """The class whose rule renames the way to this module, and that way on both sides."""
    above = path
    while "." in above:
        above = above.rpartition(".")[0]
        golden, cls = pairs.get(above, ("", ""))
        if golden and other.startswith(golden + "."):
            return cls, *_trimmed(path[len(above) + 1 :], other[len(golden) + 1 :])
    return TOP, *_trimmed(path, other)


def _trimmed(target: str, golden: str) -> tuple[str, str]:
    """Without equal numbers at the end, so that one rule holds for a whole stack of layers."""
    while "." in target and "." in golden:
        one, other = target.rpartition("."), golden.rpartition(".")
        if not one[2].isdecimal() or one[2] != other[2]:
            break
        target, golden = one[0], other[0]
    return target, golden
