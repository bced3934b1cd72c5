"""The workbook, read back with another library."""

from __future__ import annotations

import zipfile
from pathlib import Path
from xml.etree import ElementTree

import openpyxl
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl.worksheet.worksheet import Worksheet
from report_tables import MODES, long_table, small_table, with_texts

from twinprobe._report.tables import METRICS, STATISTICS, number_columns
from twinprobe._report.xlsx import cut_text, fill_xlsx

FILLS = {"pass": None, "warning": "FFFFEB9C", "error": "FFFFC7CE"}
FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "->ij", "@SUM(A1)", "=1", "-x", "－1", "-", "="]


def sheet_of(table: pl.DataFrame, folder: Path) -> Worksheet:
    fill_xlsx(table, folder / "r.xlsx")
    return openpyxl.load_workbook(folder / "r.xlsx").active


def column_of(sheet: Worksheet, name: str) -> list[openpyxl.cell.Cell]:
    titles = [cell.value for cell in sheet[1]]
    return [row[titles.index(name)] for row in sheet.iter_rows(min_row=2)]


@pytest.mark.parametrize("mode", MODES)
def test_every_cell_comes_back_as_it_was(tmp_path: Path, mode: str) -> None:
    table = small_table(mode)
    sheet = sheet_of(table, tmp_path)
    assert [cell.value for cell in sheet[1]] == table.columns
    numbers = number_columns(table)
    for name in table.columns:
        for cell, text in zip(column_of(sheet, name), table[name], strict=True):
            if text in ("", None):
                assert cell.value is None
            elif name in numbers and _is_number(text):
                assert (cell.data_type, cell.value) == ("n", float(text))
            else:
                assert (cell.data_type, cell.value) == ("s", text)


def _is_number(text: object) -> bool:
    try:
        return abs(float(str(text))) < float("inf")
    except ValueError:
        return False


def test_statistics_and_metrics_are_numbers_but_differences_are_texts(tmp_path: Path) -> None:
    for mode, numeric, textual in (
        ("statistics", STATISTICS, ("Max diff", "MaxRelativeErr", "NormRelativeErr")),
        ("tensor", (*STATISTICS, *METRICS), ("Err_message",)),
    ):
        sheet = sheet_of(small_table(mode), tmp_path)
        for name in numeric:
            assert "n" in {cell.data_type for cell in column_of(sheet, name)}, name
        for name in textual:
            assert {cell.data_type for cell in column_of(sheet, name)} == {"s"}, name


def test_what_is_no_number_stays_text_in_a_number_column(tmp_path: Path) -> None:
    texts = ["N/A", "None", "Nan", "inf", "-inf", "unsupported", "True", "1e400", "9" * 500, "1_0", "0x10", "-"]
    sheet = sheet_of(with_texts(small_table(), "NPU max", texts), tmp_path)
    cells = column_of(sheet, "NPU max")[: len(texts)]
    assert [(cell.data_type, cell.value) for cell in cells] == [("s", text) for text in texts]


def test_rows_are_filled_from_end_to_end_by_their_verdict(tmp_path: Path) -> None:
    table = small_table()
    sheet = sheet_of(table, tmp_path)
    for row, verdict in zip(sheet.iter_rows(min_row=2), table["Result"], strict=True):
        colours = {cell.fill.fgColor.rgb if cell.fill.fill_type else None for cell in row}
        assert colours == {FILLS[verdict]}


def test_the_header_is_bold_frozen_and_filtered(tmp_path: Path) -> None:
    table = small_table()
    sheet = sheet_of(table, tmp_path)
    assert sheet.title == "Sheet1"
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref == sheet.dimensions
    assert all(cell.font.bold for cell in sheet[1])
    assert not any(cell.font.bold for cell in sheet[2])


def test_columns_are_wide_enough_to_read_and_not_endless(tmp_path: Path) -> None:
    sheet = sheet_of(small_table(), tmp_path)
    widths = [column.width for column in sheet.column_dimensions.values()]
    assert len(widths) == sheet.max_column
    assert all(9 <= width <= 60 for width in widths)
    assert sheet.column_dimensions["A"].width > 35


@pytest.mark.parametrize("column", ["NPU Name", "NPU max", "NPU_Stack_Info", "Reason"])
def test_texts_that_look_like_formulas_stay_texts(tmp_path: Path, column: str) -> None:
    sheet = sheet_of(with_texts(small_table(), column, FORMULAS), tmp_path)
    for cell, text, verdict in zip(column_of(sheet, column), FORMULAS, small_table()["Result"], strict=False):
        assert (cell.data_type, cell.value) == ("s", text)
        assert cell.quotePrefix, "editing the cell would run the formula"
        assert (cell.fill.fgColor.rgb if cell.fill.fill_type else None) == FILLS[verdict]
    assert not column_of(sheet, column)[len(FORMULAS)].quotePrefix


