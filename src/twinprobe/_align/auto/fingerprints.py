"""What recorded values look like: shapes and statistics. What was not recorded is unknown, not different."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from math import log
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinprobe._align.calls import RunCalls, Shape, dims
from twinprobe._align.links import NONE
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER, STATS, TENSOR

Array = NDArray[Any]
Ints = NDArray[np.int64]
_BUCKETS = 25  # of a norm, for each factor of e: wider than what rounding moves


class Fingerprints:
    """The rows of a run by call and role, and their statistics as numbers (NaN where unknown)."""

    def __init__(self, side: RunCalls) -> None:
        self.side = side
        table = side.run.table
        self.stats: NDArray[np.float64] = np.stack([table[stat].to_numpy() for stat in STATS], axis=1)
        self.shape_text: list[str | None] = table["shape"].to_list()
        self.dtype: list[str | None] = table["dtype"].to_list()
        self.digest: list[str | None] = table["digest"].to_list()
        kinds = table["kind"].to_numpy()
        roles = table["role"].to_numpy()
        self._tensor = kinds == TENSOR
        self._roles = roles
        starts = np.asarray(side.starts, dtype=np.int64)
        self.first_input = _first(starts, self._tensor & (roles == INPUT))
        self.first_output = _first(starts, self._tensor & (roles == OUTPUT))

    def shape(self, row: int) -> Shape | None:
        """The shape of a row."""
        return dims(self.shape_text[row]) if row != NONE else None

    def rows(self, op: int, role: int) -> list[int]:
        """The tensors that a call has in this role."""
        if op == NONE:
            return []
        first, last = self.side.starts[op], self.side.starts[op + 1]
        return [row for row in range(first, last) if self._tensor[row] and self._roles[row] == role]

    def parameters(self, op: int) -> list[int]:
        """The parameters of a module call."""
        return self.rows(op, PARAMETER)

    def is_integer(self, row: int) -> bool:
        """Whether a row holds whole numbers: indices, masks."""
        return row != NONE and "int" in (self.dtype[row] or "").lower()

    @cached_property
    def numel(self) -> NDArray[np.float64]:
        """How many elements each row has; NaN where unknown."""
        shapes = {text: dims(text) for text in set(self.shape_text)}
        sizes = {text: np.nan if shape is None else np.prod(shape, dtype=np.float64) for text, shape in shapes.items()}
        return np.array([sizes[text] for text in self.shape_text], dtype=np.float64)

    @cached_property
    def telling(self) -> NDArray[np.bool_]:
        """Which rows have values that say something: known, not constant, not empty."""
        maximum, minimum, _, norm = self.stats.T
        with np.errstate(invalid="ignore"):
            return np.asarray(np.isfinite(norm) & (norm > 0) & (maximum != minimum))

    def value(self, row: int) -> Hashable:
        """What tells one value of this run from another, in whatever shape; None where nothing does."""
        known = self.listed[row]
        return tuple(known) if known is not None else self.digest[row]

    def tensor(self, row: int) -> Hashable:
        """The same of tensors in one shape: within one run, equal statistics are equal to the last bit."""
        if row == NONE or self.digest[row] is not None:
            return self.digest[row] if row != NONE else None
        return (self.shape_text[row], *self.stats[row].tolist()) if self.telling[row] else None

    def rough(self, row: int) -> tuple[float, int] | None:
        """The size of a row and the bucket of its norm: rows that may hold the same are in one, or in the next."""
        known = self.listed[row] if row != NONE else None
        return None if known is None else (known[4], int(_BUCKETS * log(known[3])))

    def known(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """max, min, mean, norm and size of these rows; NaN where their values say nothing."""
        places = np.array(rows, dtype=np.int64)
        found = np.column_stack([self.stats[places], self.numel[places]])
        found[(places == NONE) | ~self.telling[places]] = np.nan
        return found

    @cached_property
    def listed(self) -> list[list[float] | None]:
        """max, min, mean, norm and size of each row whose values say something."""
        rows = np.column_stack([self.stats, self.numel]).tolist()
        return [row if telling else None for row, telling in zip(rows, self.telling.tolist(), strict=True)]


def _first(starts: NDArray[np.int64], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The first chosen row of each call; -1 where it has none."""
    first = np.full(len(starts) - 1, NONE, dtype=np.int64)
    rows = np.flatnonzero(chosen)[::-1]  # of several values for one place numpy keeps the last
    first[np.searchsorted(starts, rows, side="right") - 1] = rows
    return first


