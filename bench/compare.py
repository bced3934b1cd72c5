"""Start-up, statistics, xlsx and tensor compare: ours beside the older tool's on the same data, in one run.

python bench compare [--with-rivals] [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from make_dumps import statistics_run, tensor_run
from measure_command import Cost, cost_of, own_command, table
from rivals import rival

GOALS = {
    "start-up, statistics (36 calls)": "<= 0.6 s, <= 120 MB",
    "start-up, checksums (36 calls)": "<= 0.6 s, <= 120 MB",
    "start-up, tensors (36 files)": "<= 1.2 s",
    "statistics, csv (20,000 calls)": ">= 20x, <= 400 MB",
    "statistics, xlsx (20,000 calls)": ">= 10x",
    "tensors (501 x 2 MiB a side), csv": ">= 15x",
}


def main(arguments: Sequence[str]) -> None:
    """Make the data, run both tools, print the table."""
    parser = argparse.ArgumentParser(prog="bench compare", description=__doc__)
    parser.add_argument("--with-rivals", action="store_true", help="install and measure the older tool too")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    options = parser.parse_args(arguments)
    scale = 10 if options.quick else 1
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(Path(folder), scale)
        rows = []
        for name, (target, golden, kind) in cases.items():
            out = str(Path(folder) / "out")
            paths = ["compare", "-tp", str(target), "-gp", str(golden), "-o", out]
            ours = cost_of([*own_command(), *paths, f"--{kind}"])
            theirs = _rival_cost(paths, kind) if options.with_rivals else None
            rows.append(_row(name, ours, theirs))
        table("compare", ["work", "ours", "older tool", "ratio", "goal"], rows)


def _cases(folder: Path, scale: int) -> dict[str, tuple[Path, Path, str]]:
    def pair(name: str, calls: int, **options: bool) -> tuple[Path, Path]:
        target = statistics_run(folder / name / "t", calls, shift_from=calls * 3 // 4, **options)
        return target, statistics_run(folder / name / "g", calls, **options)

    def tensors(name: str, files: int) -> tuple[Path, Path]:
        return tensor_run(folder / name / "t", files, seed=1), tensor_run(folder / name / "g", files, seed=2)

    big = pair("big", 20_000 // scale)
    found = [
        (*pair("tiny", 36), "csv"),
        (*pair("digests", 36, digests=True), "csv"),
        (*tensors("few", 36), "csv"),
        (*big, "csv"),
        (*big, "xlsx"),
        (*tensors("many", 501 // scale), "csv"),
    ]
    return dict(zip(GOALS, found, strict=True))


def _rival_cost(paths: list[str], kind: str) -> Cost:
    command = [str(rival("msprobe") / "bin/msprobe"), *paths]
    return cost_of([*command, "--xlsx"] if kind == "xlsx" else command, repeat=1)


def _row(name: str, ours: Cost, theirs: Cost | None) -> list[str]:
    def text(cost: Cost) -> str:
        return f"{cost.seconds:.2f} s, {cost.megabytes:.0f} MB"

    ratio = f"{theirs.seconds / ours.seconds:.1f}x" if theirs else "-"
    return [name, text(ours), text(theirs) if theirs else "-", ratio, GOALS[name]]
