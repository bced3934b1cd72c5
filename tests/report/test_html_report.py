"""The report page, opened in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from playwright.sync_api import Browser, Page, expect
from report_tables import MODES, completed, long_table, small_table, summary_of, with_texts

from twinprobe.judge.summary import Side, Summary
from twinprobe.report.html import fill_html, write_html

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


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a table's page; fails the test if the page complains or asks for anything beyond itself."""
    complaints: list[str] = []
    pages: list[Page] = []

    def open_it(table: pl.DataFrame, summary: Summary | None = None, *, scheme: str = "light", **options: int) -> Page:
        path = tmp_path / "r.html"
        fill_html(table, summary or summary_of(table), path, **options)
        page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: request.url == path.as_uri() or complaints.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_it
    for page in pages:
        page.close()
    assert complaints == []


def shown_names(page: Page) -> list[str]:
    return page.locator("#table tbody tr[data-row] td.lead").all_text_contents()


def shown_rows(page: Page) -> list[int]:
    return [
        int(text.replace(",", "")) - 1
        for text in page.locator("#table tbody tr[data-row] td:first-child").all_text_contents()
    ]


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
    for text in (summary.first.op, summary.first.sentence, summary.first.stack_line, "-1.25", "row 3"):
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


def hostile() -> tuple[pl.DataFrame, Summary]:
    table = small_table()
    for column in table.columns[:-1]:
        if column not in ("Result", "Origin"):
            table = with_texts(table, column, EVIL)
    summary = summary_of(table, first=0)
    assert summary.first
    evil = " ".join(EVIL)
    side = Side(evil, evil, evil, evil, 1, 1)
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
    write_html(small_table(), summary_of(small_table()), tmp_path / "r.html")
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
    write_html(table, summary_of(table), tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().count("line 37, in \\u003cmodule>") == 1
    assert (tmp_path / "r.html").stat().st_size < 100 * table.height + 100_000


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
