"""Rows read back from workbooks: ours, those of other writers, and hostile ones."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import openpyxl
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._report.xlsx import fill_xlsx
from twinprobe._report.xlsx_read import read_rows, read_titles
from twinprobe.errors import BadInput

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
PLAIN_SHEET = (
    f"<worksheet {MAIN}><sheetData>"
    '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="C1" t="s"><v>1</v></c></row>'
    '<row r="2"/><row r="3"><c r="A3" t="s"><v>3</v></c><c r="C3"><v>1.5</v></c></row>'
    '<row r="4"><c r="A4" t="s"><v>4</v></c><c r="C4" t="b"><v>1</v></c></row>'
    "</sheetData></worksheet>"
)
TEXTS = (
    f"<sst {MAIN}><si><t>name</t></si><si><t>value</t></si><si/>"
    '<si><t xml:space="preserve">a.1</t></si><si><r><t>a</t></r><r><rPr/><t>.2 &amp; _x0041_</t></r></si></sst>'
)


def workbook(path: Path, sheet: str, texts: str | None = TEXTS) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", sheet)
        if texts is not None:
            archive.writestr("xl/sharedStrings.xml", texts)
    return path


def rows_of(path: Path, columns: list[str], start: str = "a.") -> list[list[str | None]]:
    return read_rows(path, columns, "name", lambda name: name.startswith(start), [start])


def test_shared_rich_and_empty_texts_numbers_and_booleans_are_understood(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", PLAIN_SHEET)
    assert read_titles(path) == ["name", "", "value"]
    assert rows_of(path, ["value", "name", "absent"]) == [["1.5", "a.1", None], ["True", "a.2 & A", None]]


def test_prefixed_tags_and_cells_without_a_place_are_understood(tmp_path: Path) -> None:
    sheet = (
        '<x:worksheet xmlns:x="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><x:sheetData>'
        '<x:row><x:c t="inlineStr"><x:is><x:t>name</x:t></x:is></x:c><x:c t="str"><x:v>value</x:v></x:c></x:row>'
        '<x:row><x:c t="inlineStr"><x:is><x:t>a.1</x:t></x:is></x:c><x:c><x:v>2</x:v></x:c></x:row>'
        "</x:sheetData></x:worksheet>"
    )
    assert rows_of(workbook(tmp_path / "a.xlsx", sheet, None), ["name", "value"]) == [["a.1", "2"]]


def test_places_may_stand_anywhere_or_nowhere_in_a_cell(tmp_path: Path) -> None:
    without = re.sub(r' r="[A-Z]\d"', "", PLAIN_SHEET.replace("C", "B"))
    assert rows_of(workbook(tmp_path / "a.xlsx", without), ["value"]) == [["1.5"], ["True"]]
    behind = PLAIN_SHEET.replace('r="A3" t="s"', 't="s" r="A3"')
    assert rows_of(workbook(tmp_path / "b.xlsx", behind), ["value"]) == [["1.5"], ["True"]]


def test_rows_over_the_borders_of_chunks_are_whole(tmp_path: Path) -> None:
    table = pl.DataFrame({"name": [f"{'ab'[n % 2]}.{n}" for n in range(25_000)], "Result": ["pass"] * 25_000})
    table = table.with_columns((pl.col("name") + "x" * 30).alias("value"))
    fill_xlsx(table, tmp_path / "a.xlsx")
    found = rows_of(tmp_path / "a.xlsx", ["name", "value"])
    assert found == [
        list(row) for row in table.filter(pl.col("name").str.starts_with("a.")).select("name", "value").rows()
    ]


def test_all_sheets_of_a_long_result_are_read(tmp_path: Path) -> None:
    table = pl.DataFrame({"name": [f"a.{n}" for n in range(10)], "Result": ["pass"] * 10})
    fill_xlsx(table, tmp_path / "a.xlsx", rows_per_sheet=4)
    assert [row[0] for row in rows_of(tmp_path / "a.xlsx", ["name"])] == table["name"].to_list()


cell = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(st.characters(min_codepoint=32, max_codepoint=0xD7FF), max_size=20)
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), cell), max_size=12))
def test_what_another_writer_wrote_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, object]]
) -> None:
    path = tmp_path_factory.mktemp("books") / "a.xlsx"
    book = openpyxl.Workbook()
    book.active.append(["name", "value"])
    for kind, value in rows:
        text = value if not isinstance(value, str) or value[:1] != "=" else f" {value}"
        book.active.append([f"{'abcd'[kind]}.x", text])
    book.save(path)
    seen = openpyxl.load_workbook(path).active.iter_rows(min_row=2, values_only=True)
    expected = [None if value is None else str(value) for name, value in seen if name == "a.x"]
    assert [row[0] for row in rows_of(path, ["value"])] == expected


@pytest.mark.parametrize(
    ("sheet", "what"),
    [
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]>' + PLAIN_SHEET, "document type"),
        (PLAIN_SHEET.replace("<sheetData>", "<sheetData><!-- x -->"), "comment"),
        (PLAIN_SHEET.replace("<v>3</v>", "<v>77</v>").replace("<v>4</v>", "<v>-4</v>"), "shared text"),
        (PLAIN_SHEET.replace('<c r="C3"><v>1.5</v></c>', "<c><v>1.5</c>"), "not valid XML"),
    ],
    ids=["entities", "comment", "text that is not there", "broken"],
)
def test_hostile_and_broken_sheets_are_refused(tmp_path: Path, sheet: str, what: str) -> None:
    path = workbook(tmp_path / "a.xlsx", sheet)
    with pytest.raises(BadInput, match=what):
        read_rows(path, ["value"], "name", lambda _: True, [""])


def test_a_row_without_end_takes_no_more_than_a_little_memory(tmp_path: Path) -> None:
    sheet = f'<worksheet {MAIN}><sheetData><row r="1"><c t="inlineStr"><is><t>' + "a" * (40 << 20)
    with pytest.raises(BadInput, match="more than 16 MiB"):
        read_titles(workbook(tmp_path / "a.xlsx", sheet))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"name,value\n"], ids=["empty", "cut off", "csv"])
def test_what_is_no_workbook_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.xlsx"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"a\.xlsx: is not a valid xlsx file"):
        read_titles(path)


def test_a_damaged_member_is_refused(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", PLAIN_SHEET * 200)
    content = bytearray(path.read_bytes())
    content[120:140] = bytes(20)
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"a\.xlsx"):
        rows_of(path, ["name"])
