"""Two sequences in order: the best way to pair their members, and how sure each pair is.

Pairs never cross. What has no partner lies in a gap; where a gap may begin and end is the caller's to price. A pair may
take several members of one side (fused against split layers). Only a band around a guessed path is looked at, so that
the cost grows with the length and not with its square; the band widens until the best path lies inside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.auto.tree import Facts
from twinprobe._align.links import NONE

Floats = NDArray[Any]
Ints = NDArray[np.int64]
Score = Callable[[Ints, Ints], NDArray[Any]]

LOWEST = -1e9
_WHOLE = 300_000  # so many cells are looked at without a band
_WIDTH = 160
_EXTEND = 0.02
_LONGEST = 4  # members of one side in one pair, at most
_BLOCK = 1_000_000
_GAIN = 1.001  # a wider band that brings less than this has found nothing


class Group(NamedTuple):
    """A pair of ``taken`` target members that end at a row with ``many`` golden members that end before ``end``."""

    taken: int
    many: int
    end: int
    score: float


@dataclass(frozen=True)
class Problem:
    """Two sequences to pair.

    ``score(rows, columns)`` broadcasts; above 0 speaks for a pair. ``groups(starts, width)`` gives, by target member,
    the pairs of several members that end with it and inside its part of the band. ``edges`` hold the price of a gap
    that begins or ends before each member.
    """

    sizes: tuple[int, int]
    score: Score
    groups: Callable[[Ints, int], dict[int, list[Group]]]
    edges: tuple[Floats, Floats]


class Step(NamedTuple):
    """One pair: members [first, last) on either side, its score, and its share of all paths weighed by their scores."""

    target: tuple[int, int]
    golden: tuple[int, int]
    score: float
    confidence: float


def is_large(rows: int, columns: int) -> bool:
    """Whether only a band is looked at, so that a table of all scores would be made in vain."""
    return (rows + 1) * (columns + 1) > _WHOLE


def pair_in_order(problem: Problem, guess: Sequence[tuple[int, int]] = (), widest: int | None = None) -> list[Step]:
    """The best pairs that do not cross. ``guess`` holds likely pairs, in order: the band runs through them.

    The band grows no wider than ``widest``, where that is given, and not at all once growing has brought nothing.
    """
    rows, columns = problem.sizes
    if not rows or not columns:
        return []
    # Where one side is much longer, each row must reach over many columns, or no path leads through the band.
    width = min(columns + 1, max(_WIDTH, 2 * (columns // rows + 1))) if is_large(rows, columns) else columns + 1
    limit = 400 * _WHOLE // rows if widest is None else widest - 1
    earned = 0.0
    while True:
        band = _band(problem, _starts(rows, columns, width, guess), width)
        steps, leans = _best(band)
        before, earned = earned, sum(score for *_, score in steps)
        in_vain = widest is not None and earned <= before * _GAIN
        if not leans or width == columns + 1 or width > limit or in_vain:
            return _judged(band, steps)
        width = min(columns + 1, 2 * width)


def _starts(rows: int, columns: int, width: int, guess: Sequence[tuple[int, int]]) -> Ints:
    if width == columns + 1:
        return np.zeros(rows + 1, dtype=np.int64)
    known = [(0, 0), *guess, (rows, columns)]
    middle = np.interp(np.arange(rows + 1), [at for at, _ in known], [to for _, to in known])
    starts = np.clip(np.rint(middle).astype(np.int64) - width // 2, 0, columns + 1 - width)
    starts[0], starts[-1] = 0, columns + 1 - width
    starts = np.maximum.accumulate(starts)
    return starts if np.diff(starts).max() < width else _connected(starts, width // 2)


def _connected(starts: Ints, step: int) -> Ints:
    """The same band with its jumps spread over the rows around them, so that each row overlaps the next."""
    end = starts[-1]
    rise = np.arange(len(starts)) * step
    late = np.minimum.accumulate(starts - rise) + rise
    early = np.maximum.accumulate((starts - rise)[::-1])[::-1] + rise
    return np.asarray(np.clip((late + early) // 2, np.maximum(0, end - rise[::-1]), np.minimum(end, rise)))


@dataclass(frozen=True)
class _Band:
    """A problem with all scores in its band: ``scores[r][k]`` is for target member r, golden member start[r+1]+k-1."""

    sizes: tuple[int, int]
    starts: Ints
    width: int
    scores: list[Floats]
    groups: dict[int, list[Group]]
    edges: tuple[Floats, Floats]

    def reversed(self) -> _Band:
        """The same problem read from its end."""
        rows, columns = self.sizes
        starts = columns + 1 - self.width - self.starts[::-1]
        scores = []
        for row in range(rows - 1, -1, -1):
            shift = int(self.starts[row + 1] - self.starts[row])
            scores.append(_shifted(self.scores[row][::-1], shift - 1, self.width))
        groups: dict[int, list[Group]] = {}
        for row, found in self.groups.items():
            for group in found:
                end = Group(group.taken, group.many, columns - (group.end - group.many), group.score)
                groups.setdefault(rows - 1 - (row - group.taken + 1), []).append(end)
        edges = self.edges[0][::-1].copy(), self.edges[1][::-1].copy()
        return _Band(self.sizes, starts, self.width, scores, groups, edges)


def _band(problem: Problem, starts: Ints, width: int) -> _Band:
    rows, columns = problem.sizes
    size = max(1, _BLOCK // width)
    scores: list[Floats] = []
    for first in range(0, rows, size):
        last = min(rows, first + size)
        members = starts[first + 1 : last + 1, None] + np.arange(-1, width - 1)
        found = problem.score(np.arange(first, last)[:, None], np.clip(members, 0, columns - 1))
        scores.extend(np.where((members >= 0) & (members < columns), found, LOWEST).astype(np.float32))
    return _Band(problem.sizes, starts, width, scores, problem.groups(starts, width), problem.edges)


class _Sweep:
    """Row after row: the best (or summed) score of paths to each cell, by what they ended with."""

    def __init__(self, band: _Band, combine: np.ufunc) -> None:
        self._band, self._combine = band, combine
        width = band.width
        self._rising = np.arange(width) * _EXTEND
        self._golden = np.concatenate([band.edges[1], np.zeros(width)])
        self.clean: list[Floats] = []  # the last row alone, and those that groups may reach back to
        self._nothing = np.zeros(0)
        self.gap = np.full(width, LOWEST)  # paths that end in a gap of the target
        self.pair = self.other = self.closed = self.begun = self.opened = self.gap
        self.by_group: dict[int, Group] = {}

    def row(self, row: int) -> None:
        """Fill one row; ``clean`` grows by it."""
        band, combine, width = self._band, self._combine, self._band.width
        start = int(band.starts[row])
        if row == 0:
            self.pair = np.full(width, LOWEST)
            self.pair[0] = 0.0
            closed = self.pair
        else:
            shift = start - int(band.starts[row - 1])
            before = self.clean[row - 1]
            self.pair = _shifted(before, shift - 1, width) + band.scores[row - 1]
            self._add_groups(row, start)
            self.opened = _shifted(before, shift, width) - band.edges[0][row - 1]
            self.gap = combine(self.opened, _shifted(self.gap, shift, width) - _EXTEND)
            closed = combine(self.pair, self.gap - band.edges[0][row])
        price = self._golden[start : start + width]
        self.begun = closed - price
        self.other = np.empty(width)
        self.other[0] = LOWEST
        self.other[1:] = combine.accumulate(self.begun + self._rising)[:-1] - self._rising[1:] + _EXTEND
        self.closed = closed
        self.clean.append(combine(closed, self.other - price))
        if row > _LONGEST:
            self.clean[row - _LONGEST - 1] = self._nothing

    def _add_groups(self, row: int, start: int) -> None:
        band = self._band
        self.by_group = {}
        for group in band.groups.get(row - 1, ()):
            back, place = row - group.taken, group.end - start
            if back < 0 or not 0 <= place < band.width:
                continue
            source = group.end - group.many - int(band.starts[back])
            if 0 <= source < band.width:
                value = self.clean[back][source] + group.score
                if value > self.pair[place]:
                    self.by_group[place] = group
                self.pair[place] = self._combine(self.pair[place], value)


_IS_OTHER, _IS_GAP, _GAP_GOES_ON, _OTHER_GOES_ON = np.array([1, 2, 4, 8], dtype=np.uint8)
_Found = tuple[int, int, int, int, float]  # row end, column end, rows taken, columns taken, score


def _best(band: _Band) -> tuple[list[_Found], bool]:
    """The best path, and whether it leans on the edge of the band."""
    sweep = _Sweep(band, np.maximum)
    rows = band.sizes[0]
    marks = np.zeros((rows + 1, band.width), dtype=np.uint8)
    chosen: dict[tuple[int, int], Group] = {}
    for row in range(rows + 1):
        sweep.row(row)
        mark = marks[row]
        mark[:] = _IS_OTHER * (sweep.clean[row] > sweep.closed)
        if row:
            mark |= _IS_GAP * (sweep.closed > sweep.pair)
            mark |= _GAP_GOES_ON * (sweep.gap > sweep.opened)
            chosen.update({(row, place): group for place, group in sweep.by_group.items()})
        mark[1:] |= _OTHER_GOES_ON * (sweep.other[1:] > sweep.begun[:-1] + _EXTEND / 8)
    return _trace(band, marks, chosen)


def _trace(band: _Band, marks: NDArray[np.uint8], chosen: dict[tuple[int, int], Group]) -> tuple[list[_Found], bool]:
    row, column = band.sizes
    found: list[_Found] = []
    leans = in_gap = in_other = just_closed = False
    while row or column:
        start = int(band.starts[row])
        place = column - start
        leans |= (place == 0 and start > 0) or (place == band.width - 1 and column < band.sizes[1])
        mark = int(marks[row, place])
        if in_other or (mark & _IS_OTHER and not (in_gap or just_closed)):
            in_other = bool(mark & _OTHER_GOES_ON)
            just_closed = not in_other
            column -= 1
        elif in_gap or mark & _IS_GAP:
            in_gap = bool(mark & _GAP_GOES_ON)
            just_closed = False
            row -= 1
        else:
            group = chosen.get((row, place))
            score = float(band.scores[row - 1][place]) if group is None else group.score
            taken, many = (1, 1) if group is None else (group.taken, group.many)
            found.append((row, column, taken, many, score))
            row, column, just_closed = row - taken, column - many, False
    return found[::-1], leans


def _judged(band: _Band, path: list[_Found]) -> list[Step]:
    """How sure each pair is: the weight of all paths through it against the weight of all paths."""
    rows, columns = band.sizes
    before = _sums(band, {(row - taken, column - many) for row, column, taken, many, _ in path} | {(rows, columns)})
    ends = {(rows - row, columns - column) for row, column, _, _, _ in path}
    after = _sums(band.reversed(), ends)
    total = before[rows, columns]
    steps = []
    for row, column, taken, many, score in path:
        weight = before[row - taken, column - many] + score + after[rows - row, columns - column] - total
        confidence = float(np.exp(min(0.0, weight)))
        steps.append(Step((row - taken, row), (column - many, column), score, confidence))
    return steps


def _sums(band: _Band, cells: set[tuple[int, int]]) -> dict[tuple[int, int], float]:
    sweep = _Sweep(band, np.logaddexp)
    by_row: dict[int, list[int]] = {}
    for row, column in cells:
        by_row.setdefault(row, []).append(column)
    found = {}
    for row in range(band.sizes[0] + 1):
        sweep.row(row)
        start = int(band.starts[row])
        for column in by_row.get(row, ()):
            place = column - start
            found[row, column] = float(sweep.clean[row][place]) if 0 <= place < band.width else float(LOWEST)
    return found


def _shifted(values: Floats, shift: int, width: int) -> Floats:
    """values[k + shift] for each k, the lowest where that is outside."""
    if shift == 0:
        return values
    out = np.full(width, LOWEST, dtype=values.dtype)
    if 0 < shift < width:
        out[:-shift] = values[shift:]
    elif -width < shift < 0:
        out[-shift:] = values[:shift]
    return out


# Two sequences in order, one to one, with one price for all gaps: by a table of scores, or cell by cell.

_REMEMBERED = 10_000  # cells of a table whose answer is kept


def pair_by_table(scores: NDArray[Any], edge: float) -> list[Step]:
    """Pair two short sequences by a table of scores; equal tables, of which layer stacks make many, are solved once."""
    sizes = scores.shape[0], scores.shape[1]
    if scores.size > _REMEMBERED:
        return pair_by_cells(sizes, lambda at, to: scores[at, to], edge)
    return list(_paired_table(sizes, scores.astype(np.float64).tobytes(), edge))


@lru_cache(maxsize=4096)
def _paired_table(sizes: tuple[int, int], table: bytes, edge: float) -> tuple[Step, ...]:
    scores = np.frombuffer(table).reshape(sizes)
    return tuple(pair_by_cells(sizes, lambda at, to: scores[at, to], edge))


def pair_by_cells(
    sizes: tuple[int, int], score: Score, edge: float, guess: Sequence[tuple[int, int]] = (), widest: int | None = None
) -> list[Step]:
    """Pair two sequences one to one, with one price for all gaps."""
    edges = np.full(sizes[0] + 1, edge), np.full(sizes[1] + 1, edge)
    return pair_in_order(Problem(sizes, score, lambda _starts, _width: {}, edges), guess, widest)


# The longest chain of pairs that do not cross.


def rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest chain of pairs (sorted by their first number) that rises in both numbers."""
    ends: list[int] = []
    tails: list[int] = []
    before = [NONE] * len(pairs)
    for at, (_, second) in enumerate(pairs):
        place = bisect_left(ends, second)
        if place == len(ends):
            ends.append(second)
            tails.append(at)
        else:
            ends[place], tails[place] = second, at
        before[at] = tails[place - 1] if place else NONE
    chain, at = [], tails[-1] if tails else NONE
    while at != NONE:
        chain.append(pairs[at])
        at = before[at]
    strict: list[tuple[int, int]] = []
    for pair in reversed(chain):
        if not strict or (pair[0] > strict[-1][0] and pair[1] > strict[-1][1]):
            strict.append(pair)
    return strict


