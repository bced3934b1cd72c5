"""The rows of sums behind the metrics of inference reports: what they need beyond the rows of every comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Golden values up to here count as zero: their errors are left out of the known error columns.
SMALLEST = float(np.finfo(np.float32).eps)

# Columns: extremes and sum of each side, errors, and the sums of a softmax relative to the block's largest number.
MY_MAX, MY_MIN, MY_SUM, GOLDEN_MAX, GOLDEN_MIN, GOLDEN_SUM = range(6)
MAX_ABS, SUM_ABS, MAX_REL, SUM_REL, MY_EXP, GOLDEN_EXP, CROSS = range(6, 13)
COLUMNS = 13


def plain_row(my: NDArray[np.float32], golden: NDArray[np.float32]) -> tuple[Any, ...]:
    """The row of one block of float32 numbers, with numpy."""
    counts = np.abs(golden) > SMALLEST
    ratio = np.abs(my / np.where(counts, golden, np.float32(1)) - np.float32(1)) * counts
    gap = np.abs(my - golden) * counts
    wide_my, wide_golden = my.astype(np.float64), golden.astype(np.float64)
    my_max, golden_max = my.max(), golden.max()
    weights = np.exp(wide_golden - golden_max)
    return (
        my_max, my.min(), wide_my.sum(), golden_max, golden.min(), wide_golden.sum(),
        gap.max(), gap.sum(dtype=np.float64), ratio.max(), ratio.sum(dtype=np.float64),
        np.exp(wide_my - my_max).sum(), weights.sum(), (weights * (wide_golden - wide_my)).sum(),
    )  # fmt: skip
