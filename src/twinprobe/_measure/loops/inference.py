"""The rows of an inference pair: each piece of it is walked over while it lies in the nearest cache."""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
from numba import carray

from twinprobe._measure.loops import inference_sums as llm_rows
from twinprobe._measure.loops.elements import (
    as_is,
    exact,
    float32_at,
    float64_at,
    from_bfloat16,
    from_float16,
    fused,
    int64_at,
    reordered,
    uint16_at,
)
from twinprobe._measure.loops.inference_sums import PIECE, SMALLEST, STATE, WIDTH
from twinprobe._measure.loops.sums import MAX_ABS, ONE_THOUSANDTH, PAIR_COLUMNS

# Exponentials for compiled loops: arithmetic only, so that several are done at a time.
#
# The ones in float32 are right to about two units in the last place, the one in float64 to about 1e-10.

_single = np.float32
_LOG2_E, _LN2 = _single(1.4426950408889634), _single(0.6931471805599453)
_LN2_HIGH, _LN2_LOW = _single(0.693359375), _single(-2.12194440e-4)
_MAGIC = _single(1.5 * 2**23)  # adding it and taking it away rounds to a whole number
_LEAST_POWER, _LEAST = _single(-126), _single(-10000)
_ONE = _single(1)
_C7, _C6, _C5, _C4, _C3, _C2 = (_single(1 / n) for n in (5040, 720, 120, 24, 6, 2))
_BIAS, _MANTISSA = np.int32(127), np.int32(23)

# e^r and (e^r - 1 - r) / r^2, fitted over |r| up to 0.347 (Chebyshev's points) to about 1e-7.
_E5, _E4, _E3, _E2, _E1, _E0 = (
    _single(value) for value in (0.00837528, 0.04191844, 0.16666414, 0.49998861, 1.00000004, 1.00000008)
)
_Q4, _Q3, _Q2, _Q1, _Q0 = (_single(value) for value in (0.00139332, 0.0083629, 0.04166647, 0.16666579, 0.5))
NEAR = 0.345

_WIDE_LOG2_E = 1.4426950408889634
_WIDE_LN2_HIGH, _WIDE_LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
_WIDE_MAGIC = 1.5 * 2.0**52  # the whole number is found in the low bits, too


@fused
def powers_in(x: Any) -> Any:
    """How often 2 goes into e^x, a whole number."""
    return (x * _LOG2_E + _MAGIC) - _MAGIC


@fused
def rest_of(x: Any, powers: Any) -> Any:
    return (x - powers * _LN2_HIGH) - powers * _LN2_LOW


@exact
def power_of_two(whole: Any) -> Any:
    return np.int32((np.int32(whole) + _BIAS) << _MANTISSA).view(np.float32)


@fused
def curvature(r: Any) -> Any:
    """e^r - 1 - r for |r| up to 0.35."""
    p = _C7 * r + _C6
    p = p * r + _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _C2
    return p * r * r


@fused
def weight_of(x: Any, top: Any) -> Any:
    """e^x as a share of 2^top, which is at least about as large; for numbers up to 10000."""
    x = max(x, _LEAST)
    powers = powers_in(x)
    r = rest_of(x, powers)
    return (_ONE + (r + curvature(r))) * power_of_two(max(powers - top, _LEAST_POWER))


@fused
def growth_and_excess(d: Any) -> Any:
    """e^d, and e^d - 1 - d without losing digits at small ones, for |d| up to 64."""
    powers = powers_in(d)
    r = rest_of(d, powers)
    scale, curve = power_of_two(powers), curvature(r)
    return scale * (_ONE + (r + curve)), scale * curve + ((scale - _ONE) * (_ONE + r) - powers * _LN2)


@fused
def near_weight(x: Any, top: Any) -> Any:
    """As weight_of where nothing is as small as 2^-120 of the largest: the power is put in its place by hand."""
    shifted = x * _LOG2_E + _MAGIC
    r = rest_of(x, shifted - _MAGIC)
    p = _E5 * r + _E4
    p = p * r + _E3
    p = p * r + _E2
    p = p * r + _E1
    p = p * r + _E0
    # The whole number stands in the low bits of what the magic one was added to.
    power = np.int32(np.int32(np.float32(shifted).view(np.int32) - np.int32(top)) << _MANTISSA)
    return np.int32(np.float32(p).view(np.int32) + power).view(np.float32)


@fused
def near_excess(d: Any) -> Any:
    """e^d - 1 - d for |d| up to NEAR."""
    q = _Q4 * d + _Q3
    q = q * d + _Q2
    q = q * d + _Q1
    q = q * d + _Q0
    return q * d * d


@exact
def exponential(x: Any) -> Any:
    """e^x in float64 for x <= 0."""
    x = x if x > -708.0 else -708.0
    shifted = x * _WIDE_LOG2_E + _WIDE_MAGIC
    whole = shifted - _WIDE_MAGIC
    r = (x - whole * _WIDE_LN2_HIGH) - whole * _WIDE_LN2_LOW
    p = 2.755731922398589e-06 * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    power = np.int64((np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52))
    return p * power.view(np.float64)


# The loops of an inference pair over one piece of both sides, while it lies in the nearest cache.
#
# Maxima are taken over bit patterns as integers, as in the kernels of every comparison: those become vectors. The
# softmax is taken in float32: with d = my - golden, KL(p || q) = log(sum p e^d) - sum p d, and the sum of p (e^d - 1
# - d) keeps the digits that sums of exponentials lose. What float32 cannot hold, huge numbers and differences, goes
# in float64.

