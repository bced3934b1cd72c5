"""The files of an inference comparison."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.compare.llm.job import LlmComparison
from twinprobe.compare.llm.table import SHARED_NAMES
from twinprobe.judge.summary import Summary
from twinprobe.report.claims import own_timestamp
from twinprobe.report.write import check_formats, write_reports

if TYPE_CHECKING:
    import polars as pl

REPORT, STATISTICS = "ait_cmp_report", "statstics_cmp_report"  # the second is spelled as people know it


def utc_timestamp() -> str:
    """The time in the names of these reports."""
    return time.strftime("%Y%m%d%H%M%S", time.gmtime())


def write_llm_reports(
    result: LlmComparison, out: Path, formats: Sequence[str], *, stem: str = REPORT, timestamp: str | None = None
) -> Summary:
    """Write the report in every format asked for; the summary then names the files."""
    wanted = check_formats(formats)
    plain = [one for one in wanted if one != "html"]
    with nullcontext(timestamp) if timestamp else own_timestamp(out, utc_timestamp()) as stamp:
        name = f"{stem}_{stamp}"
        files = write_reports(result.table, result.summary, out, name, plain) if plain else []
        if "html" in wanted:
            files += write_reports(_for_the_page(result.table), result.summary, out, name, ["html"])
    return replace(result.summary, files=[str(path) for path in files])


def _for_the_page(table: pl.DataFrame) -> pl.DataFrame:
    """The page knows columns by the names of the other reports, and wants texts in all but the last."""
    import polars as pl

    from twinprobe.report.kinds import as_texts

    table = table.rename({old: new for old, new in SHARED_NAMES.items() if old in table.columns})
    texts = [as_texts(table[name]).fill_null("") for name in table.columns if name != "Relative Error"]
    return pl.DataFrame([*texts, table["Relative Error"]])
