"""The inputs and outputs of nodes as JSON text, made in columns for many calls at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from twinprobe._compare.one import Comparison
from twinprobe._lazy import polars as pl
from twinprobe._measure.statistics import MINUS_INF, NAN, NUMBER, PLUS_INF, SAME
from twinprobe._report.tables import DIFFERENCES, NOT_APPLICABLE, RELATIVES, float_texts, metric_columns
from twinprobe._runs.run import DIGESTS, Run
from twinprobe._runs.table import FLOAT, INT, NULL, OUTPUT, STATS, TENSOR, VALUE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COLUMNS = ["kind", "type", "dtype", "shape", "requires_grad"]


def _distinct(table: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The first row of each look, and the look of each row."""
    key = np.zeros(table.height, dtype=np.int64)
    for column in table.get_columns():
        codes = column.cast(pl.Categorical).to_physical() if column.dtype == pl.String else column.cast(pl.UInt32)
        numbers = codes.cast(pl.Int64).fill_null(-1).to_numpy() + 1
        if int(key.max(initial=0)) >= 1 << 31:  # so that no product overflows
            _, key = np.unique(key, return_inverse=True)
        key = key * (int(numbers.max(initial=0)) + 1) + numbers
    _, first, of_row = np.unique(key, return_index=True, return_inverse=True)
    return first, of_row.astype(np.uint32)


def _description(
    requires_grad: bool, kind: int, type_: str | None, dtype: str | None, shape: str | None, grad: bool | None
) -> tuple[str, str]:
    texts = (type_ or "", dtype or "", shape or "[]")
    type_, dtype, shape = (encode_basestring(text.replace("'", ""))[1:-1] for text in texts)
    described = f'","dtype":"{dtype}","shape":"{shape}'
    if kind != TENSOR:
        return f'":{{"type":"{type_}","value":"', described
    flag = f'","requires_grad":"{"null" if grad is None else grad}' if requires_grad else ""
    return f'":{{"type":"{type_}{described}', flag


_NEEDS_ESCAPE = r'["\\\x00-\x1f\x7f]'
_LONG_PERCENT = r"^\d+\.\d{7,}$"

quoted = encode_basestring
"""A text as a JSON string, quotes included."""


def json_list(items: list[str]) -> str:
    """A JSON array of texts without spaces."""
    return json.dumps(items, ensure_ascii=False, separators=(",", ":"))


def escaped(column: pl.Series) -> pl.Series:
    """Texts ready to stand between the quotes of a JSON string; single quotes are dropped, as readers expect."""
    plain: pl.Series = column.str.replace_all("'", "", literal=True)
    odd = plain.str.contains(_NEEDS_ESCAPE).fill_null(value=False)
    if odd.any():
        spelled = [encode_basestring(text)[1:-1] for text in plain.filter(odd).to_list()]
        plain = plain.scatter(odd.arg_true(), spelled)
    return plain


