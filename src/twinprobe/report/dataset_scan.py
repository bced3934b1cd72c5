"""A dataset that polars cannot open as one lazy table: parts are fetched one at a time, as far as a filter leaves them.

It lies behind a URL, or in a folder whose name is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.runs.remote.local_copy import local_copy

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.report.dataset import Place

_KEYS = ("mode", "step", "rank")


def scan_elsewhere(dataset: Path, parts: Sequence[Place], name: str) -> pl.LazyFrame:
    """All parts with the columns that their folders tell; the first part says which columns there are."""
    import polars as pl
    from polars.io.plugins import register_io_source

    with local_copy(dataset / parts[0].folder / name, only_ends=True) as copy:
        schema = pl.Schema(pl.scan_parquet(copy, hive_partitioning=False).collect_schema())
    for key, value in _told(parts[0]).items():
        schema[key] = pl.String() if isinstance(value, str) else pl.Int64()

    def read(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _batch: int | None
    ) -> Iterator[pl.DataFrame]:
        left = n_rows
        for part in parts:
            if left == 0:
                return
            if predicate is not None and not _may_hold(part, predicate):
                continue
            with local_copy(dataset / part.folder / name) as copy:
                frame = _part(copy, part, schema).select(with_columns or schema.names())
                rows = frame.filter(predicate) if predicate is not None else frame
                found = (rows if left is None else rows.head(left)).collect()
            left = None if left is None else left - found.height
            yield found

    return register_io_source(read, schema=schema)


def _part(file: Path, part: Place, schema: pl.Schema) -> pl.LazyFrame:
    """One part with all columns of the dataset; what it lacks is empty."""
    import polars as pl

    scan = pl.scan_parquet(file, hive_partitioning=False)
    have = set(scan.collect_schema().names())
    told = _told(part)
    return scan.select(
        pl.col(column) if column in have else pl.lit(told.get(column)).cast(kind).alias(column)
        for column, kind in schema.items()
    )


def _told(part: Place) -> dict[str, str | int]:
    known: dict[str, str | int] = {"mode": part.mode, "step": part.step, "rank": part.rank}
    return {key: known[key] for key in _KEYS if key != "mode" or part.mode}


def _may_hold(part: Place, predicate: pl.Expr) -> bool:
    """Whether a part can have such rows, as far as its folder tells."""
    import polars as pl

    told = _told(part)
    row = pl.DataFrame({key: [value] for key, value in told.items()})
    tests = [test for test in _conditions(predicate) if set(test.meta.root_names()) <= told.keys()]
    return all(row.filter(test).height for test in tests)


def _conditions(predicate: pl.Expr) -> list[pl.Expr]:
    """The conditions that must all hold."""
    inputs = predicate.meta.pop()
    if len(inputs) == 2:
        for one, other in (inputs, inputs[::-1]):
            if (one & other).meta.eq(predicate):
                return [*_conditions(one), *_conditions(other)]
    return [predicate]
