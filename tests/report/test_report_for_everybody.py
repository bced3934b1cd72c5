"""The report for those who cannot see it, have no mouse, look at it on a phone, or were sent a link to a row."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from report_page import shown_names, shown_rows
from report_tables import long_table, small_table

Open = Callable[..., Page]


@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1440, "light", marks=pytest.mark.slow), (390, "dark")])
def test_axe_core_finds_nothing_serious_and_nothing_scrolls_sideways(
    open_page: Open, axe: Callable[[Page], list[str]], width: int, scheme: str
) -> None:
    page = open_page(small_table(), scheme=scheme)
    page.set_viewport_size({"width": width, "height": 844})
    page.locator("#first-show").click()
    expect(page.locator("#details")).to_be_visible()
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_link_shows_the_same_rows_order_zoom_and_details(open_page: Open) -> None:
    page = open_page(long_table(300))
    page.locator("#verdicts button", has_text="pass").click()
    page.locator("#table th button", has_text="Relative Error").click()
    page.locator("#search").fill("forward")
    page.locator("#table tbody tr[data-row]").nth(3).click()
    page.evaluate("document.getElementById('plot').dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    expect(page.locator("#details")).to_be_visible()
    page.wait_for_url(re.compile("q=forward"))  # a function would be an eval, which the page forbids
    # The first of them: how many more are elements depends on whether the table knows its height yet.
    shown = shown_names(page)[:8], page.locator("#details .name").inner_text(), page.locator("#count").inner_text()
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    page.wait_for_selector("html[data-ready]", state="attached")
    assert (
        shown_names(page)[:8],
        page.locator("#details .name").inner_text(),
        page.locator("#count").inner_text(),
    ) == shown


def test_back_and_forward_return_to_what_was_shown(open_page: Open) -> None:
    page = open_page(long_table(300))
    page.locator("#table tbody tr[data-row]").nth(1).click()
    first = page.locator("#details .name").inner_text()
    page.locator("#table tbody tr[data-row]").nth(5).click()
    second = page.locator("#details .name").inner_text()
    assert first != second
    page.go_back()
    expect(page.locator("#details .name")).to_have_text(first)
    page.go_back()
    expect(page.locator("#details")).to_be_hidden()
    page.go_forward()
    page.go_forward()
    expect(page.locator("#details .name")).to_have_text(second)


def test_enter_in_the_search_opens_the_first_row_and_arrows_the_others(open_page: Open) -> None:
    page = open_page(long_table(300))
    page.locator("#search").fill("output")
    page.keyboard.press("Enter")
    rows = shown_rows(page)
    expect(page.locator("#table tr[aria-selected=true] td").first).to_have_text(str(rows[0] + 1))
    page.keyboard.press("ArrowDown")
    expect(page.locator("#table tr[aria-selected=true] td").first).to_have_text(str(rows[1] + 1))
    expect(page.locator("#search")).to_be_focused()


def test_nonsense_in_the_address_shows_the_plain_report(open_page: Open) -> None:
    page = open_page(small_table())
    plain = shown_names(page)
    page.evaluate("location.hash = 'row=99999&zoom=5,1&sort=%2Bnothing&verdicts=x&origin=%3Cb%3E&wide=-4'")
    page.evaluate("location.hash = 'row=99999&zoom=5,1&sort=%2Bnothing&wide=x'")
    expect(page.locator("#details")).to_be_hidden()
    assert shown_names(page) == plain


def test_the_page_speaks_chinese_as_well(open_page: Open) -> None:
    page = open_page(small_table())
    page.locator("#language").click()
    page.wait_for_selector("html[lang=zh-CN]", state="attached")
    page.wait_for_selector("html[data-ready]", state="attached")
    assert "首个分歧点" in page.locator("#first").inner_text()
    keys = page.evaluate("[...document.querySelectorAll('[data-say]')].filter(e => !e.textContent).length")
    assert keys == 0
