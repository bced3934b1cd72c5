"""Results of ranks to merge, and reading the workbook that comes of it."""

from __future__ import annotations

from pathlib import Path

import openpyxl
import polars as pl

from twinprobe._compare.merge.config import METRICS, STATISTICS
from twinprobe._compare.merge.job import MergeOutcome, merge_results
from twinprobe._report.tables import fill_csv, fill_parquet
from twinprobe._report.xlsx import fill_xlsx

DATA = Path(__file__).resolve().parents[1] / "data" / "rank_results"
RED = "FFFFC7CE"
WRITERS = {"csv": fill_csv, "parquet": fill_parquet, "xlsx": fill_xlsx}
Rows = list[dict[str, str]]
Sheet = dict[str, dict[str, object]]


def config(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def merge(folder: Path, text: str, results: Path | None = None, **options: object) -> MergeOutcome:
    return merge_results(results or folder, folder / "out", config(folder, text), **options)


def sheet(outcome: MergeOutcome, name: str) -> Sheet:
    """A sheet as {row name: {rank: cell}}, in its order; blank cells are left out."""
    rows = openpyxl.load_workbook(outcome.path)[name].iter_rows(values_only=True)
    titles = next(rows)
    return {row[0]: {t: c for t, c in zip(titles[1:], row[1:], strict=True) if c is not None} for row in rows}


def marked(outcome: MergeOutcome, name: str) -> set[tuple[str, str]]:
    """The (row name, rank) of every cell that has the error fill."""
    table = openpyxl.load_workbook(outcome.path)[name]
    titles = [cell.value for cell in table[1]]
    return {
        (row[0].value, title)
        for row in table.iter_rows(min_row=2)
        for title, cell in zip(titles, row, strict=True)
        if cell.fill.fgColor.rgb == RED
    }


def row(name: str, number: float = 1.0, *, group: str | None = None, **cells: str) -> dict[str, str]:
    """A row of a statistics result: a tensor, or with ``group`` a process group."""
    value = group if group is not None else str(number)
    basic = {
        "NPU Name": name, "Bench Name": name,
        "NPU Dtype": "torch.ProcessGroup" if group is not None else "torch.float32", "NPU Tensor Shape": "[2, 3]",
        "NPU Requires_grad": "False", "Requires_grad Consistent": "True", "Result": "pass",
    }  # fmt: skip
    metrics = {m: "0" for kind in METRICS for m in METRICS[kind][:-1]}
    stats = {f"{side} {stat}": value for side in ("NPU", "Bench") for stat in ("max", "min", "mean", "l2norm")}
    return basic | metrics | stats | {key.replace("_", " "): text for key, text in cells.items()}


def call(name: str, number: float, group: str | None = None) -> Rows:
    """A collective with its input, its group if it has one, and its output."""
    inputs = [row(f"{name}.forward.input.0", number)]
    inputs += [row(f"{name}.forward.input.group", group=group)] if group else []
    return [*inputs, row(f"{name}.forward.output.0", number)]


def write(folder: Path, rank: int, rows: Rows, *, kind: str = STATISTICS, form: str = "csv", time: int = 1) -> Path:
    """One rank's result in one format."""
    table = pl.DataFrame(rows)
    table = table.drop([m for k, ms in METRICS.items() for m in ms[:-1] if k != kind and m not in METRICS[kind]])
    folder.mkdir(exist_ok=True)
    path = folder / f"compare_result_rank{rank}_{20260101000000 + time}.{form}"
    WRITERS[form](table, path)
    return path


def write_all(folder: Path, ranks: list[Rows], **options: object) -> Path:
    for rank, rows in enumerate(ranks):
        write(folder, rank, rows, **options)
    return folder
