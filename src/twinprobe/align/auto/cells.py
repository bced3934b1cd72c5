"""Scores between the calls of two large scopes, worked out only for the cells that are asked for.

A table of all combinations grows with the product of the two scopes; a band through it grows with their length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.align.auto.layer_scores import _agree, _merged_stats
from twinprobe.align.auto.prints import NONE, Prints
from twinprobe.align.auto.sequence import Ints

WIDEST = 640  # of a band through a large scope
_TABLE = 1_000_000


class ValueCells:
    """Whether two rows hold equal values, as ``same_values`` tells it; ``seen`` once any two asked about did."""

    def __init__(self, one: Prints, rows: Sequence[int], other: Prints, others: Sequence[int]) -> None:
        self._stats = _merged_stats([(row,) for row in rows], one), _merged_stats([(row,) for row in others], other)
        self._silent = tuple(np.isnan(stats[:, 3]) for stats in self._stats)
        numbers: dict[str, int] = {}
        self._digests = _digests(one, rows, numbers, -1), _digests(other, others, numbers, -2)
        self._any_digest = bool(numbers)
        self.seen = False

    def __call__(self, rows: Ints, columns: Ints) -> NDArray[np.bool_]:
        """Cell by cell, broadcast."""
        equal: NDArray[np.bool_] = _agree(*self._stats, rows, columns)[0]
        if self._any_digest:
            silent = self._silent[0][rows] | self._silent[1][columns]
            equal = np.where(silent, self._digests[0][rows] == self._digests[1][columns], equal)
        self.seen = self.seen or bool(equal.any())
        return equal


def _digests(prints: Prints, rows: Sequence[int], numbers: dict[str, int], missing: int) -> Ints:
    found = (prints.digest[row] if row != NONE else None for row in rows)
    listed = [missing if digest is None else numbers.setdefault(digest, len(numbers)) for digest in found]
    return np.array(listed, dtype=np.int64)


class SortCells:
    """How well the sorts of two calls fit: each two sorts that meet in a cell asked for are looked at once."""

    def __init__(self, mine: Sequence[int], theirs: Sequence[int], fit: Callable[[int, int], float]) -> None:
        self._fit = fit
        self._rows, self._row_of = np.unique(mine, return_inverse=True)
        self._columns, self._column_of = np.unique(theirs, return_inverse=True)
        size = len(self._rows) * len(self._columns)
        self._known: NDArray[np.float64] | None = np.full(size, np.nan) if size <= _TABLE else None

    def __call__(self, rows: Ints, columns: Ints) -> NDArray[Any]:
        """Cell by cell, broadcast."""
        codes = self._row_of[rows] * len(self._columns) + self._column_of[columns]
        if self._known is None:
            met, places = np.unique(codes.ravel(), return_inverse=True)
            return np.asarray(self._fits(met)[places].reshape(codes.shape))
        found = np.asarray(self._known[codes])
        missing = np.isnan(found)
        if missing.any():
            met = np.unique(codes[missing])
            self._known[met] = self._fits(met)
            found = np.asarray(self._known[codes])
        return found

    def _fits(self, codes: Ints) -> NDArray[np.float64]:
        rows, columns = np.divmod(codes, len(self._columns))
        pairs = zip(self._rows[rows].tolist(), self._columns[columns].tolist(), strict=True)
        return np.array([self._fit(one, other) for one, other in pairs], dtype=np.float64)
