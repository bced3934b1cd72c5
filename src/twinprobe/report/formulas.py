"""Texts that a spreadsheet would run as a formula, kept as text in csv files.

A csv file has no cell types: a spreadsheet runs ``=cmd`` whether it is quoted or not. Such a cell gets an apostrophe
in front, the spreadsheets' own sign for text. Numbers, percentages and infinities stay as they are, so a file differs
from what it would be without this only in cells that begin like a formula. ``unguarded`` takes the apostrophe off.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from twinprobe.report.kinds import FORMULA_START, HARMLESS

if TYPE_CHECKING:
    import polars as pl

# Where lists are separated by semicolons, spreadsheets cut a line there too; a tab or a line break does it anywhere.
_CUTS = ";\t\r\n"
_SUSPECT = f"(^|[{_CUTS}])'*[{FORMULA_START}]"
_PIECES = re.compile(f"([^{_CUTS}]+)")
_FORMULA = re.compile(f"'*[{FORMULA_START}]")
_GUARDED = re.compile(f"'+[{FORMULA_START}]")
_HARMLESS = re.compile(HARMLESS)


def guarded(column: pl.Series) -> pl.Series:
    """The column with an apostrophe before each piece of a text that begins like a formula."""
    import polars as pl

    # Most cells are numbers, and reading one as a number is far cheaper than two regular expressions.
    texts = column.filter(column.str.strip_suffix("%").cast(pl.Float64, strict=False).is_null()).unique()
    return _mapped(column, texts.filter(texts.str.contains(_SUSPECT) & ~texts.str.contains(HARMLESS)), _guard)


def unguarded(column: pl.Series) -> pl.Series:
    """The column as it was before ``guarded``."""
    texts = column.unique()
    return _mapped(column, texts.filter(texts.str.contains(f"'[{FORMULA_START}]")), _unguard)


def _mapped(column: pl.Series, texts: pl.Series, change: Callable[[str], str]) -> pl.Series:
    return column.replace(texts, [change(text) for text in texts]) if len(texts) else column


def _guard(text: str) -> str:
    def piece(match: re.Match[str]) -> str:
        found = match[0]
        return f"'{found}" if _FORMULA.match(found) and not _HARMLESS.match(found) else found

    return _PIECES.sub(piece, text)


def _unguard(text: str) -> str:
    return _PIECES.sub(lambda match: match[0][1:] if _GUARDED.match(match[0]) else match[0], text)
