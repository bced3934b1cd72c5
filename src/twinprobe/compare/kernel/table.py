"""The result table of a kernel compare: the columns that people know, then what TwinProbe adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.compare.kernel.run import KernelRun
from twinprobe.judge.verdicts import Evidence, Judged
from twinprobe.report.floats import float_texts
from twinprobe.report.titles import DIFFERENCES, METRICS, NOT_APPLICABLE, RELATIVES
from twinprobe.runs.kernel.statistics import NULL
from twinprobe.runs.table import STATS

if TYPE_CHECKING:
    import polars as pl

YES, NO, NONE, UNMATCHED = "Yes", "No", "None", "Unmatched"
_SIDES = (("t", "NPU"), ("g", "Bench"))
# The known limits of "Accuracy Reached or Not".
_COSINE, _MAX_ABS, _LOW_COSINE, _HIGH_ABS = 0.99, 0.001, 0.9, 1.0
_MAGNITUDE, _SMALLEST = 0.5, 1e-10


def kernel_table(target: KernelRun, golden: KernelRun, evidence: Evidence, judged: Judged) -> pl.DataFrame:
    """Render a judged pair table; every column is text but the last, the relative error."""
    import polars as pl

    pairs = evidence.pairs
    columns: dict[str, pl.Series] = {}
    for title, field in (("Name", "name"), ("Dtype", "dtype"), ("Tensor Shape", "shape")):
        for side, who in _SIDES:
            columns[f"{who} {title}"] = pairs[f"{side}_{field}"].fill_null(NOT_APPLICABLE)
    columns |= _statistics(pairs)
    messages = pl.Series(judged.messages, dtype=pl.String)
    if evidence.metrics is not None:
        columns |= {"Accuracy Reached or Not": _accuracy_of_tensors(pairs, evidence.metrics), "Err_message": messages}
        columns |= _tensor_metrics(evidence.metrics)
    else:
        columns |= {"Accuracy Reached or Not": _accuracy_of_statistics(pairs), "Err_message": messages}
        columns |= _differences(pairs) | _sources(target, golden, pairs)
    columns["Result"] = pl.Series(judged.verdict, dtype=pl.String)
    columns["Reason"] = pl.Series(judged.reason, dtype=pl.String)
    columns["Matched By"] = pairs["rule"]
    columns["Origin"] = pl.Series(judged.origin, dtype=pl.String)
    columns["Relative Error"] = pl.Series(judged.error).fill_nan(None)
    return pl.DataFrame(columns)


def _statistics(pairs: pl.DataFrame) -> dict[str, pl.Series]:
    """The recorded statistics as they have always been shown; one that was not computed (null) stands as 0."""
    columns = {}
    for side, who in _SIDES:
        for stat in STATS:
            title = f"{who} l2norm" if stat == "norm" else f"{who} {stat}"
            texts = pairs[f"{side}_{stat}_text"].replace({NULL: "0", "None": NOT_APPLICABLE})
            columns[title] = texts.fill_null(float_texts(pairs[f"{side}_{stat}"])).fill_null(NOT_APPLICABLE)
    return columns


def _numbers(pairs: pl.DataFrame, side: str, stat: str) -> NDArray[Any]:
    """A statistic as a number, NaN where there is none but for null, which counts as 0 in these columns."""
    numbers: NDArray[Any] = pairs[f"{side}_{stat}"].fill_null(np.nan).to_numpy().copy()
    numbers[(pairs[f"{side}_{stat}_text"] == NULL).fill_null(value=False).to_numpy()] = 0.0
    return numbers


def _comparable(pairs: pl.DataFrame) -> NDArray[Any]:
    """Rows with both sides, of one shape."""
    both = pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null()
    comparable: NDArray[Any] = (both & (pairs["t_shape"] == pairs["g_shape"]).fill_null(value=True)).to_numpy()
    return comparable


def _differences(pairs: pl.DataFrame) -> dict[str, pl.Series]:
    import polars as pl

    comparable = pl.Series(_comparable(pairs))
    diffs, relatives = {}, {}
    for stat in STATS:
        t, g = (_numbers(pairs, side, stat) for side in "tg")
        with np.errstate(all="ignore"):
            gap = np.where(t == g, 0.0, np.abs(t - g))
            relative = np.where(np.isinf(t) & (t == g), 0.0, np.abs(gap / g) * 100)
        known = float_texts(pl.Series(gap)).replace({"nan": "Nan"})
        diffs[DIFFERENCES[stat]] = known.zip_with(comparable, pl.Series([NOT_APPLICABLE]))
        percent = float_texts(pl.Series(relative))
        percent = percent.zip_with(pl.Series(np.isinf(relative)), percent + "%")
        percent = percent.zip_with(pl.Series(~np.isnan(relative)), pl.Series(["Nan"]))
        usable = comparable & pl.Series(g != 0)
        relatives[RELATIVES[stat]] = percent.zip_with(usable, pl.Series([NOT_APPLICABLE]))
    return diffs | relatives


def _accuracy_of_statistics(pairs: pl.DataFrame) -> pl.Series:
    """The maxima differ by at most half of the larger one. Sizes are compared without their signs."""
    t, g = (_numbers(pairs, side, "max") for side in "tg")
    with np.errstate(all="ignore"):
        share = np.abs(t - g) / (np.fmax(np.abs(t), np.abs(g)) + _SMALLEST)
    reached = (share <= _MAGNITUDE) | (t == g) | (np.isnan(t) & np.isnan(g) & _comparable(pairs))
    return _texts(np.where(~_comparable(pairs), UNMATCHED, np.where(reached, YES, NO)))


def _tensor_metrics(metrics: pl.DataFrame) -> dict[str, pl.Series]:
    columns = {}
    for title, field in METRICS.items():
        numbers = metrics[field]
        reason = metrics["status"].replace({"ok": "unsupported", "scalar": "unsupported"})
        columns[title] = float_texts(numbers).replace({"nan": "Nan"}).zip_with(numbers.is_not_null(), reason)
    return columns


def _accuracy_of_tensors(pairs: pl.DataFrame, metrics: pl.DataFrame) -> pl.Series:
    cosine, gap = (metrics[name].fill_null(np.nan).to_numpy() for name in ("cosine", "max_abs"))
    status = metrics["status"].to_numpy()
    single = status == "scalar"
    alike = (pairs["t_max_text"] == pairs["g_max_text"]).fill_null(value=False).to_numpy()
    cosine = np.where(single, _cosine_of_numbers(pairs), cosine)
    far = ((cosine < _COSINE) & (gap > _MAX_ABS)) | (cosine < _LOW_COSINE) | (gap > _HIGH_ABS)
    known = ~np.isnan(cosine) & ~np.isnan(gap)
    # A whole number or a flag has no size of error: another one is another one.
    whole = pairs["t_dtype"].str.contains(r"^(bool|u?int)").fill_null(value=False).to_numpy()
    far = np.where(single & whole, ~alike, far)
    numeric = np.where(known, np.where(far, NO, YES), NONE)
    unmatched = ~_comparable(pairs) | (status == "shape unmatched")
    return _texts(np.select([unmatched, status == NOT_APPLICABLE], [UNMATCHED, NO], numeric))


def _cosine_of_numbers(pairs: pl.DataFrame) -> NDArray[Any]:
    """Of tensors that hold one number: whether its sign is the same."""
    t, g = (_numbers(pairs, side, "max") for side in "tg")
    with np.errstate(all="ignore"):
        return np.where(np.isnan(t) | np.isnan(g), np.nan, np.where(t == g, 1.0, np.sign(t) * np.sign(g)))


def _texts(values: NDArray[Any]) -> pl.Series:
    import polars as pl

    return pl.Series(values.tolist(), dtype=pl.String)


def _sources(target: KernelRun, golden: KernelRun, pairs: pl.DataFrame) -> dict[str, pl.Series]:
    columns = {}
    for run, (side, who) in zip((target, golden), _SIDES, strict=True):
        files = [NOT_APPLICABLE if at is None else str(run.rows[at].source) for at in pairs[f"{side}_row"].to_list()]
        columns[f"{who} CSV File"] = _texts(np.asarray(files, dtype=object))
    return columns
