"""The page in Chromium, used as people use it: files of other tools and ours, opened, unfolded and moved through."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from graph_files import flat, node, write_pair
from page_tools import becomes, box, box_of, names, opens, settles, show, stands_on
from reference_files import FILES

from support import slow

GELU = "Functional.gelu.1.backward"
# Both forms, both tools' versions; a single graph, a pair with and without a divergence, many ranks. The server's tests
# read every file (test_server_answers.py).
SOME_FILES = (
    "results/build_single/build_20261115024659.vis.db",
    "results/ranks_cmp/compare_20261115025155.vis.db",
    "results_json/1.2.2/cmp_md5/compare_20261115025818.vis",
    "results_json/8.1.2/cmp_lm/compare_20261115030032.vis",
)


@pytest.mark.parametrize("file", [*SOME_FILES, *slow(*(file for file in FILES if file not in SOME_FILES))])
def test_every_file_opens_on_its_first_divergence_with_both_paths_unfolded(
    page: Any, serve: Callable[..., str], reference: Path, file: str
) -> None:
    show(page, serve(reference / "graph"), file)
    first = FILES[file][2]
    if first is None:
        assert "DefaultModel" in names(page, "target")
        return
    page.wait_for_selector(".banner.found")
    stands_on(page, first, "target", "golden")
    page.wait_for_selector(f".banner .said[title^='{first}']")
    page.wait_for_selector(f".details .who-name[title='{first}']")


def test_the_sentence_of_our_own_file_is_shown(page: Any, serve: Callable[..., str], tmp_path: Path) -> None:
    name = "Module.layers.1.mlp.up_proj.Linear.forward.0"
    sentence = "layers.1.mlp.up_proj: input equal, output differs, relative norm error 3.1 %; injected here"
    write_pair(
        tmp_path / "compare_1.vis",
        flat([name]),
        flat([name]),
        TwinProbe={
            "first_node": name,
            "first_sentence": sentence,
            "nodes": {name: {"error": 0.031, "verdict": "error"}},
        },
    )
    show(page, serve(tmp_path))
    page.wait_for_selector(".banner.found")
    becomes(page, page.locator(".banner .said").inner_text, lambda text: text == sentence)
    becomes(page, box(page, "target", "up_proj").inner_text, lambda text: "3.1 %" in text)


def test_a_double_click_opens_the_node_and_its_partner_and_closes_them_again(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    show(page, serve(results / "cmp_lm2"))
    box(page, "target", "head").dblclick()
    for side in ("target", "golden"):
        page.wait_for_selector(f".pane-{side} .box:has-text('Functional.linear')")
    box(page, "target", "head").dblclick()
    page.wait_for_selector(".pane-golden .box:has-text('Functional.linear')", state="detached")


def test_a_partner_in_another_place_is_unfolded_too(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_lm2"))
    box(page, "target", "language_model.forward").dblclick()
    page.wait_for_selector(".pane-target .box:has-text('encoder')")
    box(page, "target", "encoder").dblclick()
    page.wait_for_selector(".pane-golden .box.open:has-text('decoder')")
    becomes(page, lambda: names(page, "golden"), lambda now: "Module.decoder.layers.0.Block.forward.0" in now)


def test_labels_drop_the_prefix_and_put_the_direction_second(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".pane-target .box.warning:has-text('gelu')")
    shown = page.locator(".pane-target .box .name").all_inner_texts
    becomes(page, shown, lambda names: {"mlp.backward.MLP.0", "layers.1.backward.Block.0"} <= set(names))


def test_long_names_keep_both_ends_and_have_the_whole_on_hover(
    page: Any, serve: Callable[..., str], tmp_path: Path
) -> None:
    name = "Module." + "very_long_part." * 12 + "last_word.Linear.forward.0"
    write_pair(tmp_path / "compare_1.vis", flat([name]), flat([name]))
    show(page, serve(tmp_path))
    label = page.locator(".pane-target .box:not(.open) .name").inner_text()
    assert label.startswith("very_long")
    assert "…" in label
    assert label.endswith("last_word.forward.Linear.0")
    head = page.locator(".pane-target .box:not(.open) > .head")
    assert head.get_attribute("title").startswith(name)
    assert page.evaluate(
        "() => { const name = document.querySelector('.pane-target .box:not(.open) .name');"
        " return name.scrollWidth <= name.clientWidth + 1; }"
    )


def test_chinese_and_dark(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    page.locator(".language").click()
    page.wait_for_selector("text=首个分歧点")
    becomes(page, page.locator(".pane-target .pane-title").inner_text, lambda text: text == "待调试侧")
    assert page.evaluate("() => document.documentElement.lang") == "zh-CN"
    ground = lambda: page.evaluate("() => getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = ground()
    page.locator(".icon-button[aria-label='浅色/深色']").click()
    becomes(page, ground, lambda now: now != light)


def test_one_graph_alone_has_one_pane_and_no_colours(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "build_single"))
    page.locator(".pane-golden").wait_for(state="hidden")
    page.locator(".strip").wait_for(state="hidden")
    page.wait_for_selector(".banner:has-text('157 nodes')")


def test_fit_zoom_and_minimap_move_the_view(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".details .table")
    scroller = ".pane-target .scroller"
    size = lambda: page.eval_on_selector(".pane-target .box.current", "e => e.getBoundingClientRect().height")  # noqa: E731
    place = lambda key: page.eval_on_selector(scroller, f"e => e.{key}")  # noqa: E731
    start = size()
    page.keyboard.press("w")
    becomes(page, size, lambda now: now > start)
    page.keyboard.press("s")
    page.keyboard.press("s")
    becomes(page, size, lambda now: now < start)
    page.keyboard.press("f")
    becomes(page, lambda: place("scrollTop"), lambda top: top == 0)
    for _ in range(6):
        page.keyboard.press("w")
    becomes(page, size, lambda now: now > start * 1.3)
    area = box_of(page, page.locator(".pane-target .minimap"))
    before = settles(page, lambda: place("scrollTop"))
    page.mouse.click(area["x"] + 20, area["y"] + 100)
    becomes(page, lambda: place("scrollTop"), lambda top: top != before)
    left = place("scrollLeft")
    page.keyboard.press("d")
    becomes(page, lambda: place("scrollLeft"), lambda now: now > left)
    top = settles(page, lambda: place("scrollTop"))
    page.mouse.move(area["x"] - 200, area["y"] + 100)
    page.mouse.wheel(0, -150)
    becomes(page, lambda: place("scrollTop"), lambda now: now < top)


def test_thousands_of_children_are_scrolled_through_with_few_boxes(
    page: Any, serve: Callable[..., str], tmp_path: Path
) -> None:
    many = [f"Torch.add.{n}.forward" for n in range(5000)]
    nodes = flat(["Module.wide.Wide.forward.0"])
    nodes["Module.wide.Wide.forward.0"] = node("Module.wide.Wide.forward.0", "DefaultModel", many)
    nodes |= {name: node(name, "Module.wide.Wide.forward.0") for name in many}
    write_pair(tmp_path / "compare_1.vis", nodes, nodes)
    show(page, serve(tmp_path))
    opens(page, box(page, "target", "wide"), ".pane-golden .box:has-text('Torch.add.forward.3')")
    scroll = "e => { e.scrollTop = e.scrollHeight; return [...e.querySelectorAll('.box')].map(one => one.innerText); }"
    becomes(  # the pane may not have its height yet
        page, lambda: page.eval_on_selector(".pane-target .scroller", scroll), lambda seen: "forward.4999" in str(seen)
    )
    assert page.locator(".box").count() < 200


@pytest.fixture(scope="module")
def own(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What our own commands write of real dumps: one database, and one file per rank and step."""
    from twinprobe._graph.job import GraphRequest, run_request
    from twinprobe._scale.engine import EngineOptions

    dumps, folder = reference / "graph" / "dumps", tmp_path_factory.mktemp("own")
    for form in ("db", "vis"):
        request = GraphRequest(
            dumps / "dist_pert",
            dumps / "dist_base",
            folder / form,
            form,
            "20261115000000",
            engine=EngineOptions(workers=1),
        )
        run_request(request, lambda *_: None)
    return folder


@pytest.mark.parametrize("form", ["db", "vis"])
def test_our_own_files_open_on_what_we_found_and_lead_to_every_rank_and_step(
    page: Any, serve: Callable[..., str], own: Path, form: str
) -> None:
    show(page, serve(own / form))
    page.wait_for_selector(".banner.found:has-text('the parameter differs')")
    stands_on(page, "Functional.linear.6.forward", "target", "golden")
    becomes(page, page.locator(".pane-target .box.current").inner_text, lambda text: "4.66 %" in text)
    page.wait_for_selector(".details:has-text('matched by')")
    page.locator(".text-button", has_text="Ranks").click()
    page.wait_for_selector(".heat-hint:has-text('suspicious')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    becomes(page, page.get_by_label("Step").first.input_value, lambda step: step == "1")
    becomes(page, page.get_by_label("Rank").first.input_value, lambda rank: rank == "1")
    page.wait_for_selector(".banner.found:has-text('linear')")
    page.get_by_label("Colour").first.select_option("error")
    page.wait_for_selector(".ramp")
    becomes(page, lambda: page.locator(".list-row .value").count(), lambda count: count > 5)
