"""The report of an inference comparison: the columns that people know, then what TwinProbe adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import isnan, nan, prod
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from twinprobe._align.calls import epsilon
from twinprobe._compare.llm.measured import MeasuredRows
from twinprobe._compare.llm.rows import BETWEEN, Plan, Row, Rows
from twinprobe._judge.describe import size_of
from twinprobe._judge.deviation import IDENTICAL, ROUNDING, UNKNOWN, UNMATCHED, Deviation, of_statistics, of_tensors
from twinprobe._judge.origin import Divergence
from twinprobe._judge.verdicts import EPSILONS, Evidence, Judged, Thresholds, judge
from twinprobe._measure.llm_metrics import EMPTY, SHAPE
from twinprobe._measure.statistics import stat_differences
from twinprobe._runs.llm.statistics import Recorded
from twinprobe._runs.run import STATISTICS, TENSORS, Run
from twinprobe._runs.table import ABSENT, FLOAT

if TYPE_CHECKING:
    import polars as pl

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
    f"{side}_{old}": f"{who} {new}"
    for side, who in (("my", "NPU"), ("golden", "Bench"))
    for old, new in (
        ("data_path", "Name"), ("dtype", "Dtype"), ("shape", "Tensor Shape"), ("max_value", "max"),
        ("min_value", "min"), ("mean_value", "mean"),
    )
}  # fmt: skip


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

    known = rows.texts
    columns: dict[str, pl.Series] = {"token_id": pl.repeat(token, len(rows), dtype=pl.String, eager=True)}
    for side, own, title in ((1, "golden", "golden"), (0, "target", "my")):  # the report keeps its old titles
        columns |= _side(side, own, title, bases[side], known, measured)
    for title, name in METRICS.items():
        columns[title] = measured.column(name)
    columns["cmp_fail_reason"] = _with(known["alone"], _fail_reasons(known["alone"], measured))
    for index, name in enumerate(algorithms):
        answers = [measured.custom[row][index][0] if row in measured.custom else "" for row in range(len(rows))]
        columns[name] = pl.Series(answers, dtype=pl.String)
    columns["Device"] = pl.repeat(device, len(rows), dtype=pl.String, eager=True)
    columns["Level"] = known["level"]
    remarks = {index: f"{rows[index].rule} ({remark})" for index, remark in measured.remarks.items()}
    columns["Matched By"] = _with(known["rule"], remarks)
    columns["Max Absolute Error Everywhere"] = measured.column("max_abs_all")
    columns["Relative Error"] = pl.Series(judged.error).fill_nan(None)
    columns["Origin"] = pl.Series(judged.origin, dtype=pl.String)
    columns["Result"] = pl.Series(judged.verdict, dtype=pl.String)
    columns["Reason"] = pl.Series(judged.reason, dtype=pl.String)
    # An empty text is quoted in csv; nothing is nothing.
    return pl.DataFrame(columns).with_columns(pl.col(pl.String).replace("", None))


def _side(
    side: int, own: str, title: str, front: str, known: pl.DataFrame, measured: MeasuredRows
) -> dict[str, pl.Series]:
    import polars as pl

    found = {
        # Several files of a row are told one after the other, each with its whole path.
        f"{title}_data_path": (front + known[f"{own}_files"]).str.replace_all(BETWEEN, f";{front}", literal=True),
        f"{title}_op_type": known[f"{own}_type"],
        f"{title}_dtype": pl.Series(measured.dtypes[side], dtype=pl.String),
        f"{title}_shape": pl.Series(measured.shapes[side], dtype=pl.String),
    }
    for basic in BASICS:
        found[f"{title}_{basic}_value"] = measured.column(f"{own}_{basic}")
    return found


def _fail_reasons(alone: pl.Series, measured: MeasuredRows) -> dict[int, str]:
    """Why rows have no numbers, and what own metrics said; a tensor without counterpart has its reason already."""
    words_of: dict[int, list[str]] = {index: [reason] for index, reason in (measured.reasons | measured.faults).items()}
    for index, custom in measured.custom.items():
        words_of.setdefault(index, []).extend(message for _, message in custom if message)
    return {index: " ".join(words).strip() for index, words in words_of.items() if not alone[index]}


def _with(column: pl.Series, others: dict[int, str]) -> pl.Series:
    """A column with other texts in a few rows."""
    import polars as pl

    if not others:
        return column
    texts = column.to_list()
    for index, text in others.items():
        texts[index] = text
    return pl.Series(texts, dtype=pl.String)


def numbered(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The tables of all tokens under each other, with ``data_id`` in its place."""
    import polars as pl

    table = pl.concat(tables)
    ids = pl.Series("data_id", range(table.height), dtype=pl.Int64)
    return table.insert_column(1, ids)


# Verdicts on the rows of one token: the rules of every comparison, on what inference reports measure.
#
# Engines differ in dtype and in axes of length one by design, so neither counts against a row here: sizes do.


