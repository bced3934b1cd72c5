"""What a pass over a pair adds up to, block by block, before it is turned into metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.blocks import (
    DOT,
    GAP_SQUARES,
    GOLDEN_SQUARES,
    MAX_ABS,
    MAX_REL,
    TARGET_SQUARES,
    WITHIN_FIVE,
    WITHIN_ONE,
)
from twinprobe.measure.nonfinite import Oddities


@dataclass(slots=True)
class PairTotals:
    """Sums, maxima and counts over all elements, places with NaN or inf counted as zero against zero."""

    dot: float = 0.0
    target_squares: float = 0.0
    golden_squares: float = 0.0
    gap_squares: float = 0.0
    max_abs: float = 0.0
    max_rel: float = 0.0
    within_one: int = 0
    within_five: int = 0
    odd: Oddities = field(default_factory=Oddities)
    # The share of the imaginary parts, which the six old metrics leave out.
    imaginary_golden_squares: float = 0.0
    imaginary_gap_squares: float = 0.0
    imaginary_max_abs: float = 0.0

    @classmethod
    def of_rows(cls, rows: NDArray[Any]) -> PairTotals:
        """The totals of an engine's rows."""
        with np.errstate(all="ignore"):
            sums, tops = np.add.reduce(rows).tolist(), np.maximum.reduce(rows).tolist()
        return cls(
            dot=sums[DOT],
            target_squares=sums[TARGET_SQUARES],
            golden_squares=sums[GOLDEN_SQUARES],
            gap_squares=sums[GAP_SQUARES],
            max_abs=tops[MAX_ABS],
            max_rel=tops[MAX_REL],
            within_one=int(sums[WITHIN_ONE]),
            within_five=int(sums[WITHIN_FIVE]),
        )

    def add(self, other: PairTotals) -> None:
        self.dot += other.dot
        self.target_squares += other.target_squares
        self.golden_squares += other.golden_squares
        self.gap_squares += other.gap_squares
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)
        self.within_one += other.within_one
        self.within_five += other.within_five
        self.odd.add(other.odd)
        self.imaginary_golden_squares += other.imaginary_golden_squares
        self.imaginary_gap_squares += other.imaginary_gap_squares
        self.imaginary_max_abs = max(self.imaginary_max_abs, other.imaginary_max_abs)
