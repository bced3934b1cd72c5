"""The report of an inference comparison: the columns that people know, then what TwinProbe adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.compare.llm.judge import Measured
from twinprobe.compare.llm.rows import Row
from twinprobe.judge.verdicts import Judged
from twinprobe.measure.llm_metrics import LlmMetrics
from twinprobe.runs.llm.files import TensorFile

if TYPE_CHECKING:
    import polars as pl

MY_ONLY, GOLDEN_ONLY = "no counterpart in the golden dump.", "no counterpart in my dump."
BASICS = ("max", "min", "mean")
METRICS: dict[str, str] = {
    "cosine_similarity": "cosine",
    "max_relative_error": "max_rel",
    "mean_relative_error": "mean_rel",
    "max_absolute_error": "max_abs",
    "mean_absolute_error": "mean_abs",
    "kl_divergence": "kl",
    "relative_euclidean_distance": "euclid",
}
# How the web page and the other reports call what these columns hold.
SHARED_NAMES = {
    "my_data_path": "NPU Name",
    "golden_data_path": "Bench Name",
    "my_dtype": "NPU Dtype",
    "golden_dtype": "Bench Dtype",
    "my_shape": "NPU Tensor Shape",
    "golden_shape": "Bench Tensor Shape",
    "my_max_value": "NPU max",
    "golden_max_value": "Bench max",
    "my_min_value": "NPU min",
    "golden_min_value": "Bench min",
    "my_mean_value": "NPU mean",
    "golden_mean_value": "Bench mean",
}


def token_table(
    token: str,
    device: str,
    roots: tuple[Path, Path],
    rows: Sequence[Row],
    measured: Sequence[Measured],
    judged: Judged,
    algorithms: Sequence[str],
) -> pl.DataFrame:
    """The rows of one token as they stand in the report, but for the running ``data_id``."""
    import polars as pl

    columns: dict[str, pl.Series] = {"token_id": pl.Series([token] * len(rows), dtype=pl.String)}
    for who, side in (("golden", 1), ("my", 0)):
        columns |= _side(who, side, roots[side], rows, measured)
    for title, name in METRICS.items():
        columns[title] = _numbers(measured, attrgetter(name))
    columns["cmp_fail_reason"] = pl.Series(
        [_fail_reason(row, one) for row, one in zip(rows, measured, strict=True)], dtype=pl.String
    )
    for at, name in enumerate(algorithms):
        columns[name] = pl.Series([one.custom[at][0] if one.custom else "" for one in measured], dtype=pl.String)
    columns["Device"] = pl.Series([device] * len(rows), dtype=pl.String)
    columns["Level"] = pl.Series([row.level for row in rows], dtype=pl.String)
    columns["Matched By"] = pl.Series(
        [_matched_by(row, one) for row, one in zip(rows, measured, strict=True)], dtype=pl.String
    )
    columns["Max Absolute Error Everywhere"] = _numbers(measured, lambda one: one.max_abs_all)
    columns["Relative Error"] = pl.Series(judged.error).fill_nan(None)
    columns["Origin"] = pl.Series(judged.origin, dtype=pl.String)
    columns["Result"] = pl.Series(judged.verdict, dtype=pl.String)
    columns["Reason"] = pl.Series(judged.reason, dtype=pl.String)
    # An empty text is quoted in csv; nothing is nothing.
    return pl.DataFrame(columns).with_columns(pl.col(pl.String).replace("", None))


def _side(who: str, side: int, root: Path, rows: Sequence[Row], measured: Sequence[Measured]) -> dict[str, pl.Series]:
    import polars as pl

    front = f"{root}/"
    types = [row.golden_type if side else row.my_type for row in rows]
    columns = {
        f"{who}_data_path": [_paths(front, row.golden if side else row.my) for row in rows],
        f"{who}_op_type": types,
        f"{who}_dtype": [one.dtypes[side] for one in measured],
        f"{who}_shape": [one.shapes[side] for one in measured],
    }
    found = {name: pl.Series(values, dtype=pl.String) for name, values in columns.items()}
    for basic in BASICS:
        found[f"{who}_{basic}_value"] = _numbers(measured, attrgetter(f"{who}.{basic}"))
    return found


def _paths(front: str, files: tuple[TensorFile, ...]) -> str:
    return front + files[0].file if len(files) == 1 else ";".join(front + file.file for file in files)


def _numbers(measured: Sequence[Measured], value: Callable[[LlmMetrics], float | None]) -> pl.Series:
    import polars as pl

    return pl.Series([None if one.metrics is None else value(one.metrics) for one in measured], dtype=pl.Float64)


def _fail_reason(row: Row, one: Measured) -> str:
    if not row.golden:
        return MY_ONLY
    if not row.my:
        return GOLDEN_ONLY
    reason = one.fault or (one.metrics.reason if one.metrics is not None else "")
    messages = [message for _, message in one.custom if message]
    return " ".join([reason, *messages]).strip()


def _matched_by(row: Row, one: Measured) -> str:
    return f"{row.rule} ({one.remark})" if one.remark else row.rule


def numbered(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The tables of all tokens under each other, with ``data_id`` in its place."""
    import polars as pl

    table = pl.concat(tables)
    ids = pl.Series("data_id", range(table.height), dtype=pl.Int64)
    return table.insert_column(1, ids)
