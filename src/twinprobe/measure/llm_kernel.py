"""The row of one block of an inference pair, compiled: two passes, the second over memory that is in the cache by then.

Maxima are taken over bit patterns as integers, as in the kernels of every comparison: those become vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from twinprobe.measure.kernel_cache import compile_cached
from twinprobe.measure.kernels import KERNELS, as_is, exact, from_bfloat16, from_float16, reordered
from twinprobe.measure.llm_rows import COLUMNS, SMALLEST

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
_MAGIC = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to a whole number, found in the low bits
_LOWEST, _MASK, _SHIFT = np.int32(-(2**31)), np.int32(2**31 - 1), np.int32(31)


@exact
def exponential(x: Any) -> Any:
    """e^x for x <= 0, to about 1e-10: arithmetic only, so that several are done at a time."""
    x = x if x > -708.0 else -708.0
    shifted = x * _LOG2_E + _MAGIC
    whole = shifted - _MAGIC
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
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


@exact
def ratio_to(my: Any, golden: Any) -> Any:
    return abs(my / golden - np.float32(1))


@exact
def ordered(number: Any) -> Any:
    """An integer that orders floats as they order themselves."""
    bits = np.float32(number).view(np.int32)
    return np.int32(bits ^ ((bits >> _SHIFT) & _MASK))


@exact
def number_of(key: Any) -> Any:
    return np.int32(key ^ ((key >> _SHIFT) & _MASK)).view(np.float32)


def _errors(load: Any) -> Any:
    limit, one = np.float32(SMALLEST), np.float32(1)

    @reordered
    def errors(my: Any, golden: Any, row: Any) -> None:
        my_top, my_low, golden_top, golden_low = _LOWEST, _LOWEST, _LOWEST, _LOWEST
        max_abs, max_rel = np.int32(0), np.int32(0)
        my_sum = golden_sum = sum_abs = sum_rel = 0.0
        for i in range(my.size):
            m, g = load(my[i]), load(golden[i])
            counts = abs(g) > limit
            base, top = (g, m) if counts else (one, one)
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


def _softmax_sums(load: Any) -> Any:
    @reordered
    def sums(my: Any, golden: Any, row: Any) -> None:
        my_max, golden_max = row[0], row[3]
        my_exp = golden_exp = cross = 0.0
        for i in range(my.size):
            m, g = np.float64(load(my[i])), np.float64(load(golden[i]))
            weight = exponential(g - golden_max)
            my_exp += exponential(m - my_max)
            golden_exp += weight
            cross += weight * (g - m)
        row[10], row[11], row[12] = my_exp, golden_exp, cross

    return sums


errors_float32, softmax_float32 = _errors(as_is), _softmax_sums(as_is)
errors_float16, softmax_float16 = _errors(from_float16), _softmax_sums(from_float16)
errors_bfloat16, softmax_bfloat16 = _errors(from_bfloat16), _softmax_sums(from_bfloat16)


def row_float32(my: Any, golden: Any, row: Any) -> None:
    errors_float32(my, golden, row)
    softmax_float32(my, golden, row)


def row_float16(my: Any, golden: Any, row: Any) -> None:
    errors_float16(my, golden, row)
    softmax_float16(my, golden, row)


def row_bfloat16(my: Any, golden: Any, row: Any) -> None:
    errors_bfloat16(my, golden, row)
    softmax_bfloat16(my, golden, row)


_FUNCTIONS = {"float32": row_float32, "float16": row_float16, "bfloat16": row_bfloat16}
_compiled: dict[str, Callable[..., None]] = {}
_compiling = Lock()


def reads(dtype: str) -> bool:
    """Whether stored elements of this dtype are taken as they are."""
    return dtype in _FUNCTIONS


def kernel_row(dtype: str, my: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
    """The row of one block of stored elements, compiled."""
    kernel = _compiled.get(dtype) or _compile(dtype)
    row = np.empty(COLUMNS)
    kernel(_frozen(dtype, my), _frozen(dtype, golden), row)
    return row


def _compile(dtype: str) -> Callable[..., None]:
    array = types.Array(KERNELS[dtype][1], 1, "C", readonly=True)
    with _compiling:
        if dtype not in _compiled:
            _compiled[dtype] = compile_cached(_FUNCTIONS[dtype], types.void(array, array, types.float64[::1]))
    return _compiled[dtype]


def _frozen(dtype: str, data: NDArray[Any]) -> NDArray[Any]:
    view: NDArray[Any] = data.view(KERNELS[dtype][0])
    view.flags.writeable = False
    return view
