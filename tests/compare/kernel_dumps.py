"""Small kernel dumps, and the columns that their results have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from twinprobe._compare.kernel import compare_kernel_pair, pair_kernels

DATA = Path(__file__).resolve().parents[1] / "data"
BASE = [
    "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
    "NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm",
    "Accuracy Reached or Not", "Err_message",
]  # fmt: skip
NPY = ["Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio"]
STATISTICS = [
    "Max diff", "Min diff", "Mean diff", "L2norm diff",
    "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr", "NPU CSV File", "Bench CSV File",
]  # fmt: skip
OURS = ["Result", "Reason", "Matched By", "Origin", "Relative Error"]
HEADER = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
    "Max Value,Min Value,Avg Value,L2Norm Value"
)


def only(target: Path, golden: Path, **filters: set[int]) -> tuple[pl.DataFrame, dict[str, int]]:
    """The result of dumps that have one rank and step in common."""
    asked = {"ranks": None, "steps": None} | filters
    ((_, _, table, verdicts),) = compare_kernels(target, golden, **asked)
    return table, verdicts


def save(root: Path, name: str, array: object, *, rank: int = 0, step: int = 0, graph: str = "Net/0") -> Path:
    """One dumped tensor; ``name`` is everything before the slot's format."""
    folder = root / f"rank_{rank}" / graph / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.DefaultFormat.Float32.npy"
    np.save(path, np.asarray(array))
    return path


def save_statistics(root: Path, lines: list[str], *, header: str = HEADER) -> Path:
    folder = root / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "statistic.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder / "statistic.csv"


def line(name: str, values: str, *, io: str = "output", slot: int = 0, time: int = 1, shape: str = "(2,3)") -> str:
    return f'MatMul,{name},0,0,{time},{io},{slot},24,Float32,"{shape}",{values}'


def compare_kernels(
    target: Path, golden: Path, *, ranks: set[int] | None, steps: set[int] | None, notes: list[str] | None = None
) -> Iterator[tuple[int, int, pl.DataFrame, dict[str, int]]]:
    """Every common rank and step: (rank, step, result table, verdict counts); ``notes`` gets what is told."""
    pairs, told = pair_kernels(target, golden, ranks=ranks, steps=steps)
    notes = notes if notes is not None else []
    notes += told
    for pair in pairs:
        table, summary = compare_kernel_pair(pair)
        notes += summary.notes
        yield pair.rank, pair.step, table, summary.verdicts
