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

# Columns of a block of a sketch: four signed sums, sums over ordinary elements, extremes and counts of all.
SIGNS, BLOCKS, SKETCH_COLUMNS = 4, 16, 14
TOTAL, SUM_OF_SQUARES, L1, ZEROS, LARGEST, HIGHEST, LOWEST, NANS, INFS, FILLS = range(SIGNS, SKETCH_COLUMNS)
# Elements beyond a quarter of the dtype's range are fill values of masks, and left out of a sketch's sums.
QUARTER = {
    "float16": 65504.0 / 4, "bfloat16": (2 - 2**-7) * 2.0**125, "float32": (2 - 2**-23) * 2.0**125,
    "float64": (2 - 2**-52) * 2.0**1021,
}  # fmt: skip
# Where things lie in the memory that a loop of sketches works in, counted in float64: the finished row, four
# statistics, the sums of all blocks, those of a stretch, and room for the signs of so many groups of eight.
STATISTICS_AT, STATE_AT = 90, 94
STRETCH_AT = STATE_AT + BLOCKS * SKETCH_COLUMNS
SIGNS_AT = STRETCH_AT + SKETCH_COLUMNS
GROUPS = 64  # sums in float32 are added to float64 after so many: they resolve 2e-7 of a norm
DOUBLE_GROUPS = 128  # of float64: they resolve 4e-15
WORKSPACE = SIGNS_AT + DOUBLE_GROUPS

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

    def crc32_at(self, address: int, size: int) -> int:
        """zlib.crc32 of memory that the caller keeps alive and knows to be as large as this."""

    def sketcher(self, dtype: str) -> Sketcher | None:
        """What sketches the stored elements of this dtype; None where numpy has to do it."""


class Sketcher(Protocol):
    """Compiled loops that sketch tensors."""

    def sketch_state(
        self, dtype: str, data: NDArray[Any], runs: tuple[int, int, int, int], length: int
    ) -> NDArray[np.float64]:
        """The SKETCH_COLUMNS of all blocks of so many elements. ``runs``: how many runs of how many elements, where
        the first begins in the whole, and how far apart they lie there."""

    def sketch_at(self, dtype: str, address: int, size: int, length: int, flags: int) -> tuple[bytes, list[float]]:
        """A whole tensor in memory: its finished row of a sketch file, and its max, min, sum and sum of squares."""
