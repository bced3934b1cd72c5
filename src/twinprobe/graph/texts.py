"""Numbers and words as graph files spell them: every value of a node is a text inside JSON."""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

from twinprobe.report.floats import float_texts

if TYPE_CHECKING:
    import polars as pl

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


def full_numbers(numbers: pl.Series) -> pl.Series:
    """All digits, as ``.vis.db`` files carry them: what Python's ``repr`` gives, without calling it for most."""
    import polars as pl

    texts: pl.Series = numbers.cast(pl.String)
    size = numbers.abs()
    # Polars writes 1.5e-7 where Python writes 1.5e-07, and no exponent at all just below 1e-4.
    texts = texts.str.replace(r"e-(\d)$", "e-0$1")
    odd = (((size < 1e-4) & (size >= 1e-5)) | (size >= 1e15) | ~numbers.is_finite()).fill_null(value=False)
    if odd.any():
        texts = texts.scatter(odd.arg_true(), [repr(number) for number in numbers.filter(odd).to_list()])
    return texts


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
    numbers = shares * 100
    texts = float_texts(numbers)
    long = texts.str.contains(_LONG_PERCENT).fill_null(value=False)
    if long.any():
        texts = texts.scatter(long.arg_true(), [f"{number:.6f}" for number in numbers.filter(long).to_list()])
    shown: pl.Series = texts + "%"
    return shown
