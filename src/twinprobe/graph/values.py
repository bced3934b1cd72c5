"""The inputs and outputs of nodes as JSON text, made in columns for many calls at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from twinprobe.graph.texts import escaped_columns, full_numbers, six_digits
from twinprobe.runs.leaf import NULL, TENSOR
from twinprobe.runs.run import Run
from twinprobe.runs.table import OUTPUT, STATS

if TYPE_CHECKING:
    import polars as pl

_TENSOR_TYPES = {"mindspore": "mindspore.Tensor", "paddle": "paddle.Tensor"}
_TITLES = {"max": "Max", "min": "Min", "mean": "Mean", "norm": "Norm"}
_TEXTS = ["name", "dtype", "shape", "file", "meaning", "digest", "value_digest", *(f"{stat}_text" for stat in STATS)]
_NO_VALUE = '"value":"null"'


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
        self._has_digest = bool(run.table["digest"].is_not_null().any())

    def pieces(self, calls_at_a_time: int) -> Iterator[CallTexts]:
        """All calls in order, some at a time."""
        count = len(self._run.ops)
        ends = np.searchsorted(self._run.table["op"].to_numpy(), np.arange(count + 1)).tolist()
        for start in range(0, count, calls_at_a_time):
            stop = min(start + calls_at_a_time, count)
            yield self._piece(start, stop, ends[start], ends[stop])

    def _piece(self, start: int, stop: int, row: int, end: int) -> CallTexts:
        import polars as pl

        table = escaped_columns(self._run.table.slice(row, end - row), _TEXTS)
        numbers = self._style.number(pl.concat([table[stat] for stat in STATS]))
        size = end - row
        spelled = [numbers[at * size : (at + 1) * size].alias(f"{stat}_number") for at, stat in enumerate(STATS)]
        more = self._more(row, end).alias("more") if self._more is not None else pl.lit("").alias("more")
        frame = table.lazy().with_columns(*spelled, more)
        text: pl.Expr = pl.concat_str(pl.lit('"'), "name", pl.lit('":{'), *self._members(), pl.lit("}"))
        if self._instead:
            instead = pl.Series([self._instead.get(at) for at in range(row, end)], dtype=pl.String)
            text = pl.coalesce(pl.lit('"') + pl.col("name") + '":' + instead, text)
        lines = frame.select(text).collect().to_series().to_list()
        return CallTexts(start, *self._joined(lines, start, stop, row, end))

    def _joined(self, lines: list[str], start: int, stop: int, row: int, end: int) -> tuple[list[str], list[str]]:
        """The rows of each call put together; inside a call its outputs come last."""
        table = self._run.table
        place = table["op"][row:end].to_numpy() * 2 + (table["role"][row:end] == OUTPUT).to_numpy()
        bounds = np.searchsorted(place, np.arange(2 * start, 2 * stop + 1)).tolist()
        objects = [f"{{{','.join(lines[first:last])}}}" if last > first else "{}" for first, last in pairwise(bounds)]
        return objects[::2], objects[1::2]

    def _members(self) -> list[pl.Expr]:
        """The inside of a row's object: what tensors and plain values share is in the middle."""
        import polars as pl

        kind = pl.col("kind")
        framework = _TENSOR_TYPES.get(self._run.framework, "torch.Tensor")
        dtype, shape = pl.col("dtype").fill_null(""), pl.col("shape").fill_null("[]")
        plain = dtype.str.strip_prefix("<class ").str.strip_suffix(">")
        value = pl.coalesce("meaning", _statistic("max"))
        no_grad = '","requires_grad":"null' if self._style.requires_grad else ""
        head = _of_kind(
            [pl.lit(f'"type":"{framework}","dtype":"'), dtype, pl.lit('","shape":"'), shape],
            [pl.lit('"type":"'), plain, pl.lit('","value":"'), value, pl.lit(f'","data_name":"-1{no_grad}')],
        )
        tail = _of_kind(
            [*self._grad(), *self._digest(), pl.lit('","data_name":"'), pl.col("file").fill_null("-1")],
            [pl.lit('","dtype":"'), dtype, pl.lit('","shape":"'), shape, *self._digest()],
        )
        known = [head, *_statistics(), tail, pl.lit('"'), pl.col("more")]
        return [pl.when(kind == NULL).then(pl.lit(_NO_VALUE)).otherwise(pl.concat_str(known))]

    def _grad(self) -> list[pl.Expr]:
        import polars as pl

        if not self._style.requires_grad:
            return []
        flag = pl.when("requires_grad").then(pl.lit("True")).otherwise(pl.lit("False"))
        known = pl.when(pl.col("requires_grad").is_null()).then(pl.lit("null")).otherwise(flag)
        return [pl.lit('","requires_grad":"'), known]

    def _digest(self) -> list[pl.Expr]:
        import polars as pl

        if not self._has_digest:
            return []
        digest = pl.coalesce("digest", "value_digest")
        return [pl.when(digest.is_null()).then(pl.lit("")).otherwise(pl.lit('","md5":"') + digest)]


def _of_kind(tensor: list[pl.Expr], value: list[pl.Expr]) -> pl.Expr:
    import polars as pl

    return pl.when(pl.col("kind") == TENSOR).then(pl.concat_str(tensor)).otherwise(pl.concat_str(value))


def _statistics() -> list[pl.Expr]:
    import polars as pl

    return [piece for stat in STATS for piece in (pl.lit(f'","{_TITLES[stat]}":"'), _statistic(stat))]


def _statistic(stat: str) -> pl.Expr:
    import polars as pl

    text = pl.col(f"{stat}_text")
    return pl.coalesce(pl.when(text == "None").then(pl.lit("null")).otherwise(text), f"{stat}_number", pl.lit("null"))
