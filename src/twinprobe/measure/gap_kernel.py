"""How far apart the two tensors of many pairs are, float32 in host memory, in one call of compiled code.

A row is worth nothing where its squares are not finite: the pair holds NaN or inf, or numbers too large to square.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import carray, types

from twinprobe.measure.kernel_cache import compile_cached
from twinprobe.measure.kernels import exact, pointer_to_float32, relative_error, reordered

# Columns of a row.
DOT, RAW_SQUARES, BASE_SQUARES, GAP_SQUARES, MAX_ABS, MAX_REL, SUM_ABS, MISMATCHED = range(8)
COLUMNS = 8

_ZERO, _EPS = np.float32(0), np.float32(np.finfo(np.float32).eps)


@exact
def same(raw: Any, base: Any) -> bool:
    """Whether the numbers are the same, NaN not being one; in stretches, so that it is vectors and stops early."""
    for start in range(0, raw.size, 1024):
        differing = 0
        for i in range(start, min(start + 1024, raw.size)):
            differing += raw[i] != base[i]
        if differing:
            return False
    return True


@reordered
def sums(raw: Any, base: Any, row: Any) -> None:
    dot = raw_squares = base_squares = gap_squares = total = 0.0
    max_abs, max_rel = np.int64(0), np.int32(0)
    for i in range(raw.size):
        narrow_n, narrow_b = raw[i], base[i]
        relative = relative_error(narrow_n, narrow_b, _EPS, _ZERO)
        max_rel = max(max_rel, np.float32(relative).view(np.int32))
        n, b = np.float64(narrow_n), np.float64(narrow_b)
        gap = abs(n - b)
        dot += n * b
        raw_squares += n * n
        base_squares += b * b
        gap_squares += gap * gap
        total += gap
        max_abs = max(max_abs, np.float64(gap).view(np.int64))
    row[0], row[1], row[2], row[3] = dot, raw_squares, base_squares, gap_squares
    row[4], row[5], row[6] = np.int64(max_abs).view(np.float64), np.int32(max_rel).view(np.float32), total


@exact
def count_mismatched(raw: Any, base: Any, atol: Any, rtol: Any) -> int:
    count = 0
    for i in range(raw.size):
        n, b = np.float64(raw[i]), np.float64(base[i])
        count += not abs(n - b) <= atol + rtol * abs(b)
    return count


def many_pairs(raws: Any, bases: Any, sizes: Any, rows_of_raw: Any, bounds: Any, out: Any) -> None:
    # rows_of_raw: into how many rows the raw matrix is laid that has to be turned; 0 where it need not.
    largest = 0
    for k in range(sizes.size):
        if rows_of_raw[k] > 0:
            largest = max(largest, sizes[k])
    turned = np.empty(largest, np.float32)
    for k in range(sizes.size):
        size, rows = sizes[k], rows_of_raw[k]
        raw, base = carray(pointer_to_float32(raws[k]), size), carray(pointer_to_float32(bases[k]), size)
        if rows > 0:
            columns = size // rows
            for i in range(rows):
                for j in range(columns):
                    turned[j * rows + i] = raw[i * columns + j]
            raw = turned[:size]
        row = out[k]
        if same(raw, base):
            row[:] = 0
            continue
        sums(raw, base, row)
        row[7] = 0
        if not row[4] <= bounds[0]:
            row[7] = count_mismatched(raw, base, bounds[0], bounds[1])


@cache
def kernel() -> Callable[..., None]:
    """The compiled function, from the cache if it is there."""
    whole = types.int64[::1]
    return compile_cached(many_pairs, types.void(whole, whole, whole, whole, types.float64[::1], types.float64[:, ::1]))
