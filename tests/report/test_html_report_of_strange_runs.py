"""The report page of hostile, huge, tiny and incomplete runs, opened in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from playwright.sync_api import Browser, Page
from report_page import shown_names, shown_rows
from report_tables import completed, long_table, small_table, summary_of, with_texts

from twinprobe._judge.summary import RunInfo, Summary
from twinprobe._report.reports import fill_html

Open = Callable[..., Page]
EVIL = [
    "</script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 2'>",
    '"><svg onload="window.pwned = 3">',
    "<!--<script>",
    "{{script}}{{data}}",
    "a&lt;b&amp;'\"`${window.pwned = 4}",
    "javascript:window.pwned=5",
]


def hostile() -> tuple[pl.DataFrame, Summary]:
    table = small_table()
    for column in table.columns[:-1]:
        if column not in ("Result", "Origin"):
            table = with_texts(table, column, EVIL)
    summary = summary_of(table, first=0)
    assert summary.first
    evil = " ".join(EVIL)
    side = RunInfo(evil, evil, evil, evil, 1, 1)
    values = {evil: evil}
    first = replace(
        summary.first, op=evil, sentence=evil, stack_line=evil, origin=evil, target_values=values, golden_values=values
    )
    return table, replace(summary, mode=evil, rank=evil, target=side, golden=side, notes=[evil], first=first)


def test_hostile_names_are_text(open_page: Open) -> None:
    table, summary = hostile()
    page = open_page(table, summary)
    assert shown_names(page)[: len(EVIL)] == EVIL
    assert page.locator("#first-title").text_content() == " ".join(EVIL)
    for row in range(len(EVIL)):
        page.locator(f"#row-{row}").click()
        assert page.locator("#details .name").text_content() == EVIL[row]
        page.keyboard.press("Escape")
    assert page.evaluate("window.pwned") is None
    assert page.locator("img, iframe, object, embed").count() == 0
    assert page.evaluate("document.scripts.length") == 2


def test_the_policy_stops_script_that_gets_into_the_page(browser: Browser, tmp_path: Path) -> None:
    fill_html(small_table(), summary_of(small_table()), tmp_path / "r.html")
    page = browser.new_page()
    page.goto((tmp_path / "r.html").as_uri())
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.pwned = 1";
        document.body.append(script);
        const holder = document.createElement("div");
        holder.innerHTML = "<img src=x onerror='window.pwned = 2'>";
        document.body.append(holder);
    }""")
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'reached', () => 'refused')") == "refused"
    assert page.evaluate("window.pwned") is None
    page.close()


def test_control_and_direction_characters_are_spelled_out(open_page: Open) -> None:
    names = ["a\x1b[31mred", "\u202egnp.exe", "x\x00y", "tab\there"]
    page = open_page(with_texts(small_table(), "NPU Name", names))
    assert shown_names(page)[:4] == ["a\\u001b[31mred", "\\u202egnp.exe", "x\\u0000y", "tab\\u0009here"]


def test_a_page_holds_each_stack_line_once(tmp_path: Path) -> None:
    table = long_table(3_000)
    fill_html(table, summary_of(table), tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().count("line 37, in \\u003cmodule>") == 1
    assert (tmp_path / "r.html").stat().st_size < 100 * table.height + 120_000


def test_a_table_too_long_for_a_page_keeps_its_errors_and_says_so(open_page: Open) -> None:
    table = long_table(24)
    page = open_page(table, rows_per_page=18)
    rows = shown_rows(page)
    bad = table.with_row_index().filter(pl.col("Result") != "pass")["index"].to_list()
    assert set(bad) <= set(rows)
    assert rows == sorted(rows)
    assert "leaves out 6 rows" in page.locator("#notes").inner_text()
    page.click("#first-show")
    assert "row 3" in page.locator("#details").inner_text()


def test_infinite_and_missing_errors_have_their_place(open_page: Open) -> None:
    errors = [float("inf"), float("nan"), 0.0, None, 1e-30, 1e30]
    table = small_table().head(6).with_columns(pl.Series("Relative Error", errors, dtype=pl.Float64))
    page = open_page(table, summary_of(table, first=1))
    page.focus("#plot")
    page.keyboard.press("ArrowRight")
    assert table["NPU Name"][1] in page.locator("#tip").inner_text()


@pytest.mark.parametrize("rows", [0, 1])
def test_the_smallest_tables_have_a_page_too(open_page: Open, rows: int) -> None:
    table = small_table().head(rows)
    page = open_page(table, summary_of(table, first=None))
    assert len(shown_rows(page)) == rows
    assert page.locator("#empty").is_visible() == (rows == 0)


def test_a_run_without_stacks_has_a_page(open_page: Open) -> None:
    table = completed(small_table().select(pl.exclude("NPU_Stack_Info")))
    page = open_page(table)
    page.locator("#row-0").click()
    assert "Call stack" not in page.locator("#details").inner_text()
