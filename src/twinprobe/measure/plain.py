"""The engine that needs nothing but numpy: for small work, and where numba is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.blocks import (
    BLOCK,
    FIVE_THOUSANDTHS,
    ONE_THOUSANDTH,
    PAIR_COLUMNS,
    TENSOR_COLUMNS,
    block_count,
)

SINGLE_THREADED_DOT = 8192


class PlainEngine:
    """Rows of sums with numpy, block by block so that every temporary array stays small."""

    def reads(self, dtype: str) -> bool:
        return dtype in ("float32", "float64")

    def pair_rows(self, dtype: str, target: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
        del dtype
        rows = np.empty((block_count(target.size), PAIR_COLUMNS))
        with np.errstate(all="ignore"):
            for row, start in enumerate(range(0, target.size, BLOCK)):
                rows[row] = _pair_row(target[start : start + BLOCK], golden[start : start + BLOCK])
        return rows

    def tensor_rows(self, dtype: str, data: NDArray[Any]) -> NDArray[np.float64]:
        del dtype
        rows = np.empty((block_count(data.size), TENSOR_COLUMNS))
        with np.errstate(all="ignore"):
            for row, start in enumerate(range(0, data.size, BLOCK)):
                rows[row] = _tensor_row(data[start : start + BLOCK])
        return rows

    def row_at(self, dtype: str, address: int, size: int) -> None:
        """Numpy reads arrays, not addresses."""


def _pair_row(target: NDArray[Any], golden: NDArray[Any]) -> tuple[Any, ...]:
    relative = relative_errors(target, golden)
    target = target.astype(np.float64, copy=False)
    golden = golden.astype(np.float64, copy=False)
    gap = target - golden
    return (
        inner(target, golden),
        inner(target, target),
        inner(golden, golden),
        inner(gap, gap),
        max(gap.max(), -gap.min()),
        relative.max(),
        np.count_nonzero(relative < ONE_THOUSANDTH),
        np.count_nonzero(relative < FIVE_THOUSANDTHS),
    )


def relative_errors(target: NDArray[Any], golden: NDArray[Any]) -> NDArray[Any]:
    """|(target - golden) / golden| in the arrays' own type; epsilon is added to both where golden is zero."""
    zero = golden == 0
    if zero.any():
        shift = zero * np.finfo(golden.dtype).eps
        target, golden = target + shift, golden + shift
    errors: NDArray[Any] = target - golden
    np.divide(errors, golden, out=errors)
    np.abs(errors, out=errors)
    return errors


def inner(left: NDArray[Any], right: NDArray[Any]) -> Any:
    """The inner product on this thread alone: a threaded BLAS stalls where its other threads wait for a core."""
    return np.dot(left, right) if left.size <= SINGLE_THREADED_DOT else np.einsum("i,i->", left, right)


def _tensor_row(data: NDArray[Any]) -> tuple[Any, ...]:
    wide = data.astype(np.float64, copy=False)
    squares = inner(wide, wide)
    if not np.isfinite(squares):
        return (0.0, 0.0, 0.0, squares)
    return (np.maximum.reduce(data), np.minimum.reduce(data), np.add.reduce(wide), squares)