def merged(stats: Array, sizes: Array) -> tuple[float, float, float, float]:
    """max, min, mean and norm of the concatenation of tensors with these statistics and sizes."""
    weights = sizes / max(sizes.sum(), 1.0)
    return (
        float(stats[:, 0].max()), float(stats[:, 1].min()), float((stats[:, 2] * weights).sum()),
        float(np.sqrt((stats[:, 3] ** 2).sum())),
    )  # fmt: skip


# Rounding to bfloat16 moves a value by 2**-8 of itself at most; sums of them move less.
TOLERANCE = 1e-2
_NEAR = 1e-3  # of a norm: where one is nearer than this, others are other values
_FEW = 24  # so many rows are compared one by one faster than all at once


# What it is worth that only the statistics of two tensors agree, while their sketches say that the elements stand in
# another order: enough to pair them, unless there is a partner that fits in full.
_REORDERED = 0.5
APART = 0.02  # by sketches: more than rounding to bfloat16 and a few sums make of it


def same_values(one: Fingerprints, rows: list[int], other: Fingerprints, others: list[int]) -> NDArray[np.float64]:
    """For all combinations of rows: 1 where they have as many elements and statistics that agree as far as they are
    known; less where their elements are in another order."""
    if len(others) >= _FEW:
        return ValueCells(one, rows, other, others)(np.arange(len(rows))[:, None], np.arange(len(others))[None])
    found = [[bool(row_values_agree(one, row, other, partner)) for partner in others] for row in rows]
    agree = np.array(found, dtype=bool).reshape(len(rows), len(others))
    return worth_of(agree, one, np.array(rows)[:, None], other, np.array(others)[None])


def worth_of(
    agree: NDArray[np.bool_], one: Fingerprints, rows: NDArray[np.int64], other: Fingerprints, others: NDArray[np.int64]
) -> NDArray[np.float64]:
    """1 for pairs of rows whose statistics agree, less where the sketches of two tensors of one shape do not."""
    found = agree.astype(np.float64)
    if one.side.run.sketch_file is None or other.side.run.sketch_file is None:
        return found
    near = np.nonzero(agree)
    mine, theirs = (np.broadcast_to(side, agree.shape)[near] for side in (rows, others))
    pairs = zip(mine.tolist(), theirs.tolist(), strict=True)
    alike = [row != NONE != partner and one.shape_text[row] == other.shape_text[partner] for row, partner in pairs]
    found[near] = np.where(np.array(alike, bool) & reordered(one, mine, other, theirs), _REORDERED, 1.0)
    return found


def reordered(one: Fingerprints, rows: ArrayLike, other: Fingerprints, others: ArrayLike) -> NDArray[np.bool_]:
    """Which pairs of rows hold other elements, one by one, by their sketches, whatever their statistics."""
    from twinprobe._measure.sketch import estimate_pairs  # most alignments have no need of it

    rows, others = np.asarray(rows, np.int64), np.asarray(others, np.int64)
    runs = one.side.run, other.side.run
    found = estimate_pairs(runs[0].sketches, runs[1].sketches, rows, others) if len(rows) else None
    return np.zeros(len(rows), bool) if found is None else np.asarray(found.lower > APART)


def best_partner(one: Fingerprints, row: int, other: Fingerprints, others: Iterable[int]) -> int:
    """The first of these rows that holds the same values; NONE where there is none. One with the elements in another
    order is taken only where no other fits, and one that is clearly further off only where no other is nearer."""
    agree = [partner for partner in others if row_values_agree(one, row, other, partner)]
    if len(agree) > 1:
        elsewhere = dict(zip(agree, reordered(one, [row] * len(agree), other, agree).tolist(), strict=True))
        norm = one.stats[row, 3]
        apart = {partner: abs(other.stats[partner, 3] - norm) > _NEAR * norm for partner in agree}
        agree.sort(key=lambda partner: (elsewhere[partner], apart[partner]))
    return agree[0] if agree else NONE


