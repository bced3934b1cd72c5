"""The inputs and outputs of nodes as JSON text, made in columns for many calls at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe.graph.looks import Looks
from twinprobe.graph.texts import escaped_columns, full_numbers, six_digits
from twinprobe.runs.leaf import NULL, TENSOR, VALUE
from twinprobe.runs.run import Run
from twinprobe.runs.table import OUTPUT, STATS

if TYPE_CHECKING:
    import polars as pl

_TITLES = ("Max", "Min", "Mean", "Norm")
_TEXTS = ["name", "file", "meaning", "digest", "value_digest", *(f"{stat}_text" for stat in STATS)]
_NO_VALUE = '":{"value":"null"}'


@dataclass(frozen=True, slots=True)
class Style:
    """How a file generation spells values."""

    number: Callable[[pl.Series], pl.Series]
    requires_grad: bool


DB = Style(full_numbers, requires_grad=True)
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
        self._run = run
        self._style = style
        self._more = more
        self._instead = instead
        self._table = escaped_columns(run.table, _TEXTS)
        self._looks = Looks(run.table, requires_grad=style.requires_grad)
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
        import polars as pl

        table = self._table.slice(row, end - row)
        before, after = self._looks.rows(row, end)
        statistics = _statistics(table, self._style)
        parts: list[Any] = [pl.lit('"'), "name", before]
        if (table["kind"] == VALUE).any():
            value = pl.coalesce("meaning", statistics[0])
            told = pl.concat_str(value, pl.lit(f'","data_name":"-1{self._no_grad}'))
            parts.append(pl.when(pl.col("kind") == VALUE).then(told).otherwise(pl.lit("")))
        for title, texts in zip(_TITLES, statistics, strict=True):
            parts += [pl.lit(f'","{title}":"'), texts]
        parts += [after, *self._ends()]
        if self._more is not None:
            parts.append(self._more(row, end))
        text: pl.Expr = pl.concat_str([*parts, pl.lit("}")])
        if (table["kind"] == NULL).any():
            nothing = pl.concat_str(pl.lit('"'), "name", pl.lit(_NO_VALUE))
            text = pl.when(pl.col("kind") == NULL).then(nothing).otherwise(text)
        if self._instead:
            instead = pl.Series([self._instead.get(at) for at in range(row, end)], dtype=pl.String)
            text = pl.coalesce(pl.lit('"') + pl.col("name") + '":' + instead, text)
        return table.select(text).to_series()

    @property
    def _no_grad(self) -> str:
        return '","requires_grad":"null' if self._style.requires_grad else ""

    def _ends(self) -> list[pl.Expr]:
        """What follows the looks of a row: its checksum, and of a tensor its file."""
        import polars as pl

        parts = []
        if self._digests:
            digest = pl.coalesce("digest", "value_digest")
            parts.append(pl.when(digest.is_null()).then(pl.lit("")).otherwise(pl.lit('","md5":"') + digest))
        name: pl.Expr = pl.lit('","data_name":"-1"')
        if self._files:
            name = pl.concat_str(pl.lit('","data_name":"'), pl.col("file").fill_null("-1"), pl.lit('"'))
        return [*parts, pl.when(pl.col("kind") == TENSOR).then(name).otherwise(pl.lit('"'))]


def _statistics(table: pl.DataFrame, style: Style) -> list[pl.Series]:
    """The texts of the four statistics, made as one long column, since many short ones cost more."""
    import polars as pl

    texts = style.number(pl.concat([table[stat] for stat in STATS]))
    words = pl.concat([table[f"{stat}_text"] for stat in STATS])
    if words.null_count() < len(words):
        word = pl.when(words == "None").then(pl.lit("null")).otherwise(words)
        texts = pl.select(pl.coalesce(word, texts)).to_series()
    texts = texts.fill_null("null")
    return [texts[at : at + table.height] for at in range(0, len(texts), table.height)]
