"""The result table as a workbook.

The sheets are written as XML straight from polars' string columns. That is faster than the libraries tried, and it
allows numbers and texts in one column and fills over whole rows, both at once.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from twinprobe._lazy import polars as pl
from twinprobe._report.tables import FORMULA_START, HARMLESS, NUMBER_TEXT, STACK, as_texts, number_columns, numbers_only

# The small fixed parts of a workbook: what it contains, its styles, the frame around each sheet's rows.

_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"

# Cell styles by number: plain, warning, error; the same for texts that look like a formula; the header.
PLAIN, WARNING, ERROR, AS_TEXT, HEADER = 0, 1, 2, 3, 6
_YELLOW, _RED, _GREY = "FFFFEB9C", "FFFFC7CE", "FFE7EBF0"


def column_letters(index: int) -> str:
    """Column 0 is A, 26 is AA."""
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def fixed_parts(sheets: list[str], areas: list[str]) -> dict[str, str]:
    """Every part but the sheets and the shared texts, by its path in the file."""
    numbered = list(enumerate(sheets, 1))
    overrides = "".join(
        f'<Override PartName="/xl/worksheets/sheet{i}.xml" ContentType="{_KIND}.worksheet+xml"/>' for i, _ in numbered
    )
    links = "".join(
        f'<Relationship Id="rId{i}" Type="{_LINKS}/worksheet" Target="worksheets/sheet{i}.xml"/>' for i, _ in numbered
    )
    listed = "".join(f'<sheet name={quoteattr(name)} sheetId="{i}" r:id="rId{i}"/>' for i, name in numbered)
    filters = "".join(
        f'<definedName name="_xlnm._FilterDatabase" localSheetId="{i}" hidden="1">\'{name}\'!{area}</definedName>'
        for i, (name, area) in enumerate(zip(sheets, areas, strict=True))
    )
    return {
        "[Content_Types].xml": f'{_HEAD}<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_KIND}.sheet.main+xml"/>{overrides}'
        f'<Override PartName="/xl/styles.xml" ContentType="{_KIND}.styles+xml"/>'
        f'<Override PartName="/xl/sharedStrings.xml" ContentType="{_KIND}.sharedStrings+xml"/></Types>',
        "_rels/.rels": f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="rId1" Type="{_LINKS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'{_HEAD}<workbook xmlns="{_MAIN}" xmlns:r="{_LINKS}"><sheets>{listed}</sheets>'
        f"<definedNames>{filters}</definedNames></workbook>",
        "xl/_rels/workbook.xml.rels": f'{_HEAD}<Relationships xmlns="{_PACKAGE}/relationships">{links}'
        f'<Relationship Id="rId{len(sheets) + 1}" Type="{_LINKS}/styles" Target="styles.xml"/>'
        f'<Relationship Id="rId{len(sheets) + 2}" Type="{_LINKS}/sharedStrings" Target="sharedStrings.xml"/>'
        "</Relationships>",
        "xl/styles.xml": _styles(),
    }


def _styles() -> str:
    fills = "".join(
        f'<fill><patternFill patternType="solid"><fgColor rgb="{colour}"/><bgColor indexed="64"/></patternFill></fill>'
        for colour in (_YELLOW, _RED, _GREY)
    )
    plain = "".join(
        f'<xf numFmtId="0" fontId="0" fillId="{fill}" borderId="0" xfId="0" applyFill="1"{quote}/>'
        for quote in ("", ' quotePrefix="1"')
        for fill in (0, 2, 3)
    )
    header = (
        '<xf numFmtId="0" fontId="1" fillId="4" borderId="1" xfId="0" applyFont="1" applyFill="1" applyBorder="1"/>'
    )
    reserved = '<fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill>'
    font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
    return (
        f'{_HEAD}<styleSheet xmlns="{_MAIN}"><fonts count="2"><font>{font}</font><font><b/>{font}</font></fonts>'
        f'<fills count="5">{reserved}{fills}</fills>'
        '<borders count="2"><border><left/><right/><top/><bottom/><diagonal/></border><border><left/>'
        '<right/><top/><bottom style="thin"><color rgb="FF8A94A3"/></bottom><diagonal/></border></borders>'
        '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
        f'<cellXfs count="{HEADER + 1}">{plain}{header}</cellXfs>'
        '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
    )


def sheet_start(area: str, widths: list[int], titles: list[str]) -> str:
    """All of a sheet before its first data row: frozen header, column widths, the header itself."""
    columns = "".join(
        f'<col min="{i}" max="{i}" width="{width}" customWidth="1"/>' for i, width in enumerate(widths, 1)
    )
    header = "".join(
        f'<c r="{column_letters(i)}1" s="{HEADER}" t="inlineStr"><is><t>{escape(title)}</t></is></c>'
        for i, title in enumerate(titles)
    )
    return (
        f'{_HEAD}<worksheet xmlns="{_MAIN}"><dimension ref="{area}"/><sheetViews><sheetView workbookViewId="0">'
        '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/>'
        '<selection pane="bottomLeft" activeCell="A2" sqref="A2"/></sheetView></sheetViews>'
        f'<sheetFormatPr defaultRowHeight="15"/><cols>{columns}</cols><sheetData><row r="1">{header}</row>'
    )


def sheet_end(area: str) -> str:
    """All of a sheet after its last row: the filters, and no green corners on numbers kept as text."""
    return (
        f'</sheetData><autoFilter ref="{area}"/>'
        f'<ignoredErrors><ignoredError sqref="{area}" numberStoredAsText="1"/></ignoredErrors></worksheet>'
    )


def texts_start(count: int) -> str:
    """The head of the table of shared texts."""
    return f'{_HEAD}<sst xmlns="{_MAIN}" uniqueCount="{count}">'


TEXTS_END = "</sst>"


# Rows of a sheet as XML, made a few thousand at a time with polars' string columns.

_CHUNK = 8192
_SLAB = 16 * _CHUNK
_LONGEST_TEXT = 32_767  # Excel's limit, in UTF-16 units
# Characters that XML cannot hold are written as Excel does, _x001B_; a text that looks like that already is kept apart.
_FORBIDDEN = [chr(code) for code in range(32) if chr(code) not in "\t\n"] + ["\ufffe", "\uffff"]
_SPELLED = [f"_x{ord(letter):04X}_" for letter in _FORBIDDEN]
_LOOKS_SPELLED = r"_(x[0-9A-Fa-f]{4}_)"
_UNWRITABLE = "[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"


class SharedTexts:
    """Every distinct text of a table once; a cell names it by its place. Formula-like texts have the first places."""

    def __init__(self, table: pl.DataFrame) -> None:
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
        # One look-up of all columns laid end to end: the texts are hashed once and not once for every column.
        cells = pl.concat([as_texts(table[name]).alias("text") for name in table.columns])
        place = cells.replace_strict(self.texts, self._numbering, default=None, return_dtype=pl.UInt32)
        return pl.DataFrame({name: place.slice(i * table.height, table.height) for i, name in enumerate(table.columns)})

    def xml(self) -> Iterator[str]:
        """The part of the workbook that holds the texts."""
        yield texts_start(len(self.texts))
        for start in range(0, len(self.texts), _CHUNK):
            texts = _cut(self.texts.slice(start, _CHUNK)).str.replace_all(_LOOKS_SPELLED, "_x005F_${1}")
            texts = texts.str.replace_many(["&", "<", ">", *_FORBIDDEN], ["&amp;", "&lt;", "&gt;", *_SPELLED])
            pieces = pl.concat_str(pl.lit('<si><t xml:space="preserve">'), texts, pl.lit("</t></si>"))
            yield pl.select(pieces.str.join("")).item()
        yield TEXTS_END


def _cut(texts: pl.Series) -> pl.Series:
    long = (texts.str.len_bytes() > _LONGEST_TEXT).fill_null(value=False)  # never fewer bytes than UTF-16 units
    if not long.any():
        return texts
    return texts.scatter(long.arg_true(), [cut_text(text) for text in texts.filter(long)])


def cut_text(text: str) -> str:
    """The text, ended with an ellipsis where a cell can hold no more."""
    units = text.encode("utf-16-le")
    if len(units) <= 2 * _LONGEST_TEXT:
        return text
    return units[: 2 * (_LONGEST_TEXT - 1)].decode("utf-16-le", errors="ignore") + "…"


def rows_xml(table: pl.DataFrame, texts: SharedTexts) -> Iterator[str]:
    """The data rows of one sheet, from row 2 on."""
    for slab in range(0, table.height, _SLAB):
        places = texts.places(table.slice(slab, _SLAB))
        for start in range(0, places.height, _CHUNK):
            chunk = table.slice(slab + start, _CHUNK)
            yield _rows(chunk, places.slice(start, _CHUNK), texts.formulas, slab + start + 2)


def _rows(chunk: pl.DataFrame, places: pl.DataFrame, formulas: int, first_row: int) -> str:
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


def inline_rows_xml(block: pl.DataFrame, first_row: int, styles: dict[str, pl.Series]) -> str:
    """Rows whose texts stand in their cells, for tables too large to gather their texts; a blank cell is left out.

    Every column is text; a text that is a number becomes one. ``styles`` are the cells' own, by column.
    """
    text = pl.col("text")
    number = text.str.contains(NUMBER_TEXT) & text.cast(pl.Float64, strict=False).is_finite()
    formula = text.str.contains(f"^[{FORMULA_START}]") & ~text.str.contains(HARMLESS)
    style = pl.col("style") + pl.when(formula).then(AS_TEXT).otherwise(0).cast(pl.UInt8)
    escaped = text.str.replace_all(_UNWRITABLE, "\ufffd").str.replace_many(["&", "<", ">"], ["&amp;", "&lt;", "&gt;"])
    rows = pl.Series(range(first_row, first_row + block.height)).cast(pl.String)
    plain = pl.zeros(block.height, pl.UInt8, eager=True)
    cells = []
    for index, title in enumerate(block.columns):
        head = pl.concat_str(
            pl.lit(f'<c r="{column_letters(index)}'), pl.col("row"), pl.lit('" s="'), style, pl.lit('"')
        )
        as_number = pl.concat_str(head, pl.lit("><v>"), text, pl.lit("</v></c>"))
        opening = pl.lit(' t="inlineStr"><is><t xml:space="preserve">')
        as_text = pl.concat_str(head, opening, escaped, pl.lit("</t></is></c>"))
        blank = text.is_null() | (text == "")
        cell = pl.when(blank).then(pl.lit("")).when(number).then(as_number).otherwise(as_text)
        frame = pl.DataFrame({"text": _cut(block[title]), "row": rows, "style": styles.get(title, plain)})
        cells.append(frame.select(cell.alias(f"cell{index}")).to_series())
    line = pl.concat_str(pl.lit('<row r="'), rows.alias("row"), pl.lit('">'), *cells, pl.lit("</row>"))
    return str(pl.select(line.str.join("")).item())


# Workbooks: of one result table, or of any sheets whose rows are made by their owner.

ROWS_PER_SHEET = 1_048_500
_BIG_MEMBER = 1_500_000_000  # bytes; near this a zip member needs the 64-bit form, which old readers do not know
_NARROWEST, _WIDEST = 9, 60
_WIDEST_OF = {STACK: 40, "Err_message": 40, "Data_name": 40}


class Sheet(NamedTuple):
    """One sheet: its header, and its data rows as pieces of XML from row 2 on."""

    name: str
    titles: list[str]
    widths: list[int]
    height: int
    rows: Iterable[str]
    cell_bytes: int = 60
    """About how long a cell is."""


def fill_workbook(path: Path, sheets: Sequence[Sheet], texts: SharedTexts | None = None) -> None:
    """Write sheets to exactly this path, each with a frozen and filtered header; ``texts`` are those they share."""
    areas = [f"$A$1:${column_letters(len(sheet.titles) - 1)}${sheet.height + 1}" for sheet in sheets]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, part in fixed_parts([sheet.name for sheet in sheets], areas).items():
            archive.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
        for i, (sheet, area) in enumerate(zip(sheets, areas, strict=True), 1):
            plain_area = area.replace("$", "")
            is_big = sheet.height * len(sheet.titles) * sheet.cell_bytes > _BIG_MEMBER
            with archive.open(f"xl/worksheets/sheet{i}.xml", "w", force_zip64=is_big) as member:
                member.write(sheet_start(plain_area, sheet.widths, sheet.titles).encode())
                for piece in sheet.rows:
                    member.write(piece.encode())
                member.write(sheet_end(plain_area).encode())
        is_big = texts is not None and texts.bytes > _BIG_MEMBER
        with archive.open("xl/sharedStrings.xml", "w", force_zip64=is_big) as member:
            for piece in texts.xml() if texts is not None else [texts_start(0) + TEXTS_END]:
                member.write(piece.encode())


def fill_xlsx(table: pl.DataFrame, path: Path, *, rows_per_sheet: int = ROWS_PER_SHEET) -> None:
    """Write a result table as a workbook with coloured rows, to exactly this path."""
    frames = [table.slice(start, rows_per_sheet) for start in range(0, max(table.height, 1), rows_per_sheet)]
    names = ["Sheet1"] if len(frames) == 1 else [f"part_{i}" for i in range(len(frames))]
    texts = SharedTexts(table)
    widths = _widths(table)
    sheets = [
        Sheet(name, table.columns, widths, frame.height, rows_xml(frame, texts))
        for name, frame in zip(names, frames, strict=True)
    ]
    fill_workbook(path, sheets, texts)


def _widths(table: pl.DataFrame) -> list[int]:
    """A width for every column, in characters: its longest text, within reason, and room for the filter button."""
    widths = []
    for name in table.columns:
        longest = as_texts(table[name]).str.len_chars().max()
        wanted = max(len(name) + 4, longest + 2 if isinstance(longest, int) else 0)
        widths.append(min(max(wanted, _NARROWEST), max(_WIDEST_OF.get(name, _WIDEST), len(name) + 4)))
    return widths
