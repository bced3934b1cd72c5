"""Result tables for the tests: real rows of the old columns, with the new columns made up."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from twinprobe._judge.summary import Divergence, RunInfo, Summary
from twinprobe._report.tables import FORMULA_START, STATISTICS

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
MODES = ("statistics", "tensor", "md5")
VERDICTS = ("pass", "warning", "error")
ORIGINS = {"pass": "", "warning": "inherited", "error": "injected"}


def unguarded(column: pl.Series) -> pl.Series:
    """The column as it was before ``guarded``: without the apostrophes."""
    guard = re.compile(f"(^|[;\t\r\n])'('*[{FORMULA_START}])")
    return pl.Series(column.name, [guard.sub(r"\1\2", text) for text in column], dtype=pl.String)


def read_csv(path: Path) -> pl.DataFrame:
    """Read a result back as it was before ``fill_csv``, each column as text."""
    table = pl.read_csv(path.read_bytes(), infer_schema=False).fill_null("")
    known = {" inf": "inf", " -inf": "-inf"}
    return table.select(
        unguarded(table[name].replace(known) if name in STATISTICS else table[name]) for name in table.columns
    )


def completed(old: pl.DataFrame) -> pl.DataFrame:
    """The old columns with the new ones behind them; the three verdicts take turns."""
    verdicts = [VERDICTS[i % 3] for i in range(old.height)]
    errors = [None if i % 5 == 4 else 0.0 if i % 5 == 0 else 10.0 ** (-i % 9 - 4) for i in range(old.height)]
    return old.with_columns(
        pl.Series("Result", verdicts),
        pl.Series("Reason", [f"reason {i}" for i in range(old.height)]),
        pl.Series("Origin", [ORIGINS[verdict] for verdict in verdicts]),
        pl.Series("Matched By", ["same name"] * old.height),
        pl.Series("Relative Error", errors, dtype=pl.Float64),
    )


def small_table(mode: str = "statistics") -> pl.DataFrame:
    """A table of about twenty rows."""
    return completed(read_csv(DATA / f"{mode}.csv"))


def long_table(rows: int, mode: str = "statistics") -> pl.DataFrame:
    """The rows of the small table again and again, each with a name of its own."""
    old = read_csv(DATA / f"{mode}.csv")
    repeated = pl.concat([old] * (rows // old.height + 1)).head(rows)
    names = [
        f"Module.layers.{i // 3}.Linear.forward.0.{('input.0', 'parameters.w', 'output.0')[i % 3]}" for i in range(rows)
    ]
    return completed(repeated.with_columns(pl.Series("NPU Name", names), pl.Series("Bench Name", names)))


def names_in(folder: Path) -> list[str]:
    """What a folder holds, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


def with_texts(table: pl.DataFrame, column: str, texts: list[str]) -> pl.DataFrame:
    """The table with these texts at the top of a column."""
    return table.with_columns(table[column].scatter(range(len(texts)), texts))


def summary_of(table: pl.DataFrame, mode: str = "statistics", *, first: int | None = 2) -> Summary:
    """A summary that fits the table."""
    side = RunInfo("runs/a/dump.json", "pytorch", mode, "L1", table.height // 3, table.height)
    counts = {verdict: int((table["Result"] == verdict).sum()) for verdict in VERDICTS}
    divergence = None if first is None else divergence_at(table, first)
    return Summary(mode, side, side, table.height, table.height - 3, 2, 1, counts, divergence, ["a note"])


def divergence_at(table: pl.DataFrame, row: int) -> Divergence:
    """A first divergence at this row."""
    name = table["NPU Name"][row]
    return Divergence(
        op=name.rpartition(".output")[0] or name,
        row=name,
        golden_row=table["Bench Name"][row],
        stack_line="File train.py, line 12, in step, loss = model(batch)",
        target_values={"max": "1.5", "min": "-1.5"},
        golden_values={"max": "1.5", "min": "-1.25"},
        relative_error=0.2,
        sentence="the inputs agree, the output does not",
        origin="injected",
        order=row,
    )
