"""All reports of one comparison, written together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.errors import BadInput
from twinprobe.report.atomic import Staging, prepare_folder
from twinprobe.report.tables import csv_parts, fill_csv, fill_json, fill_parquet

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.judge.summary import Summary

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
    """Write a result table in every format asked for and return the files, in the order of ``formats``.

    A failure of one (a full disk, say) leaves none under its final name.
    """
    wanted = check_formats(formats)
    prepare_folder(out)
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
        from twinprobe.report.xlsx import fill_xlsx

        fill_xlsx(table, path)
    elif name == "csv":
        fill_csv(table, path)
    elif name == "parquet":
        fill_parquet(table, path)
    elif name == "json":
        fill_json(table, summary, path)
    else:
        from twinprobe.report.html import fill_html

        fill_html(table, summary, path)
