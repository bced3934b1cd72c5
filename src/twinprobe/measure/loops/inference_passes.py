"""The loops of an inference pair over one piece of both sides, while it lies in the nearest cache.

Maxima are taken over bit patterns as integers, as in the kernels of every comparison: those become vectors. The softmax
is taken in float32: with d = my - golden, KL(p || q) = log(sum p e^d) - sum p d, and the sum of p (e^d - 1 - d) keeps
the digits that sums of exponentials lose. What float32 cannot hold, huge numbers and differences, goes in float64.
"""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np

from twinprobe.measure.blocks import ONE_THOUSANDTH
from twinprobe.measure.llm_rows import SMALLEST
from twinprobe.measure.loops.elements import exact, fused, reordered
from twinprobe.measure.loops.exponential import exponential, growth_and_excess, near_excess, near_weight, weight_of

_ZERO, _ONE, _LIMIT = np.float32(0), np.float32(1), np.float32(SMALLEST)
_LN2 = 0.6931471805599453
# A quotient is rounded to this or to less exactly where it lies below the middle of this and the number before.
_THOUSANDTH = np.float32(ONE_THOUSANDTH)
_TO_MIDDLE = np.float32((float(_THOUSANDTH) - float(np.nextafter(_THOUSANDTH, _ZERO))) / 2)


@exact
def gap_of(my: Any, golden: Any) -> Any:
    return abs(my - golden)


@exact
def gap_beyond(my: Any, golden: Any, middle: Any) -> Any:
    """Kept in this order: my - golden is exact where they lie close together, golden + middle is not."""
    return (my - golden) - middle


@exact
def ratio_to(my: Any, golden: Any) -> Any:
    return abs(my / golden - _ONE)


@fused
def within_a_thousandth(gap: Any, base: Any) -> Any:
    """Whether gap / base, rounded, is below 0.001. Without the division, and with the same answer."""
    return gap - _THOUSANDTH * base <= -_TO_MIDDLE * base


def sums_of(load: Any) -> Any:
    """The sums in float64: products, squares and the sum of each side, and the largest difference."""

    @reordered
    def sums(my: Any, golden: Any, row: Any, own: Any) -> None:
        dot = my_squares = golden_squares = gap_squares = my_sum = golden_sum = 0.0
        max_abs = np.int64(0)
        for i in range(my.size):
            m, g = np.float64(load(my[i])), np.float64(load(golden[i]))
            gap = m - g
            dot += m * g
            my_squares += m * m
            golden_squares += g * g
            gap_squares += gap * gap
            my_sum += m
            golden_sum += g
            max_abs = max(max_abs, np.float64(abs(gap)).view(np.int64))
        row[0], row[1], row[2], row[3] = dot, my_squares, golden_squares, gap_squares
        row[4] = np.int64(max_abs).view(np.float64)
        own[2], own[5] = my_sum, golden_sum

    return sums


def errors_of(load: Any) -> Any:
    """The errors where the golden value is not nothing, and how many of all are within a thousandth."""

    @reordered
    def errors(my: Any, golden: Any, row: Any, own: Any) -> None:
        max_abs, max_rel = np.int32(0), np.int32(0)
        sum_abs = sum_rel = 0.0
        within = _ZERO
        for i in range(my.size):
            m, g = load(my[i]), load(golden[i])
            size = abs(g)
            base, top = (g, m) if size > _LIMIT else (_ONE, _ONE)
            gap, ratio = gap_of(top, base), ratio_to(top, base)
            max_abs = max(max_abs, np.float32(gap).view(np.int32))
            max_rel = max(max_rel, np.float32(ratio).view(np.int32))
            sum_abs += np.float64(gap)
            sum_rel += np.float64(ratio)
            within += _ONE if within_a_thousandth(gap_of(m, g), size if size > _ZERO else _LIMIT) else _ZERO
        own[6], own[7] = np.int32(max_abs).view(np.float32), sum_abs
        own[8], own[9] = np.int32(max_rel).view(np.float32), sum_rel
        # Neither the largest ratio of every comparison nor the count within five thousandths is in these reports.
        row[5], row[6], row[7] = 0.0, within, 0.0

    return errors


def extremes_of(bits_of: Any, number_of: Any, unsigned: Any, signed: Any) -> Any:
    """The largest and the smallest number of one side.

    Of bit patterns, the largest signed one is the largest number if there is any from 0 on, and the largest unsigned
    one is the smallest number if there is any below; else the smallest unsigned one is what is looked for.
    """
    lowest, highest, least = unsigned(0), unsigned(np.iinfo(unsigned).max), signed(np.iinfo(signed).min)
    sign = unsigned(1 << (np.iinfo(unsigned).bits - 1))

    @exact
    def extremes(data: Any, row: Any) -> None:
        top, far, near = least, lowest, highest
        for i in range(data.size):
            bits = bits_of(data[i])
            top = max(top, signed(bits))
            far = max(far, bits)
            near = min(near, bits)
        row[0] = number_of(unsigned(top)) if top >= 0 else number_of(unsigned(near))
        row[1] = number_of(unsigned(far)) if unsigned(far) >= sign else number_of(unsigned(near))

    return extremes


def near_softmax_of(load: Any) -> Any:
    """The softmax columns of a piece whose sides differ little and whose numbers lie close enough together."""

    @reordered
    def sums(my: Any, golden: Any, powers: Any, middle: Any, row: Any) -> None:
        weights = drift = excess = _ZERO
        top = np.int32(powers)
        for i in range(my.size):
            g = load(golden[i])
            d = gap_beyond(load(my[i]), g, middle)
            weight = near_weight(g, top)
            weights += weight
            drift += weight * d
            excess += weight * near_excess(d)
        shift = np.float64(powers) * _LN2
        row[0], row[1], row[2], row[3] = shift, weights, drift, excess
        # e^d is 1 + d + (e^d - 1 - d), and nothing is lost at small ones.
        row[4], row[5] = shift + np.float64(middle), np.float64(weights) + np.float64(drift) + np.float64(excess)

    return sums


def softmax_of(load: Any) -> Any:
    """The same of a piece whose numbers are tame.

    Equal weights are rounded the same way at each addition, and the divergence is a small difference of these sums: so
    they are kept in float64.
    """

    @reordered
    def sums(my: Any, golden: Any, powers: Any, middle: Any, row: Any) -> None:
        weights = drift = excess = my_weights = 0.0
        for i in range(my.size):
            g = load(golden[i])
            d = gap_beyond(load(my[i]), g, middle)
            weight = weight_of(g, powers)
            growth, more = growth_and_excess(d)
            weights += np.float64(weight)
            drift += np.float64(weight * d)
            excess += np.float64(weight * more)
            my_weights += np.float64(weight * growth)
        shift = np.float64(powers) * _LN2
        row[0], row[1], row[2], row[3] = shift, weights, drift, excess
        row[4], row[5] = shift + np.float64(middle), my_weights

    return sums


def wild_softmax_of(load: Any) -> Any:
    """The same of any numbers, but for the excess."""

    @reordered
    def sums(my: Any, golden: Any, my_top: Any, golden_top: Any, row: Any) -> None:
        weights = drift = my_weights = 0.0
        for i in range(my.size):
            m, g = np.float64(load(my[i])) - my_top, np.float64(load(golden[i])) - golden_top
            weight = exponential(g)
            weights += weight
            drift += weight * (m - g)
            my_weights += exponential(m)
        row[0], row[1], row[2], row[3], row[4], row[5] = golden_top, weights, drift, nan, my_top, my_weights

    return sums
