"""When two tensors count as equal."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.decode import COMPLEX, FLOAT64, complex_numbers, numbers
from twinprobe.measure.pair import measure_pair
from twinprobe.runs.host_tensor import HostTensor

STRICT, MEAN, ABS_MEAN = "strict", "mean", "abs_mean"
MODES = (STRICT, MEAN, ABS_MEAN)
# Used where the user names none: what rounding in such a type can do over a few operations.
_DEFAULTS = {
    "float64": (1e-8, 1e-7), "complex128": (1e-8, 1e-7), "float32": (1e-5, 1.3e-6), "complex64": (1e-5, 1.3e-6),
    "float16": (1e-4, 1e-3), "bfloat16": (1e-4, 1.6e-2),
}  # fmt: skip
_COARSE = ("bfloat16", "float16", "float32", "complex64", "float64", "complex128")


@dataclass(frozen=True)
class Tolerance:
    """|raw - base| <= atol + rtol * |base|, for every element or (``mode``) for the means. NaN equals nothing."""

    atol: float | None = None
    rtol: float | None = None
    mode: str = STRICT
    equal_nan: bool = False

    def of(self, *dtypes: str) -> tuple[float, float]:
        """atol and rtol for these element types: the coarser one decides."""
        kind = next((one for one in _COARSE if one in dtypes), "")
        if not kind and any(dtype.startswith("float8") for dtype in dtypes):
            kind = "bfloat16"
        atol, rtol = _DEFAULTS.get(kind, (0.0, 0.0))
        return (atol if self.atol is None else self.atol), (rtol if self.rtol is None else self.rtol)


@dataclass(frozen=True, slots=True)
class Gap:
    """How far apart two tensors are."""

    same: bool
    why: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    mean_abs: float = 0.0
    cosine: float = 1.0
    relative_norm: float = 0.0
    mismatched: int = 0
    elements: int = 0


def compare(raw: HostTensor, base: HostTensor, tolerance: Tolerance) -> Gap:
    """Measure two tensors against each other."""
    size = raw.data.size
    if squeezed(raw.shape) != squeezed(base.shape):
        return Gap(False, f"shape {list(raw.shape)} against {list(base.shape)}", nan, nan, nan, nan, nan, 0, size)
    if not size:
        return Gap(True, elements=0)
    if raw.dtype == base.dtype and _same_numbers(raw, base):
        return Gap(True, elements=size)
    return _measured(raw, base, tolerance)


def transposed(tensor: HostTensor) -> HostTensor:
    """A matrix the other way round."""
    if len(tensor.shape) != 2:
        return tensor
    turned = np.ascontiguousarray(tensor.data.reshape(tensor.shape).T)
    return HostTensor(tensor.dtype, tensor.shape[::-1], turned.reshape(-1))


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its ones."""
    return tuple(length for length in shape if length != 1)


def _same_numbers(raw: HostTensor, base: HostTensor) -> bool:
    """Whether the numbers are the same, NaN not being one."""
    if (
        np.dtype(raw.data.dtype).kind in "biufc"
        and raw.dtype not in ("bfloat16",)
        and not raw.dtype.startswith("float8")
    ):
        return bool((raw.data == base.data).all())
    return bool((raw.data == base.data).all()) and not np.isnan(numbers(raw.dtype, raw.data, FLOAT64)).any()


def _measured(raw: HostTensor, base: HostTensor, tolerance: Tolerance) -> Gap:
    if {raw.dtype, base.dtype} & COMPLEX:
        one: NDArray[Any] = complex_numbers(raw.dtype, raw.data)
        other: NDArray[Any] = complex_numbers(base.dtype, base.data)
    else:
        one, other = numbers(raw.dtype, raw.data, FLOAT64), numbers(base.dtype, base.data, FLOAT64)
    atol, rtol = tolerance.of(raw.dtype, base.dtype)
    with np.errstate(all="ignore"):
        gap = np.abs(one - other)
        if tolerance.mode == STRICT and gap.max() <= atol:  # never so where a NaN or an infinity is
            return _gap(raw, base, gap, "", 0)
        equal = gap <= atol + rtol * np.abs(other)
        equal |= one == other  # infinities of one sign
        equal &= np.isfinite(other) | (one == other)
        both_nan = np.isnan(one) & np.isnan(other)
        if tolerance.equal_nan:
            equal |= both_nan
        if tolerance.mode != STRICT:
            return _by_means(raw, base, one, other, gap, tolerance, (atol, rtol))
        mismatched = int(gap.size - np.count_nonzero(equal))
        why = ""
        if mismatched:
            strange = int(np.count_nonzero(np.isnan(one) | np.isnan(other)))
            why = f"{mismatched} of {gap.size} elements differ"
            if strange:
                why += f", NaN in {strange} places"
        return _gap(raw, base, gap, why, mismatched)


def _by_means(
    raw: HostTensor, base: HostTensor, one: NDArray[Any], other: NDArray[Any], gap: NDArray[Any],
    tolerance: Tolerance, bounds: tuple[float, float],
) -> Gap:  # fmt: skip
    if tolerance.mode == ABS_MEAN:
        one, other = np.abs(one), np.abs(other)
    means = one.mean(), other.mean()
    same = bool(abs(means[0] - means[1]) <= bounds[0] + bounds[1] * abs(means[1])) or bool(means[0] == means[1])
    same |= tolerance.equal_nan and bool(np.isnan(means[0]) and np.isnan(means[1]))
    why = "" if same else f"{tolerance.mode} {means[0]:.6g} against {means[1]:.6g}"
    return _gap(raw, base, gap, why, 0)


def _gap(raw: HostTensor, base: HostTensor, gap: NDArray[Any], why: str, mismatched: int) -> Gap:
    found = measure_pair(raw, base)
    known = gap if isfinite(gap.max()) else gap[np.isfinite(gap)]
    max_abs = float(known.max()) if known.size else nan
    return Gap(
        same=not why, why=why, max_abs=max_abs, max_rel=_or_nan(found.max_rel),
        mean_abs=float(known.mean()) if known.size else nan, cosine=_or_nan(found.cosine),
        relative_norm=_or_nan(found.relative_norm), mismatched=mismatched, elements=gap.size,
    )  # fmt: skip


def _or_nan(value: float | None) -> float:
    return value if value is not None and isfinite(value) else nan
