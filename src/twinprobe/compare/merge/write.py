"""The merged workbook: a sheet per metric, written a block of rows at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe.compare.merge.groups import GroupCheck
from twinprobe.report.atomic import replacing
from twinprobe.report.kinds import FORMULA_START, HARMLESS, NUMBER
from twinprobe.report.xlsx_cells import cut_text
from twinprobe.report.xlsx_parts import (
    AS_TEXT,
    ERROR,
    PLAIN,
    TEXTS_END,
    column_letters,
    fixed_parts,
    sheet_end,
    sheet_start,
    texts_start,
)

if TYPE_CHECKING:
    import polars as pl

GROUP_SHEET = "Group check"
MOST_ROWS = 1_048_575
_CELLS_AT_ONCE = 1 << 18
_LONGEST_TEXT = 32_767
_BIG_MEMBER = 10_000_000  # cells; a sheet with more may need the 64-bit form of a zip member
# What XML cannot hold and no result of ours contains.
_FORBIDDEN = "[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"


@dataclass
class RankColumn:
    """One rank's cells: its rows' numbers in the merged table, ascending, and the file of its texts, one per metric."""

    rank: int
    rows: NDArray[np.uint32]
    cells: Path

    def block(self, metric: str, start: int, stop: int) -> pl.Series:
        """The texts of these rows, null where this rank has none."""
        import polars as pl

        low, high = np.searchsorted(self.rows, (start, stop))
        place = pl.Series([None] * (stop - start), dtype=pl.UInt32)
        place = place.scatter(self.rows[low:high] - start, np.arange(high - low, dtype=np.uint32))
        texts = pl.scan_ipc(self.cells).select(metric).slice(low, high - low).collect()
        return texts[metric].gather(place)


def write_merged(
    path: Path, names: pl.Series, metrics: list[str], columns: list[RankColumn], checks: list[GroupCheck]
) -> list[str]:
    """Write the workbook and return the names of its sheets."""
    import polars as pl

    marks = _marks(names, columns, checks)
    tables = [(metric, ["NPU Name", *(f"rank{column.rank}" for column in columns)], len(names)) for metric in metrics]
    report = _check_table(checks)
    if report.height:
        tables.append((GROUP_SHEET, report.columns, report.height))
    sheets = [name for name, _, _ in tables]
    areas = [f"$A$1:${column_letters(len(titles) - 1)}${height + 1}" for _, titles, height in tables]
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
        for name, part in fixed_parts(sheets, areas).items():
            zipped.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
        zipped.writestr(zipfile.ZipInfo("xl/sharedStrings.xml"), texts_start(0) + TEXTS_END)
        for number, ((name, titles, height), area) in enumerate(zip(tables, areas, strict=True), start=1):
            is_big = height * len(titles) > _BIG_MEMBER
            with zipped.open(f"xl/worksheets/sheet{number}.xml", "w", force_zip64=is_big) as member:
                widths = _check_widths(report) if name == GROUP_SHEET else _widths(names, columns)
                member.write(sheet_start(area.replace("$", ""), widths, titles).encode())
                if name == GROUP_SHEET:
                    style = report["Result"].replace_strict({"error": ERROR}, default=PLAIN, return_dtype=pl.UInt8)
                    _write_rows(member, report, 2, dict.fromkeys(report.columns, style))
                else:
                    _write_metric(member, name, names, columns, marks)
                member.write(sheet_end(area.replace("$", "")).encode())
    return sheets


def _write_metric(
    member: IO[bytes], metric: str, names: pl.Series, columns: list[RankColumn], marks: dict[int, NDArray[np.int64]]
) -> None:
    import polars as pl

    for start, stop in _blocks(len(names), len(columns) + 1):
        block = {"name": names.slice(start, stop - start)}
        styles = {}
        for column in columns:
            title = f"rank{column.rank}"
            block[title] = column.block(metric, start, stop)
            marked = marks.get(column.rank)
            if marked is not None:
                here = marked[(marked >= start) & (marked < stop)] - start
                styles[title] = pl.zeros(stop - start, pl.UInt8, eager=True).scatter(here, ERROR)
        _write_rows(member, pl.DataFrame(block), start + 2, styles)


def _blocks(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    step = max(_CELLS_AT_ONCE // columns, 1)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def _write_rows(member: IO[bytes], block: pl.DataFrame, first_row: int, styles: dict[str, pl.Series]) -> None:
    import polars as pl

    frame = {"row": pl.Series(range(first_row, first_row + block.height)).cast(pl.String)}
    pieces = [pl.lit('<row r="'), pl.col("row"), pl.lit('">')]
    for at, title in enumerate(block.columns):
        frame[f"cell{at}"] = _cells(block[title], column_letters(at), frame["row"], styles.get(title))
        pieces.append(pl.col(f"cell{at}"))
    pieces.append(pl.lit("</row>"))
    xml = pl.DataFrame(frame).select(pl.concat_str(pieces).str.join("")).item()
    member.write(xml.encode())


def _cells(texts: pl.Series, letters: str, rows: pl.Series, style: pl.Series | None) -> pl.Series:
    """A column's cells as XML: numbers as numbers, texts as they are, nothing where there is nothing to show."""
    import polars as pl

    text = pl.col("text")
    number = text.str.contains(NUMBER) & text.cast(pl.Float64, strict=False).is_finite()
    formula = text.str.contains(f"^[{FORMULA_START}]") & ~text.str.contains(HARMLESS)
    shown_style = pl.col("style") + pl.when(formula).then(AS_TEXT).otherwise(0).cast(pl.UInt8)
    head = pl.concat_str(pl.lit(f'<c r="{letters}'), pl.col("row"), pl.lit('" s="'), shown_style, pl.lit('"'))
    as_number = pl.concat_str(head, pl.lit("><v>"), text, pl.lit("</v></c>"))
    escaped = text.str.replace_all(_FORBIDDEN, "\ufffd").str.replace_many(["&", "<", ">"], ["&amp;", "&lt;", "&gt;"])
    as_text = pl.concat_str(
        head, pl.lit(' t="inlineStr"><is><t xml:space="preserve">'), escaped, pl.lit("</t></is></c>")
    )
    blank = text.is_null() | (text == "")
    cell = pl.when(blank).then(pl.lit("")).when(number).then(as_number).otherwise(as_text)
    frame = pl.DataFrame({"text": _cut(texts), "row": rows})
    column = style.alias("style") if style is not None else pl.lit(PLAIN, dtype=pl.UInt8).alias("style")
    return frame.with_columns(column).select(cell).to_series()


