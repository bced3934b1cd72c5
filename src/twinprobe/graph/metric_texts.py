"""What a comparison adds to each value of the run under test, as text inside its JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from twinprobe.compare.one import Comparison
from twinprobe.graph.texts import escaped, percents
from twinprobe.graph.values import DB, Style
from twinprobe.measure.stat_columns import MINUS_INF, NAN, NUMBER, PLUS_INF, SAME
from twinprobe.report.titles import DIFFERENCES, METRICS, NOT_APPLICABLE, RELATIVES
from twinprobe.runs.leaf import NULL
from twinprobe.runs.run import DIGESTS
from twinprobe.runs.table import FLOAT, INT, STATS

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

# All that is rendered of a pair table; the rest may go before anything is written.
NEEDED = (
    "g_row", "t_kind", "t_requires_grad", "g_requires_grad", "t_digest", "g_digest", "t_value_digest", "g_value_digest",
    *(f"t_{stat}_kind" for stat in STATS), *(f"g_{stat}" for stat in STATS),
)  # fmt: skip
_CASES = [{NAN: "Nan", PLUS_INF: "inf", MINUS_INF: "-inf"}.get(case, NOT_APPLICABLE) for case in range(16)]


class MetricTexts:
    """Renders the metrics and verdicts of a comparison for slices of the target's rows."""

    def __init__(self, comparison: Comparison, style: Style) -> None:
        import polars as pl

        self._evidence = comparison.evidence
        self._style = style
        judged, rows = comparison.judged, comparison.target.table.height
        distinct = list(set(judged.messages))
        spelled = dict(zip(distinct, escaped(pl.Series(distinct, dtype=pl.String)).to_list(), strict=True))
        messages = [spelled[message] for message in judged.messages[:rows]]
        self._verdict = pl.Series("Result", judged.verdict[:rows], dtype=pl.String)
        self._message = pl.Series("Err_message", messages, dtype=pl.String)

    def rows(self, start: int, end: int) -> pl.Series:
        """The text for the target's rows from start to end; empty for rows without a counterpart."""
        import polars as pl

        evidence = self._evidence
        pairs = evidence.pairs.slice(start, end - start)
        columns: list[pl.Series | pl.Expr] = []
        if evidence.metrics is not None:
            columns += self._tensor_metrics(evidence.metrics.slice(start, end - start))
        elif evidence.differences is not None:
            columns += self._differences(pairs, start, end)
        if self._style is DB:
            same = pl.col("t_requires_grad").eq_missing(pl.col("g_requires_grad"))
            agree = pl.when(same).then(pl.lit("True")).otherwise(pl.lit("False")).alias("Requires_grad Consistent")
            result = self._verdict[start:end]
            columns += [result, agree] if evidence.mode == DIGESTS else [agree, result]
            columns.append(self._message[start:end])
        elif evidence.mode == DIGESTS:
            columns.append(_same_digest())
        parts: list[pl.Expr] = []
        for column in columns:
            title = column.name if isinstance(column, pl.Series) else column.meta.output_name()
            parts += [pl.lit(f',"{title}":"'), pl.col(title), pl.lit('"')]
        compared = pl.col("g_row").is_not_null() & (pl.col("t_kind") != NULL)
        text = pl.when(compared).then(pl.concat_str(parts)).otherwise(pl.lit(""))
        return pairs.with_columns(columns).select(text).to_series()

    def _differences(self, pairs: pl.DataFrame, start: int, end: int) -> list[pl.Series]:
        """All four statistics in one long column, since many short ones cost more."""
        import polars as pl

        assert self._evidence.differences is not None
        parts = [self._evidence.differences[stat] for stat in STATS]
        case, diff, relative = (
            np.concatenate([getattr(part, field)[start:end] for part in parts])
            for field in ("case", "diff", "relative")
        )
        kind = np.concatenate([pairs[f"t_{stat}_kind"].to_numpy() for stat in STATS])
        golden = np.concatenate([pairs[f"g_{stat}"].to_numpy() for stat in STATS])
        number = case == NUMBER
        same = (case == SAME) & ((kind == FLOAT) | (kind == INT))
        shown = (number | same) & (golden != 0)
        texts = self._diff(case, np.where(number, diff, 0.0), kind, number | same)
        shares = percents(pl.Series(np.where(number & shown, relative, 0.0)))
        shares = shares.scatter(np.flatnonzero(~shown), _words(case[~shown]))
        size = end - start
        columns = [texts[at * size : (at + 1) * size].alias(title) for at, title in enumerate(DIFFERENCES.values())]
        titles = enumerate(RELATIVES.values())
        return columns + [shares[at * size : (at + 1) * size].alias(title) for at, title in titles]

    def _diff(
        self,
        case: NDArray[np.uint8],
        diff: NDArray[np.float64],
        kind: NDArray[np.uint8],
        known: NDArray[np.bool_],
    ) -> pl.Series:
        import polars as pl

        texts = self._style.number(pl.Series(diff))
        whole = np.flatnonzero(known & (kind != FLOAT))
        if len(whole):
            spelled = [str(int(value)) if value == value // 1 else repr(value) for value in diff[whole].tolist()]
            texts = texts.scatter(whole, spelled)
        return texts.scatter(np.flatnonzero(~known), _words(case[~known]))

    def _tensor_metrics(self, metrics: pl.DataFrame) -> list[pl.Series]:
        import polars as pl

        words = escaped(metrics["status"]).replace({"ok": "unsupported", "scalar": "unsupported"})
        found = []
        for title, field in METRICS.items():
            numbers = metrics[field]
            texts = self._style.number(numbers).replace({"nan": "Nan"})
            chosen = pl.when(numbers.is_null()).then(words).otherwise(texts)
            found.append(pl.select(chosen).to_series().alias(title))
        return found


def _words(case: NDArray[np.uint8]) -> pl.Series:
    import polars as pl

    return pl.Series(_CASES).gather(pl.Series(case, dtype=pl.UInt32))


def _same_digest() -> pl.Expr:
    import polars as pl

    target, golden = (pl.coalesce(f"{side}_digest", f"{side}_value_digest") for side in "tg")
    same = target.eq_missing(golden)
    return pl.when(same).then(pl.lit("pass")).otherwise(pl.lit("Different")).alias("Result")