def escaped_columns(table: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """A table with these columns escaped; most need nothing, and one look at all of them says so."""
    odd = table.select(pl.col(names).str.contains(r"""["'\\\x00-\x1f\x7f]""").any()).row(0, named=True)
    return table.with_columns(escaped(table[name]) for name in names if odd[name])


def six_digits(numbers: pl.Series) -> pl.Series:
    """Six decimals, or six digits after the point where an exponent is written, as ``.vis`` files carry them."""
    texts = float_texts(numbers.round(6))
    size = numbers.abs()
    exponent = (((size < 1e-4) & (size > 0)) | (size >= 1e16)).fill_null(value=False) & numbers.is_finite()
    if exponent.any():
        texts = texts.scatter(exponent.arg_true(), [f"{number:.6e}" for number in numbers.filter(exponent).to_list()])
    return texts


def percents(shares: pl.Series) -> pl.Series:
    """Shares of one as percentages; long decimals are cut to six places."""
    numbers = shares.to_numpy() * 100
    with np.errstate(invalid="ignore"):
        millionths = np.rint(numbers * 1e6)
        usual = (numbers >= 1e-4) & (numbers < 1e6)
        long = usual & (millionths / 1e6 != numbers)
        # Near the middle between two millionths only the exact value tells which way to round.
        long &= np.abs(np.abs(numbers * 1e6 - millionths) - 0.5) > 1e-3
    cut = np.flatnonzero(long)
    if not len(cut):
        return _percents(pl.Series(numbers))
    whole, rest = np.divmod(millionths[cut].astype(np.int64), 1_000_000)
    places = pl.Series(rest + 1_000_000).cast(pl.String).str.slice(1)  # six, with zeros before them
    spelled = pl.select(pl.concat_str(pl.Series(whole).cast(pl.String), pl.lit("."), places, pl.lit("%"))).to_series()
    if len(cut) == len(numbers):  # the usual case
        return spelled
    others = np.flatnonzero(~long)
    rows = np.empty(len(numbers), dtype=np.uint32)
    rows[cut] = np.arange(len(cut))
    rows[others] = np.arange(len(cut), len(numbers))
    return pl.concat([spelled, _percents(pl.Series(numbers[others]))]).gather(rows)


def _percents(numbers: pl.Series) -> pl.Series:
    texts = float_texts(numbers)
    long = texts.str.contains(_LONG_PERCENT).fill_null(value=False)
    if long.any():
        texts = texts.scatter(long.arg_true(), [f"{number:.6f}" for number in numbers.filter(long).to_list()])
    return cast("pl.Series", texts + "%")


_TITLES = ("Max", "Min", "Mean", "Norm")
_TEXTS = ["name", "file", "meaning", "digest", "value_digest", *(f"{stat}_text" for stat in STATS)]
_NO_VALUE = '":{"value":"null"}'


@dataclass(frozen=True, slots=True)
class Style:
    """How a file generation spells values."""

    number: Callable[[pl.Series], pl.Series]
    requires_grad: bool


DB = Style(float_texts, requires_grad=True)  # all digits
VIS = Style(six_digits, requires_grad=False)


@dataclass(frozen=True, slots=True)
class CallTexts:
    """The JSON objects of some calls' inputs and outputs, by the calls' places."""

    first: int
    inputs: list[str]
    outputs: list[str]


class ValueTexts:
    """Renders the values of a run, call after call.

    ``more(start, end)`` gives text to append inside the objects of these rows (the metrics); ``instead`` replaces
    whole objects by row number.
    """

    def __init__(
        self, run: Run, style: Style, more: Callable[[int, int], pl.Series] | None, instead: dict[int, str]
    ) -> None:
        self._run, self._style, self._more, self._instead = run, style, more, instead
        self._table = escaped_columns(run.table, _TEXTS)
        # What many values have in common (type, shape and the like) is spelled once for all of them: the text before
        # and after the numbers of each row. One that is no tensor has its value in between.
        looks = run.table.select(_COLUMNS)
        first, self._look_of_row = _distinct(looks)
        spelled = [_description(style.requires_grad, *row) for row in looks[first].iter_rows()]
        self._before, self._after = (pl.Series([look[part] for look in spelled], dtype=pl.String) for part in (0, 1))
        self._digests = run.table["digest"].null_count() < run.table.height
        self._files = run.table["file"].null_count() < run.table.height

    def pieces(self, calls_at_a_time: int) -> Iterator[CallTexts]:
        """All calls in order, some at a time; inside a call its outputs come last."""
        table, count = self._run.table, len(self._run.ops)
        half = table["op"].to_numpy() * 2 + (table["role"] == OUTPUT).to_numpy()
        bounds = np.searchsorted(half, np.arange(2 * count + 1)).tolist()
        for start in range(0, count, calls_at_a_time):
            stop = min(start + calls_at_a_time, count)
            row, end = bounds[2 * start], bounds[2 * stop]
            lines = self._lines(row, end).to_list()
            objects = [
                f"{{{','.join(lines[first - row : last - row])}}}" if last > first else "{}"
                for first, last in pairwise(bounds[2 * start : 2 * stop + 1])
            ]
            yield CallTexts(start, objects[::2], objects[1::2])

    def _lines(self, row: int, end: int) -> pl.Series:
        """Each row with its name, as a member of an object."""
        table = self._table.slice(row, end - row)
        before, after = (texts.gather(self._look_of_row[row:end]) for texts in (self._before, self._after))
        statistics = _statistics(table, self._style)
        parts: list[Any] = [pl.lit('"'), "name", before]
        if (table["kind"] == VALUE).any():
            no_grad = '","requires_grad":"null' if self._style.requires_grad else ""
            value = pl.concat_str(pl.coalesce("meaning", statistics[0]), pl.lit(f'","data_name":"-1{no_grad}'))
            parts.append(pl.when(pl.col("kind") == VALUE).then(value).otherwise(pl.lit("")))
        for title, texts in zip(_TITLES, statistics, strict=True):
            parts += [pl.lit(f'","{title}":"'), texts]
        parts.append(after)
        if self._digests:
            digest = pl.coalesce("digest", "value_digest")
            parts.append(pl.when(digest.is_null()).then(pl.lit("")).otherwise(pl.lit('","md5":"') + digest))
        file = pl.col("file").fill_null("-1") if self._files else pl.lit("-1")
        named = pl.concat_str(pl.lit('","data_name":"'), file, pl.lit('"'))
        parts.append(pl.when(pl.col("kind") == TENSOR).then(named).otherwise(pl.lit('"')))
        if self._more is not None:
            parts.append(self._more(row, end))
        text: pl.Expr = pl.concat_str([*parts, pl.lit("}")])
        if (table["kind"] == NULL).any():
            nothing = pl.concat_str(pl.lit('"'), "name", pl.lit(_NO_VALUE))
            text = pl.when(pl.col("kind") == NULL).then(nothing).otherwise(text)
        if self._instead:
            instead = pl.Series([self._instead.get(index) for index in range(row, end)], dtype=pl.String)
            text = pl.coalesce(pl.lit('"') + pl.col("name") + '":' + instead, text)
        return table.select(text).to_series()


def _statistics(table: pl.DataFrame, style: Style) -> list[pl.Series]:
    """The texts of the four statistics, made as one long column, since many short ones cost more."""
    texts = style.number(pl.concat([table[stat] for stat in STATS]))
    words = pl.concat([table[f"{stat}_text"] for stat in STATS])
    if words.null_count() < len(words):
        word = pl.when(words == "None").then(pl.lit("null")).otherwise(words)
        texts = pl.select(pl.coalesce(word, texts)).to_series()
    texts = texts.fill_null("null")
    return [texts[index : index + table.height] for index in range(0, len(texts), table.height)]


# All that is rendered of a pair table; the rest may go before anything is written.
NEEDED = (
    "g_row", "t_kind", "t_requires_grad", "g_requires_grad", "t_digest", "g_digest", "t_value_digest", "g_value_digest",
    *(f"t_{stat}_kind" for stat in STATS), *(f"g_{stat}" for stat in STATS),
)  # fmt: skip
_CASES = [{NAN: "Nan", PLUS_INF: "inf", MINUS_INF: "-inf"}.get(case, NOT_APPLICABLE) for case in range(16)]


class MetricTexts:
    """Renders the metrics and verdicts of a comparison for slices of the target's rows."""

    def __init__(self, comparison: Comparison, style: Style) -> None:
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
        evidence = self._evidence
        pairs = evidence.pairs.slice(start, end - start)
        columns: list[pl.Series | pl.Expr] = []
        if evidence.metrics is not None:
            metrics = evidence.metrics.slice(start, end - start)
            texts = metric_columns(metrics.with_columns(escaped(metrics["status"])), self._style.number)
            columns += [column.alias(title) for title, column in texts.items()]
        elif evidence.differences is not None:
            columns += self._differences(pairs, start, end)
        if self._style is DB:
            same = pl.col("t_requires_grad").eq_missing(pl.col("g_requires_grad"))
            agree = pl.when(same).then(pl.lit("True")).otherwise(pl.lit("False")).alias("Requires_grad Consistent")
            result = self._verdict[start:end]
            columns += [result, agree] if evidence.mode == DIGESTS else [agree, result]
            columns.append(self._message[start:end])
        elif evidence.mode == DIGESTS:
            target, golden = (pl.coalesce(f"{side}_digest", f"{side}_value_digest") for side in "tg")
            same = target.eq_missing(golden)
            columns.append(pl.when(same).then(pl.lit("pass")).otherwise(pl.lit("Different")).alias("Result"))
        parts: list[pl.Expr] = []
        for column in columns:
            title = column.name if isinstance(column, pl.Series) else column.meta.output_name()
            parts += [pl.lit(f',"{title}":"'), pl.col(title), pl.lit('"')]
        compared = pl.col("g_row").is_not_null() & (pl.col("t_kind") != NULL)
        text = pl.when(compared).then(pl.concat_str(parts)).otherwise(pl.lit(""))
        return pairs.with_columns(columns).select(text).to_series()

    def _differences(self, pairs: pl.DataFrame, start: int, end: int) -> list[pl.Series]:
        """All four statistics in one long column, since many short ones cost more."""
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
        known, diff = number | same, np.where(number, diff, 0.0)
        texts = self._style.number(pl.Series(diff))
        whole = np.flatnonzero(known & (kind != FLOAT))
        if len(whole):
            spelled = [str(int(value)) if value == value // 1 else repr(value) for value in diff[whole].tolist()]
            texts = texts.scatter(whole, spelled)
        texts = texts.scatter(np.flatnonzero(~known), _words(case[~known]))
        shares = percents(pl.Series(np.where(number & shown, relative, 0.0)))
        shares = shares.scatter(np.flatnonzero(~shown), _words(case[~shown]))
        size = end - start
        columns = [
            texts[block * size : (block + 1) * size].alias(title) for block, title in enumerate(DIFFERENCES.values())
        ]
        titles = enumerate(RELATIVES.values())
        return columns + [shares[block * size : (block + 1) * size].alias(title) for block, title in titles]


def _words(case: NDArray[np.uint8]) -> pl.Series:
    return pl.Series(_CASES).gather(pl.Series(case, dtype=pl.UInt32))
