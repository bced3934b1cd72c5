"""Numbers as text, written as Python writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


def float_texts(numbers: pl.Series) -> pl.Series:
    """The shortest text that reads back as the same float, in Python's own form; null stays null."""
    import polars as pl

    texts: pl.Series = numbers.cast(pl.String)
    size = numbers.abs()
    # Polars and Python agree except on where the exponent form begins and how it looks.
    odd = (((size < 1e-4) & (size > 0)) | (size >= 1e15) | ~numbers.is_finite()).fill_null(value=False)
    if odd.any():
        spelled = [repr(number) for number in numbers.filter(odd).to_list()]
        texts = texts.scatter(odd.arg_true(), spelled)
    return texts