# A first guess at what belongs together in two long sequences: what occurs as often on either side, in order.

_Keys = Sequence[Hashable]
MOST = 0.5


def guess_by_keys(target: _Keys, golden: _Keys, least: float = 0.0) -> list[tuple[int, int]]:
    """Pairs of places, in order and without crossing: members of one key, where both sides have as many of them.

    Members whose key is None are passed over. Where less than the share ``least`` of all pairs keeps the order, they
    met by chance, and nothing is guessed.
    """
    pairs: list[tuple[int, int]] = []
    others = _places(golden)
    for key, places in _places(target).items():
        partners = others.get(key, [])
        if len(places) == len(partners):
            pairs += zip(places, partners, strict=True)
    chain = rising(sorted(pairs))
    return chain if len(chain) >= least * len(pairs) else []


def guess_by_values(
    target: Facts, target_nodes: Sequence[int], golden: Facts, golden_nodes: Sequence[int]
) -> list[tuple[int, int]]:
    """Pairs of places in two lists of calls whose results look alike."""
    keys = [
        [facts.fingerprints.rough(facts.output_row(node)) for node in nodes]
        for facts, nodes in ((target, target_nodes), (golden, golden_nodes))
    ]
    return guess_by_keys(keys[0], keys[1], MOST)


def _places(keys: _Keys) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        if key is not None:
            found[key].append(place)
    return found
