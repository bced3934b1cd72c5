"""When two tensors count as equal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import FLOAT64, address_of, complex_numbers, numbers
from twinprobe._measure.pair import cosine_of, measure_pair, squeezed
from twinprobe._runs.dtypes import COMPLEX, NATIVE
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
    """|target - golden| <= atol + rtol * |golden|, for each element or (``mode``) for the means. NaN equals nothing."""

    atol: float | None = None
    rtol: float | None = None
    mode: str = STRICT
    equal_nan: bool = False

    def of(self, *dtypes: str) -> tuple[float, float]:
        """atol and rtol for these element types: the coarser one decides."""
        kind = next((kind for kind in _COARSE if kind in dtypes), "")
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


def compare(target: HostTensor, golden: HostTensor, tolerance: Tolerance) -> Gap:
    """Measure two tensors against each other."""
    size = target.data.size
    if squeezed(target.shape) != squeezed(golden.shape):
        return Gap(False, f"shape {list(target.shape)} against {list(golden.shape)}", nan, nan, nan, nan, nan, 0, size)
    if not size:
        return Gap(True, elements=0)
    if target.dtype == golden.dtype and _same_numbers(target, golden):
        return Gap(True, elements=size)
    return _measured(target, golden, tolerance)


def transposed(tensor: HostTensor) -> HostTensor:
    """A matrix the other way round."""
    if len(tensor.shape) != 2:
        return tensor
    turned = np.ascontiguousarray(tensor.data.reshape(tensor.shape).T)
    return HostTensor(tensor.dtype, tensor.shape[::-1], turned.reshape(-1))


def _same_numbers(target: HostTensor, golden: HostTensor) -> bool:
    """Whether the numbers are the same, NaN not being one."""
    if not (target.data == golden.data).all():
        return False
    # Of a type that numpy lacks bits were compared, and those of a NaN equal themselves.
    return target.dtype in NATIVE or not np.isnan(numbers(target.dtype, target.data, FLOAT64)).any()


def _measured(target: HostTensor, golden: HostTensor, tolerance: Tolerance) -> Gap:
    if {target.dtype, golden.dtype} & COMPLEX:
        t: NDArray[Any] = complex_numbers(target.dtype, target.data)
        g: NDArray[Any] = complex_numbers(golden.dtype, golden.data)
    else:
        t, g = numbers(target.dtype, target.data, FLOAT64), numbers(golden.dtype, golden.data, FLOAT64)
    atol, rtol = tolerance.of(target.dtype, golden.dtype)
    with np.errstate(all="ignore"):
        gap = np.abs(t - g)
        if tolerance.mode == STRICT and gap.max() <= atol:  # never so where a NaN or an infinity is
            return _gap_of_pair(target, golden, gap, "", 0)
        equal = gap <= atol + rtol * np.abs(g)
        equal |= t == g  # infinities of one sign
        equal &= np.isfinite(g) | (t == g)
        both_nan = np.isnan(t) & np.isnan(g)
        if tolerance.equal_nan:
            equal |= both_nan
        if tolerance.mode != STRICT:
            return _by_means(target, golden, t, g, gap, tolerance, (atol, rtol))
        mismatched = int(gap.size - np.count_nonzero(equal))
        why = ""
        if mismatched:
            strange = int(np.count_nonzero(np.isnan(t) | np.isnan(g)))
            why = f"{mismatched} of {gap.size} elements differ"
            if strange:
                why += f", NaN in {strange} places"
        return _gap_of_pair(target, golden, gap, why, mismatched)


def _by_means(
    target: HostTensor, golden: HostTensor, t: NDArray[Any], g: NDArray[Any], gap: NDArray[Any],
    tolerance: Tolerance, bounds: tuple[float, float],
) -> Gap:  # fmt: skip
    if tolerance.mode == ABS_MEAN:
        t, g = np.abs(t), np.abs(g)
    means = t.mean(), g.mean()
    same = bool(abs(means[0] - means[1]) <= bounds[0] + bounds[1] * abs(means[1])) or bool(means[0] == means[1])
    same |= tolerance.equal_nan and bool(np.isnan(means[0]) and np.isnan(means[1]))
    why = "" if same else f"{tolerance.mode} {means[0]:.6g} against {means[1]:.6g}"
    return _gap_of_pair(target, golden, gap, why, 0)


def _gap_of_pair(target: HostTensor, golden: HostTensor, gap: NDArray[Any], why: str, mismatched: int) -> Gap:
    found = measure_pair(target, golden)
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


# target, golden, and whether the target matrix is stored the other way round.
HostPair = tuple[HostTensor, HostTensor, bool]
# For each pair: the two addresses, how many elements, and the rows of a target matrix that is to be turned (else 0).
Places = tuple[list[int], list[int], list[int], list[int]]
Hosts = Callable[[int], tuple[HostTensor, HostTensor]]  # the two tensors of a pair

# From so many pairs, or elements at once, on compiled code is worth loading. The work alone decides, and not what was
# done before: equal work gives equal digits.
_PAIRS, _ELEMENTS = 300, 1 << 21


@cache
def _kernel() -> Any:
    """The compiled function; None where it cannot be used."""
    try:
        from twinprobe._measure.kernels import ensure_usable, load

        ensure_usable()
        return load("gaps", 5)
    except Exception as problem:  # numba raises many kinds where it does not fit the installed numpy
        logging.getLogger(__name__).warning("numba cannot be used, comparing with numpy: %s", problem)
        return None


def compare_all(pairs: list[HostPair], tolerance: Tolerance, *, in_all: int = 0) -> Gaps:
    """The gap of each pair, as ``compare`` tells it; ``in_all`` is how many there are, if these are only some."""
    fit = [at for at, pair in enumerate(pairs) if _fits(*pair)]
    places: Places = (
        [address_of(pairs[at][0].data) for at in fit],
        [address_of(pairs[at][1].data) for at in fit],
        [pairs[at][0].data.size for at in fit],
        [pairs[at][0].shape[0] if pairs[at][2] and len(pairs[at][0].shape) == 2 else 0 for at in fit],
    )
    many = worth_kernel(max(len(pairs), in_all), sum(pair[0].data.size for pair in pairs))
    turned = [pair[2] for pair in pairs]
    return _compared(Gaps(len(pairs)), places, fit if many else [], lambda at: pairs[at][:2], turned, tolerance)


def compare_places(places: Places, hosts: Hosts, tolerance: Tolerance) -> Gaps:
    """The same for many pairs that fit the kernel (float32, of one size, at least two elements), by their places.

    ``hosts`` is asked for those that the kernel says nothing about.
    """
    count = len(places[0])
    return _compared(Gaps(count), places, list(range(count)), hosts, places[3], tolerance)


def worth_kernel(pairs: int, elements: int) -> bool:
    """Whether compiled code is worth loading for so much work."""
    return pairs >= _PAIRS or elements >= _ELEMENTS


def _compared(
    gaps: Gaps, places: Places, fit: list[int], hosts: Hosts, turned: Sequence[int], tolerance: Tolerance
) -> Gaps:
    """Those that fit by the kernel, the others one by one."""
    gaps.take(places, fit, tolerance)
    for pair in gaps.unmeasured:
        target, golden = hosts(pair)
        gaps.known[pair] = compare(transposed(target) if turned[pair] else target, golden, tolerance)
    return gaps


class Gaps:
    """Many gaps. Those from the kernel stay numbers until somebody looks at them."""

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
        conclusive = (out[:, 4] == 0) | np.isfinite(out[:, 1] + out[:, 2])
        self._numbers, self._sizes = out, places[2]
        self._rows = {fit[row]: row for row in np.flatnonzero(conclusive).tolist()}

    @property
    def unmeasured(self) -> list[int]:
        """The pairs that the kernel has not measured."""
        return [pair for pair in range(self._count) if pair not in self._rows]

    @property
    def all_same(self) -> bool:
        """Whether no pair differs."""
        rows = list(self._rows.values())
        return all(gap.same for gap in self.known.values()) and not self._numbers[rows, 7].any()

    def all(self) -> list[Gap]:
        """The gap of each pair, in order."""
        found = dict(self.known)
        for pair, row in self._rows.items():
            found[pair] = _gap_of_row(self._numbers[row].tolist(), int(self._sizes[row]))
        return [found[pair] for pair in range(self._count)]


def _fits(target: HostTensor, golden: HostTensor, turned: bool) -> bool:
    """Whether the kernel takes this pair: aligned float32 of one size and shape, in memory."""
    if not target.dtype == golden.dtype == "float32" or target.data.size < 2:
        return False
    if not all(isinstance(side.data, np.ndarray) and side.data.flags.aligned for side in (target, golden)):
        return False
    shape = target.shape[::-1] if turned and len(target.shape) == 2 else target.shape
    return shape == golden.shape or squeezed(shape) == squeezed(golden.shape)


@lru_cache(maxsize=1024)
def _no_gap(size: int) -> Gap:
    return Gap(True, elements=size)


def _gap_of_row(row: list[float], size: int) -> Gap:
    dot, target_squares, golden_squares, gap_squares, max_abs, max_rel, total, mismatched = row
    if not max_abs:
        return _no_gap(size)
    norm, wrong = sqrt(golden_squares), int(mismatched)
    return Gap(
        same=not wrong, why=f"{wrong} of {size} elements differ" if wrong else "", max_abs=max_abs,
        max_rel=round(max_rel, 12) if isfinite(max_rel) else nan, mean_abs=total / size,
        cosine=cosine_of(dot, target_squares, golden_squares), relative_norm=sqrt(gap_squares) / norm if norm else nan,
        mismatched=wrong, elements=size,
    )  # fmt: skip
