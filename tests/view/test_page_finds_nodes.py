"""The page in Chromium: from one suspicious node to the next, by search, lists, filters and limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from graph_files import flat, write_pair
from page_tools import becomes, box_of, show, stands_on

GELU = "Functional.gelu.1.backward"


def test_next_and_previous_walk_through_the_suspicious_nodes(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".details .table")
    for key, place in (("n", "2 of 4"), ("n", "3 of 4"), ("p", "2 of 4")):
        page.keyboard.press(key)
        page.wait_for_selector(f".steps:has-text('{place}')")
    stands_on(page, "Module.language_model.encoder.layers.1.mlp.MLP.backward.0")


def test_a_click_on_the_strip_goes_there(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".details .table")
    area = box_of(page, page.locator(".strip-canvas"))
    page.mouse.click(area["x"] + 2, area["y"] + 20)
    page.wait_for_selector(".pane-target .box.current:has-text('embedding')")
    stands_on(page, "Functional.embedding.0.forward")


def test_a_metric_and_a_limit_of_the_users_choice_move_the_first_divergence(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    show(page, serve(results / "cmp_stat"))
    page.get_by_label("Colour").first.select_option("NormRelativeErr")
    page.get_by_label("limit", exact=True).fill("0.001")
    page.get_by_label("limit", exact=True).press("Enter")
    page.wait_for_selector(".banner .said[title^='Functional.linear.6.forward']")
    page.locator(".first-button").click()
    page.wait_for_selector(".pane-target .box.current:has-text('linear.forward.6')")
    becomes(page, page.locator(".pane-target .box.current").inner_text, lambda text: "4.66 %" in text)
    fills = "all => new Set(all.map(e => e.style.getPropertyValue('--fill'))).size"
    becomes(page, lambda: page.eval_on_selector_all(".pane-target .box", fills), lambda count: count >= 3)


def test_search_finds_nodes_and_goes_to_them(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    page.keyboard.press("/")
    page.keyboard.type("softmax.0.for")
    page.locator(".list-row", has_text="softmax.forward.0").first.click()  # the list may still be that of half the word
    page.wait_for_selector(".pane-golden .box.current:has-text('softmax.forward.0')")
    stands_on(page, "Torch.softmax.0.forward")


def test_lists_of_unmatched_nodes_on_either_side(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_lm2"), tab="unmatched")
    page.wait_for_selector(".list-row")
    becomes(page, page.locator(".list-row").count, lambda count: count == 10)
    page.locator(".segments button").nth(1).click()
    page.wait_for_selector(".list[aria-label] .list-row:nth-child(8)")
    page.locator(".list-row").first.click()
    page.wait_for_selector(".pane-golden .box.current.unmatched")


def test_filters_by_level_narrow_the_list(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".list-row:nth-child(4)")
    page.locator(".chip", has_text="error").click()
    page.wait_for_selector(".list .quiet")
    page.locator(".chip", has_text="warning").click()
    page.wait_for_selector(".list-row:nth-child(4)")


def test_overflow_levels_can_be_filtered(page: Any, serve: Callable[..., str], tmp_path: Path) -> None:
    nodes = flat(["Torch.add.0.forward", "Torch.mul.0.forward", "Torch.div.0.forward"])
    nodes["Torch.mul.0.forward"]["data"] |= {"precision_index": 1, "overflow_level": "critical"}
    nodes["Torch.div.0.forward"]["data"] |= {"precision_index": 1, "overflow_level": "high"}
    write_pair(tmp_path / "compare_1.vis", nodes, nodes, OverflowCheck=True)
    show(page, serve(tmp_path))
    page.wait_for_selector(".list-row:nth-child(2)")
    page.locator(".chip", has_text="critical").click()
    page.wait_for_selector(".list-row:nth-child(2)", state="detached")
    page.wait_for_selector(".list-row[title='Torch.mul.0.forward']")