def test_negative_numbers_in_text_columns_are_not_taken_for_formulas(tmp_path: Path) -> None:
    texts = ["-0.5", "-1e-05", "-inf", "-3.5%", "+2"]
    sheet = sheet_of(with_texts(small_table(), "Max diff", texts), tmp_path)
    for cell, text in zip(column_of(sheet, "Max diff"), texts, strict=False):
        assert (cell.value, bool(cell.quotePrefix)) == (text, False)


def test_a_text_longer_than_a_cell_is_cut_with_an_ellipsis(tmp_path: Path) -> None:
    texts = ["a" * 32_767, "b" * 32_768, "é" * 40_000, "\U0001f600" * 20_000]
    sheet = sheet_of(with_texts(small_table(), "NPU_Stack_Info", texts), tmp_path)
    values = [cell.value for cell in column_of(sheet, "NPU_Stack_Info")[:4]]
    assert values == ["a" * 32_767, "b" * 32_766 + "…", "é" * 32_766 + "…", "\U0001f600" * 16_383 + "…"]
    assert all(len(value.encode("utf-16-le")) <= 2 * 32_767 for value in values)


def test_markup_and_control_characters_do_not_break_the_file(tmp_path: Path) -> None:
    texts = ["<b>&amp;</b>", "a\x00b\x1b[31m", "line\nbreak", "  blank  ", "\u202eabc", "_x0041_", "\ufffe", "cr\r"]
    sheet = sheet_of(with_texts(small_table(), "NPU Name", texts), tmp_path)
    values = [cell.value for cell in column_of(sheet, "NPU Name")[: len(texts)]]
    # The spelling _x001B_ is the format's own; the reader used here leaves it as it stands.
    assert values == [
        "<b>&amp;</b>", "a_x0000_b_x001B_[31m", "line\nbreak", "  blank  ", "\u202eabc", "_x0041_", "_xFFFE_",
        "cr_x000D_",
    ]  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=3, max_size=6))
def test_any_text_gives_a_well_formed_workbook(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("xlsx") / "r.xlsx"
    fill_xlsx(with_texts(with_texts(small_table(), "NPU Name", texts), "NPU max", texts), path)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            ElementTree.fromstring(archive.read(name))


@given(st.text(max_size=50))
def test_short_texts_are_never_cut(text: str) -> None:
    assert cut_text(text.encode("utf-8", "replace").decode()) == text.encode("utf-8", "replace").decode()


def test_a_table_too_long_for_one_sheet_goes_on_in_the_next(tmp_path: Path) -> None:
    table = long_table(25)
    fill_xlsx(table, tmp_path / "r.xlsx", rows_per_sheet=10)
    book = openpyxl.load_workbook(tmp_path / "r.xlsx")
    assert book.sheetnames == ["part_0", "part_1", "part_2"]
    assert [book[name].max_row - 1 for name in book.sheetnames] == [10, 10, 5]
    names = [cell.value for name in book.sheetnames for cell in book[name]["A"][1:]]
    assert names == table["NPU Name"].to_list()
    assert all(book[name].freeze_panes == "A2" and book[name].auto_filter.ref for name in book.sheetnames)


def test_rows_keep_their_place_across_the_pieces_they_are_written_in(tmp_path: Path) -> None:
    table = long_table(17_000).select("NPU Name", "Result", "Relative Error")
    fill_xlsx(table, tmp_path / "r.xlsx")
    sheet = openpyxl.load_workbook(tmp_path / "r.xlsx", read_only=True).active
    rows = list(sheet.iter_rows(min_row=2, values_only=True))
    assert [row[0] for row in rows] == table["NPU Name"].to_list()
    assert [row[-1] for row in rows] == table["Relative Error"].to_list()


def test_an_empty_table_gives_a_sheet_with_a_header(tmp_path: Path) -> None:
    sheet = sheet_of(small_table().head(0), tmp_path)
    assert (sheet.max_row, sheet.max_column) == (1, small_table().width)


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.xlsx", "b.xlsx"):
        fill_xlsx(small_table(), tmp_path / name)
    assert (tmp_path / "a.xlsx").read_bytes() == (tmp_path / "b.xlsx").read_bytes()
