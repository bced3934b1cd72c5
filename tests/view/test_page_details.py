"""The page in Chromium: what is told of a node, and where it leads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_tools import becomes, box, box_of, show

GELU = "Functional.gelu.1.backward"


def test_tables_can_be_sorted_and_copied(page: Any, serve: Callable[..., str], results: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    show(page, serve(results / "cmp_stat"), node="Functional.linear.6.forward")
    page.wait_for_selector(".details tbody tr:nth-child(3)")
    heads = lambda: page.locator(".details figure").first.locator("tbody th").all_inner_texts()  # noqa: E731
    becomes(page, heads, lambda names: names == ["input.0", "input.1", "input.2"])
    page.locator(".details figure").first.locator("thead button", has_text="Norm").first.click()
    becomes(page, heads, lambda names: names == ["input.0", "input.1", "input.2"])  # 15.99, 4.84, 1.1: largest first
    page.locator(".details figure").first.locator("thead button", has_text="Norm").first.click()
    becomes(page, heads, lambda names: names == ["input.2", "input.1", "input.0"])
    page.locator(".details figure").first.locator("figcaption button").click()
    lines = page.evaluate("() => navigator.clipboard.readText()").split("\n")
    assert lines[0].startswith("Argument\tdtype\tshape")
    assert [line.split("\t")[0] for line in lines[1:]] == ["input.2", "input.1", "input.0"]


def test_details_show_stacks_of_both_sides(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"), node="Functional.linear.6.forward")
    page.wait_for_selector(".details .stack li")
    becomes(page, page.locator(".details .stack").count, lambda count: count == 2)
    assert "torch/nn/modules/linear.py" in page.locator(".details .stack li").first.inner_text()


def test_a_collective_leads_to_its_peer_rank(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "ranks_cmp"), node="Distributed.all_reduce.0.forward")
    page.locator(".details .chip", has_text="rank 1").click()
    page.wait_for_selector(".field:has-text('Rank') select")
    page.wait_for_selector(".pane-target .box.current:has-text('all_reduce')")
    becomes(page, page.get_by_label("Rank").first.input_value, lambda value: value == "1")


def test_ranks_by_steps_is_a_map_to_click(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "ranks_cmp"))
    page.locator(".text-button", has_text="Ranks").click()
    page.wait_for_selector(".heat-hint:has-text('4 suspicious')")
    area = box_of(page, page.locator(".heat-canvas"))
    page.mouse.click(area["x"] + area["width"] - 10, area["y"] + area["height"] - 8)
    becomes(page, page.get_by_label("Rank").first.input_value, lambda rank: rank == "1")


def test_matching_by_hand_in_the_page_and_the_layer_mapping_that_comes_of_it(
    page: Any, serve: Callable[..., str], copied: Callable[[str], Path]
) -> None:
    place = copied("cmp_lm2")
    show(page, serve(place), tab="byHand")
    box(page, "target", "language_model.forward").click()
    box(page, "golden", "decoder.forward").click(modifiers=["Control"])
    page.locator(".wide-button.primary").click()
    page.wait_for_selector(".pairs li")
    assert "language_model.forward.LM.0" in page.locator(".pairs").inner_text()
    page.wait_for_selector(".pane-target .box:not(.unmatched):has-text('language_model.forward')")
    with page.expect_download() as download:
        page.locator(".wide-button", has_text="layer_mapping.yaml").click()
    assert Path(download.value.path()).read_text() == "TopLayer:\n  language_model: decoder\n"
    with page.expect_download() as download:
        page.locator(".wide-button", has_text="Export matches").click()
    pairs = json.loads(Path(download.value.path()).read_text())
    page.locator(".pairs .icon-button").first.click()
    page.wait_for_selector(".pane-target .box.unmatched:has-text('language_model.forward')")
    page.locator("input[type=file]").set_input_files(
        {"name": "m.json", "mimeType": "application/json", "buffer": json.dumps(pairs).encode()}
    )
    page.wait_for_selector(".message:has-text('fit this graph')")
    assert next(place.glob("*.matches.json")).exists()
