"""Everything without a mouse, and what a screen reader is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_tools import becomes, current, show, stands_on

FOCUS_SHOWS = """() => {
  const own = getComputedStyle(document.activeElement);
  const around = getComputedStyle(document.activeElement.closest('.search') ?? document.body);
  return own.outlineStyle !== 'none' || around.boxShadow !== 'none';
}"""


def focus_name(page: Any) -> str:
    return str(
        page.evaluate("""() => { const e = document.activeElement;
      return e.getAttribute('aria-label') || e.textContent.trim() || e.className || e.tagName; }""")
    )


def test_the_tab_key_reaches_every_part_of_the_page_and_shows_where_it_is(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    show(page, serve(results / "ranks_cmp"))
    page.wait_for_selector(".details .table")
    page.evaluate("() => document.body.focus()")
    seen, outlined = [], 0
    for _ in range(70):
        page.keyboard.press("Tab")
        seen.append(focus_name(page))
        outlined += page.evaluate(FOCUS_SHOWS)
    for part in (
        "File",
        "Rank",
        "Ranks × steps",
        "Search nodes",
        "Colour",
        "Copy link",
        "Error over execution order",
        "Suspicious",
        "Run under test",
        "Reference",
        "Inputs",
    ):
        assert any(name.startswith(part) for name in seen), (part, seen)
    assert outlined >= 65


def test_the_tree_is_walked_opened_and_closed_with_arrows(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"), node="DefaultModel")
    tree = page.locator(".pane-target .scroller")
    tree.focus()
    page.keyboard.press("Home")
    for key in ("ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    for side in ("target", "golden"):
        page.wait_for_selector(f".pane-{side} .box[aria-level='3']")
    page.keyboard.press("ArrowRight")
    stands_on(page, "Module.language_model.embedding.Embedding.forward.0")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".pane-golden .box[aria-level='3']", state="detached")
    active = tree.get_attribute("aria-activedescendant")
    row = page.locator(f"#{active}")
    assert row.get_attribute("role") == "treeitem"
    assert [row.get_attribute(f"aria-{key}") for key in ("level", "posinset", "setsize", "expanded", "selected")] == [
        "2",
        "1",
        "6",
        "false",
        "true",
    ]


def test_the_partner_the_strip_the_list_the_menu_and_the_help_by_keys(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".details .table")
    page.locator(".pane-target .scroller").focus()
    page.keyboard.press("m")
    becomes(page, lambda: page.evaluate("() => document.activeElement.dataset.side"), lambda side: side == "golden")
    page.keyboard.press("Shift+F10")
    page.wait_for_selector(".menu")
    page.keyboard.press("Escape")
    page.wait_for_selector(".menu", state="detached")
    page.locator(".strip-canvas").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    becomes(page, lambda: current(page), lambda name: name in ("DefaultModel", "optimizer"))
    page.locator(".list").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    becomes(page, lambda: current(page), lambda name: name == "Functional.gelu.1.backward")
    page.keyboard.press("?")
    page.wait_for_selector("dialog.help")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog.help", state="detached")
    page.keyboard.press("i")
    page.locator(".details").wait_for(state="hidden")


def test_a_and_d_move_the_graph_to_both_sides_and_back(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".details .table")

    def left() -> list[float]:
        return list(page.eval_on_selector_all(".pane .box.current", "all => all.map(e => e.getBoundingClientRect().x)"))

    start = left()
    for key, back in (("a", "d"), ("d", "a")):
        page.keyboard.press(key)
        becomes(
            page,
            left,
            lambda now, key=key: all((x > y) == (key == "a") and x != y for x, y in zip(now, start, strict=True)),
        )
        page.keyboard.press(back)
        becomes(page, left, lambda now: now == start)
    for key in "wwww":  # wider than the view
        page.keyboard.press(key)
    zoomed = becomes(page, left, lambda now: now != start)
    page.keyboard.press("a")
    becomes(page, left, lambda now: all(x > y for x, y in zip(now, zoomed, strict=True)))
    for _ in range(3):
        page.keyboard.press("d")
    becomes(page, left, lambda now: all(x < y for x, y in zip(now, zoomed, strict=True)))
    page.keyboard.press("f")
    becomes(page, left, lambda now: now[0] >= 0)


def test_colours_are_never_the_only_sign(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".pane-target .box.warning")
    marks = page.eval_on_selector_all(
        ".pane-target .box.warning > .head .mark", "all => all.map(e => [e.textContent, e.getAttribute('aria-label')])"
    )
    assert marks
    assert {tuple(mark) for mark in marks} == {("▲", "warning")}
