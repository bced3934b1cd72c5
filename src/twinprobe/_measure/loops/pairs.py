"""The sums over a pair of tensors, a row for each block: one fused pass, elements read in their own dtype.

The sums may be reordered (that is what makes them vectors); the relative error may not: (n + eps) - eps is not n.
Maxima are taken over the bit patterns as integers, which order non-negative floats the same way and need no NaN rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from twinprobe._measure.loops.elements import (
    READING,
    exact,
    float32_at,
    float64_at,
    int64_at,
    relative_error,
    reordered,
)
from twinprobe._measure.loops.sums import BLOCK, FIVE_THOUSANDTHS, ONE_THOUSANDTH, PAIR_COLUMNS, TENSOR_COLUMNS


def _pair_sums(load: Any, real: Any, integer: Any) -> Any:
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


def _pair_loop(load: Any, real: Any, integer: Any, elements_at: Any) -> Any:
    sums = _pair_sums(load, real, integer)

    def pair(target: Any, golden: Any, size: Any, rows: Any) -> None:
        targets, goldens = carray(elements_at(target), size), carray(elements_at(golden), size)
        found = carray(float64_at(rows), (-(-size // BLOCK), PAIR_COLUMNS))
        for k in range(found.shape[0]):
            sums(targets[k * BLOCK : (k + 1) * BLOCK], goldens[k * BLOCK : (k + 1) * BLOCK], found[k])

    return pair


PAIRS = {f"pair_{dtype}": _pair_loop(*how) for dtype, how in READING.items()}


# The sums over one tensor, a row for each block.


def _tensor_sums(load: Any, real: Any, integer: Any) -> Any:
    limits = np.iinfo(integer)
    lowest, mask, shift = integer(limits.min), integer(limits.max), integer(limits.bits - 1)

    @reordered
    def sums(data: Any, row: Any) -> None:
        total = squares = 0.0
        highest, smallest = lowest, lowest
        for i in range(data.size):
            narrow = load(data[i])
            # Flipping the magnitude of negative patterns makes integer order the order of the floats.
            bits = real(narrow).view(integer)
            key = integer(bits ^ ((bits >> shift) & mask))
            highest = max(highest, key)
            smallest = max(smallest, integer(~key))
            wide = np.float64(narrow)
            total += wide
            squares += wide * wide
        top, bottom = highest, integer(~smallest)
        row[0] = integer(top ^ ((top >> shift) & mask)).view(real)
        row[1] = integer(bottom ^ ((bottom >> shift) & mask)).view(real)
        row[2], row[3] = total, squares

    return sums


def _tensor_loop(load: Any, real: Any, integer: Any, elements_at: Any) -> Any:
    sums = _tensor_sums(load, real, integer)

    def tensor(address: Any, size: Any, rows: Any) -> None:
        data = carray(elements_at(address), size)
        found = carray(float64_at(rows), (-(-size // BLOCK), TENSOR_COLUMNS))
        for k in range(found.shape[0]):
            sums(data[k * BLOCK : (k + 1) * BLOCK], found[k])

    return tensor


TENSORS = {f"tensor_{dtype}": _tensor_loop(*how) for dtype, how in READING.items()}


# How far apart the two tensors of many pairs are, float32 in host memory, in one call of compiled code.
#
# A row is worth nothing where its squares are not finite: the pair holds NaN or inf, or numbers too large to square.

_COLUMNS = 8

_ZERO, _EPS = np.float32(0), np.float32(np.finfo(np.float32).eps)


@exact
def same(target: Any, golden: Any) -> bool:
    """Whether the numbers are the same, NaN not being one; in stretches, so that it is vectors and stops early."""
    for start in range(0, target.size, 1024):
        differing = 0
        for i in range(start, min(start + 1024, target.size)):
            differing += target[i] != golden[i]
        if differing:
            return False
    return True


@reordered
def sums(target: Any, golden: Any, row: Any) -> None:
    dot = target_squares = golden_squares = gap_squares = total = 0.0
    max_abs, max_rel = np.int64(0), np.int32(0)
    for i in range(target.size):
        narrow_n, narrow_b = target[i], golden[i]
        relative = relative_error(narrow_n, narrow_b, _EPS, _ZERO)
        max_rel = max(max_rel, np.float32(relative).view(np.int32))
        n, b = np.float64(narrow_n), np.float64(narrow_b)
        gap = abs(n - b)
        dot += n * b
        target_squares += n * n
        golden_squares += b * b
        gap_squares += gap * gap
        total += gap
        max_abs = max(max_abs, np.float64(gap).view(np.int64))
    row[0], row[1], row[2], row[3] = dot, target_squares, golden_squares, gap_squares
    row[4], row[5], row[6] = np.int64(max_abs).view(np.float64), np.int32(max_rel).view(np.float32), total


@exact
def count_mismatched(target: Any, golden: Any, atol: Any, rtol: Any) -> int:
    count = 0
    for i in range(target.size):
        n, b = np.float64(target[i]), np.float64(golden[i])
        count += not abs(n - b) <= atol + rtol * abs(b)
    return count


def gaps(count: Any, places: Any, bounds: Any, turned: Any, rows: Any) -> None:
    """Of each pair the places tell both addresses, the size, and the rows of a target matrix that has to be turned (0
    where it need not be); for that, ``turned`` has room for the largest."""
    at = carray(int64_at(places), (4, count))
    limits, out = carray(float64_at(bounds), 2), carray(float64_at(rows), (count, _COLUMNS))
    for k in range(count):
        size, laid = at[2, k], at[3, k]
        target, golden = carray(float32_at(at[0, k]), size), carray(float32_at(at[1, k]), size)
        if laid > 0:
            other_way = carray(float32_at(turned), size)
            columns = size // laid
            for i in range(laid):
                for j in range(columns):
                    other_way[j * laid + i] = target[i * columns + j]
            target = other_way
        row = out[k]
        if same(target, golden):
            row[:] = 0
            continue
        sums(target, golden, row)
        row[7] = 0
        if not row[4] <= limits[0]:
            row[7] = count_mismatched(target, golden, limits[0], limits[1])


GAPS = {"gaps": gaps}
