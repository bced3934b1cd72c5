"""The result table as csv, parquet and json."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.report.atomic import Staging, replacing
from twinprobe.report.formulas import guarded, unguarded
from twinprobe.report.kinds import RELATIVE_ERROR, STATISTICS, as_texts
from twinprobe.report.names import part_name
from twinprobe.report.text import json_bytes, visible_cells
from twinprobe.scale.engine import cores

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.judge.summary import Summary

ROWS_PER_CSV = 1_000_000
_CHUNK = 16384
_INFINITIES = {"inf": " inf", "-inf": " -inf"}


def write_csv(table: pl.DataFrame, path: Path, *, rows_per_file: int = ROWS_PER_CSV) -> list[Path]:
    """Write a result table as one csv file, or as parts where it is too long. Whole or not at all."""
    parts = csv_parts(table, path, rows_per_file=rows_per_file)
    with Staging() as staging:
        for part, rows in parts:
            fill_csv(rows, staging.file(part))
    return [part for part, _ in parts]


def csv_parts(table: pl.DataFrame, path: Path, *, rows_per_file: int = ROWS_PER_CSV) -> list[tuple[Path, pl.DataFrame]]:
    """The files that a table is written to, with their rows."""
    if table.height <= rows_per_file:
        return [(path, table)]
    starts = range(0, table.height, rows_per_file)
    return [
        (path.with_name(part_name(path.name, i)), table.slice(start, rows_per_file))
        for i, start in enumerate(starts, 1)
    ]


def fill_csv(table: pl.DataFrame, path: Path) -> None:
    """Write csv to exactly this path."""
    with ThreadPoolExecutor(cores()) as pool:
        columns = list(pool.map(_spelled, table))
    with path.open("wb") as file:  # polars itself opens no path that is not UTF-8
        table.select(columns).write_csv(file)


def _spelled(column: pl.Series) -> pl.Series:
    """A column as its cells stand in a csv file."""
    import polars as pl

    if column.dtype == pl.String:
        column = guarded(visible_cells(column))
    if column.name in STATISTICS and column.is_in(list(_INFINITIES)).any():
        # The known form: a blank keeps spreadsheets from reading -inf as a formula.
        column = column.replace(_INFINITIES)
    return as_texts(column)


def read_csv(path: Path) -> pl.DataFrame:
    """Read a result back as it was before ``write_csv``, each column as text."""
    import polars as pl

    with path.open("rb") as file:
        table = pl.read_csv(file, infer_schema=False).fill_null("")
    known = {spelled: plain for plain, spelled in _INFINITIES.items()}
    return table.select(
        unguarded(table[name].replace(known) if name in STATISTICS else table[name]) for name in table.columns
    )


def write_parquet(table: pl.DataFrame, path: Path) -> None:
    """Write a result table as parquet, whole or not at all."""
    with replacing(path) as temporary:
        fill_parquet(table, temporary)


def fill_parquet(table: pl.DataFrame, path: Path) -> None:
    """Write parquet to exactly this path."""
    with path.open("wb") as file:
        table.write_parquet(file, compression="zstd", compression_level=3)


def write_json(table: pl.DataFrame, summary: Summary, path: Path) -> None:
    """Write summary, column names and one object per row, whole or not at all."""
    with replacing(path) as temporary:
        fill_json(table, summary, temporary)


def fill_json(table: pl.DataFrame, summary: Summary, path: Path) -> None:
    """Write json to exactly this path. All values are texts, as in csv; a missing relative error is null."""
    texts = table.with_columns(as_texts(table[RELATIVE_ERROR]))
    with path.open("wb") as file:
        file.write(b'{"summary":' + json_bytes(summary.to_dict()))
        file.write(b',\n"columns":' + json_bytes(table.columns) + b',\n"rows":[\n')
        for start in range(0, table.height, _CHUNK):
            lines = io.BytesIO()
            texts.slice(start, _CHUNK).write_ndjson(lines)
            # One object a line, and a line break inside a text is escaped: each of these ends a row.
            rows = lines.getvalue().rstrip(b"\n").replace(b"\n", b",\n")
            file.write(rows if start == 0 else b",\n" + rows)
        file.write(b"\n]}\n")
