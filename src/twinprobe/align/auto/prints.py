"""What the recorded values of a call look like: shapes and statistics. What was not recorded is unknown, not different."""

from __future__ import annotations

import ast
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from twinprobe.align.side import Side
from twinprobe.runs.leaf import TENSOR
from twinprobe.runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, STATS

NONE = -1
Shape = tuple[int, ...]
_MOST_DIMS = 64


@lru_cache(maxsize=65536)
def dims(text: str | None) -> Shape | None:
    """A shape from its text; None where there is none."""
    if not text or len(text) > 20 * _MOST_DIMS:
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(found, list | tuple) or not all(type(size) is int and size >= 0 for size in found):
        return None
    return tuple(found)


class Prints:
    """The rows of a run by call and role, and their statistics as numbers (NaN where unknown)."""

    def __init__(self, side: Side) -> None:
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
        sizes = {text: _numel(dims(text)) for text in set(self.shape_text)}
        return np.array([sizes[text] for text in self.shape_text], dtype=np.float64)

    @cached_property
    def spread(self) -> NDArray[np.float64]:
        """The scale on which the mean of a row is judged: its root mean square."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.stats[:, 3] / np.sqrt(self.numel))

    @cached_property
    def telling(self) -> NDArray[np.bool_]:
        """Which rows have values that say something: known, not constant, not empty."""
        maximum, minimum, _, norm = self.stats.T
        with np.errstate(invalid="ignore"):
            return np.asarray(np.isfinite(norm) & (norm > 0) & (maximum != minimum))


def _first(starts: NDArray[np.int64], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The first chosen row of each call; -1 where it has none."""
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return np.full(len(starts) - 1, NONE, dtype=np.int64)
    at = np.searchsorted(rows, starts[:-1])
    found = rows[np.minimum(at, len(rows) - 1)]
    inside = (at < len(rows)) & (found < starts[1:])
    return np.where(inside, found, NONE)


def _numel(shape: Shape | None) -> float:
    return float(np.prod(shape, dtype=np.float64)) if shape is not None else np.nan


# Rounding to bfloat16 moves a value by 2**-8 of itself at most; sums of them move less.
TOLERANCE = 1e-2
MEAN_TOLERANCE = 2e-2


def same_values(
    one: Prints, rows: NDArray[np.int64], other: Prints, others: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For rows side by side (broadcast): do the statistics agree, and can that be said at all?"""
    known = (rows != NONE) & (others != NONE)
    known = known & one.telling[rows] & other.telling[others]
    agree = np.ones(np.broadcast_shapes(rows.shape, others.shape), dtype=bool)
    with np.errstate(invalid="ignore"):
        for column, tolerance in ((3, TOLERANCE), (0, 2 * TOLERANCE), (1, 2 * TOLERANCE)):
            mine, theirs = one.stats[rows, column], other.stats[others, column]
            slack = tolerance * np.maximum(np.abs(mine), np.abs(theirs))
            if column != 3:
                slack = slack + 0.05 * TOLERANCE * np.maximum(one.stats[rows, 3], other.stats[others, 3])
            agree &= ~(np.abs(mine - theirs) > slack)
        gap = np.abs(one.stats[rows, 2] - other.stats[others, 2])
        agree &= ~(gap > MEAN_TOLERANCE * np.maximum(one.spread[rows], other.spread[others]))
    return agree & known, known


def row_values_agree(one: Prints, row: int, other: Prints, other_row: int) -> bool | None:
    """Whether two rows hold the same values as far as statistics (or checksums) tell; None where they do not."""
    if NONE in (row, other_row):
        return None
    if one.digest[row] is not None and one.digest[row] == other.digest[other_row]:
        return True
    agree, known = same_values(one, np.array([row]), other, np.array([other_row]))
    return bool(agree[0]) if known[0] else None


__all__ = ["GRADIENT", "NONE", "TOLERANCE", "Prints", "Shape", "dims", "row_values_agree", "same_values"]