class ValueCells:
    """How far two rows hold equal values, as ``same_values`` tells it; ``seen`` once any two asked about did."""

    def __init__(self, one: Fingerprints, rows: Sequence[int], other: Fingerprints, others: Sequence[int]) -> None:
        self._fingerprints, self._places = (one, other), (np.array(rows, np.int64), np.array(others, np.int64))
        self._stats = one.known(rows), other.known(others)
        self._silent = tuple(np.isnan(stats[:, 3]) for stats in self._stats)
        numbers: dict[str, int] = {}
        self._digests = _digests(one, rows, numbers, -1), _digests(other, others, numbers, -2)
        self._any_digest = bool(numbers)
        self.seen = False

    def __call__(self, rows: Ints, columns: Ints) -> NDArray[np.float64]:
        """Cell by cell, broadcast."""
        equal: NDArray[np.bool_] = statistics_agree(*self._stats, rows, columns)[0]
        if self._any_digest:
            silent = self._silent[0][rows] | self._silent[1][columns]
            equal = np.where(silent, self._digests[0][rows] == self._digests[1][columns], equal)
        self.seen = self.seen or bool(equal.any())
        places = self._places[0][rows], self._places[1][columns]
        return worth_of(equal, self._fingerprints[0], places[0], self._fingerprints[1], places[1])


def _digests(fingerprints: Fingerprints, rows: Sequence[int], numbers: dict[str, int], missing: int) -> Ints:
    found = (fingerprints.digest[row] if row != NONE else None for row in rows)
    listed = [missing if digest is None else numbers.setdefault(digest, len(numbers)) for digest in found]
    return np.array(listed, dtype=np.int64)


def statistics_agree(one: Array, other: Array, rows: Array, columns: Array) -> tuple[Array, Array]:
    """Whether max, min, mean and norm of tensors of equal size agree, and whether that is known, of many pairs at once.

    ``one`` and ``other`` are what ``Fingerprints.known`` gives; ``rows`` and ``columns`` are places in them, broadcast.
    """
    shape = np.broadcast_shapes(rows.shape, columns.shape)
    with np.errstate(invalid="ignore"):
        mine, theirs = one[:, 3][rows], other[:, 3][columns]
        norm = np.maximum(mine, theirs)
        known = norm > 0
        agree = known & (np.abs(mine - theirs) <= TOLERANCE * norm)
        near = np.nonzero(agree)
        if not len(near[0]):
            return agree, known
        # Few pairs come so far; only these are looked at more closely.
        mine, theirs = one[np.broadcast_to(rows, shape)[near]], other[np.broadcast_to(columns, shape)[near]]
        fits = mine[:, 4] == theirs[:, 4]
        root = norm[near] / np.sqrt(np.maximum(mine[:, 4], 1.0))
        for column in (0, 1):
            size = np.maximum(np.abs(mine[:, column]), np.abs(theirs[:, column]))
            fits &= ~(np.abs(mine[:, column] - theirs[:, column]) > 2 * TOLERANCE * size + TOLERANCE * root)
        fits &= ~(np.abs(mine[:, 2] - theirs[:, 2]) > 2 * TOLERANCE * root)
        agree[near] = fits
    return agree, known


def row_values_agree(one: Fingerprints, row: int, other: Fingerprints, partner: int) -> bool | None:
    """Whether two rows hold the same values as far as statistics (or checksums) tell; None where they do not tell."""
    if NONE in (row, partner):
        return None
    mine, theirs = one.listed[row], other.listed[partner]
    if mine is None or theirs is None:
        if one.digest[row] is not None and one.digest[row] == other.digest[partner]:
            return True
        return False if _limits_differ(one.stats[row, :2], other.stats[partner, :2]) else None
    norm = max(mine[3], theirs[3])
    if abs(mine[3] - theirs[3]) > TOLERANCE * norm or mine[4] != theirs[4]:
        return False
    root = norm / max(mine[4], 1.0) ** 0.5
    for column in (0, 1):
        size = max(abs(mine[column]), abs(theirs[column]))
        if abs(mine[column] - theirs[column]) > 2 * TOLERANCE * size + TOLERANCE * root:
            return False
    return not abs(mine[2] - theirs[2]) > 2 * TOLERANCE * root


def _limits_differ(mine: NDArray[np.float64], theirs: NDArray[np.float64]) -> bool:
    """Of values without a norm, or of one value all over: equal limits say little, unlike ones enough."""
    if np.isnan(mine).any() or np.isnan(theirs).any():
        return False
    if (np.isinf(mine) != np.isinf(theirs)).any():
        return True
    with np.errstate(invalid="ignore"):
        return bool((abs(mine - theirs) > 2 * TOLERANCE * np.maximum(abs(mine), abs(theirs))).any())
