"""A line per compared row, for those who watch a comparison go by."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from twinprobe.report.text import visible

if TYPE_CHECKING:
    import polars as pl

_SHOWN = ("Cosine", "MaxAbsErr", "NormRelativeErr", "NPU MD5")


def log_rows(table: pl.DataFrame) -> None:
    """Write one line per row to standard error: name, counterpart, the leading metrics, verdict and reason."""
    metrics = [name for name in _SHOWN if name in table.columns]
    columns = ["NPU Name", "Bench Name", *metrics, "Result", "Reason"]
    for name, partner, *values, verdict, reason in table.select(columns).iter_rows():
        figures = " ".join(f"{title}={value}" for title, value in zip(metrics, values, strict=True))
        sys.stderr.write(visible(f"{name} <-> {partner} {figures} {verdict}: {reason}") + "\n")
