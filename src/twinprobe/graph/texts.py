"""Numbers and words as graph files spell them: every value of a node is a text inside JSON."""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

import numpy as np

from twinprobe.report.floats import float_texts

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

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
    import polars as pl

    odd = table.select(pl.col(names).str.contains(r"""["'\\\x00-\x1f\x7f]""").any()).row(0, named=True)
    return table.with_columns(escaped(table[name]) for name in names if odd[name])


full_numbers = float_texts
"""All digits, as ``.vis.db`` files carry them."""


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
    import polars as pl

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
    spelled = pl.select(
        pl.concat_str(pl.Series(whole).cast(pl.String), pl.lit("."), _six_places(rest), pl.lit("%"))
    ).to_series()
    if len(cut) == len(numbers):
        return spelled
    others = np.flatnonzero(~long)
    places = np.empty(len(numbers), dtype=np.uint32)
    places[cut] = np.arange(len(cut))
    places[others] = np.arange(len(cut), len(numbers))
    return pl.concat([spelled, _percents(pl.Series(numbers[others]))]).gather(places)


def _six_places(numbers: NDArray[np.int64]) -> pl.Series:
    """Numbers below a million, with zeros before them."""
    import polars as pl

    texts: pl.Series = pl.Series(numbers + 1_000_000).cast(pl.String).str.slice(1)
    return texts


def _percents(numbers: pl.Series) -> pl.Series:
    texts = float_texts(numbers)
    long = texts.str.contains(_LONG_PERCENT).fill_null(value=False)
    if long.any():
        texts = texts.scatter(long.arg_true(), [f"{number:.6f}" for number in numbers.filter(long).to_list()])
    shown: pl.Series = texts + "%"
    return shown
