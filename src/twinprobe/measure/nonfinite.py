"""NaN and inf in a pair: counted, then set to zero on both sides so that the rest can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Oddities:
    """How many places of a pair hold NaN or inf on one side only, or infinities of opposite sign."""

    nan_only_target: int = 0
    nan_only_golden: int = 0
    inf_against_finite: int = 0
    inf_against_inf: int = 0

    def add(self, other: Oddities) -> None:
        self.nan_only_target += other.nan_only_target
        self.nan_only_golden += other.nan_only_golden
        self.inf_against_finite += other.inf_against_finite
        self.inf_against_inf += other.inf_against_inf

    @property
    def places_differ(self) -> bool:
        """Whether NaN or inf (of either sign) stand at different places of the two sides."""
        return bool(self.nan_only_target or self.nan_only_golden or self.inf_against_finite)

    @property
    def any(self) -> bool:
        return self.places_differ or self.inf_against_inf > 0


def clear_nonfinite(target: NDArray[Any], golden: NDArray[Any]) -> Oddities:
    """Zero, in place and on both sides, every element that is NaN or inf on either; say how the two sides differ."""
    nan_t, nan_g = np.isnan(target), np.isnan(golden)
    inf_t, inf_g = np.isinf(target), np.isinf(golden)
    nan_any, inf_any, inf_both = nan_t | nan_g, inf_t | inf_g, inf_t & inf_g
    odd = Oddities(
        nan_only_target=int(np.count_nonzero(nan_t & ~nan_g)),
        nan_only_golden=int(np.count_nonzero(nan_g & ~nan_t)),
        inf_against_finite=int(np.count_nonzero(inf_any & ~inf_both & ~nan_any)),
        inf_against_inf=int(np.count_nonzero(inf_both & (target != golden))),
    )
    outside = nan_any | inf_any
    target[outside] = 0
    golden[outside] = 0
    return odd
