"""The row of one block of an inference pair, compiled: two passes over memory that the first one put into the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from twinprobe.measure.kernel_cache import compile_cached
from twinprobe.measure.llm_rows import COLUMNS, SMALLEST

exact: Callable[[Any], Any] = njit(nogil=True, error_model="numpy", fastmath=False)
reordered: Callable[[Any], Any] = njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
_MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, found in the low bits


@exact
def exponential(x: Any) -> Any:
    """e^x for x <= 0, to about 1e-13: arithmetic only, so that a compiler can do several at a time."""
    x = max(x, -708.0)
    shifted = x * _LOG2_E + _MAGIC
    whole = shifted - _MAGIC
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    p = 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.755731922398589e-06
    p = p * r + 2.48015873015873e-05
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


@exact
def ratio_to(my: Any, golden: Any) -> Any:
    return abs(my / golden - np.float32(1))


@reordered
def _errors(my: Any, golden: Any, row: Any) -> None:
    limit, zero = np.float32(SMALLEST), np.float32(0)
    my_max = golden_max = np.float32(-np.inf)
    my_min = golden_min = np.float32(np.inf)
    max_abs = max_rel = zero
    my_sum = golden_sum = sum_abs = sum_rel = 0.0
    for i in range(my.size):
        m, g = my[i], golden[i]
        counts = abs(g) > limit
        gap = abs(m - g) if counts else zero
        ratio = ratio_to(m, g if counts else np.float32(1)) if counts else zero
        my_max, my_min = max(my_max, m), min(my_min, m)
        golden_max, golden_min = max(golden_max, g), min(golden_min, g)
        max_abs, max_rel = max(max_abs, gap), max(max_rel, ratio)
        my_sum += np.float64(m)
        golden_sum += np.float64(g)
        sum_abs += np.float64(gap)
        sum_rel += np.float64(ratio)
    row[0], row[1], row[2], row[3], row[4], row[5] = my_max, my_min, my_sum, golden_max, golden_min, golden_sum
    row[6], row[7], row[8], row[9] = max_abs, sum_abs, max_rel, sum_rel


@reordered
def _softmax_sums(my: Any, golden: Any, row: Any) -> None:
    my_max, golden_max = row[0], row[3]
    my_exp = golden_exp = cross = 0.0
    for i in range(my.size):
        m, g = np.float64(my[i]), np.float64(golden[i])
        weight = exponential(g - golden_max)
        my_exp += exponential(m - my_max)
        golden_exp += weight
        cross += weight * (g - m)
    row[10], row[11], row[12] = my_exp, golden_exp, cross


def block_row(my: Any, golden: Any, row: Any) -> None:
    _errors(my, golden, row)
    _softmax_sums(my, golden, row)


@cache
def _compiled() -> Callable[..., None]:
    array = types.Array(types.float32, 1, "C", readonly=True)
    return compile_cached(block_row, types.void(array, array, types.float64[::1]))


def kernel_row(my: NDArray[np.float32], golden: NDArray[np.float32]) -> NDArray[np.float64]:
    """The row of one block of float32 numbers, compiled."""
    row = np.empty(COLUMNS)
    my.flags.writeable = False
    golden.flags.writeable = False
    _compiled()(my, golden, row)
    return row
