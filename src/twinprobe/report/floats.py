"""Numbers as text, written as Python writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

_AFTER_ZEROS = len("0.0000")


def float_texts(numbers: pl.Series) -> pl.Series:
    """The shortest text that reads back as the same float, in Python's own form; null stays null."""
    import polars as pl

    texts: pl.Series = numbers.cast(pl.String)
    # Polars and Python agree except on where the exponent form begins and how it looks.
    size = np.abs(numbers.cast(pl.Float64).fill_null(0.0).to_numpy())
    tiny = (size < 1e-4) & (size > 0)
    known = numbers.dtype == pl.Float64
    odd = np.flatnonzero((size >= 1e15) | np.isnan(size) | (tiny & (not known)))
    if len(odd):
        texts = texts.scatter(odd, [repr(number) for number in numbers.gather(odd).to_list()])
    if known and tiny.any():
        texts = _with_exponents(texts, size, tiny)
    return texts


def _with_exponents(texts: pl.Series, size: NDArray[np.float64], tiny: NDArray[np.bool_]) -> pl.Series:
    """Polars writes 1.5e-7 where Python writes 1.5e-07, and no exponent at all down to 1e-5."""
    import polars as pl

    text = pl.col("")
    short = np.flatnonzero(tiny & (size < 1e-5) & (size >= 1e-9))
    if len(short):
        head = text.str.slice(0, text.str.len_bytes() - 1)
        spelled = texts.gather(short).to_frame("").select(pl.concat_str(head, pl.lit("0"), text.str.tail(1)))
        texts = texts.scatter(short, spelled.to_series())
    plain = np.flatnonzero(tiny & (size >= 1e-5))
    if len(plain):
        digits = text.str.strip_prefix("-").str.slice(_AFTER_ZEROS)
        sign = pl.when(text.str.starts_with("-")).then(pl.lit("-")).otherwise(pl.lit(""))
        rest = pl.when(digits.str.len_bytes() > 1).then(pl.lit(".") + digits.str.slice(1)).otherwise(pl.lit(""))
        parts = pl.concat_str(sign, digits.str.head(1), rest, pl.lit("e-05"))
        texts = texts.scatter(plain, texts.gather(plain).to_frame("").select(parts).to_series())
    return texts
