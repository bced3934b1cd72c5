"""Norms of float64 numbers whose squares overflow or vanish."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.blocks import BLOCK
from twinprobe.measure.decode import COMPLEX, FLOAT64, complex_numbers, numbers
from twinprobe.measure.plain import inner
from twinprobe.runs.host_tensor import HostTensor

# Below this a sum of squares may have lost digits to numbers whose squares vanish.
SMALLEST_SOUND_SQUARES = 1e-280
LARGEST_SAFE = 1e300


def is_sound(squares: float) -> bool:
    """Whether a sum of squares neither overflowed nor lost digits at the small end."""
    return SMALLEST_SOUND_SQUARES < squares < inf


class ScaledNorm:
    """The norm of arrays added one after the other, each divided by the largest magnitude met so far."""

    def __init__(self) -> None:
        self.scale = 0.0
        self._squares = 0.0

    def add(self, values: NDArray[Any]) -> None:
        top = float(np.abs(values).max())
        if top == 0:
            return
        if top > self.scale:
            self._squares *= (self.scale / top) ** 2
            self.scale = top
        values = values / self.scale
        self._squares += float(inner(values, values))

    @property
    def root(self) -> float:
        return sqrt(self._squares)

    @property
    def norm(self) -> float:
        return self.scale * self.root

    def over(self, other: ScaledNorm) -> float:
        """The ratio of two norms: 0/0 is 0, anything else over 0 is inf."""
        if self.scale == 0:
            return 0.0
        return inf if other.scale == 0 else (self.scale / other.scale) * (self.root / other.root)


def relative_norm_by_scaling(target: HostTensor, golden: HostTensor) -> float:
    """||target - golden|| / ||golden|| over the places where both are finite."""
    top = max(max(np.abs(t).max(), np.abs(g).max()) for t, g in _finite_blocks(target, golden))
    # A power of two is exact, and the ratio does not see it; it keeps the difference of two huge numbers finite.
    power = 2.0**-10 if top > LARGEST_SAFE else 1.0
    gap, reference = ScaledNorm(), ScaledNorm()
    for t, g in _finite_blocks(target, golden):
        gap.add(t * power - g * power)
        reference.add(g * power)
    return gap.over(reference)


def _finite_blocks(target: HostTensor, golden: HostTensor) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """The numbers of both sides block by block (real and imaginary parts in a row), zero where either is not finite."""
    read = complex_numbers if COMPLEX & {target.dtype, golden.dtype} else _real_numbers
    for start in range(0, target.data.size, BLOCK):
        t = read(target.dtype, target.data[start : start + BLOCK])
        g = read(golden.dtype, golden.data[start : start + BLOCK])
        outside = ~(np.isfinite(t) & np.isfinite(g))
        t[outside] = g[outside] = 0
        yield t.view(np.float64), g.view(np.float64)


def _real_numbers(dtype: str, data: NDArray[Any]) -> NDArray[Any]:
    return numbers(dtype, data, FLOAT64)
