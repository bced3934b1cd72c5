"""The page for those who cannot see it, have no mouse, or look at it on a phone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_tools import becomes, box_of, current, show, stands_on

FIRST = "Functional.linear.3.forward"


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_axe_core_finds_nothing_serious_and_nothing_scrolls_sideways(
    page: Any, axe: Callable[[Any], list[str]], serve: Callable[..., str], results: Path, width: int, theme: str
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    show(page, serve(results / "cmp_stat"), theme=theme)
    page.wait_for_selector(".banner.found")
    page.wait_for_selector(".details-body table")
    page.locator(".list-row").first.wait_for()
    assert axe(page) == []
    becomes(page, lambda: page.evaluate("document.documentElement.scrollWidth"), lambda wide: wide == width)
    becomes(page, lambda: overlapping(page), lambda found: found == [])


def overlapping(page: Any) -> list[str]:
    """Parts of the page that cover each other."""
    parts = [".topbar", ".banner", ".strip", ".panel", ".pane-target", ".pane-golden", ".details-head", ".details-body"]
    measure = "parts => parts.map(part => document.querySelector(part).getBoundingClientRect().toJSON())"
    boxes = dict(zip(parts, page.evaluate(measure, parts), strict=True))
    found = []
    for at, one in enumerate(parts):
        for other in parts[at + 1 :]:
            a, b = boxes[one], boxes[other]
            wide = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])
            high = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])
            if wide > 1 and high > 1:
                found.append(f"{one} and {other}: {wide} x {high}")
    return found


@pytest.mark.parametrize("width", [1440, 390])
def test_the_whole_reason_can_be_read(page: Any, serve: Callable[..., str], results: Path, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".banner.found")
    said = page.locator(".said")
    whole = "e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight"
    becomes(page, lambda: said.evaluate(whole), lambda fits: fits)  # texts arrive one after the other
    box = box_of(page, said)
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_back_and_forward_return_to_where_one_was(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    becomes(page, lambda: page.url, lambda url: "node=" in url)
    start = current(page)
    page.keyboard.press("n")
    second = becomes(page, lambda: current(page), lambda now: now != start)
    becomes(page, lambda: page.url, lambda url: second in url)
    page.locator("[data-tab=matched]").click()
    becomes(page, lambda: page.url, lambda url: "tab=matched" in url)
    page.go_back()
    page.wait_for_selector("[data-tab=suspicious][aria-selected=true]")
    stands_on(page, second)
    page.go_back()
    stands_on(page, start)
    page.go_forward()
    stands_on(page, second)


def test_enter_right_after_typing_goes_to_the_first_hit_and_arrows_to_the_others(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    late: list[Any] = []
    released = False

    def hold(route: Any) -> None:  # what comes late must not take the mark away
        if released:
            route.continue_()
        else:
            late.append(route)

    page.route("**/api/counts*", hold)
    page.goto(serve(results / "cmp_stat"))
    page.wait_for_selector(".pane-golden .box")
    page.keyboard.press("/")
    page.keyboard.type("linear")
    page.keyboard.press("Enter")
    page.wait_for_selector(".list-row.current[data-at='0']")
    becomes(page, lambda: len(late), lambda count: count > 0)
    released = True
    for route in late:
        route.continue_()
    page.wait_for_selector(".tabs .count")
    becomes(page, lambda: page.evaluate("document.querySelector('.list').textContent"), lambda text: "linear" in text)
    assert page.locator(".list-row.current").get_attribute("data-at") == "0"
    hits = page.eval_on_selector_all(".list-row", "rows => rows.slice(0, 2).map(row => row.title)")
    stands_on(page, hits[0])
    page.keyboard.press("ArrowDown")
    stands_on(page, hits[1])
    page.keyboard.press("ArrowUp")
    stands_on(page, hits[0])


def test_the_lists_can_be_made_wider_by_hand_and_by_key(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    before = box_of(page, page.locator(".panel"))["width"]
    line = box_of(page, page.locator(".splitter.vertical"))
    page.mouse.move(line["x"] + 2, line["y"] + 200)
    page.mouse.down()
    page.mouse.move(line["x"] + 102, line["y"] + 200)
    page.mouse.up()
    becomes(page, lambda: box_of(page, page.locator(".panel"))["width"], lambda wide: wide == before + 100)
    page.locator(".splitter.vertical").focus()
    page.keyboard.press("ArrowLeft")
    becomes(page, lambda: box_of(page, page.locator(".panel"))["width"], lambda wide: wide == before + 76)
    becomes(page, lambda: page.url, lambda url: f"wide={int(before) + 76}" in url)
