"""The sums over a pair of tensors, a row for each block: one fused pass, elements read in their own dtype.

The sums may be reordered (that is what makes them vectors); the relative error may not: (n + eps) - eps is not n.
Maxima are taken over the bit patterns as integers, which order non-negative floats the same way and need no NaN rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from twinprobe.measure.blocks import BLOCK, FIVE_THOUSANDTHS, ONE_THOUSANDTH, PAIR_COLUMNS
from twinprobe.measure.loops.elements import READING, float64_at, relative_error, reordered


def _sums_of(load: Any, real: Any, integer: Any) -> Any:
    zero, unit, eps = real(0), real(1), real(np.finfo(real).eps)
    one, five = real(ONE_THOUSANDTH), real(FIVE_THOUSANDTHS)

    @reordered
    def sums(target: Any, golden: Any, row: Any) -> None:
        dot = target_squares = golden_squares = gap_squares = 0.0
        max_abs, max_rel = np.int64(0), integer(0)
        # Counted in floats (a block's counts fit): numba would widen an integer counter to 64 bits, at twice the cost.
        within_one = within_five = zero
        for i in range(target.size):
            narrow_n, narrow_b = load(target[i]), load(golden[i])
            relative = relative_error(narrow_n, narrow_b, eps, zero)
            max_rel = max(max_rel, real(relative).view(integer))
            within_one += unit if relative < one else zero
            within_five += unit if relative < five else zero
            n, b = np.float64(narrow_n), np.float64(narrow_b)
            gap = n - b
            dot += n * b
            target_squares += n * n
            golden_squares += b * b
            gap_squares += gap * gap
            max_abs = max(max_abs, np.float64(abs(gap)).view(np.int64))
        row[0], row[1], row[2], row[3] = dot, target_squares, golden_squares, gap_squares
        row[4], row[5] = np.int64(max_abs).view(np.float64), integer(max_rel).view(real)
        row[6], row[7] = within_one, within_five

    return sums


def _loop(load: Any, real: Any, integer: Any, elements_at: Any) -> Any:
    sums = _sums_of(load, real, integer)

    def pair(target: Any, golden: Any, size: Any, rows: Any) -> None:
        targets, goldens = carray(elements_at(target), size), carray(elements_at(golden), size)
        found = carray(float64_at(rows), (-(-size // BLOCK), PAIR_COLUMNS))
        for k in range(found.shape[0]):
            sums(targets[k * BLOCK : (k + 1) * BLOCK], goldens[k * BLOCK : (k + 1) * BLOCK], found[k])

    return pair


PAIRS = {f"pair_{dtype}": _loop(*how) for dtype, how in READING.items()}
