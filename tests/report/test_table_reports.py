"""csv, parquet and json hold what the table holds."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_tables import DATA, MODES, long_table, read_csv, small_table, summary_of, unguarded, with_texts

from twinprobe._report.console import visible_cells
from twinprobe._report.reports import fill_json
from twinprobe._report.tables import as_texts, csv_parts, fill_csv, fill_parquet, guarded

FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "->ij", "@SUM(A1)", "'=quoted", "a;=b", "1.0;-2.0", "－1", "x\n=y"]
NUMBERS = ["-0.5", "-1e-05", "+3", "-inf", "inf", "nan", "-3.5%", "0"]
texts_of_any_kind = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize("mode", MODES)
def test_csv_comes_back_as_it_was(tmp_path: Path, mode: str) -> None:
    table = small_table(mode)
    fill_csv(table, tmp_path / "r.csv")
    back = read_csv(tmp_path / "r.csv")
    assert back.equals(table.with_columns(as_texts(table["Relative Error"]).fill_null("")))


@pytest.mark.parametrize("mode", MODES)
def test_a_known_result_is_written_byte_for_byte(tmp_path: Path, mode: str) -> None:
    fill_csv(read_csv(DATA / f"{mode}.csv"), tmp_path / "r.csv")
    assert (tmp_path / "r.csv").read_bytes() == (DATA / f"{mode}.csv").read_bytes()


def test_every_known_result_is_written_byte_for_byte(tmp_path: Path, reference: Path) -> None:
    files = sorted((reference / "msprobe" / "results").glob("*/*.csv"))
    assert files
    for file in files:
        fill_csv(read_csv(file), tmp_path / "r.csv")
        assert (tmp_path / "r.csv").read_bytes() == file.read_bytes(), file.name


def test_infinities_have_a_blank_in_statistics_only(tmp_path: Path) -> None:
    table = with_texts(with_texts(small_table(), "NPU max", ["inf", "-inf"]), "Max diff", ["inf", "-inf"])
    fill_csv(table, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["NPU max"] for row in rows[:2]] == [" inf", " -inf"]
    assert [row["Max diff"] for row in rows[:2]] == ["inf", "-inf"]


def test_no_cell_of_a_csv_begins_like_a_formula(tmp_path: Path) -> None:
    fill_csv(with_texts(small_table(), "NPU Name", FORMULAS), tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(newline="") as file:
        names = [row["NPU Name"] for row in csv.DictReader(file)][: len(FORMULAS)]
    assert names == [
        "'=cmd|' /C calc'!A0", "'+1+1", "'->ij", "'@SUM(A1)", "''=quoted", "a;'=b", "1.0;-2.0", "'－1", "x\n'=y",
    ]  # fmt: skip
    assert read_csv(tmp_path / "r.csv")["NPU Name"][: len(FORMULAS)].to_list() == FORMULAS


def test_numbers_are_no_formulas() -> None:
    assert guarded(pl.Series(NUMBERS)).to_list() == NUMBERS


@settings(deadline=None)
@given(st.lists(texts_of_any_kind, min_size=1))
def test_guarding_can_be_undone_for_any_text(texts: list[str]) -> None:
    column = pl.Series(texts, dtype=pl.String)
    assert unguarded(guarded(column)).to_list() == texts


@settings(deadline=None, max_examples=50)
@given(st.lists(texts_of_any_kind, min_size=1, max_size=5))
def test_csv_holds_any_text(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("csv") / "r.csv"
    table = with_texts(small_table(), "NPU Name", texts)
    fill_csv(table, path)
    assert read_csv(path)["NPU Name"].to_list() == visible_cells(table["NPU Name"]).to_list()


def test_a_long_csv_is_written_in_parts(tmp_path: Path) -> None:
    parts = csv_parts(long_table(25), tmp_path / "r.csv", rows_per_file=10)
    assert [path.name for path, _ in parts] == ["r_part_1.csv", "r_part_2.csv", "r_part_3.csv"]
    assert [rows.height for _, rows in parts] == [10, 10, 5]


def test_the_limit_of_a_csv_is_a_million_rows() -> None:
    table = pl.DataFrame({"NPU Name": pl.Series(range(1_000_001))})
    assert [path.name for path, _ in csv_parts(table.head(1_000_000), Path("r.csv"))] == ["r.csv"]
    assert [rows.height for _, rows in csv_parts(table, Path("r.csv"))] == [1_000_000, 1]


@pytest.mark.parametrize("mode", MODES)
def test_parquet_comes_back_as_it_was(tmp_path: Path, mode: str) -> None:
    fill_parquet(small_table(mode), tmp_path / "r.parquet")
    assert pl.read_parquet(tmp_path / "r.parquet").equals(small_table(mode))


@pytest.mark.parametrize("mode", MODES)
def test_json_holds_summary_columns_and_rows(tmp_path: Path, mode: str) -> None:
    table = small_table(mode)
    summary = summary_of(table, mode)
    fill_json(table, summary, tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    assert list(document) == ["summary", "columns", "rows"]
    assert document["summary"] == summary.to_dict()
    assert document["columns"] == table.columns
    expected = table.with_columns(as_texts(table["Relative Error"]))
    assert document["rows"] == expected.to_dicts()


def test_json_rows_go_on_over_the_pieces_they_are_written_in(tmp_path: Path) -> None:
    table = long_table(40_000)
    fill_json(table, summary_of(table), tmp_path / "r.json")
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["NPU Name"] for row in rows] == table["NPU Name"].to_list()


def test_json_of_an_empty_table_is_json(tmp_path: Path) -> None:
    table = small_table()
    fill_json(table.head(0), summary_of(table), tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["rows"] == []


def test_json_is_strict_about_infinities_and_broken_characters(tmp_path: Path) -> None:
    def refuse(token: str) -> None:
        pytest.fail(f"{token} is not JSON")

    table = small_table().with_columns(pl.lit(float("inf")).alias("Relative Error"))
    summary = summary_of(table)
    assert summary.first
    odd = replace(summary, notes=["\udc80 from a file name"], first=replace(summary.first, relative_error=float("nan")))
    fill_json(table, odd, tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert document["rows"][0]["Relative Error"] == "inf"
    assert document["summary"]["first"]["relative_error"] == "nan"
    assert document["summary"]["notes"] == ["\\udc80 from a file name"]
