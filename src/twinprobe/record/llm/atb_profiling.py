"""Processor times that the dumping library writes as text lines, turned into csv."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from twinprobe.errors import BadInput
from twinprobe.runs.whole_files import write_whole

_LINE = re.compile(r"\s*\[(?P<name>[^\]]+)\]\s*:(?P<values>.*)")
_PAIR = re.compile(r"\s*([^:,]+?)\s*:\s*([^,]*?)\s*(?:,|$)")


def profiling_to_csv(path: Path) -> Path:
    """Write ``operation_statistic_N.csv`` from its ``.txt``, which is deleted: one row per operator."""
    rows: dict[str, dict[str, str]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from None
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        values = dict(_PAIR.findall(match["values"]))
        front = "execute_" if "kernelExecuteTime" in values else "setup_" if "runnerSetupTime" in values else ""
        rows.setdefault(match["name"], {}).update({front + key: value for key, value in values.items()})
    columns = sorted({key for row in rows.values() for key in row})
    target = path.with_suffix(".csv")

    def write(place: Path) -> None:
        with place.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["opname", *columns], restval="")
            writer.writeheader()
            writer.writerows({"opname": name, **row} for name, row in rows.items())

    write_whole(target, write, sync=True)  # before the only other copy goes
    path.unlink()
    return target
