"""Verdicts on the rows of one token: the rules of every comparison, on what inference reports measure.

Engines differ in dtype and in axes of length one by design, so neither counts against a row here: sizes do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from twinprobe.align.dtypes import epsilon
from twinprobe.compare.llm.plan import Plan
from twinprobe.compare.llm.results import MeasuredRows
from twinprobe.compare.llm.rows import Row, Rows
from twinprobe.judge.deviation import IDENTICAL, ROUNDING, UNKNOWN, UNMATCHED, Deviation, of_tensors
from twinprobe.judge.thresholds import Thresholds
from twinprobe.judge.verdicts import Evidence, Judged, judge
from twinprobe.measure.llm_metrics import EMPTY, SHAPE
from twinprobe.runs.leaf import TENSOR
from twinprobe.runs.run import TENSORS, Run
from twinprobe.runs.table import INPUT, OUTPUT

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl


_KEPT = "judged pairs"


def judge_rows(path: Path, plan: Plan, rows: Rows, measured: MeasuredRows, limits: Thresholds) -> Judged:
    """The verdict of every row, and where the difference begins."""
    pairs = _pairs(rows, measured)
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
    run = Run(path, TENSORS, "", "", [_judged_name(call.name, call.collective) for call in plan.calls], pairs, [])
    return judge(run, Evidence(TENSORS, pairs, deviation, None, metrics), limits)


def _judged_name(name: str, collective: bool) -> str:
    """The rules know collectives by the recorders' prefix."""
    return f"Distributed.{name}.0.forward" if collective else name


def _pairs(rows: Rows, measured: MeasuredRows) -> pl.DataFrame:
    import polars as pl

    if _KEPT not in rows.kept:
        rows.kept[_KEPT] = _known_pairs(rows)
    known = rows.kept[_KEPT]
    both = known["t_row"].is_not_null() & known["g_row"].is_not_null()
    dtypes = pl.Series([_coarser(pair) for pair in zip(*measured.dtypes, strict=True)], dtype=pl.String)
    dtypes = pl.select(pl.when(both).then(dtypes)).to_series()
    shapes: tuple[list[str | None], ...] = tuple([None] * len(rows) for _ in measured.shapes)
    for at, reason in measured.reasons.items():
        if reason == SHAPE:
            for told, shown in zip(shapes, measured.shapes, strict=True):
                told[at] = shown[at]
    return known.with_columns(
        dtypes.alias("t_dtype"),
        dtypes.alias("g_dtype"),
        pl.Series("t_shape", shapes[0], dtype=pl.String),
        pl.Series("g_shape", shapes[1], dtype=pl.String),
    )


def _known_pairs(rows: Rows) -> pl.DataFrame:
    """The columns that follow from the rows alone."""
    import polars as pl

    count = len(rows)
    mine = [at if row.my else None for at, row in enumerate(rows)]
    theirs = [at if row.golden else None for at, row in enumerate(rows)]
    texts = pl.Series([None] * count, dtype=pl.String)
    flags = pl.Series([None] * count, dtype=pl.Boolean)
    return pl.DataFrame(
        {
            "t_row": pl.Series(mine, dtype=pl.Int32),
            "g_row": pl.Series(theirs, dtype=pl.Int32),
            "t_kind": pl.Series([TENSOR if row.my else None for row in rows], dtype=pl.UInt8),
            "g_kind": pl.Series([TENSOR if row.golden else None for row in rows], dtype=pl.UInt8),
            "t_op": pl.Series([row.call if row.my else None for row in rows], dtype=pl.Int32),
            "t_role": pl.Series([_role(row) if row.my else None for row in rows], dtype=pl.UInt8),
            "g_name": pl.Series([row.golden[0].file if row.golden else None for row in rows], dtype=pl.String),
            "t_max_text": texts,
            "g_max_text": texts,
            "t_requires_grad": flags,
            "g_requires_grad": flags,
        }
    )


def _role(row: Row) -> int:
    return INPUT if row.is_input else OUTPUT


@lru_cache(maxsize=1 << 10)
def _coarser(dtypes: tuple[str, str]) -> str:
    names = [name for text in dtypes for name in text.split(";") if name]
    return max(names, key=epsilon) if names else ""


def _metrics(measured: MeasuredRows) -> pl.DataFrame:
    import polars as pl

    count = len(measured)
    status = ["ok"] * count
    faults: list[str | None] = [None] * count
    for at in measured.unmeasured.tolist():
        status[at] = "unsupported"
    identical = measured.values("identical") == 1
    for at, reason in measured.reasons.items():
        if reason == SHAPE or (reason == EMPTY and not identical[at]):
            status[at] = "shape unmatched" if reason == SHAPE else "unsupported"
    for at, fault in measured.faults.items():
        faults[at] = fault
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
