"""The rows of an inference pair, compiled: each piece of a block is walked over while it lies in the nearest cache.

Maxima are taken over bit patterns as integers, as in the kernels of every comparison: those become vectors. The softmax
is taken in float32: with d = my - golden, KL(p || q) = log(sum p e^d) - sum p d, and the sum of p (e^d - 1 - d) keeps
the digits that sums of exponentials lose. What float32 cannot hold, huge numbers and differences, goes in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from threading import Lock
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from twinprobe.measure import llm_rows
from twinprobe.measure.blocks import BLOCK, MAX_ABS, PAIR_COLUMNS, block_count
from twinprobe.measure.kernel_cache import compile_cached
from twinprobe.measure.kernels import (
    KERNELS,
    as_is,
    exact,
    from_bfloat16,
    from_float16,
    pair_sums_bfloat16,
    pair_sums_float16,
    pair_sums_float32,
    reordered,
)
from twinprobe.measure.llm_exponential import exponential, growth_and_excess, powers_in, weight_of
from twinprobe.measure.llm_rows import COLUMNS, SMALLEST

# Elements that both sides keep in the nearest cache; few enough to be added up in float32.
PIECE = 2048
WIDTH = PAIR_COLUMNS + COLUMNS

# Where float32 will do: golden values whose exponents are exact, and differences that leave most digits to their sums.
_LEAST_TOP, _MOST_TOP, _MOST_GAP = -9000.0, 10000.0, 8.0

_ONE = np.float32(1)
_LOWEST, _MASK, _SHIFT = np.int32(-(2**31)), np.int32(2**31 - 1), np.int32(31)


@exact
def ratio_to(my: Any, golden: Any) -> Any:
    return abs(my / golden - _ONE)


@exact
def ordered(number: Any) -> Any:
    """An integer that orders floats as they order themselves."""
    bits = np.float32(number).view(np.int32)
    return np.int32(bits ^ ((bits >> _SHIFT) & _MASK))


@exact
def number_of(key: Any) -> Any:
    return np.int32(key ^ ((key >> _SHIFT) & _MASK)).view(np.float32)


def _errors(load: Any) -> Any:
    limit = np.float32(SMALLEST)

    @reordered
    def errors(my: Any, golden: Any, row: Any) -> None:
        my_top, my_low, golden_top, golden_low = _LOWEST, _LOWEST, _LOWEST, _LOWEST
        max_abs, max_rel = np.int32(0), np.int32(0)
        my_sum = golden_sum = sum_abs = sum_rel = 0.0
        for i in range(my.size):
            m, g = load(my[i]), load(golden[i])
            counts = abs(g) > limit
            base, top = (g, m) if counts else (_ONE, _ONE)
            gap, ratio = abs(top - base), ratio_to(top, base)
            max_abs = max(max_abs, np.float32(gap).view(np.int32))
            max_rel = max(max_rel, np.float32(ratio).view(np.int32))
            my_key, golden_key = ordered(m), ordered(g)
            my_top, my_low = max(my_top, my_key), max(my_low, np.int32(~my_key))
            golden_top, golden_low = max(golden_top, golden_key), max(golden_low, np.int32(~golden_key))
            my_sum += np.float64(m)
            golden_sum += np.float64(g)
            sum_abs += np.float64(gap)
            sum_rel += np.float64(ratio)
        row[0], row[1], row[2] = number_of(my_top), number_of(np.int32(~my_low)), my_sum
        row[3], row[4], row[5] = number_of(golden_top), number_of(np.int32(~golden_low)), golden_sum
        row[6], row[7] = np.int32(max_abs).view(np.float32), sum_abs
        row[8], row[9] = np.int32(max_rel).view(np.float32), sum_rel

    return errors


def _softmax(load: Any) -> Any:
    """The softmax columns of a piece whose numbers are tame."""
    nothing = np.float32(0)

    @reordered
    def sums(my: Any, golden: Any, powers: Any, middle: Any, row: Any) -> None:
        weights = drift = excess = my_weights = nothing
        for i in range(my.size):
            g = load(golden[i])
            d = (load(my[i]) - g) - middle
            weight = weight_of(g, powers)
            growth, more = growth_and_excess(d)
            weights += weight
            drift += weight * d
            excess += weight * more
            my_weights += weight * growth
        shift = np.float64(powers) * 0.6931471805599453
        row[0], row[1], row[2], row[3] = shift, weights, drift, excess
        row[4], row[5] = shift + np.float64(middle), my_weights

    return sums


def _wild_softmax(load: Any) -> Any:
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


join_softmax = exact(llm_rows.join_softmax)


@exact
def join(row: Any, part: Any) -> None:
    """Add a piece to the row of its block: first the columns of every comparison, then those of this one."""
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
    join_softmax(row[10:], part[10:])


def _block(pair_sums: Any, load: Any) -> Any:
    errors, softmax, wild_softmax = _errors(load), _softmax(load), _wild_softmax(load)

    @exact
    def piece(my: Any, golden: Any, row: Any) -> None:
        pair_sums(my, golden, row)
        own = row[PAIR_COLUMNS:]
        errors(my, golden, own)
        my_top, golden_top = own[0], own[3]
        if _LEAST_TOP <= golden_top <= _MOST_TOP and row[MAX_ABS] <= _MOST_GAP:
            softmax(my, golden, powers_in(np.float32(golden_top)), np.float32(my_top - golden_top), own[10:])
        else:
            wild_softmax(my, golden, my_top, golden_top, own[10:])

    @exact
    def block(my: Any, golden: Any, row: Any) -> None:
        piece(my[:PIECE], golden[:PIECE], row)
        part = np.empty(WIDTH)
        for start in range(PIECE, my.size, PIECE):
            piece(my[start : start + PIECE], golden[start : start + PIECE], part)
            join(row, part)

    return block


block_float32 = _block(pair_sums_float32, as_is)
block_float16 = _block(pair_sums_float16, from_float16)
block_bfloat16 = _block(pair_sums_bfloat16, from_bfloat16)


def rows_float32(my: Any, golden: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        block_float32(my[k * BLOCK : (k + 1) * BLOCK], golden[k * BLOCK : (k + 1) * BLOCK], rows[k])


def rows_float16(my: Any, golden: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        block_float16(my[k * BLOCK : (k + 1) * BLOCK], golden[k * BLOCK : (k + 1) * BLOCK], rows[k])


def rows_bfloat16(my: Any, golden: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        block_bfloat16(my[k * BLOCK : (k + 1) * BLOCK], golden[k * BLOCK : (k + 1) * BLOCK], rows[k])


def many_float32(my: Any, golden: Any, places: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        m, g, size = places[k, 0], places[k, 1], places[k, 2]
        block_float32(my[m : m + size], golden[g : g + size], rows[k])


def many_float16(my: Any, golden: Any, places: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        m, g, size = places[k, 0], places[k, 1], places[k, 2]
        block_float16(my[m : m + size], golden[g : g + size], rows[k])


def many_bfloat16(my: Any, golden: Any, places: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        m, g, size = places[k, 0], places[k, 1], places[k, 2]
        block_bfloat16(my[m : m + size], golden[g : g + size], rows[k])


_FUNCTIONS = {"float32": rows_float32, "float16": rows_float16, "bfloat16": rows_bfloat16}
_MANY = {"float32": many_float32, "float16": many_float16, "bfloat16": many_bfloat16}
_compiled: dict[Callable[..., None], Callable[..., None]] = {}
_compiling = Lock()


def reads(dtype: str) -> bool:
    """Whether stored elements of this dtype are taken as they are."""
    return dtype in _FUNCTIONS


def kernel_rows(dtype: str, my: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
    """One row for each block of stored elements: the columns of every comparison, then those of this one."""
    function = _FUNCTIONS[dtype]
    kernel = _compiled.get(function) or _compile(function, dtype)
    rows = np.empty((block_count(my.size), WIDTH))
    kernel(_frozen(dtype, my), _frozen(dtype, golden), rows)
    return rows


def kernel_rows_of_many(
    dtype: str, my: NDArray[np.uint8], golden: NDArray[np.uint8], places: NDArray[np.int64]
) -> NDArray[np.float64]:
    """One row for each pair of small tensors that lie in the same memory: where both begin, and their size."""
    function = _MANY[dtype]
    kernel = _compiled.get(function) or _compile(function, dtype, places=True)
    rows = np.empty((len(places), WIDTH))
    sides = [_frozen(dtype, octets[: octets.size // 8 * 8]) for octets in (my, golden)]
    most = (places[:, :2] + places[:, 2:]).max(axis=0)
    assert places.min() >= 0
    assert places[:, 2].max() <= BLOCK
    assert most[0] <= sides[0].size
    assert most[1] <= sides[1].size
    kernel(sides[0], sides[1], places, rows)
    return rows


def _compile(function: Callable[..., None], dtype: str, *, places: bool = False) -> Callable[..., None]:
    array = types.Array(KERNELS[dtype][1], 1, "C", readonly=True)
    more = (types.int64[:, ::1],) if places else ()
    with _compiling:
        if function not in _compiled:
            _compiled[function] = compile_cached(function, types.void(array, array, *more, types.float64[:, ::1]))
    return _compiled[function]


def _frozen(dtype: str, data: NDArray[Any]) -> NDArray[Any]:
    view: NDArray[Any] = data.view(KERNELS[dtype][0])
    view.flags.writeable = False
    return view