_ZERO, _UNIT, _LIMIT = np.float32(0), np.float32(1), np.float32(SMALLEST)
_LN2_DOUBLE = 0.6931471805599453
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
    return abs(my / golden - _UNIT)


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
            base, top = (g, m) if size > _LIMIT else (_UNIT, _UNIT)
            gap, ratio = gap_of(top, base), ratio_to(top, base)
            max_abs = max(max_abs, np.float32(gap).view(np.int32))
            max_rel = max(max_rel, np.float32(ratio).view(np.int32))
            sum_abs += np.float64(gap)
            sum_rel += np.float64(ratio)
            within += _UNIT if within_a_thousandth(gap_of(m, g), size if size > _ZERO else _LIMIT) else _ZERO
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
        shift = np.float64(powers) * _LN2_DOUBLE
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
        shift = np.float64(powers) * _LN2_DOUBLE
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


# Where float32 will do: golden values whose exponents are exact, and differences that leave most digits to their sums.
_LEAST_TOP, _MOST_TOP, _MOST_GAP = -9000.0, 10000.0, 8.0
# Where even less arithmetic will do. Differences count from that of the largest numbers, which itself is one.
_NEAR_GAP, _NEAR_SPREAD, _NEAR_POWERS = NEAR / 2, 80.0, 8.0


@exact
def bits_of_single(number: Any) -> Any:
    return np.float32(number).view(np.uint32)


@exact
def single_of_bits(bits: Any) -> Any:
    return np.uint32(bits).view(np.float32)


join_softmax = exact(llm_rows.join_softmax)


@exact
def join(row: Any, part: Any) -> None:
    """Add a piece to the row of its pair: first the columns of every comparison, then those of this one."""
    for at in range(4):
        row[at] += part[at]
    row[4], row[5] = max(row[4], part[4]), max(row[5], part[5])
    row[6] += part[6]
    row[7] += part[7]
    row, part = row[PAIR_COLUMNS:], part[PAIR_COLUMNS:]
    for top in (0, 3, 6, 8):
        row[top] = max(row[top], part[top])
    row[1], row[4] = min(row[1], part[1]), min(row[4], part[4])
    for total in (2, 5, 7, 9):
        row[total] += part[total]
    row, part = row[10:], part[10:]
    if row[0] == part[0] and row[4] == part[4]:
        for total in (1, 2, 3, 5):
            row[total] += part[total]
    else:
        join_softmax(row, part)


def _row_of(load: Any, extremes: Any) -> Any:
    sums, errors = sums_of(load), errors_of(load)
    near_softmax, softmax = near_softmax_of(load), softmax_of(load)
    wild_softmax = wild_softmax_of(load)

    @exact
    def piece(my: Any, golden: Any, row: Any, last: Any) -> None:
        own = row[PAIR_COLUMNS:]
        sums(my, golden, row, own)
        errors(my, golden, row, own)
        extremes(my, own)
        extremes(golden, own[3:])
        my_top, golden_top, golden_low, gap = own[0], own[3], own[4], row[MAX_ABS]
        if not (_LEAST_TOP <= golden_top <= _MOST_TOP and gap <= _MOST_GAP):
            wild_softmax(my, golden, my_top, golden_top, own[10:])
            return
        powers, middle = powers_in(np.float32(golden_top)), np.float32(my_top - golden_top)
        if gap <= _NEAR_GAP and golden_top - golden_low <= _NEAR_SPREAD:
            # With the scales of the piece before, sums can be added as they are.
            if abs(powers - last[0]) <= _NEAR_POWERS and gap + abs(last[1]) <= NEAR:
                powers, middle = np.float32(last[0]), np.float32(last[1])
            last[0], last[1] = powers, middle
            near_softmax(my, golden, powers, middle, own[10:])
        else:
            softmax(my, golden, powers, middle, own[10:])

    @exact
    def whole(my: Any, golden: Any, row: Any, part: Any, begins: Any) -> None:
        last = row[WIDTH:]
        start = 0
        if begins:
            last[0] = last[1] = np.inf
            piece(my[:PIECE], golden[:PIECE], row, last)
            start = PIECE
        for at in range(start, my.size, PIECE):
            piece(my[at : at + PIECE], golden[at : at + PIECE], part, last)
            join(row, part)

    return whole


extremes_float32 = extremes_of(bits_of_single, single_of_bits, np.uint32, np.int32)
extremes_float16 = extremes_of(as_is, from_float16, np.uint16, np.int16)
extremes_bfloat16 = extremes_of(as_is, from_bfloat16, np.uint16, np.int16)


def _loop(load: Any, extremes: Any, elements_at: Any, width: int) -> Any:
    whole = _row_of(load, extremes)

    def pairs(my: Any, golden: Any, places: Any, count: Any, rows: Any, part: Any, begins: Any) -> None:
        """Of each pair the places tell where it begins on both sides, and its size; ``part`` is room for a row."""
        at, found = carray(int64_at(places), (count, 3)), carray(float64_at(rows), (count, WIDTH + STATE))
        room = carray(float64_at(part), WIDTH)
        for k in range(count):
            mine = carray(elements_at(my + at[k, 0] * width), at[k, 2])
            theirs = carray(elements_at(golden + at[k, 1] * width), at[k, 2])
            whole(mine, theirs, found[k], room, begins != 0)

    return pairs


INFERENCE = {
    "inference_float32": _loop(as_is, extremes_float32, float32_at, 4),
    "inference_float16": _loop(from_float16, extremes_float16, uint16_at, 2),
    "inference_bfloat16": _loop(from_bfloat16, extremes_bfloat16, uint16_at, 2),
}
