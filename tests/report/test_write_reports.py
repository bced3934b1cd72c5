"""All formats of one comparison, together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from report_tables import names_in, small_table, summary_of

from twinprobe._report.files import prepare_folder
from twinprobe._report.reports import FORMATS, check_formats, write_reports
from twinprobe.errors import BadInput


def test_every_format_is_written_in_the_order_asked_for(tmp_path: Path) -> None:
    table = small_table()
    out = prepare_folder(tmp_path / "new" / "out")
    files = write_reports(table, summary_of(table), out, "r", list(reversed(FORMATS)))
    assert [file.name for file in files] == ["r.html", "r.json", "r.parquet", "r.csv", "r.xlsx"]
    assert all(file.stat().st_size > 0 for file in files)
    assert names_in(tmp_path / "new" / "out") == sorted(file.name for file in files)


def test_a_format_is_written_once_however_often_it_is_named(tmp_path: Path) -> None:
    table = small_table()
    assert len(write_reports(table, summary_of(table), tmp_path, "r", ["csv", "csv"])) == 1


def test_unknown_formats_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    table = small_table()
    with pytest.raises(BadInput, match=r"no report format 'pdf' \(known formats: xlsx, csv, parquet, json, html\)"):
        write_reports(table, summary_of(table), tmp_path / "out", "r", ["csv", "pdf"])
    assert not (tmp_path / "out").exists()
    with pytest.raises(BadInput, match="no report format is given"):
        check_formats([])


def test_where_one_format_fails_none_appears(tmp_path: Path) -> None:
    table = small_table()
    (tmp_path / "r.html").mkdir()
    with pytest.raises(BadInput, match=r"r\.html"):
        write_reports(table, summary_of(table), tmp_path, "r", ["csv", "html"])
    assert names_in(tmp_path) == ["r.html"]


def test_the_report_package_loads_without_polars() -> None:
    code = (
        "import sys, twinprobe._report.reports, twinprobe._report.console, twinprobe._report.files;"
        "import twinprobe._judge.summary;"
        "sys.exit(any(name in sys.modules for name in ('polars', 'numba', 'openpyxl', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
