"""The result as one self-contained page: it loads nothing, runs only its own script, and shows names as text."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from twinprobe.report.atomic import replacing
from twinprobe.report.html_data import ROWS_PER_PAGE, packed_table
from twinprobe.report.text import json_bytes, visible

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.judge.summary import Summary

_SCRIPTS = ("dom.js", "data.js", "plot.js", "table.js", "details.js", "page.js")
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def write_html(table: pl.DataFrame, summary: Summary, path: Path) -> None:
    """Write the report page, whole or not at all."""
    with replacing(path) as temporary:
        fill_html(table, summary, temporary)


def fill_html(table: pl.DataFrame, summary: Summary, path: Path, *, rows_per_page: int = ROWS_PER_PAGE) -> None:
    """Write the page to exactly this path."""
    page, style, script = _asset("page.html"), _asset("page.css"), _scripts()
    packed = packed_table(table, rows_per_page=rows_per_page)
    shown = summary.to_dict()
    if packed["rows"] < table.height:
        left_out = table.height - packed["rows"]
        shown["notes"] = [
            *shown["notes"],
            f"This page leaves out {left_out:,} rows, passing ones first; the other formats hold all.",
        ]
    # "<" inside the data could end its element; as JSON it may be written in another way.
    data = b'{"summary":%s,"table":%s}' % (json_bytes(shown), msgspec.json.encode(packed))
    slots = {
        "policy": _policy(style, script).encode(),
        "title": html.escape(visible(_title(summary))).encode("utf-8", "backslashreplace"),
        "style": style.encode(),
        "script": script.encode(),
        "data": data.replace(b"<", b"\\u003c"),
    }
    with path.open("wb") as file:
        for i, piece in enumerate(_SLOT.split(page)):
            file.write(slots[piece] if i % 2 else piece.encode())


def _title(summary: Summary) -> str:
    errors, warnings = summary.verdicts.get("error", 0), summary.verdicts.get("warning", 0)
    return " ".join(part for part in ("TwinProbe", summary.rank, f"{errors:,} errors, {warnings:,} warnings") if part)


def _asset(name: str) -> str:
    return (resources.files("twinprobe.report") / "html_assets" / name).read_text(encoding="utf-8")


def _scripts() -> str:
    parts = "\n".join(_asset(name) for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


def _policy(style: str, script: str) -> str:
    """Allow exactly the page's own style and script: whatever else gets into the page cannot run or load anything."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
