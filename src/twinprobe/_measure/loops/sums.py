"""The rows of sums in which every engine reports one block of elements."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.dtypes import WIDTHS

# Elements per row. Both sides of a block of float64 stay within a second-level cache.
BLOCK = 65536

# Columns of a row about a pair: sums, then maxima, then counts.
DOT, TARGET_SQUARES, GOLDEN_SQUARES, GAP_SQUARES, MAX_ABS, MAX_REL, WITHIN_ONE, WITHIN_FIVE = range(8)
PAIR_COLUMNS = 8

# Columns of a row about one tensor.
MAX, MIN, SUM, SQUARES = range(4)
TENSOR_COLUMNS = 4

# The floats that compiled loops read as they lie, with the bytes of an element.
FLOATS = {name: WIDTHS[name] for name in ("float16", "bfloat16", "float32", "float64")}

ONE_THOUSANDTH = 0.001
FIVE_THOUSANDTHS = 0.005


class Engine(Protocol):
    """Something that turns blocks of numbers into rows of sums.

    A row whose squares are not finite says nothing: the block holds NaN or inf, or its squares overflow.
    """

    def reads(self, dtype: str) -> bool:
        """Whether the stored elements of this dtype are taken as they are; other dtypes have to be widened first."""

    def pair_rows(self, dtype: str, target: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
        """One row of PAIR_COLUMNS for each block of the two arrays."""

    def tensor_rows(self, dtype: str, data: NDArray[Any]) -> NDArray[np.float64]:
        """One row of TENSOR_COLUMNS for each block of the array."""

    def row_at(self, dtype: str, address: int, size: int) -> list[float] | None:
        """The row of TENSOR_COLUMNS of at most a block of elements in memory; None if the engine reads arrays only."""


def block_count(size: int) -> int:
    return -(-size // BLOCK)