def judge_rows(path: Path, plan: Plan, rows: Rows, measured: MeasuredRows, limits: Thresholds) -> Judged:
    """The verdict of every row, and where the difference begins."""
    limits = replace(limits, rounding=limits.rounding or EPSILONS)
    misshapen = (index for index, reason in measured.reasons.items() if reason == SHAPE)
    pairs = _pairs(rows, measured.dtypes, measured.shapes, misshapen)
    metrics = _metrics(measured)
    matched = pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null()
    state = np.where(matched.to_numpy(), UNKNOWN, UNMATCHED).astype(np.uint8)
    nothing = np.full(len(rows), np.nan)
    recorded = Deviation(state, nothing, np.zeros(len(rows), dtype=bool))
    deviation = of_tensors(pairs, metrics, recorded, limits.rounding)
    # The share of elements within one thousandth says nothing where rounding explains the whole difference.
    small = (deviation.state == ROUNDING) | (deviation.state == IDENTICAL)
    share = np.where(small, 1.0, metrics["one_thousandth"].to_numpy())
    metrics = metrics.with_columns(one_thousandth=share)
    return _judged(path, plan, Evidence(TENSORS, pairs, deviation, None, metrics), limits)


def judge_statistics(
    path: Path, plan: Plan, rows: Rows, sides: Sequence[Sequence[Recorded | None]], limits: Thresholds
) -> Judged:
    """The same for what was recorded of the tensors of each row; None where nothing is known of a side."""
    import polars as pl

    limits = replace(limits, rounding=limits.rounding or EPSILONS)
    dtypes = [[one.dtype if one is not None else "" for one in side] for side in sides]
    shapes = [[str(list(one.shape)) if one is not None else "" for one in side] for side in sides]
    sizes = [[prod(one.shape) if one is not None else 0 for one in side] for side in sides]
    misshapen = [index for index, (target, golden) in enumerate(zip(*sizes, strict=True)) if target != golden]
    pairs = _pairs(rows, dtypes, shapes, misshapen)
    for prefix, side in zip("tg", sides, strict=True):
        for at, stat in enumerate(("max", "min", "mean", "norm")):
            values = pl.Series([one.values[at] if one is not None else None for one in side], dtype=pl.Float64)
            kinds = pl.select(pl.when(values.is_null()).then(ABSENT).otherwise(FLOAT)).to_series().cast(pl.UInt8)
            nothing = pl.Series([None] * len(rows), dtype=pl.String)
            columns = {stat: values.fill_null(nan), f"{stat}_kind": kinds, f"{stat}_text": nothing}
            pairs = pairs.with_columns(column.alias(f"{prefix}_{name}") for name, column in columns.items())
    differences = stat_differences(pairs)
    deviation = of_statistics(pairs, differences, limits.rounding)
    return _judged(path, plan, Evidence(STATISTICS, pairs, deviation, differences), limits)


def _judged(path: Path, plan: Plan, evidence: Evidence, limits: Thresholds) -> Judged:
    # The rules know collectives by the recorders' prefix.
    names = [f"Distributed.{call.name}.0.forward" if call.collective else call.name for call in plan.calls]
    return judge(Run(path, evidence.mode, "", "", names, evidence.pairs, []), evidence, limits)


def first_of(token: str, plan: Plan, row: Row, index: int, judged: Judged) -> Divergence:
    """The row where the difference begins, told in a sentence."""
    call, error = plan.calls[row.call], float(judged.error[index])
    name = row.target[0].file.partition("#")[0]
    return Divergence(
        op=f"token {token}: {call.name} ({call.op_type})",
        row="",
        golden_row="",
        stack_line="",
        target_values={},
        golden_values={},
        relative_error=None if isnan(error) else error,
        sentence=f"{PurePath(name).stem}: {judged.reason[index]}{size_of(error)}{judged.unread_before}",
        origin=judged.origin[index],
        order=index,
    )


def _pairs(
    rows: Rows, dtypes: Sequence[Sequence[str]], shapes: Sequence[Sequence[str]], misshapen: Iterable[int]
) -> pl.DataFrame:
    """The pair table. Shapes are told only where sizes differ."""
    import polars as pl

    known = rows.pairs
    both = known["t_row"].is_not_null() & known["g_row"].is_not_null()
    coarser = pl.Series([_coarser(pair) for pair in zip(*dtypes, strict=True)], dtype=pl.String)
    coarser = pl.select(pl.when(both).then(coarser)).to_series()
    unlike: tuple[list[str | None], ...] = tuple([None] * len(rows) for _ in shapes)
    for index in misshapen:
        for column, shown in zip(unlike, shapes, strict=True):
            column[index] = shown[index]
    return known.with_columns(
        coarser.alias("t_dtype"),
        coarser.alias("g_dtype"),
        pl.Series("t_shape", unlike[0], dtype=pl.String),
        pl.Series("g_shape", unlike[1], dtype=pl.String),
    )


@lru_cache(maxsize=1 << 10)
def _coarser(dtypes: tuple[str, str]) -> str:
    names = [name for text in dtypes for name in text.split(";") if name]
    return max(names, key=epsilon) if names else ""


def _metrics(measured: MeasuredRows) -> pl.DataFrame:
    import polars as pl

    count = len(measured)
    status = ["ok"] * count
    faults: list[str | None] = [None] * count
    for index in measured.unmeasured.tolist():
        status[index] = "unsupported"
    identical = measured.values("identical") == 1
    for index, reason in measured.reasons.items():
        if reason == SHAPE or (reason == EMPTY and not identical[index]):
            status[index] = "shape unmatched" if reason == SHAPE else "unsupported"
    for index, fault in measured.faults.items():
        faults[index] = fault
    return pl.DataFrame(
        {
            "status": pl.Series(status, dtype=pl.String),
            "fault": pl.Series(faults, dtype=pl.String),
            "cosine": measured.values("true_cosine"),
            "one_thousandth": measured.values("one_thousandth"),
            "relative_norm": measured.values("relative_norm"),
            "identical": identical,
            "nonfinite": measured.values("nonfinite") == 1,
        }
    )
