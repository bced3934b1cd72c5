"""The result table as csv, parquet and json."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe._report.columns import FORMULA_START, HARMLESS, RELATIVE_ERROR, STATISTICS, as_texts
from twinprobe._report.console import json_bytes, visible_cells
from twinprobe._report.files import Staging, part_name
from twinprobe._scale.engine import cores
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._judge.origin import Summary

# Texts that a spreadsheet would run as a formula, kept as text in csv files.
#
# A csv file has no cell types: a spreadsheet runs ``=cmd`` whether it is quoted or not. Such a cell gets an
# apostrophe in front, the spreadsheets' own sign for text. Numbers, percentages and infinities stay as they are, so a
# file differs from what it would be without this only in cells that begin like a formula. ``unguarded`` takes the
# apostrophe off.

# Where lists are separated by semicolons, spreadsheets cut a line there too; a tab or a line break does it anywhere.
_CUTS = ";\t\r\n"
_SUSPECT = f"(^|[{_CUTS}])'*[{FORMULA_START}]"
_PIECES = re.compile(f"([^{_CUTS}]+)")
_FORMULA = re.compile(f"'*[{FORMULA_START}]")
_GUARDED = re.compile(f"'+[{FORMULA_START}]")
_HARMLESS = re.compile(HARMLESS)


def guarded(column: pl.Series) -> pl.Series:
    """The column with an apostrophe before each piece of a text that begins like a formula."""
    import polars as pl

    # Most cells are numbers, and reading one as a number is far cheaper than two regular expressions.
    texts = column.filter(column.str.strip_suffix("%").cast(pl.Float64, strict=False).is_null()).unique()
    texts = texts.filter(texts.str.contains(_SUSPECT) & ~texts.str.contains(HARMLESS))

    def guard(match: re.Match[str]) -> str:
        found = match[0]
        return f"'{found}" if _FORMULA.match(found) and not _HARMLESS.match(found) else found

    return column.replace(texts, [_PIECES.sub(guard, text) for text in texts]) if len(texts) else column


def unguarded(column: pl.Series) -> pl.Series:
    """The column as it was before ``guarded``."""
    texts = column.unique()
    texts = texts.filter(texts.str.contains(f"'[{FORMULA_START}]"))

    def unguard(match: re.Match[str]) -> str:
        return match[0][1:] if _GUARDED.match(match[0]) else match[0]

    return column.replace(texts, [_PIECES.sub(unguard, text) for text in texts]) if len(texts) else column


ROWS_PER_CSV = 1_000_000
_CHUNK = 16384
_INFINITIES = {"inf": " inf", "-inf": " -inf"}


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


def fill_parquet(table: pl.DataFrame, path: Path) -> None:
    """Write parquet to exactly this path."""
    with path.open("wb") as file:
        table.write_parquet(file, compression="zstd", compression_level=3)


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


# All reports of one comparison, written together or not at all.

FORMATS = ("xlsx", "csv", "parquet", "json", "html")


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """The formats asked for, each once, in order; an unknown one is an error."""
    for name in formats:
        if name not in FORMATS:
            raise BadInput(f"there is no report format {name!r}", hint=f"known formats: {', '.join(FORMATS)}")
    if not formats:
        raise BadInput("no report format is given", hint=f"known formats: {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(formats))


def write_reports(table: pl.DataFrame, summary: Summary, out: Path, stem: str, formats: Sequence[str]) -> list[Path]:
    """Write a result table into a prepared folder in every format asked for; the files in the order of ``formats``.

    A failure of one (a full disk, say) leaves none under its final name.
    """
    wanted = check_formats(formats)
    files: list[Path] = []
    with Staging() as staging:
        for name in wanted:
            path = out / f"{stem}.{name}"
            for part, rows in csv_parts(table, path) if name == "csv" else [(path, table)]:
                _fill(name, rows, summary, staging.file(part))
                files.append(part)
    return files


def _fill(name: str, table: pl.DataFrame, summary: Summary, path: Path) -> None:
    if name == "xlsx":
        from twinprobe._report.xlsx import fill_xlsx

        fill_xlsx(table, path)
    elif name == "csv":
        fill_csv(table, path)
    elif name == "parquet":
        fill_parquet(table, path)
    elif name == "json":
        fill_json(table, summary, path)
    else:
        from twinprobe._report.html import fill_html

        fill_html(table, summary, path)
