"""Rows of a sheet as XML, made a few thousand at a time with polars' string columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twinprobe.report.kinds import FORMULA_START, HARMLESS, as_texts, number_columns, numbers_only
from twinprobe.report.xlsx_parts import AS_TEXT, ERROR, PLAIN, TEXTS_END, WARNING, column_letters, texts_start

if TYPE_CHECKING:
    import polars as pl

_CHUNK = 8192
_SLAB = 16 * _CHUNK
_LONGEST_TEXT = 32_767  # Excel's limit, in UTF-16 units
# Characters that XML cannot hold are written as Excel does, _x001B_; a text that looks like that already is kept apart.
_FORBIDDEN = [chr(code) for code in range(32) if chr(code) not in "\t\n"] + ["\ufffe", "\uffff"]
_SPELLED = [f"_x{ord(letter):04X}_" for letter in _FORBIDDEN]
_LOOKS_SPELLED = r"_(x[0-9A-Fa-f]{4}_)"


class SharedTexts:
    """Every distinct text of a table once; a cell names it by its place. Formula-like texts have the first places."""

    def __init__(self, table: pl.DataFrame) -> None:
        import polars as pl

        numbers = number_columns(table)
        parts = []
        for name in table.columns:
            column = as_texts(table[name]).unique(maintain_order=True).drop_nulls()
            keep = column != ""
            if name in numbers:
                keep &= numbers_only(column).is_null()
            parts.append(column.filter(keep).alias("text"))
        texts = pl.concat(parts).unique(maintain_order=True)
        formula = texts.str.contains(f"^[{FORMULA_START}]") & ~texts.str.contains(HARMLESS)
        self.formulas = int(formula.sum())
        self.texts = pl.concat([texts.filter(formula), texts.filter(~formula)])
        self._numbering = pl.Series(range(len(texts)), dtype=pl.UInt32)
        self.bytes = int(self.texts.str.len_bytes().sum()) + 50 * len(texts)

    def places(self, table: pl.DataFrame) -> pl.DataFrame:
        """The place of each cell's text; null for a number and for an empty cell."""
        import polars as pl

        # One look-up of all columns laid end to end: the texts are hashed once and not once for every column.
        cells = pl.concat([as_texts(table[name]).alias("text") for name in table.columns])
        found = cells.replace_strict(self.texts, self._numbering, default=None, return_dtype=pl.UInt32)
        return pl.DataFrame({name: found.slice(i * table.height, table.height) for i, name in enumerate(table.columns)})

    def xml(self) -> Iterator[str]:
        """The part of the workbook that holds the texts."""
        import polars as pl

        yield texts_start(len(self.texts))
        for start in range(0, len(self.texts), _CHUNK):
            texts = _escaped(_cut(self.texts.slice(start, _CHUNK)))
            pieces = pl.concat_str(pl.lit('<si><t xml:space="preserve">'), texts, pl.lit("</t></si>"))
            yield pl.select(pieces.str.join("")).item()
        yield TEXTS_END


def _cut(texts: pl.Series) -> pl.Series:
    long = texts.str.len_bytes() > _LONGEST_TEXT  # never fewer bytes than UTF-16 units
    if not long.any():
        return texts
    return texts.scatter(long.arg_true(), [cut_text(text) for text in texts.filter(long)])


def cut_text(text: str) -> str:
    """The text, ended with an ellipsis where a cell can hold no more."""
    units = text.encode("utf-16-le")
    if len(units) <= 2 * _LONGEST_TEXT:
        return text
    return units[: 2 * (_LONGEST_TEXT - 1)].decode("utf-16-le", errors="ignore") + "…"


def _escaped(texts: pl.Series) -> pl.Series:
    texts = texts.str.replace_all(_LOOKS_SPELLED, "_x005F_${1}")
    return texts.str.replace_many(["&", "<", ">", *_FORBIDDEN], ["&amp;", "&lt;", "&gt;", *_SPELLED])


def rows_xml(table: pl.DataFrame, texts: SharedTexts) -> Iterator[str]:
    """The data rows of one sheet, from row 2 on."""
    for slab in range(0, table.height, _SLAB):
        places = texts.places(table.slice(slab, _SLAB))
        for start in range(0, places.height, _CHUNK):
            chunk = table.slice(slab + start, _CHUNK)
            yield _rows(chunk, places.slice(start, _CHUNK), texts.formulas, slab + start + 2)


def _rows(chunk: pl.DataFrame, places: pl.DataFrame, formulas: int, first_row: int) -> str:
    import polars as pl

    styles = {"warning": WARNING, "error": ERROR}
    frame = {
        "row": pl.Series(range(first_row, first_row + chunk.height)).cast(pl.String),
        "style": chunk["Result"].replace_strict(styles, default=PLAIN, return_dtype=pl.UInt8),
    }
    numbers = number_columns(chunk)
    pieces = [pl.lit('<row r="'), pl.col("row"), pl.lit('">')]
    for i, name in enumerate(chunk.columns):
        frame[f"place{i}"] = places[name]
        if name in numbers:
            frame[f"number{i}"] = numbers_only(as_texts(chunk[name]))
        pieces += _cell(i, name in numbers, places[name], formulas)
    pieces.append(pl.lit("</row>"))
    mark = pl.concat_str(pl.col("row"), pl.lit('" s="'), pl.col("style"), pl.lit('"'))
    rows = pl.DataFrame(frame).with_columns(mark.alias("mark")).select(pl.concat_str(pieces).str.join(""))
    return str(rows.item())


def _cell(i: int, is_number: bool, place: pl.Series, formulas: int) -> list[pl.Expr]:
    """The pieces that make up one cell of every row: a shared text, a number, or blank with the row's fill."""
    import polars as pl

    mark = pl.col("mark")
    if formulas and (place < formulas).any():
        quoted = pl.concat_str(pl.col("row"), pl.lit('" s="'), pl.col("style") + AS_TEXT, pl.lit('"'))
        mark = pl.when(pl.col(f"place{i}") < formulas).then(quoted).otherwise(mark)
    head = [pl.lit(f'<c r="{column_letters(i)}'), mark]
    shared = [pl.lit(' t="s"><v>'), pl.col(f"place{i}"), pl.lit("</v></c>")]
    if not is_number and not place.has_nulls():
        return head + shared
    body = pl.concat_str(shared)
    if is_number:
        number = pl.concat_str(pl.lit("><v>"), pl.col(f"number{i}"), pl.lit("</v></c>"))
        body = pl.coalesce(number, body)
    return [*head, body.fill_null("/>")]
