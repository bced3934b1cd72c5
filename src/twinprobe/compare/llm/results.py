"""What was measured of the rows of a token, by row and by column."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from twinprobe.measure.llm_metrics import Basics, LlmMetrics


class Measured(NamedTuple):
    """A row after measuring: its metrics, or the fault that kept it from being measured."""

    metrics: LlmMetrics | None = None
    fault: str = ""
    dtypes: tuple[str, str] = ("", "")
    shapes: tuple[str, str] = ("", "")
    remark: str = ""
    custom: tuple[tuple[str, str], ...] = ()


_NOTHING = LlmMetrics("", Basics(), Basics())


class MeasuredRows(list[Measured]):
    """What was measured of all rows of a token, by row and by column."""

    @cached_property
    def columns(self) -> dict[str, Sequence[Any]]:
        """The fields of the metrics, and ``my_max`` and its like; None for rows that could not be measured."""
        values = list(zip(*[_NOTHING if one.metrics is None else one.metrics for one in self], strict=True))
        found: dict[str, Sequence[Any]] = dict(zip(LlmMetrics._fields, values or [()] * len(_NOTHING), strict=True))
        for side in ("my", "golden"):
            basics = list(zip(*found[side], strict=True)) or [()] * 3
            found |= {f"{side}_{name}": column for name, column in zip(Basics._fields, basics, strict=True)}
        return found
