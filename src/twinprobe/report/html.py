"""The result as one self-contained page: it loads nothing, runs only its own script, and shows names as text."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from twinprobe.report.atomic import replacing
from twinprobe.report.html_data import ROWS_PER_PAGE, packed_table
from twinprobe.report.self_contained import asset, fill
from twinprobe.report.text import json_bytes, visible

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.judge.summary import Summary

_SCRIPTS = ("dom.js", "data.js", "plot.js", "table.js", "details.js", "page.js")


def write_html(table: pl.DataFrame, summary: Summary, path: Path) -> None:
    """Write the report page, whole or not at all."""
    with replacing(path) as temporary:
        fill_html(table, summary, temporary)


def fill_html(table: pl.DataFrame, summary: Summary, path: Path, *, rows_per_page: int = ROWS_PER_PAGE) -> None:
    """Write the page to exactly this path."""
    packed = packed_table(table, rows_per_page=rows_per_page)
    shown = summary.to_dict()
    if packed["rows"] < table.height:
        left_out = table.height - packed["rows"]
        shown["notes"] = [
            *shown["notes"],
            f"This page leaves out {left_out:,} rows, passing ones first; the other formats hold all.",
        ]
    data = b'{"summary":%s,"table":%s}' % (json_bytes(shown), msgspec.json.encode(packed))
    fill(
        path, asset("page.html"), title=html.escape(visible(_title(summary))),
        style=asset("page.css"), script=_scripts(), data=msgspec.Raw(data),
    )  # fmt: skip


def _title(summary: Summary) -> str:
    errors, warnings = summary.verdicts.get("error", 0), summary.verdicts.get("warning", 0)
    return " ".join(part for part in ("TwinProbe", summary.rank, f"{errors:,} errors, {warnings:,} warnings") if part)


def _scripts() -> str:
    parts = "\n".join(asset(name) for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'
