"""The metrics of a pair of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.blocks import BLOCK, Engine
from twinprobe.measure.complex_pass import complex_totals
from twinprobe.measure.decode import COMPLEX, FLOAT64, INTEGERS, calculation_dtype, numbers
from twinprobe.measure.engine import engine_for
from twinprobe.measure.plain import relative_errors
from twinprobe.measure.real_pass import real_totals
from twinprobe.measure.scaled import is_sound, relative_norm_by_scaling
from twinprobe.measure.threads import over_strips
from twinprobe.measure.totals import PairTotals
from twinprobe.runs.host_tensor import HostTensor

OK = "ok"
SHAPE_UNMATCHED = "shape unmatched"
UNSUPPORTED = "unsupported"
SCALAR = "scalar"
NOT_APPLICABLE = "N/A"

_SMALLEST_NORM = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class PairMetrics:
    """How a target tensor differs from its golden one.

    The six metrics from ``cosine`` to ``five_thousandths`` are None where ``status`` rules them out and NaN where they
    have no value. Unlike them, the fields after them always tell the truth about NaN, inf and imaginary parts.
    """

    status: str
    cosine: float | None = None
    euclid: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    one_thousandth: float | None = None
    five_thousandths: float | None = None
    relative_norm: float | None = None
    identical: bool = False
    nan_only_target: int = 0
    nan_only_golden: int = 0
    inf_differs: int = 0
    elements: int = 0


def measure_pair(target: HostTensor, golden: HostTensor, *, engine: Engine | None = None) -> PairMetrics:
    """Compare two tensors element by element, in one pass over each, whatever their dtypes are."""
    elements = target.data.size
    if elements == 0 or golden.data.size == 0:
        return PairMetrics(UNSUPPORTED, identical=target.shape == golden.shape, elements=elements)
    if _squeezed(target.shape) != _squeezed(golden.shape):
        return PairMetrics(SHAPE_UNMATCHED, elements=elements)
    totals = _totals(engine or engine_for(target.data.nbytes + golden.data.nbytes), target, golden)
    status, old = OK, _old_metrics(totals, elements)
    if elements == 1:
        status, old = SCALAR, _scalar_metrics(target, golden)
    elif totals.odd.places_differ:
        status, old = NOT_APPLICABLE, (None,) * 6
    return PairMetrics(
        status,
        *old,
        relative_norm=_relative_norm(totals, target, golden),
        identical=_identical(totals, target, golden),
        nan_only_target=totals.odd.nan_only_target,
        nan_only_golden=totals.odd.nan_only_golden,
        inf_differs=totals.odd.inf_against_finite + totals.odd.inf_against_inf,
        elements=elements,
    )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def _totals(engine: Engine, target: HostTensor, golden: HostTensor) -> PairTotals:
    one_pass = complex_totals if COMPLEX & {target.dtype, golden.dtype} else real_totals
    totals = PairTotals()
    for part in over_strips(lambda start, stop: one_pass(engine, target, golden, start, stop), target.data.size):
        totals.add(part)
    return totals


OldMetrics = tuple[float | None, float | None, float | None, float | None, float | None, float | None]


def _old_metrics(totals: PairTotals, elements: int) -> OldMetrics:
    return (
        _cosine(totals),
        sqrt(totals.gap_squares),
        round(totals.max_abs, 12),
        round(totals.max_rel, 12),
        round(totals.within_one / elements, 12),
        round(totals.within_five / elements, 12),
    )


def _cosine(totals: PairTotals) -> float:
    target_norm, golden_norm = sqrt(totals.target_squares), sqrt(totals.golden_squares)
    if target_norm <= _SMALLEST_NORM and golden_norm <= _SMALLEST_NORM:
        return 1.0
    if target_norm <= _SMALLEST_NORM or golden_norm <= _SMALLEST_NORM:
        return nan
    cosine = round(totals.dot / (target_norm * golden_norm), 12)
    return round(cosine, 6) if cosine > 0.9999 else cosine


def _scalar_metrics(target: HostTensor, golden: HostTensor) -> OldMetrics:
    """Of a single element only the two largest errors are known, and NaN or inf take part in them."""
    wanted = calculation_dtype(target.dtype, golden.dtype)
    t, g = numbers(target.dtype, target.data, wanted), numbers(golden.dtype, golden.data, wanted)
    with np.errstate(all="ignore"):
        gap = abs(float(t[0]) - float(g[0]))
        relative = float(relative_errors(t, g)[0])
    return (None, None, round(gap, 12), round(relative, 12), None, None)


def _relative_norm(totals: PairTotals, target: HostTensor, golden: HostTensor) -> float:
    gap = totals.gap_squares + totals.imaginary_gap_squares
    reference = totals.golden_squares + totals.imaginary_golden_squares
    if _worst_gap(totals) == 0:
        return 0.0
    wide = {target.dtype, golden.dtype} & {"float64", "complex128"}
    if wide and not (is_sound(gap) and is_sound(reference)):
        return relative_norm_by_scaling(target, golden)
    return sqrt(gap) / sqrt(reference) if reference else inf


def _identical(totals: PairTotals, target: HostTensor, golden: HostTensor) -> bool:
    if totals.odd.any or _worst_gap(totals) != 0:
        return False
    if {"int64", "uint64"} & {target.dtype, golden.dtype}:
        return _equal_beyond_float64(target, golden)
    return True


def _worst_gap(totals: PairTotals) -> float:
    return max(totals.max_abs, totals.imaginary_max_abs)


def _equal_beyond_float64(target: HostTensor, golden: HostTensor) -> bool:
    """Whether numbers that round to the same float64 really are the same; at least one side is of 64-bit integers."""
    # As uint64 only where negative numbers cannot occur: they would not have rounded to the same.
    whole = np.uint64 if "uint64" in (target.dtype, golden.dtype) else np.int64
    starts = range(0, target.data.size, BLOCK)
    return all(
        np.array_equal(_exact_block(target, start, whole), _exact_block(golden, start, whole)) for start in starts
    )


def _exact_block(tensor: HostTensor, start: int, whole: type[Any]) -> NDArray[Any]:
    block = tensor.data[start : start + BLOCK]
    if tensor.dtype == "bool" or tensor.dtype in INTEGERS:
        return block.astype(whole)
    # Floats here are whole numbers, perhaps just beyond the integers' range: Python's own have no limit.
    return np.array([int(value) for value in numbers(tensor.dtype, block, FLOAT64).tolist()], dtype=object)
