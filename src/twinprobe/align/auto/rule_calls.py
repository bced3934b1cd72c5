"""Rule: what ran between the same linked calls, in order: modules without parameters, API calls, or one of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from twinprobe.align.auto.alignment import MODULE_CALL, SAME
from twinprobe.align.auto.call_scores import EqualCells, Sort, equal_values, fit, sort_of
from twinprobe.align.auto.cells import WIDEST, SortCells
from twinprobe.align.auto.guess import MOST, guess_by_keys, guess_by_values
from twinprobe.align.auto.one_to_one import pair_by_cells, pair_by_table
from twinprobe.align.auto.prints import NONE
from twinprobe.align.auto.scopes import Piece, pieces
from twinprobe.align.auto.sequence import Score, Step, is_large
from twinprobe.align.auto.sketch import Link, Sketch, sure

MODULES, CALLS, MIXED = "modules in place", "calls in place", "module and call"
_EDGE = 0.4
_TARGET, _GOLDEN = attrgetter("target"), attrgetter("golden")
_Found = list[tuple[int, int, float, float, bool]]  # place, place, score, confidence, equal values


def link_calls(sketch: Sketch) -> None:
    """Pair what lies between linked calls, from the outside in."""
    matcher = _CallMatcher(sketch)
    for opened in (False, True):
        done: set[int] = set()
        while True:
            scopes = [pair for pair in sketch.matched_modules() if pair[0] not in done]
            if not scopes:
                break
            for node, other in scopes:
                done.add(node)
                for piece in list(pieces(sketch, node, other, opened=opened)):
                    matcher.link(piece)


class _CallMatcher:
    def __init__(self, sketch: Sketch) -> None:
        self._sketch = sketch
        self._sorts: list[Sort] = []
        self._numbers: dict[object, int] = {}
        self._sort_of: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._fits: dict[tuple[int, int], float] = {}
        self._known: dict[object, _Found] = {}
        self._done: set[object] = set()
        self._sized = _sizes_meet(sketch)

    def link(self, piece: Piece) -> None:
        mine = [self._sort(node, golden=False) for node in piece.target]
        theirs = [self._sort(node, golden=True) for node in piece.golden]
        if mine == theirs:
            found = [(at, at, self._fit(sort, sort), 1.0, False) for at, sort in enumerate(mine)]
        elif is_large(len(mine), len(theirs)):
            calls = tuple(piece.target), tuple(piece.golden)
            found = self._pair_large(piece, mine, theirs) if calls not in self._done else []
            self._done.add(calls)
        else:
            sketch = self._sketch
            values = equal_values(sketch.target, piece.target, sketch.golden, piece.golden)
            key = (tuple(mine), tuple(theirs), values.tobytes())
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = self._pair(mine, theirs, values)
            found = known
        for at, to, score, confidence, equal in found:
            self._link_pair(piece.target[at], piece.golden[to], score, confidence, equal)

    def _link_pair(self, node: int, other: int, score: float, confidence: float, equal: bool) -> None:
        sketch = self._sketch
        modules = sketch.target.tree.is_module[node], sketch.golden.tree.is_module[other]
        rule = MODULES if all(modules) else MIXED if any(modules) else CALLS
        kind = SAME if modules[0] == modules[1] else MODULE_CALL
        reason = "same place" + (", equal values" if equal else ", same function" if not all(modules) else "")
        sketch.link(Link((node,), (other,), rule, reason, confidence * sure(score + 0.5), kind))

    def _sort(self, node: int, *, golden: bool) -> int:
        known = self._sort_of[golden]
        if node not in known:
            facts = self._sketch.golden if golden else self._sketch.target
            known[node] = sort_of(facts, node, self._numbers, self._sorts, sized=self._sized)
        return known[node]

    def _fit(self, one: int, other: int) -> float:
        score = self._fits.get((one, other))
        if score is None:
            score = self._fits[one, other] = fit(self._sorts[one], self._sorts[other])
        return score

    def _pair(self, mine: list[int], theirs: list[int], values: NDArray[np.float64]) -> _Found:
        rows, columns = _numbered(mine), _numbered(theirs)
        table = np.array([[self._fit(one, other) for other in columns[0]] for one in rows[0]])
        steps = pair_by_table(table[rows[1]][:, columns[1]] + values, _EDGE)
        good = [step for step in steps if step.score > 0]
        return self._kept(mine, theirs, good, lambda at, to: values[at, to], bool(values.any()))

    def _pair_large(self, piece: Piece, mine: list[int], theirs: list[int]) -> _Found:
        """The same, without a table of all combinations."""
        target, golden = self._sketch.target, self._sketch.golden
        fits = SortCells(mine, theirs, lambda one, other: fit(self._sorts[one], self._sorts[other]))
        values = EqualCells(target, piece.target, golden, piece.golden)
        guess = guess_by_values(target, piece.target, golden, piece.golden)
        guess = guess or guess_by_keys(self._keys(mine), self._keys(theirs), MOST)
        steps = pair_by_cells(
            (len(mine), len(theirs)), lambda at, to: fits(at, to) + values(at, to), _EDGE, guess, WIDEST
        )
        return self._kept(mine, theirs, [step for step in steps if step.score > 0], values, values.seen)

    def _keys(self, sorts: list[int]) -> list[Hashable]:
        return [(self._sorts[sort].functions, self._sorts[sort].outputs) for sort in sorts]

    def _kept(self, mine: list[int], theirs: list[int], steps: list[Step], values: Score, any_equal: bool) -> _Found:
        """Without equal values, a function that is called more often on one side is too doubtful to pair."""
        counts = self._counts(mine), self._counts(theirs)
        places = (np.array([side(step)[0] for step in steps], dtype=np.int64) for side in (_TARGET, _GOLDEN))
        found = []
        for step, worth in zip(steps, values(*places).tolist(), strict=True):
            at, to = step.target[0], step.golden[0]
            functions = self._sorts[mine[at]].functions & self._sorts[theirs[to]].functions
            known = any_equal or not functions
            same = any(counts[0][name] == counts[1][name] for name in functions) or not functions
            confidence = step.confidence if worth or same or not known else 0.5 * step.confidence
            if not any_equal and not same:
                confidence *= 0.7
            found.append((at, to, step.score, confidence, worth >= 2.0))
        return found

    def _counts(self, sorts: list[int]) -> Counter[str]:
        return Counter(name for sort in sorts for name in self._sorts[sort].functions)


def _sizes_meet(sketch: Sketch) -> bool:
    """Whether the layers that belong together give tensors of one size; not so for batches of another size."""
    met = []
    for link in sketch.links:
        if len(link.target) == len(link.golden) == 1 and sketch.target.is_layer[link.target[0]]:
            rows = sketch.target.output_row(link.target[0]), sketch.golden.output_row(link.golden[0])
            if NONE not in rows:
                met.append(sketch.target.prints.numel[rows[0]] == sketch.golden.prints.numel[rows[1]])
    return bool(2 * sum(met) >= len(met))


def _numbered(sorts: list[int]) -> tuple[list[int], NDArray[np.int64]]:
    places: dict[int, int] = {}
    numbers = [places.setdefault(sort, len(places)) for sort in sorts]
    return list(places), np.array(numbers, dtype=np.int64)
