"""The pair table: both runs side by side, one row per pair of recorded values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from twinprobe.align.pairs import Pairs
from twinprobe.runs.run import Run

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

ALIGNED = "auto:"  # how the rules of an alignment begin


def pair_table(target: Run, golden: Run, pairs: Pairs) -> pl.DataFrame:
    """Gather both tables by the pairs' row numbers; columns are prefixed t_ and g_."""
    import polars as pl

    columns = _gather(target.table, pairs.target, "t_") + _gather(golden.table, pairs.golden, "g_")
    columns.append(pl.Series("rule", pairs.rule, dtype=pl.String))
    columns.append(pl.Series("joined", np.zeros(len(pairs.rule), dtype=bool)))
    columns.append(pl.Series("turn", [None], dtype=pl.String).new_from_index(0, len(pairs.rule)))
    frame = pl.DataFrame(columns)
    if pairs.groups:
        from twinprobe.compare.merged_rows import with_merged

        frame = with_merged(frame, target, golden, pairs.groups)
    marked = frame["t_layout"].null_count() + frame["g_layout"].null_count() < 2 * frame.height
    if marked or frame["rule"].str.starts_with(ALIGNED).any():
        from twinprobe.compare.turned_rows import with_turns

        frame = with_turns(frame)
    return frame


def _gather(table: pl.DataFrame, rows: NDArray[np.int32], prefix: str) -> list[pl.Series]:
    import polars as pl

    index = pl.Series("row", rows, dtype=pl.Int32)
    index = index.set(index < 0, None)
    table = table.select(pl.exclude("type"))  # shown, never compared
    if not np.array_equal(rows, np.arange(table.height)):  # else the table itself will do, and no copy is needed
        table = table.select(pl.all().gather(index))
    return [index.alias(prefix + "row"), *table.rename(lambda name: prefix + name).get_columns()]
