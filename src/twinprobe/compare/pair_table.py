"""The pair table: both runs side by side, one row per pair of recorded values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinprobe.align.pairs import Pairs
from twinprobe.runs.run import Run

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray


def pair_table(target: Run, golden: Run, pairs: Pairs) -> pl.DataFrame:
    """Gather both tables by the pairs' row numbers; columns are prefixed t_ and g_."""
    import polars as pl

    columns = _gather(target.table, pairs.target, "t_") + _gather(golden.table, pairs.golden, "g_")
    columns.append(pl.Series("rule", pairs.rule, dtype=pl.String))
    frame = pl.DataFrame(columns)
    if not pairs.groups:
        return frame
    from twinprobe.compare.merged_rows import with_merged

    return with_merged(frame, target, golden, pairs.groups)


def _gather(table: pl.DataFrame, rows: NDArray[np.int32], prefix: str) -> list[pl.Series]:
    import polars as pl

    index = pl.Series("row", rows, dtype=pl.Int32)
    index = index.set(index < 0, None)
    picked = table.select(pl.all().gather(index)).rename(lambda name: prefix + name)
    return [index.alias(prefix + "row"), *picked.get_columns()]
