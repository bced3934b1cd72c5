"""Two sequences of operators, aligned in order: by what they do and how much they give, one to one or fused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from twinprobe.align.ops.regions import Unit
from twinprobe.align.ops.table import OperatorTable, folded

_MOST_PARTS = 4
_MOST_CELLS = 4_000_000
_LINEAR = frozenset({"linear", "head"})
# Kinds that say too little: what an engine's operator of such a kind gives is not what a module of it gives.
_NEVER = frozenset({"dropout", "split", "collective", "rotary"})


@dataclass(frozen=True, slots=True)
class Match:
    """Units of the one side that are those of the other; more than one where a side fuses them."""

    my: tuple[int, ...]
    golden: tuple[int, ...]
    rule: str


class Scores:
    """How well two units fit: 0 where they cannot be the same."""

    def __init__(self, table: OperatorTable, *, cards: int = 1) -> None:
        self._table = table
        self._ratios = {1, cards}

    def single(self, my: Unit, golden: Unit) -> tuple[float, str]:
        """The score of one unit against one, and the rule behind it."""
        if not self._sizes_fit(_size(my), _size(golden)):
            return 0.0, ""
        base, rule = self._types(my, golden)
        if not base:
            return 0.0, ""
        if my.inputs and golden.inputs and self._sizes_fit(prod(my.inputs[0]), prod(golden.inputs[0])):
            base += 0.5
        if my.around and my.around == golden.around:
            base += 0.5
        if my.is_last == golden.is_last:
            base += 0.25
        return base, rule

    def fused(self, one: Unit, parts: list[Unit]) -> float:
        """The score of one projection against several that it may be made of."""
        if one.kind not in _LINEAR or not self._sizes_fit(_size(one), sum(_size(part) for part in parts)):
            return 0.0
        return 2.5 * len(parts)

    def _types(self, my: Unit, golden: Unit) -> tuple[float, str]:
        types = my.node.op_type, golden.node.op_type
        if self._table.entry(*types) or self._table.entry(*reversed(types)):
            return 4.0, "operator table"
        if folded(types[0]) == folded(types[1]):
            return 3.5, "structure"
        if my.kind in _NEVER or golden.kind in _NEVER:
            return 0.0, ""
        if my.kind == golden.kind:
            return (1.0 if my.kind == "elementwise" else 3.0), "structure"
        if {my.kind, golden.kind} == _LINEAR:
            return 2.5, "structure"
        return 0.0, ""

    def _sizes_fit(self, my: int, golden: int) -> bool:
        return any(my * ratio == golden or golden * ratio == my for ratio in self._ratios)


def _size(unit: Unit) -> int:
    return prod(unit.outputs[0])


def align(my: list[Unit], golden: list[Unit], scores: Scores) -> list[Match]:
    """The best matching of two sequences in which nothing crosses."""
    if len(my) * len(golden) > _MOST_CELLS:
        shared = min(len(my), len(golden))
        my, golden = my[:shared], golden[:shared]
    rows, columns = len(my), len(golden)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    choice: dict[tuple[int, int], tuple[Match, int, int]] = {}
    for at in range(rows - 1, -1, -1):
        for to in range(columns - 1, -1, -1):
            score, chosen = max(best[at + 1][to], best[at][to + 1]), None
            for match, gain, next_at, next_to in _moves(my, golden, at, to, scores):
                if gain + best[next_at][next_to] > score:
                    score, chosen = gain + best[next_at][next_to], (match, next_at, next_to)
            best[at][to] = score
            if chosen is not None:
                choice[at, to] = chosen
    return _trace(best, choice, rows, columns)


def align_rest(my: list[Unit], golden: list[Unit], found: list[Match], scores: Scores) -> list[Match]:
    """What is left, aligned among itself: branches that do not depend on each other may run in either order."""
    left = [
        [at for at in range(len(own)) if not any(at in match for match in taken)]
        for own, taken in ((my, [match.my for match in found]), (golden, [match.golden for match in found]))
    ]
    rest = align([my[at] for at in left[0]], [golden[at] for at in left[1]], scores)
    moved = [
        Match(tuple(left[0][at] for at in match.my), tuple(left[1][at] for at in match.golden), match.rule)
        for match in rest
    ]
    return [match for match in moved if my[match.my[0]].around == golden[match.golden[0]].around]


def _trace(
    best: list[list[float]], choice: dict[tuple[int, int], tuple[Match, int, int]], rows: int, columns: int
) -> list[Match]:
    found, at, to = [], 0, 0
    while at < rows and to < columns:
        chosen = choice.get((at, to))
        if chosen is not None:
            match, at, to = chosen
            found.append(match)
        elif best[at + 1][to] >= best[at][to + 1]:
            at += 1
        else:
            to += 1
    return found


def _moves(
    my: list[Unit], golden: list[Unit], at: int, to: int, scores: Scores
) -> Iterator[tuple[Match, float, int, int]]:
    gain, rule = scores.single(my[at], golden[to])
    if gain:
        yield Match((at,), (to,), rule), gain, at + 1, to + 1
    for parts in _parts(golden, to):
        gain = scores.fused(my[at], [golden[part] for part in parts])
        if gain:
            yield Match((at,), parts, "fused projection"), gain, at + 1, parts[-1] + 1
    for parts in _parts(my, at):
        gain = scores.fused(golden[to], [my[part] for part in parts])
        if gain:
            yield Match(parts, (to,), "fused projection"), gain, parts[-1] + 1, to + 1


def _parts(units: list[Unit], first: int) -> Iterator[tuple[int, ...]]:
    """Two and more projections of one parent, from this one on; what lies between them is passed over."""
    if units[first].kind not in _LINEAR:
        return
    parts = [first]
    for at in range(first + 1, len(units)):
        if units[at].parent is not units[first].parent:
            return
        if units[at].kind in _LINEAR:
            parts.append(at)
            if len(parts) > _MOST_PARTS:
                return
            yield tuple(parts)
