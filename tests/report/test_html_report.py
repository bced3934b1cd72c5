"""The report page, opened in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest
from playwright.sync_api import Page, expect
from report_page import shown_names, shown_rows
from report_tables import MODES, long_table, small_table, summary_of

from twinprobe._judge.summary import Result

Open = Callable[..., Page]


@pytest.mark.parametrize("mode", MODES)
def test_the_page_shows_counts_both_runs_and_the_first_divergence(open_page: Open, mode: str) -> None:
    table = small_table(mode)
    summary = summary_of(table, mode)
    assert summary.first
    page = open_page(table, summary)
    cards = page.locator("#cards").inner_text().split("\n")
    assert dict(zip(cards[1::2], cards[::2], strict=True)) == {
        "errors": str(summary.verdicts["error"]), "warnings": str(summary.verdicts["warning"]),
        "pass": str(summary.verdicts["pass"]), "rows": str(summary.rows), "matched": str(summary.matched),
        "only in target": "2", "only in golden": "1",
    }  # fmt: skip
    first = page.locator("#first").inner_text()
    for text in (
        summary.first.op,
        summary.first.sentence,
        "train.py:12, in step: loss = model(batch)",
        "-1.25",
        "row 3",
    ):
        assert text in first
    assert page.locator("#first-values tr.differs").inner_text().split() == ["min", "-1.5", "-1.25"]
    assert page.locator("#runs").inner_text().count("runs/a/dump.json") == 2
    assert page.locator("#badges").inner_text().startswith(mode)
    assert page.title().startswith("TwinProbe")


def test_runs_that_agree_are_said_to_agree(open_page: Open) -> None:
    table = small_table().with_columns(pl.lit("pass").alias("Result"), pl.lit("").alias("Origin"))
    page = open_page(table, summary_of(table, first=None))
    assert page.locator("#first-title").inner_text() == "The two runs agree"
    assert not page.locator("#first-show").is_visible()


def test_results_that_differ_are_not_said_to_agree(open_page: Open) -> None:
    """A first divergence may be missing where small errors grow: that is no agreement."""
    table = small_table()
    loss = Result("loss", agrees=False, values=1, differing=1, worst=0.5, worst_eps=1e6, where="loss")
    page = open_page(table, replace(summary_of(table, first=None), results=[loss]))
    assert page.locator("#first-title").inner_text() == "The results differ, and no single call stands out"
    assert f"3 of {table.height} rows are in one run only." in page.locator("#first-sentence").inner_text()


def test_only_the_rows_in_view_are_elements(open_page: Open) -> None:
    table = long_table(5_000)
    page = open_page(table)
    assert page.locator("#table tbody tr").count() < 80
    assert shown_names(page)[0] == table["NPU Name"][0]
    page.evaluate("document.getElementById('scroller').scrollTop = 1e9")
    page.wait_for_selector("#row-4999")
    assert shown_names(page)[-1] == table["NPU Name"][-1]
    assert page.locator("#table tbody tr").count() < 80
    assert page.locator("#table").get_attribute("aria-rowcount") == "5001"


def test_a_click_on_a_header_sorts_up_down_and_back(open_page: Open) -> None:
    table = small_table()
    page = open_page(table)
    indexed = table.with_row_index()
    header = page.locator("#table th button", has_text="Relative Error")
    for descending in (False, True):
        header.click()
        known = indexed.drop_nulls("Relative Error").sort("Relative Error", descending=descending, maintain_order=True)
        assert shown_rows(page)[: known.height] == known["index"].to_list()
        direction = "descending" if descending else "ascending"
        assert page.locator(f"#table th[aria-sort={direction}]").inner_text().startswith("Relative Error")
    header.click()
    assert shown_rows(page) == sorted(shown_rows(page))


def test_rows_are_found_by_words_in_any_column_or_stack(open_page: Open) -> None:
    table = small_table()
    page = open_page(table)
    for words, expected in (
        ('"reason 7"', [7]),
        (
            "Functional.EMBEDDING Output.0",
            [i for i, name in enumerate(table["NPU Name"]) if "Functional.embedding" in name and "output.0" in name],
        ),
        ("no such thing", []),
    ):
        page.fill("#search", words)
        expect(page.locator("#count")).to_have_text(f"{len(expected)} of {table.height} rows")
        assert [row for row in shown_rows(page) if row in expected] == expected
    assert page.locator("#empty").is_visible()
    page.fill("#search", "mkdump.py")
    expect(page.locator("#empty")).to_be_hidden()
    page.click("#clear")
    assert page.locator("#count").inner_text() == f"{table.height} rows"


def test_rows_are_filtered_by_verdict_and_origin(open_page: Open) -> None:
    table = small_table().with_row_index()
    page = open_page(table.drop("index"))
    page.click("#verdicts [data-verdict=pass]")
    assert shown_rows(page) == table.filter(pl.col("Result") != "pass")["index"].to_list()
    page.select_option("#origin", "injected")
    assert shown_rows(page) == table.filter(pl.col("Result") == "error")["index"].to_list()
    page.locator("#cards button", has_text="warnings").click()
    assert shown_rows(page) == table.filter(pl.col("Result") == "warning")["index"].to_list()


def test_the_details_show_every_column_and_the_stack_of_the_call(open_page: Open) -> None:
    table = small_table("tensor")
    page = open_page(table, summary_of(table, "tensor"))
    page.locator("#row-1").click()
    details = page.locator("#details").inner_text()
    for name in table.columns:
        value = table[name][1]
        if name != "NPU_Stack_Info" and value is not None:
            assert str(value) in details or f"{value:g}" in details, name
    assert table["NPU_Stack_Info"][1] == "N/A", "the stack stands on the first row of the call only"
    assert "mkdump.py:37 <module>" in details
    page.keyboard.press("Escape")
    assert not page.locator("#details").is_visible()


def test_the_first_divergence_is_one_click_away_even_when_filtered_out(open_page: Open) -> None:
    page = open_page(long_table(3_000), summary_of(long_table(3_000), first=2_000))
    page.click("#verdicts [data-verdict=error]")
    page.click("#first-show")
    assert page.locator("tr[aria-selected=true]").get_attribute("id") == "row-2000"
    assert page.locator("tr[aria-selected=true]").is_visible()
    assert "row 2,001" in page.locator("#details").inner_text()


def test_the_table_is_walked_with_the_keyboard(open_page: Open) -> None:
    page = open_page(long_table(500))
    page.focus("#scroller")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    assert page.locator("#scroller").get_attribute("aria-activedescendant") == "row-1"
    page.keyboard.press("Enter")
    assert "row 2" in page.locator("#details").inner_text()
    page.keyboard.press("End")
    assert "row 500" in page.locator("#details").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#details").is_visible()


def test_a_point_of_the_plot_leads_to_its_row(open_page: Open) -> None:
    table = small_table()
    page = open_page(table, summary_of(table, first=7))
    page.focus("#plot")
    page.keyboard.press("ArrowRight")
    assert table["NPU Name"][7] in page.locator("#tip").inner_text()
    assert table["Reason"][7] in page.locator("#tip").inner_text()
    page.keyboard.press("Enter")
    assert page.locator("tr[aria-selected=true]").get_attribute("id") == "row-7"


def test_hovering_and_clicking_in_the_plot_finds_the_nearest_point(open_page: Open) -> None:
    table = small_table().with_columns(pl.lit(0.5).alias("Relative Error"))
    page = open_page(table)
    box = page.locator("#plot").bounding_box()
    assert box
    step = (box["width"] - 84) / (table.height - 1)
    for y in range(20, 200, 4):
        page.mouse.move(box["x"] + 66 + 5 * step, box["y"] + y)
        if page.locator("#tip").is_visible():
            break
    assert table["NPU Name"][5] in page.locator("#tip").inner_text()
    page.mouse.click(box["x"] + 66 + 5 * step, box["y"] + y)
    assert page.locator("tr[aria-selected=true]").get_attribute("id") == "row-5"


def test_a_drag_zooms_in_and_a_button_leads_back(open_page: Open) -> None:
    page = open_page(long_table(1_000))
    box = page.locator("#plot").bounding_box()
    assert box
    page.mouse.move(box["x"] + 300, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 60, steps=4)
    page.mouse.up()
    assert page.locator("#zoom-reset").is_visible()
    page.click("#zoom-reset")
    assert not page.locator("#zoom-reset").is_visible()


def test_columns_are_chosen_by_the_reader(open_page: Open) -> None:
    page = open_page(small_table())
    assert "Max diff" not in page.locator("#table thead").inner_text()
    page.click("#chooser summary")
    page.locator("#columns label", has_text="Max diff").click()
    assert "Max diff" in page.locator("#table thead").inner_text()
    page.locator("#columns label", has_text="Reason").click()
    assert "Reason" not in page.locator("#table thead").inner_text()


def test_light_and_dark_follow_the_reader(open_page: Open) -> None:
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    assert open_page(small_table(), scheme="light").evaluate(brightness) > 600
    assert open_page(small_table(), scheme="dark").evaluate(brightness) < 150
