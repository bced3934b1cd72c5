"""Which engine computes: numpy at first, compiled kernels as soon as the work is worth loading them."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_ubyte
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import block_count
from twinprobe._measure.loops.sums import (
    BLOCK,
    FIVE_THOUSANDTHS,
    ONE_THOUSANDTH,
    PAIR_COLUMNS,
    SQUARES,
    TENSOR_COLUMNS,
    Engine,
)
from twinprobe._scale.engine import cores

# The engine that needs nothing but numpy: for small work, and where numba is missing.

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
                block = data[start : start + BLOCK]
                wide = block.astype(np.float64, copy=False)
                squares = inner(wide, wide)
                rows[row] = 0.0, 0.0, 0.0, squares
                if np.isfinite(squares):
                    rows[row, :SQUARES] = np.maximum.reduce(block), np.minimum.reduce(block), np.add.reduce(wide)
        return rows

    def row_at(self, dtype: str, address: int, size: int) -> None:
        """Numpy reads arrays, not addresses."""

    def crc32_at(self, address: int, size: int) -> int:
        return zlib.crc32((c_ubyte * size).from_address(address))

    def sketcher(self, dtype: str) -> None:
        """Numpy sketches in ``sketch.py``, block by block."""


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


# Up to about this many bytes (both sides) numpy is as quick as fetching the kernels is, or compiling them once.
KERNEL_BYTES = 64 << 20

PLAIN = PlainEngine()


class _Choice:
    """Counts the bytes measured by numpy and changes over to the kernels once those would have paid."""

    def __init__(self) -> None:
        self._kernels: Engine | None = None
        self._unusable = False
        self._measured = 0
        self._lock = Lock()

    def engine(self, upcoming: int) -> Engine:
        if self._kernels is None and not self._unusable:
            with self._lock:
                self._measured += upcoming
                if self._measured >= KERNEL_BYTES and self._kernels is None and not self._unusable:
                    self._load()
        return self._kernels or PLAIN

    def _load(self) -> None:
        try:
            from twinprobe._measure.kernels import KernelEngine

            self._kernels = KernelEngine()
        except Exception as problem:  # numba raises many kinds where it does not fit the installed numpy
            self._unusable = True
            logging.getLogger(__name__).warning("numba cannot be used, measuring with numpy: %s", problem)


_choice = _Choice()


def engine_for(upcoming_bytes: int) -> Engine:
    """The engine for the next piece of work of this many bytes."""
    return _choice.engine(upcoming_bytes)


def engine_of(total_bytes: int) -> Engine:
    """The engine for work of this size in all, whatever was measured before: equal work gives equal digits."""
    return _choice.engine(total_bytes) if worth_kernels(total_bytes) else PLAIN


def worth_kernels(total_bytes: int) -> bool:
    """Whether this much work gains more from the kernels than loading them costs."""
    return total_bytes >= KERNEL_BYTES


# Threads for one large tensor: numpy and the kernels let go of the interpreter lock, so threads are enough.

Result = TypeVar("Result")

# Elements of one task: enough that handing it to a thread costs nothing, and whole blocks.
STRIP = 32 * BLOCK


def over_strips(work: Callable[[int, int], Result], size: int) -> Iterable[Result]:
    """``work(start, stop)`` for each strip of ``size`` elements, in order, on all cores if there are several strips."""
    spans = [(start, min(start + STRIP, size)) for start in range(0, size, STRIP)]
    if len(spans) == 1 or cores() == 1:
        return [work(*span) for span in spans]
    return _pool().map(work, *zip(*spans, strict=True))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="twinprobe-strip")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork; a child that waited for them would wait for ever.
    os.register_at_fork(after_in_child=_pool.cache_clear)
