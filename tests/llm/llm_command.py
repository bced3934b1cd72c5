"""What a command said, for tests that run it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Said]


def report(folder: Path) -> list[dict[str, str]]:
    """The rows of the one report in a folder."""
    files = list(folder.glob("ait_cmp_report_*.csv"))
    assert len(files) == 1
    with files[0].open(newline="") as file:
        return list(csv.DictReader(file))
