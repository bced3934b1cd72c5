"""The rows of sums behind the metrics of inference reports: what they need beyond the rows of every comparison."""

from __future__ import annotations

from math import exp, expm1, isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.loops.sums import PAIR_COLUMNS

# Golden values up to here count as zero: their errors are left out of the known error columns.
SMALLEST = float(np.finfo(np.float32).eps)

# Columns: extremes and sum of each side, errors, and the sums of a softmax. WEIGHTS adds up w = e^(golden - SHIFT) and
# MY_WEIGHTS e^(my - MY_SHIFT). With d = (my - MY_SHIFT) - (golden - SHIFT), DRIFT adds up w d and EXCESS
# w (e^d - 1 - d); the latter is NaN where nobody needs it.
MY_MAX, MY_MIN, MY_SUM, GOLDEN_MAX, GOLDEN_MIN, GOLDEN_SUM = range(6)
MAX_ABS, SUM_ABS, MAX_REL, SUM_REL = range(6, 10)
SHIFT, WEIGHTS, DRIFT, EXCESS, MY_SHIFT, MY_WEIGHTS = range(10, 16)
COLUMNS = 16

# Compiled rows: first the columns of every comparison, then these, then the scales of the piece before.
WIDTH = PAIR_COLUMNS + COLUMNS
STATE = 2
# Elements that both sides keep in the nearest cache; few enough to be added up in float32.
PIECE = 2048

# Up to this mean difference the divergence is taken from EXCESS, beyond it from the two sums of exponentials.
SMALL = 0.5
_MOST_MOVED = 700.0  # beyond it e^moved overflows, and EXCESS is of no use long before


def plain_row(my: NDArray[np.float32], golden: NDArray[np.float32]) -> tuple[Any, ...]:
    """The row of one block of float32 numbers, with numpy."""
    counts = np.abs(golden) > SMALLEST
    ratio = np.abs(my / np.where(counts, golden, np.float32(1)) - np.float32(1)) * counts
    gap = np.abs(my - golden) * counts
    wide_my, wide_golden = my.astype(np.float64), golden.astype(np.float64)
    my_max, golden_max = my.max(), golden.max()
    above_my, above_golden = wide_my - my_max, wide_golden - golden_max
    weights, d = np.exp(above_golden), above_my - above_golden
    excess = np.dot(weights, np.expm1(d) - d)
    return (
        my_max, my.min(), wide_my.sum(), golden_max, golden.min(), wide_golden.sum(),
        gap.max(), gap.sum(dtype=np.float64), ratio.max(), ratio.sum(dtype=np.float64),
        golden_max, weights.sum(), np.dot(weights, d), excess if isfinite(excess) else nan,
        my_max, np.exp(above_my).sum(),
    )  # fmt: skip


def join_softmax(row: Any, part: Any) -> None:
    """Add softmax columns (from SHIFT on) to others: all become shares of the larger scales. Also compiled."""
    top, my_top = max(row[0], part[0]), max(row[4], part[4])
    weights = drift = excess = my_weights = 0.0
    for side in (row, part):
        scale, my_scale = exp(side[0] - top), exp(side[4] - my_top)
        # How far this side's d changes; then e^(d + moved) - 1 - (d + moved), told apart in small terms.
        moved = min((side[4] - side[0]) - (my_top - top), _MOST_MOVED)
        grown = expm1(moved)
        excess += scale * ((1.0 + grown) * side[3] + grown * side[2] + (grown - moved) * side[1])
        drift += scale * (side[2] + moved * side[1])
        weights += scale * side[1]
        my_weights += my_scale * side[5]
    row[0], row[1], row[2], row[3], row[4], row[5] = top, weights, drift, excess, my_top, my_weights


def joined(found: list[list[float]]) -> list[float]:
    """The row of a whole tensor from those of its pieces."""
    whole = found[0]
    if len(found) > 1:
        with np.errstate(all="ignore"):
            table = np.array(found)
            whole = table.sum(axis=0).tolist()
            for column in (MY_MAX, GOLDEN_MAX, MAX_ABS, MAX_REL):
                whole[column] = float(table[:, column].max())
            for column in (MY_MIN, GOLDEN_MIN):
                whole[column] = float(table[:, column].min())
        softmax = found[0][SHIFT:]
        for row in found[1:]:
            join_softmax(softmax, row[SHIFT:])
        whole[SHIFT:] = softmax
    return whole


def divergence(own: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL(softmax(golden) || softmax(my)) of whole vectors by the columns of their rows, never below 0."""
    weights, my_weights = own[WEIGHTS], own[MY_WEIGHTS]
    mean, curve = own[DRIFT] / weights, own[EXCESS] / weights
    # The mean of e^d is 1 + mean + curve: nothing that is nearly equal is subtracted.
    near = np.log1p(mean + curve) - mean
    far = np.log(my_weights / weights) - mean
    found = np.maximum(np.where(np.abs(mean) + curve < SMALL, near, far), 0.0)
    return np.where((weights > 0) & (my_weights > 0), found, np.nan)
