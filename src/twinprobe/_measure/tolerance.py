"""When two tensors count as equal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import isfinite, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import COMPLEX, FLOAT64, address_of, complex_numbers, numbers
from twinprobe._measure.pair import measure_pair
from twinprobe._runs.tensors.elements import HostTensor

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
            return _gap_of_pair(raw, base, gap, "", 0)
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
        return _gap_of_pair(raw, base, gap, why, mismatched)


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
    return _gap_of_pair(raw, base, gap, why, 0)


def _gap_of_pair(raw: HostTensor, base: HostTensor, gap: NDArray[Any], why: str, mismatched: int) -> Gap:
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


# Many pairs of tensors at once, each told equal or not.


class Spot(NamedTuple):
    """Where a tensor lies in host memory, dense and in C order. Whoever made it keeps that memory alive."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    address: int


# raw, base, and whether the raw matrix is stored the other way round.
Job = tuple[Spot, Spot, bool]
# For each pair: the two addresses, how many elements, and the rows of a raw matrix that is to be turned (else 0).
Places = tuple[list[int], list[int], list[int], list[int]]
Hosts = Callable[[int], tuple[HostTensor, HostTensor]]  # the two tensors of a job

# From so many pairs, or elements at once, on compiled code is worth loading. The work alone decides, and not what was
# done before: equal work gives equal digits.
_PAIRS, _ELEMENTS = 300, 1 << 21
_SMALLEST_NORM = float(np.finfo(np.float64).eps)


@cache
def _kernel() -> Any:
    """The compiled function; None where it cannot be used."""
    try:
        from twinprobe._measure.machine_code import ensure_usable, load

        ensure_usable()
        return load("gaps", 5)
    except Exception as problem:  # numba raises many kinds where it does not fit the installed numpy
        logging.getLogger(__name__).warning("numba cannot be used, comparing with numpy: %s", problem)
        return None


def spot_of(tensor: HostTensor) -> Spot:
    """Where a tensor's elements are."""
    return Spot(tensor.dtype, tensor.shape, tensor.data.size, address_of(tensor.data))


def compare_all(jobs: list[Job], hosts: Hosts, tolerance: Tolerance, *, in_all: int = 0) -> Gaps:
    """The gap of each pair, as ``compare`` tells it.

    ``hosts`` is asked for pairs that the kernel does not take. ``in_all`` is how many pairs there are, where these jobs
    are only some of them.
    """
    fit = [at for at, job in enumerate(jobs) if _fits(*job)]
    places: Places = (
        [jobs[at][0].address for at in fit],
        [jobs[at][1].address for at in fit],
        [jobs[at][0].size for at in fit],
        [jobs[at][0].shape[0] if jobs[at][2] and len(jobs[at][0].shape) == 2 else 0 for at in fit],
    )
    gaps = Gaps(len(jobs))
    if max(len(jobs), in_all) >= _PAIRS or sum(job[0].size for job in jobs) >= _ELEMENTS:
        gaps.take(places, fit, tolerance)
    for at in gaps.missing():
        gaps.known[at] = compare_one(*hosts(at), jobs[at][2], tolerance)
    return gaps


def compare_places(places: Places, hosts: Hosts, tolerance: Tolerance, *, in_all: int = 0) -> Gaps:
    """The same for pairs that fit the kernel: float32, of one size, at least two elements."""
    gaps = Gaps(len(places[0]))
    if max(len(places[0]), in_all) >= _PAIRS or sum(places[2]) >= _ELEMENTS:
        gaps.take(places, list(range(len(places[0]))), tolerance)
    for at in gaps.missing():
        gaps.known[at] = compare_one(*hosts(at), places[3][at] > 0, tolerance)
    return gaps


class Gaps(Sequence[Gap]):
    """Many gaps. Those from the kernel stay numbers until somebody looks at one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.known: dict[int, Gap] = {}
        self._rows: dict[int, int] = {}  # which row of the kernel's
        self._numbers: NDArray[Any] = np.empty((0, 8))
        self._sizes: NDArray[Any] = np.empty(0, np.int64)

    def take(self, given: Places, fit: list[int], tolerance: Tolerance) -> None:
        """Measure these pairs with the kernel, if there is one."""
        kernel = _kernel() if tolerance.mode == STRICT else None
        if kernel is None or not fit:
            return
        places = np.array(given, np.int64)
        out, bounds = np.empty((len(fit), 8)), np.array(tolerance.of("float32"), np.float64)
        turned = np.empty(places[2].max(where=places[3] > 0, initial=0), np.float32)
        kernel(len(fit), *(address_of(array) for array in (places, bounds, turned, out)))
        # A row with a NaN, an infinity or numbers too large to square says nothing.
        told = (out[:, 4] == 0) | np.isfinite(out[:, 1] + out[:, 2])
        self._numbers, self._sizes = out, places[2]
        self._rows = {fit[row]: row for row in np.flatnonzero(told).tolist()}

    def missing(self) -> list[int]:
        """Those that are not measured yet."""
        return [at for at in range(self._count) if at not in self._rows and at not in self.known]

    @property
    def all_same(self) -> bool:
        """Whether no pair differs."""
        rows = list(self._rows.values())
        return all(gap.same for gap in self.known.values()) and not self._numbers[rows, 7].any()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(self._count))]
        if not -self._count <= at < self._count:
            raise IndexError(at)
        at %= self._count
        known = self.known.get(at)
        if known is None:
            row = self._rows[at]
            known = self.known[at] = _gap_of_row(self._numbers[row].tolist(), int(self._sizes[row]))
        return known


def compare_one(raw: HostTensor, base: HostTensor, turned: bool, tolerance: Tolerance) -> Gap:
    """The gap of one pair."""
    return compare(transposed(raw) if turned else raw, base, tolerance)


def _fits(raw: Spot, base: Spot, turned: bool) -> bool:
    """Whether the kernel takes this pair: float32 of one size and shape."""
    if raw.dtype != "float32" or base.dtype != "float32" or raw.size < 2 or (raw.address | base.address) & 3:
        return False
    shape = raw.shape[::-1] if turned and len(raw.shape) == 2 else raw.shape
    return shape == base.shape or squeezed(shape) == squeezed(base.shape)


@lru_cache(maxsize=1024)
def _no_gap(size: int) -> Gap:
    return Gap(True, elements=size)


def _gap_of_row(row: list[float], size: int) -> Gap:
    dot, raw_squares, base_squares, gap_squares, max_abs, max_rel, total, mismatched = row
    if not max_abs:
        return _no_gap(size)
    norms = sqrt(raw_squares), sqrt(base_squares)
    cosine = nan
    if min(norms) > _SMALLEST_NORM:
        cosine = round(dot / (norms[0] * norms[1]), 12)
        cosine = round(cosine, 6) if cosine > 0.9999 else cosine
    elif max(norms) <= _SMALLEST_NORM:
        cosine = 1.0
    wrong = int(mismatched)
    return Gap(
        same=not wrong, why=f"{wrong} of {size} elements differ" if wrong else "", max_abs=max_abs,
        max_rel=round(max_rel, 12) if isfinite(max_rel) else nan, mean_abs=total / size, cosine=cosine,
        relative_norm=sqrt(gap_squares) / norms[1] if norms[1] else nan, mismatched=wrong, elements=size,
    )  # fmt: skip
