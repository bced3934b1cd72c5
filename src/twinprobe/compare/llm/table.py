"""The report of an inference comparison: the columns that people know, then what TwinProbe adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from twinprobe.compare.llm.results import MeasuredRows
from twinprobe.compare.llm.rows import Rows
from twinprobe.judge.verdicts import Judged
from twinprobe.runs.llm.files import TensorFile

if TYPE_CHECKING:
    import polars as pl

MY_ONLY, GOLDEN_ONLY = "no counterpart in the golden dump.", "no counterpart in my dump."
BASICS = ("max", "min", "mean")
_KEPT, _BETWEEN = "report", "\0"
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
    bases: tuple[str, str],
    rows: Rows,
    measured: MeasuredRows,
    judged: Judged,
    algorithms: Sequence[str],
) -> pl.DataFrame:
    """The rows of one token as they stand in the report, but for the running ``data_id``."""
    import polars as pl

    if _KEPT not in rows.kept:
        rows.kept[_KEPT] = _known(rows)
    known = rows.kept[_KEPT]
    columns: dict[str, pl.Series] = {"token_id": pl.repeat(token, len(rows), dtype=pl.String, eager=True)}
    for who, side in (("golden", 1), ("my", 0)):
        columns |= _side(who, side, bases[side], known, measured)
    for title, name in METRICS.items():
        columns[title] = measured.column(name)
    columns["cmp_fail_reason"] = _with(known["alone"], _fail_reasons(known["alone"], measured))
    for at, name in enumerate(algorithms):
        own = [measured.custom[row][at][0] if row in measured.custom else "" for row in range(len(rows))]
        columns[name] = pl.Series(own, dtype=pl.String)
    columns["Device"] = pl.repeat(device, len(rows), dtype=pl.String, eager=True)
    columns["Level"] = known["level"]
    remarks = {at: f"{rows[at].rule} ({remark})" for at, remark in measured.remarks.items()}
    columns["Matched By"] = _with(known["rule"], remarks)
    columns["Max Absolute Error Everywhere"] = measured.column("max_abs_all")
    columns["Relative Error"] = pl.Series(judged.error).fill_nan(None)
    columns["Origin"] = pl.Series(judged.origin, dtype=pl.String)
    columns["Result"] = pl.Series(judged.verdict, dtype=pl.String)
    columns["Reason"] = pl.Series(judged.reason, dtype=pl.String)
    # An empty text is quoted in csv; nothing is nothing.
    return pl.DataFrame(columns).with_columns(pl.col(pl.String).replace("", None))


def _side(who: str, side: int, front: str, known: pl.DataFrame, measured: MeasuredRows) -> dict[str, pl.Series]:
    import polars as pl

    found = {
        f"{who}_data_path": _paths(front, known[f"{who}_files"]),
        f"{who}_op_type": known[f"{who}_type"],
        f"{who}_dtype": pl.Series(measured.dtypes[side], dtype=pl.String),
        f"{who}_shape": pl.Series(measured.shapes[side], dtype=pl.String),
    }
    for basic in BASICS:
        found[f"{who}_{basic}_value"] = measured.column(f"{who}_{basic}")
    return found


def _known(rows: Rows) -> pl.DataFrame:
    """The columns that follow from the rows alone."""
    import polars as pl

    columns = {
        "my_files": [_names(row.my) for row in rows],
        "golden_files": [_names(row.golden) for row in rows],
        "my_type": [row.my_type for row in rows],
        "golden_type": [row.golden_type for row in rows],
        "level": [row.level for row in rows],
        "rule": [row.rule for row in rows],
        "alone": [MY_ONLY if not row.golden else GOLDEN_ONLY if not row.my else "" for row in rows],
    }
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


def _names(files: tuple[TensorFile, ...]) -> str | None:
    return _BETWEEN.join(file.file for file in files) if files else None


def _paths(front: str, names: pl.Series) -> pl.Series:
    """Several files of a row are told one after the other, each with its whole path."""
    return (front + names).str.replace_all(_BETWEEN, f";{front}", literal=True)


def _fail_reasons(alone: pl.Series, measured: MeasuredRows) -> dict[int, str]:
    """Why rows have no numbers, and what own metrics said; a tensor without counterpart has its reason already."""
    told: dict[int, list[str]] = {at: [reason] for at, reason in (measured.reasons | measured.faults).items()}
    for at, custom in measured.custom.items():
        told.setdefault(at, []).extend(message for _, message in custom if message)
    return {at: " ".join(words).strip() for at, words in told.items() if not alone[at]}


def _with(column: pl.Series, others: dict[int, str]) -> pl.Series:
    """A column with other texts in a few rows."""
    import polars as pl

    if not others:
        return column
    texts = column.to_list()
    for at, text in others.items():
        texts[at] = text
    return pl.Series(texts, dtype=pl.String)


def numbered(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The tables of all tokens under each other, with ``data_id`` in its place."""
    import polars as pl

    table = pl.concat(tables)
    ids = pl.Series("data_id", range(table.height), dtype=pl.Int64)
    return table.insert_column(1, ids)
