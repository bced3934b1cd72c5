"""The page in Chromium, used as people use it, on files of other tools and on ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from graph_files import flat, node, write_pair
from page_tools import becomes, box, current, names, settles, show, stands_on
from reference_files import FILES

GELU = "Functional.gelu.1.backward"


@pytest.mark.parametrize("file", FILES)
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
    assert "3.1 %" in box(page, "target", "up_proj").inner_text()


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
    assert "Module.decoder.layers.0.Block.forward.0" in names(page, "golden")


def test_labels_drop_the_prefix_and_put_the_direction_second(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    show(page, serve(results / "cmp_stat"))
    page.wait_for_selector(".pane-target .box.warning:has-text('gelu')")
    shown = page.locator(".pane-target .box .name").all_inner_texts()
    assert "mlp.backward.MLP.0" in shown
    assert "layers.1.backward.Block.0" in shown


def test_long_names_keep_their_end_and_have_the_whole_on_hover(
    page: Any, serve: Callable[..., str], tmp_path: Path
) -> None:
    name = "Module." + "very_long_part." * 12 + "last_word.Linear.forward.0"
    write_pair(tmp_path / "compare_1.vis", flat([name]), flat([name]))
    show(page, serve(tmp_path))
    label = page.locator(".pane-target .box:not(.open) .name").inner_text()
    assert label.startswith("…")
    assert label.endswith("last_word.forward.Linear.0")
    head = page.locator(".pane-target .box:not(.open) > .head")
    assert head.get_attribute("title").startswith(name)
    assert page.evaluate(
        "() => { const name = document.querySelector('.pane-target .box:not(.open) .name');"
        " return name.scrollWidth <= name.clientWidth + 1; }"
    )


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
    area = page.locator(".strip-canvas").bounding_box()
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
    assert "4.66 %" in page.locator(".pane-target .box.current").inner_text()
    fills = page.eval_on_selector_all(
        ".pane-target .box", "all => new Set(all.map(e => e.style.getPropertyValue('--fill'))).size"
    )
    assert fills >= 3


def test_search_finds_nodes_and_goes_to_them(page: Any, serve: Callable[..., str], results: Path) -> None:
    show(page, serve(results / "cmp_stat"))
    page.keyboard.press("/")
    page.keyboard.type("softmax.0.for")
    page.wait_for_selector(".list-row:has-text('softmax.forward.0')")
    page.locator(".list-row").first.click()
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


def test_the_address_holds_the_state_and_a_link_shows_the_same(
    page: Any, chromium: Any, serve: Callable[..., str], results: Path
) -> None:
    show(page, serve(results / "ranks_cmp"))
    page.get_by_label("Rank").first.select_option("1")
    page.wait_for_selector(".banner.found")
    page.keyboard.press("/")
    page.keyboard.type("softmax")
    page.locator(".list-row", has_text="softmax.backward.1").first.click()
    page.wait_for_selector(".pane-target .box.current:has-text('softmax.backward.1')")
    page.locator(".icon-button[aria-label='Light or dark']").click()
    page.keyboard.press("Escape")
    page.keyboard.press("s")

    def shown(one: Any) -> tuple[Any, ...]:
        return one.url, sorted(names(one, "target")), sorted(names(one, "golden")), current(one)

    before = settles(page, lambda: shown(page))
    other = chromium.new_context(viewport={"width": 1600, "height": 950}, locale="en-US").new_page()
    other.goto(page.url)
    other.wait_for_selector(".pane-target .box.current:has-text('softmax.backward.1')")
    assert settles(other, lambda: shown(other)) == before
    assert other.evaluate("() => document.documentElement.dataset.theme") == "dark"
    assert other.locator(".search-input").input_value() == "softmax"
    other.context.close()


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
    area = page.locator(".heat-canvas").bounding_box()
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
    area = page.locator(".pane-target .minimap").bounding_box()
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


def test_a_damaged_file_gives_a_message_and_another_file_still_opens(
    page: Any, serve: Callable[..., str], copied: Callable[[str], Path]
) -> None:
    place = copied("cmp_stat")
    whole = next(place.glob("*.vis.db"))
    (place / "cut.vis.db").write_bytes(whole.read_bytes()[:200_000])
    page.goto(serve(place) + "#file=cut.vis.db")
    page.wait_for_selector(".blocker-box")
    assert "damaged" in page.locator(".blocker-box").inner_text()
    page.get_by_label("File").first.select_option(whole.name)
    page.wait_for_selector(".banner.found")
    page.complaints[:] = [text for text in page.complaints if "422" not in text]


def test_a_late_answer_about_the_file_before_changes_nothing(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        if "cmp_lm2" in route.request.url:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/unfold*", hold)
    before = next((results / "cmp_lm2").glob("*.vis.db")).name
    page.goto(serve(results) + f"#file=cmp_lm2%2F{before}&node=Module.decoder.Enc.forward.0&side=golden")
    becomes(page, lambda: len(held), lambda count: count > 0)
    now = next((results / "cmp_stat").glob("*.vis.db")).name
    page.get_by_label("File").first.select_option(f"cmp_stat/{now}")
    stands_on(page, GELU, "target", "golden")
    for route in held:
        route.continue_()
    page.wait_for_selector(".details .table")
    assert settles(page, lambda: (current(page), names(page, "golden"))) == (GELU, names(page, "golden"))
    assert "Module.decoder.Enc.forward.0" not in names(page, "golden")


def test_two_tabs_do_not_disturb_each_other(page: Any, serve: Callable[..., str], results: Path) -> None:
    url = serve(results / "cmp_stat")
    show(page, url, node="DefaultModel")
    other = page.context.new_page()
    show(other, url, node="Functional.gelu.0.forward")
    box(page, "target", "optimizer").dblclick()
    page.wait_for_selector(".pane-golden .box:has-text('Tensor.add_')")
    assert "Tensor.add_.0.forward" not in names(other, "target")
    stands_on(other, "Functional.gelu.0.forward")


def test_thousands_of_children_are_scrolled_through_with_few_boxes(
    page: Any, serve: Callable[..., str], tmp_path: Path
) -> None:
    many = [f"Torch.add.{n}.forward" for n in range(5000)]
    nodes = flat(["Module.wide.Wide.forward.0"])
    nodes["Module.wide.Wide.forward.0"] = node("Module.wide.Wide.forward.0", "DefaultModel", many)
    nodes |= {name: node(name, "Module.wide.Wide.forward.0") for name in many}
    write_pair(tmp_path / "compare_1.vis", nodes, nodes)
    show(page, serve(tmp_path))
    box(page, "target", "wide").dblclick()
    page.wait_for_selector(".pane-golden .box:has-text('Torch.add.forward.3')")
    page.eval_on_selector(".pane-target .scroller", "e => { e.scrollTop = e.scrollHeight; }")
    page.wait_for_selector(".pane-target .box:has-text('Torch.add.forward.4999')")
    assert page.locator(".box").count() < 200


@pytest.fixture(scope="module")
def own(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What our own commands write of real dumps: one database, and one file per rank and step."""
    from twinprobe.graph.job import GraphRequest, run_request

    dumps, folder = reference / "graph" / "dumps", tmp_path_factory.mktemp("own")
    for form in ("db", "vis"):
        request = GraphRequest(
            dumps / "dist_pert", dumps / "dist_base", folder / form, form, "20261115000000", workers=1
        )
        run_request(request, lambda *_: None)
    return folder


@pytest.mark.parametrize("form", ["db", "vis"])
def test_our_own_files_open_on_what_we_found_and_lead_to_every_rank_and_step(
    page: Any, serve: Callable[..., str], own: Path, form: str
) -> None:
    show(page, serve(own / form))
    page.wait_for_selector(".banner.found:has-text('injected here')")
    stands_on(page, "Functional.linear.6.forward", "target", "golden")
    assert "4.66 %" in page.locator(".pane-target .box.current").inner_text()
    page.wait_for_selector(".details:has-text('matched by')")
    page.locator(".text-button", has_text="Ranks").click()
    page.wait_for_selector(".heat-hint:has-text('suspicious')")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    becomes(page, page.get_by_label("Step").first.input_value, lambda step: step == "1")
    becomes(page, page.get_by_label("Rank").first.input_value, lambda rank: rank == "1")
    page.wait_for_selector(".banner.found:has-text('layer_norm')")
    page.get_by_label("Colour").first.select_option("error")
    page.wait_for_selector(".ramp")
    becomes(page, lambda: page.locator(".list-row .value").count(), lambda count: count > 5)
