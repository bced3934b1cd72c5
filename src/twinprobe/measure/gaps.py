"""Many pairs of tensors at once, each told equal or not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, lru_cache
from math import isfinite, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
Hosts = Callable[[int], tuple[HostTensor, HostTensor]]  # the two tensors of a job

# From so many pairs, or elements at once, on compiled code is worth loading. The work alone decides, and not what was
# done before: equal work gives equal digits.
_PAIRS, _ELEMENTS = 1_000, 1 << 23
_SMALLEST_NORM = float(np.finfo(np.float64).eps)


@cache
def _kernel() -> Any:
    """The compiled function; None where it cannot be used."""
    try:
        from twinprobe.measure.gap_kernel import kernel

        return kernel()
    except Exception as problem:  # numba raises many kinds where it does not fit the installed numpy
        logging.getLogger(__name__).warning("numba cannot be used, comparing with numpy: %s", problem)
        return None


def spot_of(tensor: HostTensor) -> Spot:
    """Where a tensor's elements are."""
    return Spot(tensor.dtype, tensor.shape, tensor.data.size, address_of(tensor.data))


def address_of(array: NDArray[Any]) -> int:
    """The address of an array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def compare_all(jobs: list[Job], hosts: Hosts, tolerance: Tolerance, *, in_all: int = 0) -> list[Gap]:
    """The gap of each pair, as ``compare`` tells it.

    ``hosts`` is asked for pairs that the kernel does not take. ``in_all`` is how many pairs there are, where these jobs
    are only some of them.
    """
    found: list[Gap | None] = [None] * len(jobs)
    large = max(len(jobs), in_all) >= _PAIRS or sum(job[0].size for job in jobs) >= _ELEMENTS
    kernel = _kernel() if large and tolerance.mode == STRICT else None
    if kernel is not None:
        _by_kernel(kernel, jobs, [at for at, job in enumerate(jobs) if _fits(*job)], tolerance, found)
    return [_one(*hosts(at), jobs[at][2], tolerance) if gap is None else gap for at, gap in enumerate(found)]


def _one(raw: HostTensor, base: HostTensor, turned: bool, tolerance: Tolerance) -> Gap:
    return compare(transposed(raw) if turned else raw, base, tolerance)


def _fits(raw: Spot, base: Spot, turned: bool) -> bool:
    """Whether the kernel takes this pair: float32 of one size and shape."""
    if raw.dtype != "float32" or base.dtype != "float32" or raw.size < 2 or (raw.address | base.address) & 3:
        return False
    shape = raw.shape[::-1] if turned and len(raw.shape) == 2 else raw.shape
    return shape == base.shape or squeezed(shape) == squeezed(base.shape)


def _by_kernel(kernel: Any, jobs: list[Job], fit: list[int], tolerance: Tolerance, found: list[Gap | None]) -> None:
    places = np.empty((4, len(fit)), np.int64)
    places[0] = [jobs[at][0].address for at in fit]
    places[1] = [jobs[at][1].address for at in fit]
    places[2] = [jobs[at][0].size for at in fit]
    places[3] = [jobs[at][0].shape[0] if jobs[at][2] and len(jobs[at][0].shape) == 2 else 0 for at in fit]
    out = np.empty((len(fit), 8))
    kernel(places[0], places[1], places[2], places[3], np.array(tolerance.of("float32"), np.float64), out)
    for at, size, row in zip(fit, places[2].tolist(), out.tolist(), strict=True):
        found[at] = _gap(row, size)


@lru_cache(maxsize=1024)
def _no_gap(size: int) -> Gap:
    return Gap(True, elements=size)


def _gap(row: list[float], size: int) -> Gap | None:
    dot, raw_squares, base_squares, gap_squares, max_abs, max_rel, total, mismatched = row
    if not max_abs:
        return _no_gap(size)
    if not isfinite(raw_squares + base_squares):
        return None
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
