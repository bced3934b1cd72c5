"""The result table: the columns that people know, in their order, then what TwinProbe adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from twinprobe.judge.verdicts import Evidence, Judged
from twinprobe.measure.stat_columns import MINUS_INF, MISSING, NAN, NUMBER, OTHER, PLUS_INF, SAME, StatDifference
from twinprobe.report.floats import float_texts
from twinprobe.report.titles import DIFFERENCES, METRICS, NOT_APPLICABLE, RELATIVES
from twinprobe.runs.run import DIGESTS, Run
from twinprobe.runs.table import STATS

if TYPE_CHECKING:
    import polars as pl

_SIDES = (("t", "NPU"), ("g", "Bench"))
_CASE_TEXTS = {SAME: "0", NAN: "Nan", PLUS_INF: "inf", MINUS_INF: "-inf", MISSING: NOT_APPLICABLE, OTHER: "Diff"}


def result_table(target: Run, evidence: Evidence, judged: Judged) -> pl.DataFrame:
    """Render a judged pair table; every column is text but the last, the relative error."""
    import polars as pl

    pairs = evidence.pairs
    columns = _basic(pairs)
    if evidence.mode == DIGESTS:
        columns |= _digests(pairs)
    elif evidence.metrics is not None:
        columns |= _tensor_metrics(evidence.metrics)
    elif evidence.differences is not None:
        columns |= _differences(evidence.differences)
    if evidence.mode != DIGESTS:
        columns |= _statistics(pairs)
    columns["Requires_grad Consistent"] = _consistent(columns)
    columns["Result"] = pl.Series(judged.verdict, dtype=pl.String)
    columns["Err_message"] = pl.Series(judged.messages, dtype=pl.String)
    if target.stacks:
        columns["NPU_Stack_Info"] = _stacks(target, pairs)
    if evidence.metrics is not None:
        columns["Data_name"] = _files(pairs)
    columns["Reason"] = pl.Series(judged.reason, dtype=pl.String)
    columns["Origin"] = pl.Series(judged.origin, dtype=pl.String)
    columns["Matched By"] = pairs["rule"]
    columns["Relative Error"] = pl.Series(judged.error).fill_nan(None)
    return pl.DataFrame(columns)


def _basic(pairs: pl.DataFrame) -> dict[str, pl.Series]:
    columns: dict[str, pl.Series] = {}
    for title, field in (("Name", "name"), ("Dtype", "dtype"), ("Tensor Shape", "shape")):
        for side, who in _SIDES:
            columns[f"{who} {title}"] = pairs[f"{side}_{field}"].fill_null(NOT_APPLICABLE)
    for side, who in _SIDES:
        columns[f"{who} Requires_grad"] = _flag(pairs[f"{side}_requires_grad"])
    return columns


def _flag(column: pl.Series) -> pl.Series:
    import polars as pl

    texts: pl.Series = column.cast(pl.String).str.to_titlecase().fill_null(NOT_APPLICABLE)
    return texts


def _consistent(columns: dict[str, pl.Series]) -> pl.Series:
    return _flag(columns["NPU Requires_grad"] == columns["Bench Requires_grad"])


def _digests(pairs: pl.DataFrame) -> dict[str, pl.Series]:
    return {
        title: pairs[f"{side}_digest"].fill_null(pairs[f"{side}_value_digest"]).fill_null(NOT_APPLICABLE)
        for side, title in (("t", "NPU MD5"), ("g", "BENCH MD5"))
    }


def _statistics(pairs: pl.DataFrame) -> dict[str, pl.Series]:
    columns: dict[str, pl.Series] = {}
    for side, who in _SIDES:
        for stat in STATS:
            title = f"{who} l2norm" if stat == "norm" else f"{who} {stat}"
            numbers = pairs[f"{side}_{stat}"]
            texts = pairs[f"{side}_{stat}_text"].fill_null(float_texts(numbers))
            columns[title] = texts.fill_null(NOT_APPLICABLE)
    return columns


def _differences(differences: dict[str, StatDifference]) -> dict[str, pl.Series]:
    diffs = {DIFFERENCES[stat]: _by_case(d, d.diff, "") for stat, d in differences.items()}
    relatives = {RELATIVES[stat]: _by_case(d, d.relative * 100, "%") for stat, d in differences.items()}
    return diffs | relatives


def _by_case(difference: StatDifference, numbers: np.ndarray, unit: str) -> pl.Series:
    import polars as pl

    texts = pl.Series([_CASE_TEXTS.get(code, "") for code in range(max(_CASE_TEXTS) + 1)])
    column = texts.gather(pl.Series(difference.case, dtype=pl.UInt32))
    plain = np.flatnonzero(difference.case == NUMBER)
    if not len(plain):
        return column
    values = numbers[plain]
    spelled = float_texts(pl.Series(values))
    if unit:
        spelled = pl.select(pl.when(pl.Series(np.isfinite(values))).then(spelled + unit).otherwise(spelled)).to_series()
    return column.scatter(plain, spelled)


def _tensor_metrics(metrics: pl.DataFrame) -> dict[str, pl.Series]:
    import polars as pl

    unsupported = metrics["status"].replace({"ok": "unsupported", "scalar": "unsupported"})
    columns = {}
    for title, field in METRICS.items():
        numbers = metrics[field]
        texts = float_texts(numbers).replace({"nan": "Nan"})
        columns[title] = pl.select(pl.when(numbers.is_null()).then(unsupported).otherwise(texts)).to_series()
    return columns


def _stacks(target: Run, pairs: pl.DataFrame) -> pl.Series:
    """The call site on the first row of each call; each distinct text is kept in memory once."""
    import polars as pl

    texts = [str(list(frames)) for frames in target.stacks.frames] + [NOT_APPLICABLE]
    none = len(texts) - 1
    of_call = np.array([target.stacks.of_op.get(op, none) for op in target.ops] + [none], dtype=np.uint32)
    calls = pairs["t_op"].fill_null(-1).to_numpy()
    first = np.ones(len(calls), dtype=bool)
    first[1:] = calls[1:] != calls[:-1]
    place = np.where(first, of_call[calls], none)
    return pl.Series(texts, dtype=pl.String).gather(pl.Series(place, dtype=pl.UInt32))


def _files(pairs: pl.DataFrame) -> pl.Series:
    import polars as pl

    sides = [
        pl.select(pl.when(pairs[name].is_null()).then(pl.lit("'-1'")).otherwise("'" + pairs[name] + "'")).to_series()
        for name in ("t_file", "g_file")
    ]
    both: pl.Series = "[" + sides[0] + ", " + sides[1] + "]"
    return both
