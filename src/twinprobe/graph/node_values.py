"""One number, one verdict, one origin per call, folded from its rows: what colours a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.align.dtypes import canonical
from twinprobe.compare.one import Comparison
from twinprobe.judge.deviation import DIFFERS
from twinprobe.measure.stat_columns import MINUS_INF, NAN, NUMBER, PLUS_INF, StatDifference
from twinprobe.runs.run import DIGESTS
from twinprobe.runs.table import INPUT, OUTPUT, PARAMETER, STATS

if TYPE_CHECKING:
    import polars as pl

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SEVERITY = {"pass": 0, "warning": 1, "error": 2}
VERDICTS = ("pass", "warning", "error")
# Below these sizes the seed's rule looks at the absolute difference, with the same number as its limit.
_SMALL = {"float32": 1e-6, "float64": 1e-6, "float16": 1e-3, "bfloat16": 1e-3}


@dataclass
class CallValues:
    """Per target call; NaN and -1 where nothing was compared."""

    severity: NDArray[np.int8]
    drift: Floats
    error: Floats
    origin: list[str]
    rule: list[str]

    def verdict(self, call: int) -> str | None:
        """The worst verdict of a call's values."""
        return VERDICTS[self.severity[call]] if self.severity[call] >= 0 else None


def call_values(comparison: Comparison) -> CallValues:
    """Fold a comparison's rows into its target's calls."""
    judged, evidence = comparison.judged, comparison.evidence
    pairs = evidence.pairs
    rows = comparison.target.table.height
    calls = judged.calls.of_row[:rows]
    role = judged.calls.role[:rows]
    count = len(comparison.target.ops)
    paired = pairs["g_row"].is_not_null().to_numpy()[:rows]

    severity = np.full(count, -1, dtype=np.int8)
    of_row = np.fromiter((_SEVERITY[verdict] for verdict in judged.verdict[:rows]), dtype=np.int8, count=rows)
    compared = np.zeros(count, dtype=bool)
    compared[calls[paired]] = True
    chosen = compared[calls]
    np.maximum.at(severity, calls[chosen], of_row[chosen])

    error = _fold(np.fmax, judged.error[:rows], calls, (role == OUTPUT) & paired, count)
    anywhere = _fold(np.fmax, judged.error[:rows], calls, paired, count)
    error = np.where(np.isnan(error), anywhere, error)
    return CallValues(severity, _drift(comparison, rows), error, *_words(comparison, rows, count))


def _words(comparison: Comparison, rows: int, count: int) -> tuple[list[str], list[str]]:
    import polars as pl

    calls = comparison.judged.calls.of_row[:rows]
    origin = [""] * count
    marked = np.flatnonzero((pl.Series(comparison.judged.origin[:rows]) != "").to_numpy())
    for row in marked.tolist():
        word = comparison.judged.origin[row]
        if origin[calls[row]] != "injected":
            origin[calls[row]] = word
    rules = [""] * count
    for call, rule in zip(
        reversed(calls.tolist()), reversed(comparison.evidence.pairs["rule"][:rows].to_list()), strict=True
    ):
        if rule:
            rules[call] = rule
    return origin, rules


def _drift(comparison: Comparison, rows: int) -> Floats:
    """The seed's own number per call: how much worse the outputs are, by the kind of data that was recorded."""
    evidence, calls = comparison.evidence, comparison.judged.calls
    pairs = evidence.pairs[:rows]
    of_row, role, count = calls.of_row[:rows], calls.role[:rows], len(comparison.target.ops)
    paired = pairs["g_row"].is_not_null().to_numpy()
    compared = np.zeros(count, dtype=bool)
    compared[of_row[paired]] = True
    if evidence.mode == DIGESTS:
        differs = (evidence.deviation.state[:rows] == DIFFERS).astype(np.float64)
        drift = _fold(np.fmax, differs, of_row, paired, count)
    elif evidence.metrics is not None:
        ratio = evidence.metrics["one_thousandth"].to_numpy()[:rows]
        before = _fold(np.fmin, ratio, of_row, paired & np.isin(role, (INPUT, PARAMETER)), count)
        after = _fold(np.fmin, ratio, of_row, paired & (role == OUTPUT), count)
        drift = np.clip(np.where(np.isnan(before), 1.0, before) - after, 0.0, 1.0)
    else:
        assert evidence.differences is not None
        worst = _relative_errors(pairs, {name: _cut(whole, rows) for name, whole in evidence.differences.items()})
        drift = _fold(np.fmax, worst, of_row, paired & (role == OUTPUT), count)
    drift = np.where(np.isnan(drift), 0.0, drift)
    drift[calls.exempt] = 0.0
    return np.where(compared, drift, np.nan)


def _relative_errors(pairs: pl.DataFrame, differences: dict[str, StatDifference]) -> Floats:
    """The largest relative error of a row's four statistics, small values judged by their absolute difference."""
    limits = {text: _SMALL.get(canonical(text) or "", 0.0) for text in pairs["t_dtype"].unique().to_list()}
    limit = np.fromiter((limits[text] for text in pairs["t_dtype"].to_list()), dtype=np.float64, count=pairs.height)
    worst = np.full(pairs.height, np.nan)
    for stat in STATS:
        difference = differences[stat]
        with np.errstate(invalid="ignore"):
            small = np.abs(pairs[f"t_{stat}"].to_numpy()) <= limit
            by_size = np.where(np.abs(difference.diff) <= limit, 0.0, 1.0)
        share = np.where(small & (limit > 0), by_size, difference.relative)
        share = np.where(difference.case == NUMBER, np.minimum(share, 1.0), 0.0)
        share[np.isin(difference.case, (NAN, PLUS_INF, MINUS_INF))] = 1.0
        worst = np.fmax(worst, share)
    return worst


def _cut(whole: StatDifference, rows: int) -> StatDifference:
    return StatDifference(whole.case[:rows], whole.diff[:rows], whole.relative[:rows])


def _fold(combine: Any, values: Floats, calls: NDArray[np.int64], mask: Bools, count: int) -> Floats:
    folded = np.full(count, np.nan)
    combine.at(folded, calls[mask], values[mask])
    return folded
