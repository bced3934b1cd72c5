"""The page of an alignment in Chromium: what it shows, what it tells, and how one finds one's way in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from twinprobe._align.auto.aligner import align_runs
from twinprobe._report.alignment import PAGE, write_alignment
from twinprobe._runs.run import open_run

FRAMEWORKS = Path(__file__).resolve().parents[1] / "data" / "frameworks"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MindSpore's split q, k, v against PyTorch's fused ones, a GELU call against a module."""
    folder = tmp_path_factory.mktemp("page")
    target, golden = open_run(FRAMEWORKS / "mindspore"), open_run(FRAMEWORKS / "torch")
    write_alignment(align_runs(target, golden), target, golden, folder)
    return folder / PAGE


@pytest.fixture
def page(window: Any, written: Path) -> Any:
    page = window.new_page()
    page.set_viewport_size({"width": 1400, "height": 900})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(written.as_uri())
    page.wait_for_selector("#lines .link", state="attached")
    yield page
    page.close()
    assert complaints == []


def _node(page: Page, side: int, text: str) -> Any:
    return page.locator(f"#tree{side} .node").filter(has_text=text).first


def _middle(place: Any) -> float:
    """How far down the middle of an element is."""
    return float(place.evaluate("e => { const box = e.getBoundingClientRect(); return box.top + box.height / 2; }"))


def test_both_trees_stand_side_by_side_with_a_line_for_each_pair(page: Page) -> None:
    expect(page.locator("#summary")).to_contain_text("modules match")
    expect(_node(page, 0, "backbone")).to_be_visible()
    expect(_node(page, 1, "transformer")).to_be_visible()
    expect(page.locator("#lines .link").nth(40)).to_be_attached()
    # A line begins and ends at the middle of the rows it joins.
    top = _middle(page.locator("#lines")) - float(page.locator("#lines").evaluate("e => e.clientHeight")) / 2
    wanted = _middle(_node(page, 0, "backbone (")) - top, _middle(_node(page, 1, "transformer (")) - top
    ends = page.eval_on_selector_all("#lines .link", "all => all.map(path => path.getAttribute('d'))")
    found = [tuple(float(part.split(",")[1]) for part in (end.split(" ")[0], end.split(" ")[-1])) for end in ends]
    assert any(abs(one - wanted[0]) < 1 and abs(two - wanted[1]) < 1 for one, two in found)


def test_pointing_at_a_module_tells_its_partner_and_why(page: Page) -> None:
    _node(page, 1, "c_attn").hover()
    details = page.locator("#details")
    expect(details).to_contain_text("dense1")
    expect(details).to_contain_text("dense3")
    expect(details).to_contain_text("fused layers (fused), confidence")
    expect(page.locator("#lines .link.many.lit")).to_have_count(3)
    expect(page.locator("#tree0 .node.lit")).to_have_count(3)


def test_a_module_whose_partner_is_a_call_names_it(page: Page) -> None:
    act = _node(page, 1, "act (")
    expect(act.locator(".other")).to_contain_text("=")
    page.locator("#calls").check()
    expect(_node(page, 1, "act (").locator(".other")).to_have_count(0)
    assert page.locator("#tree0 .node.call").count() > 0


def test_a_level_closes_and_opens_on_both_sides(page: Page) -> None:
    blocks = page.locator("#tree1 .node").filter(has_text="c_fc")
    expect(blocks).to_have_count(4)
    _node(page, 1, "h.0 (").click()
    expect(blocks).to_have_count(3)
    expect(page.locator("#tree0 .node").filter(has_text="mapping")).to_have_count(3)
    _node(page, 1, "h.0 (").press("Enter")
    expect(blocks).to_have_count(4)
    page.locator("#shut").click()
    expect(blocks).to_have_count(0)
    page.locator("#open").click()
    expect(blocks).to_have_count(4)


def test_search_and_the_filter_leave_only_what_is_asked_for(page: Page) -> None:
    page.locator("#find").fill("ln_2")
    expect(page.locator("#tree1 .node").filter(has_text="ln_2")).to_have_count(4)
    expect(page.locator("#tree1 .node").filter(has_text="ln_1")).to_have_count(0)
    page.locator("#find").fill("")
    page.locator("#alone").check()
    expect(page.locator("#tree1 .node").filter(has_text="c_proj")).to_have_count(0)
    alone = page.locator("#tree1 .node.alone").first
    alone.hover()
    expect(page.locator("#details")).to_contain_text("unmatched")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(page: Page, scheme: Any) -> None:
    """A contrast of 4.5 to 1, for names without a partner too."""
    page.emulate_media(color_scheme=scheme)
    ratio = """element => {
      const channels = (color) => color.match(/[\\d.]+/g).slice(0, 3).map((part) => {
        const share = part / 255;
        return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
      });
      const light = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
      const ground = getComputedStyle(element.closest(".tree")).backgroundColor;
      const [one, other] = [getComputedStyle(element).color, ground].map((color) => light(channels(color)));
      return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    }"""
    for place in (".node.alone .text", ".node:not(.alone) .text", ".node .other"):
        assert page.locator(place).first.evaluate(ratio) >= 4.5, place
