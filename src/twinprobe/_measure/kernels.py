"""The engine of compiled loops: one fused pass without the interpreter lock, elements read in their own dtype."""

from __future__ import annotations

from ctypes import addressof, c_double
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import address_of
from twinprobe._measure.loops.inference_sums import STATE, WIDTH
from twinprobe._measure.loops.sums import BLOCK, FLOATS, PAIR_COLUMNS, TENSOR_COLUMNS, block_count
from twinprobe._measure.machine_code import ensure_usable, load

_ROW = c_double * TENSOR_COLUMNS


class KernelEngine:
    """Rows of sums by compiled loops; each is compiled, or fetched from the cache, when it is first asked for."""

    def __init__(self) -> None:
        ensure_usable()

    def reads(self, dtype: str) -> bool:
        return dtype in FLOATS

    def pair_rows(self, dtype: str, target: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
        size = _elements(dtype, target)
        if size != _elements(dtype, golden):
            raise ValueError("the sizes of a pair differ")
        rows = np.empty((block_count(size), PAIR_COLUMNS))
        load(f"pair_{dtype}", 4)(address_of(target), address_of(golden), size, address_of(rows))
        return rows

    def tensor_rows(self, dtype: str, data: NDArray[Any]) -> NDArray[np.float64]:
        size = _elements(dtype, data)
        rows = np.empty((block_count(size), TENSOR_COLUMNS))
        load(f"tensor_{dtype}", 3)(address_of(data), size, address_of(rows))
        return rows

    def row_at(self, dtype: str, address: int, size: int) -> list[float]:
        """The row of at most one block of memory. The caller keeps it alive and knows that it is as large as this."""
        if size > BLOCK:
            raise ValueError("more than a block")
        row = _ROW()
        load(f"tensor_{dtype}", 3)(address, size, addressof(row))
        return row[:]


def _elements(dtype: str, data: NDArray[Any]) -> int:
    if data.itemsize != FLOATS[dtype] or not data.flags.aligned:
        raise ValueError(f"not elements of {dtype}")
    return data.size


# The rows of inference pairs by compiled loops.

_DTYPES = ("float32", "float16", "bfloat16")


def reads(dtype: str) -> bool:
    """Whether stored elements of this dtype are taken as they are."""
    return dtype in _DTYPES


def kernel_row(dtype: str, my: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
    """The row of a pair of stored elements: the columns of every comparison, then those of this one."""
    row: NDArray[np.float64] = kernel_rows(dtype, my, golden, np.array([(0, 0, my.size)], np.int64))[0, :WIDTH]
    return row


def kernel_rows(
    dtype: str,
    my: NDArray[Any],
    golden: NDArray[Any],
    places: NDArray[np.int64],
    before: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """One row for each pair of tensors that lie in two pieces of memory: where both begin, and their size.

    Where these are the next elements of the same pairs, ``before`` are their rows so far, which are then added to.
    Nothing changes in the numbers as long as all but the last elements come in whole pieces.
    """
    rows = np.empty((len(places), WIDTH + STATE)) if before is None else before
    assert rows.shape == (len(places), WIDTH + STATE)
    assert places.shape == (len(places), 3)
    assert places.dtype == np.int64
    most = (places[:, :2] + places[:, 2:]).max(axis=0) * FLOATS[dtype]
    assert places.min() >= 0
    assert most[0] <= my.nbytes
    assert most[1] <= golden.nbytes
    sides = address_of(my), address_of(golden)
    assert not (sides[0] | sides[1]) % FLOATS[dtype]
    room = np.empty(WIDTH)
    loop = load(f"inference_{dtype}", 7)
    loop(*sides, address_of(places), len(places), address_of(rows), address_of(room), before is None)
    return rows
