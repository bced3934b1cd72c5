"""Which columns of a result table hold numbers, and which texts are numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinprobe.report.floats import float_texts
from twinprobe.report.titles import METRICS

if TYPE_CHECKING:
    import polars as pl

_SIDES = ("NPU", "Bench")
_STATISTICS = ("max", "min", "mean", "l2norm")

STATISTICS = tuple(f"{side} {statistic}" for side in _SIDES for statistic in _STATISTICS)
RELATIVE_ERROR = "Relative Error"
STACK = "NPU_Stack_Info"

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
# What a spreadsheet would take for the start of a formula, half and full width, and numbers that begin alike.
FORMULA_START = "=+@\\-\uff1d\uff0b\uff20\uff0d"
HARMLESS = r"^[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?|inf|nan)$"


def number_columns(table: pl.DataFrame) -> set[str]:
    """The columns of a table that a spreadsheet shows as numbers.

    ``MaxRelativeErr`` is a number in tensor mode and a percentage, a text, in statistics mode.
    """
    metrics = METRICS if "Cosine" in table.columns else ()
    floats = {name for name, dtype in table.schema.items() if dtype.is_float()}
    return floats | {*STATISTICS, *metrics, RELATIVE_ERROR}.intersection(table.columns)


def as_texts(column: pl.Series) -> pl.Series:
    """A column of a result table as the text that every report shows."""
    import polars as pl

    if column.dtype == pl.String:
        return column
    if column.dtype.is_float():
        return float_texts(column)
    texts: pl.Series = column.cast(pl.String)
    return texts


def numbers_only(column: pl.Series) -> pl.Series:
    """The texts that are finite numbers; null for all others."""
    import polars as pl

    finite = column.str.contains(NUMBER) & column.cast(pl.Float64, strict=False).is_finite()
    numbers: pl.Series = column.zip_with(finite.fill_null(value=False), pl.Series([None], dtype=pl.String))
    return numbers
