"""Which row of one run belongs to which row of the other, by which rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NONE = -1
# Place of a pair -> the rows that it stands for on either side, where one side has several.
Groups = dict[int, tuple[tuple[int, ...], tuple[int, ...]]]


@dataclass
class Pairs:
    """Row numbers side by side, -1 where a row has no partner, and the rule that joined them.

    Rows stand in the target's order; rows that only the golden run has come last, in its order.
    """

    target: NDArray[np.int32]
    golden: NDArray[np.int32]
    rule: list[str]
    notes: list[str] = field(default_factory=list)
    groups: Groups = field(default_factory=dict)


def from_partners(partners: list[int], golden_rows: int, rules: list[str], notes: Iterable[str] = ()) -> Pairs:
    """Build Pairs from the golden partner of each target row (or -1); each golden row serves once."""
    golden = np.asarray(partners, dtype=np.int32)
    used = np.zeros(golden_rows, dtype=bool)
    used[golden[golden >= 0]] = True
    rest = np.flatnonzero(~used).astype(np.int32)
    return Pairs(
        target=np.concatenate([np.arange(len(golden), dtype=np.int32), np.full(len(rest), NONE, dtype=np.int32)]),
        golden=np.concatenate([golden, rest]),
        rule=rules + [""] * len(rest),
        notes=list(notes),
    )