def _cut(texts: pl.Series) -> pl.Series:
    long = (texts.str.len_bytes() > _LONGEST_TEXT).fill_null(value=False)
    return texts.scatter(long.arg_true(), [cut_text(text) for text in texts.filter(long)]) if long.any() else texts


def _marks(names: pl.Series, columns: list[RankColumn], checks: list[GroupCheck]) -> dict[int, NDArray[np.int64]]:
    """Per rank the rows of the merged table whose cell disagrees with the rank's group."""
    import polars as pl

    places = [place for check in checks for place in check.places]
    if not places:
        return {}
    marked = pl.DataFrame(places, schema={"rank": pl.Int32, "name": pl.String}, orient="row")
    rows = pl.DataFrame({"name": names, "at": np.arange(len(names))})
    found = marked.join(rows, on="name").group_by("rank").agg("at")
    known = {column.rank for column in columns}
    return {rank: np.sort(np.asarray(at)) for rank, at in found.iter_rows() if rank in known}


def _check_table(checks: list[GroupCheck]) -> pl.DataFrame:
    """The sheet that says which groups agree; those that do not come first."""
    import polars as pl

    rows = [
        (
            check.name,
            check.group,
            "pass" if check.agrees else "error",
            _ranks(check.disagree),
            _ranks(check.missing),
            check.detail or f"{len(check.ranks)} ranks have the same output",
        )
        for check in sorted(checks, key=lambda check: check.agrees)
    ]
    titles = ["NPU Name", "Group", "Result", "Ranks That Disagree", "Ranks Without It", "Detail"]
    return pl.DataFrame(rows[:MOST_ROWS], schema=dict.fromkeys(titles, pl.String), orient="row")


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(f"rank{rank}" for rank in ranks)


def _widths(names: pl.Series, columns: list[RankColumn]) -> list[int]:
    longest = names.str.len_chars().max()
    return [min(max(int(str(longest or 0)) + 2, 20), 80)] + [24] * len(columns)


def _check_widths(report: pl.DataFrame) -> list[int]:
    return [min(max(int(str(report[title].str.len_chars().max())), len(title)) + 4, 80) for title in report.columns]
