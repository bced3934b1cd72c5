"""Many pairs of tensors at once, each told equal or not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import isfinite, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.addresses import address_of
from twinprobe.measure.tolerance import STRICT, Gap, Tolerance, compare, squeezed, transposed
from twinprobe.runs.host_tensor import HostTensor


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
        from twinprobe.measure.machine_code import ensure_usable, load

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
            known = self.known[at] = _gap(self._numbers[row].tolist(), int(self._sizes[row]))
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


def _gap(row: list[float], size: int) -> Gap:
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
