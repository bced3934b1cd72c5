"""The result table as a workbook.

The sheets are written as XML straight from polars' string columns. That is faster than the libraries tried, and it
allows numbers and texts in one column and fills over whole rows, both at once.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe.report.atomic import replacing
from twinprobe.report.kinds import STACK, as_texts
from twinprobe.report.xlsx_cells import SharedTexts, rows_xml
from twinprobe.report.xlsx_parts import column_letters, fixed_parts, sheet_end, sheet_start

if TYPE_CHECKING:
    import polars as pl

ROWS_PER_SHEET = 1_048_500
_BIG_MEMBER = 1_500_000_000  # bytes; near this a zip member needs the 64-bit form, which old readers do not know
_CELL_BYTES = 60
_NARROWEST, _WIDEST = 9, 60
_WIDEST_OF = {STACK: 40, "Err_message": 40, "Data_name": 40}


def write_xlsx(table: pl.DataFrame, path: Path, *, rows_per_sheet: int = ROWS_PER_SHEET) -> None:
    """Write a result table as a workbook: frozen and filtered header, coloured rows. Whole or not at all."""
    with replacing(path) as temporary:
        fill_xlsx(table, temporary, rows_per_sheet=rows_per_sheet)


def fill_xlsx(table: pl.DataFrame, path: Path, *, rows_per_sheet: int = ROWS_PER_SHEET) -> None:
    """Write the workbook to exactly this path."""
    frames = [table.slice(start, rows_per_sheet) for start in range(0, max(table.height, 1), rows_per_sheet)]
    names = ["Sheet1"] if len(frames) == 1 else [f"part_{i}" for i in range(len(frames))]
    areas = [f"$A$1:${column_letters(table.width - 1)}${frame.height + 1}" for frame in frames]
    texts = SharedTexts(table)
    widths = _widths(table)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, part in fixed_parts(names, areas).items():
            archive.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
        for i, (frame, area) in enumerate(zip(frames, areas, strict=True), 1):
            plain_area = area.replace("$", "")
            is_big = frame.height * frame.width * _CELL_BYTES > _BIG_MEMBER
            with archive.open(f"xl/worksheets/sheet{i}.xml", "w", force_zip64=is_big) as member:
                member.write(sheet_start(plain_area, widths, frame.columns).encode())
                for piece in rows_xml(frame, texts):
                    member.write(piece.encode())
                member.write(sheet_end(plain_area).encode())
        with archive.open("xl/sharedStrings.xml", "w", force_zip64=texts.bytes > _BIG_MEMBER) as member:
            for piece in texts.xml():
                member.write(piece.encode())


def _widths(table: pl.DataFrame) -> list[int]:
    """A width for every column, in characters: its longest text, within reason, and room for the filter button."""
    widths = []
    for name in table.columns:
        longest = as_texts(table[name]).str.len_chars().max()
        wanted = max(len(name) + 4, longest + 2 if isinstance(longest, int) else 0)
        widths.append(min(max(wanted, _NARROWEST), max(_WIDEST_OF.get(name, _WIDEST), len(name) + 4)))
    return widths
