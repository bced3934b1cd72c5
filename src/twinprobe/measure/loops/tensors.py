"""The sums over one tensor, a row for each block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from twinprobe.measure.blocks import BLOCK, TENSOR_COLUMNS
from twinprobe.measure.loops.elements import READING, float64_at, reordered


def _sums_of(load: Any, real: Any, integer: Any) -> Any:
    limits = np.iinfo(integer)
    lowest, mask, shift = integer(limits.min), integer(limits.max), integer(limits.bits - 1)

    @reordered
    def sums(data: Any, row: Any) -> None:
        total = squares = 0.0
        highest, smallest = lowest, lowest
        for i in range(data.size):
            narrow = load(data[i])
            # Flipping the magnitude of negative patterns makes integer order the order of the floats.
            bits = real(narrow).view(integer)
            key = integer(bits ^ ((bits >> shift) & mask))
            highest = max(highest, key)
            smallest = max(smallest, integer(~key))
            wide = np.float64(narrow)
            total += wide
            squares += wide * wide
        top, bottom = highest, integer(~smallest)
        row[0] = integer(top ^ ((top >> shift) & mask)).view(real)
        row[1] = integer(bottom ^ ((bottom >> shift) & mask)).view(real)
        row[2], row[3] = total, squares

    return sums


def _loop(load: Any, real: Any, integer: Any, elements_at: Any) -> Any:
    sums = _sums_of(load, real, integer)

    def tensor(address: Any, size: Any, rows: Any) -> None:
        data = carray(elements_at(address), size)
        found = carray(float64_at(rows), (-(-size // BLOCK), TENSOR_COLUMNS))
        for k in range(found.shape[0]):
            sums(data[k * BLOCK : (k + 1) * BLOCK], found[k])

    return tensor


TENSORS = {f"tensor_{dtype}": _loop(*how) for dtype, how in READING.items()}
