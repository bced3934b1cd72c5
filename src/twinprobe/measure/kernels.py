"""The engine of compiled loops: one fused pass without the interpreter lock, elements read in their own dtype."""

from __future__ import annotations

from ctypes import addressof, c_double
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.addresses import address_of
from twinprobe.measure.blocks import BLOCK, FLOATS, PAIR_COLUMNS, TENSOR_COLUMNS, block_count
from twinprobe.measure.machine_code import ensure_usable, load

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
