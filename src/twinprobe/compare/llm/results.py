"""What was measured of the rows of a token, kept by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.llm_batch import NUMBERS, metrics_of, numbers_of
from twinprobe.measure.llm_metrics import LlmMetrics

if TYPE_CHECKING:
    import polars as pl

_AT = {name: at for at, name in enumerate(NUMBERS)}


class Measured(NamedTuple):
    """A row after measuring: its metrics, or the fault that kept it from being measured."""

    metrics: LlmMetrics | None = None
    fault: str = ""
    dtypes: tuple[str, str] = ("", "")
    shapes: tuple[str, str] = ("", "")
    remark: str = ""
    custom: tuple[tuple[str, str], ...] = ()


class MeasuredRows(Sequence[Measured]):
    """What was measured of all rows of a token. Few rows have a fault, a reason or a remark: those stand apart."""

    def __init__(self, count: int) -> None:
        self._numbers = np.full((count, len(NUMBERS)), nan)
        self._known = np.zeros((count, len(NUMBERS)), dtype=bool)
        self._measured = np.zeros(count, dtype=bool)
        self.dtypes, self.shapes = ([""] * count, [""] * count), ([""] * count, [""] * count)
        self.faults: dict[int, str] = {}
        self.reasons: dict[int, str] = {}
        self.remarks: dict[int, str] = {}
        self.custom: dict[int, tuple[tuple[str, str], ...]] = {}

    def put(self, at: int, one: Measured) -> None:
        """Keep what was measured of one row."""
        if one.metrics is not None:
            values = numbers_of(one.metrics)
            self._numbers[at] = [nan if value is None else value for value in values]
            self._known[at] = [value is not None for value in values]
            self._measured[at] = True
        for side in (0, 1):
            self.dtypes[side][at], self.shapes[side][at] = one.dtypes[side], one.shapes[side]
        reason = one.metrics.reason if one.metrics is not None else ""
        for told, value in ((self.faults, one.fault), (self.reasons, reason), (self.remarks, one.remark)):
            if value:
                told[at] = value
        if one.custom:
            self.custom[at] = one.custom

    def put_numbers(self, rows: NDArray[np.int64], numbers: NDArray[np.float64]) -> None:
        """Keep the numbers of many rows, all of which are known."""
        self._numbers[rows] = numbers
        self._known[rows] = True
        self._measured[rows] = True

    @property
    def unmeasured(self) -> NDArray[np.int64]:
        """The rows without any number."""
        return np.flatnonzero(~self._measured)

    def values(self, name: str) -> NDArray[np.float64]:
        """A column of NUMBERS, NaN where nothing is known."""
        return self._numbers[:, _AT[name]]

    def column(self, name: str) -> pl.Series:
        """The same with null where nothing is known."""
        import polars as pl

        known = self._known[:, _AT[name]]
        found = pl.Series(self._numbers[:, _AT[name]].copy())
        return found if known.all() else pl.select(pl.when(pl.Series(known)).then(found)).to_series()

    def __len__(self) -> int:
        return len(self._measured)

    def __iter__(self) -> Iterator[Measured]:
        return (self[at] for at in range(len(self)))

    @overload
    def __getitem__(self, at: int) -> Measured: ...
    @overload
    def __getitem__(self, at: slice) -> list[Measured]: ...
    def __getitem__(self, at: int | slice) -> Measured | list[Measured]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        dtypes, shapes = (self.dtypes[0][at], self.dtypes[1][at]), (self.shapes[0][at], self.shapes[1][at])
        texts = dtypes, shapes, self.remarks.get(at, ""), self.custom.get(at, ())
        if not self._measured[at]:
            return Measured(None, self.faults.get(at, ""), *texts)
        both = zip(self._numbers[at].tolist(), self._known[at].tolist(), strict=True)
        numbers = [value if is_known else None for value, is_known in both]
        return Measured(metrics_of(self.reasons.get(at, ""), numbers), self.faults.get(at, ""), *texts)
