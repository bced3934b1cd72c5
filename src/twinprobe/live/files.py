"""The result as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.errors import BadInput
from twinprobe.live.options import FORMATS
from twinprobe.report.atomic import Staging, prepare_folder
from twinprobe.report.tables import fill_csv, fill_parquet
from twinprobe.report.text import json_bytes

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.live.result import Result

STEM = "auto_diff"


def write_files(result: Result, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write every format asked for, all or none. Nothing else in the folder is touched."""
    for name in formats:
        if name not in FORMATS:
            raise BadInput(f"unknown report format {name!r}", hint=f"known: {', '.join(FORMATS)}")
    prepare_folder(folder)
    written = []
    with Staging() as staging:
        for name in dict.fromkeys(formats):
            path = folder / f"{STEM}.{name}"
            _fill(name, result, staging.file(path))
            written.append(path)
    return written


def with_result(table: pl.DataFrame) -> pl.DataFrame:
    """With the column by which workbooks colour their rows."""
    import polars as pl

    found = pl.col("verdict").replace_strict({"same": "pass", "differs": "error"}, default="warning")
    return table.with_columns(found.alias("Result"))


def _fill(name: str, result: Result, path: Path) -> None:
    if name == "csv":
        fill_csv(result.table, path)
    elif name == "parquet":
        fill_parquet(result.table, path)
    elif name == "xlsx":
        from twinprobe.report.xlsx import fill_xlsx

        fill_xlsx(with_result(result.table), path)
    elif name == "json":
        path.write_bytes(json_bytes({**result.to_dict(), "rows": result.table.to_dicts()}))
    else:
        from twinprobe.live.page import whole_page

        path.write_text(whole_page(result), encoding="utf-8", errors="backslashreplace")
