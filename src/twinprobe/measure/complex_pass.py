"""One pass over a pair of tensors of which at least one is complex."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.blocks import BLOCK, Engine
from twinprobe.measure.decode import complex_numbers
from twinprobe.measure.nonfinite import Oddities
from twinprobe.measure.plain import inner
from twinprobe.measure.totals import PairTotals
from twinprobe.runs.host_tensor import HostTensor


def complex_totals(engine: Engine, target: HostTensor, golden: HostTensor, start: int, stop: int) -> PairTotals:
    """The totals of the elements from ``start`` to ``stop``; the sums are of the real parts, as in the old tool."""
    totals = PairTotals()
    for lo in range(start, stop, BLOCK):
        block = slice(lo, min(lo + BLOCK, stop))
        t = complex_numbers(target.dtype, target.data[block])
        g = complex_numbers(golden.dtype, golden.data[block])
        totals.add(_block_totals(engine, t, g))
    return totals


def _block_totals(engine: Engine, target: NDArray[np.complex128], golden: NDArray[np.complex128]) -> PairTotals:
    odd = _clear_nonfinite(target, golden)
    real_t, real_g = np.ascontiguousarray(target.real), np.ascontiguousarray(golden.real)
    totals = PairTotals.of_rows(engine.pair_rows("float64", real_t, real_g))
    totals.odd = odd
    with np.errstate(all="ignore"):
        gap = target.imag - golden.imag
        totals.imaginary_gap_squares = float(inner(gap, gap))
        totals.imaginary_golden_squares = float(inner(golden.imag, golden.imag))
        totals.imaginary_max_abs = float(np.abs(gap).max())
    return totals


def _clear_nonfinite(target: NDArray[Any], golden: NDArray[Any]) -> Oddities:
    """As for real numbers; a complex number is NaN or inf if either of its parts is."""
    outside = ~(np.isfinite(target) & np.isfinite(golden))
    odd = Oddities()
    if not outside.any():
        return odd
    t, g = target[outside], golden[outside]
    nan_t, nan_g = np.isnan(t), np.isnan(g)
    odd.nan_only_target = int(np.count_nonzero(nan_t & ~nan_g))
    odd.nan_only_golden = int(np.count_nonzero(nan_g & ~nan_t))
    one_sided = np.isinf(t) != np.isinf(g)
    odd.inf_against_finite = int(np.count_nonzero(one_sided & (nan_t == nan_g)))
    odd.inf_against_inf = int(np.count_nonzero(~one_sided & ~nan_t & ~nan_g & (t != g)))
    target[outside] = 0
    golden[outside] = 0
    return odd
