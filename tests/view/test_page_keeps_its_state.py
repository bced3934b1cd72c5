"""The page in Chromium: its address, several tabs, late answers and files that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_tools import becomes, box, current, names, settles, show, stands_on

GELU = "Functional.gelu.1.backward"


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

    becomes(page, lambda: page.url, lambda url: all(f"&{word}" in url for word in ("zoom=", "theme=dark", "q=softmax")))
    before = settles(page, lambda: shown(page))
    other = chromium.new_context(viewport={"width": 1600, "height": 950}, locale="en-US").new_page()
    other.goto(page.url)
    other.wait_for_selector(".pane-target .box.current:has-text('softmax.backward.1')")
    becomes(other, lambda: settles(other, lambda: shown(other)), lambda now: now == before)
    assert other.evaluate("() => document.documentElement.dataset.theme") == "dark"
    assert other.locator(".search-input").input_value() == "softmax"
    other.context.close()


def test_a_damaged_file_gives_a_message_and_another_file_still_opens(
    page: Any, serve: Callable[..., str], copied: Callable[[str], Path]
) -> None:
    place = copied("cmp_stat")
    whole = next(place.glob("*.vis.db"))
    (place / "cut.vis.db").write_bytes(whole.read_bytes()[:200_000])
    page.goto(serve(place) + "#file=cut.vis.db")
    page.wait_for_selector(".blocker-box")
    becomes(page, page.locator(".blocker-box").inner_text, lambda text: "damaged" in text)  # it may be indexed first
    page.get_by_label("File").first.select_option(whole.name)
    page.wait_for_selector(".banner.found")
    page.complaints[:] = [text for text in page.complaints if "422" not in text]


@pytest.mark.parametrize("late", ["an answer", "an error"])
def test_a_late_answer_about_the_file_before_changes_nothing(
    page: Any, serve: Callable[..., str], results: Path, late: str
) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        if "cmp_lm2" in route.request.url:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/unfold*" if late == "an answer" else "**/api/counts*", hold)
    before = next((results / "cmp_lm2").glob("*.vis.db")).name
    page.goto(serve(results) + f"#file=cmp_lm2%2F{before}&node=Module.decoder.Enc.forward.0&side=golden")
    becomes(page, lambda: len(held), lambda count: count > 0)
    now = next((results / "cmp_stat").glob("*.vis.db")).name
    page.get_by_label("File").first.select_option(f"cmp_stat/{now}")
    stands_on(page, GELU, "target", "golden")
    page.wait_for_selector(".details .table")
    for route in held:
        route.continue_() if late == "an answer" else route.fulfill(status=422, body='{"error": {"what": "gone"}}')
    assert settles(page, lambda: current(page)) == GELU
    assert "Module.decoder.Enc.forward.0" not in names(page, "golden")
    assert page.locator(".blocker").is_hidden()
    page.complaints[:] = [text for text in page.complaints if "422" not in text]


def file_of(results: Path, folder: str) -> str:
    return f"{folder}/{next((results / folder).glob('*.vis.db')).name}"


def test_an_answer_about_the_file_before_that_comes_while_another_opens_asks_nothing_of_the_other(
    page: Any, serve: Callable[..., str], results: Path
) -> None:
    held: dict[str, Any] = {}
    page.route("**/api/unfold*", lambda route: held.setdefault("unfold", route) is route or route.continue_())
    page.route("**/api/open*cmp_stat*", lambda route: held.setdefault("open", route) is route or route.continue_())
    page.goto(serve(results) + f"#file={file_of(results, 'cmp_lm2')}&node=Module.decoder.Enc.forward.0&side=golden")
    becomes(page, lambda: len(held), lambda count: count == 1)
    page.get_by_label("File").first.select_option(file_of(results, "cmp_stat"))
    becomes(page, lambda: len(held), lambda count: count == 2)
    with page.expect_response("**/api/node*") as details:
        held["unfold"].continue_()
    assert details.value.ok, details.value.text()
    held["open"].continue_()
    stands_on(page, GELU, "target", "golden")
    page.locator(".details .table").first.wait_for()
    assert page.locator(".blocker").is_hidden()


def test_choosing_what_is_shown_already_changes_nothing(
    page: Any, serve: Callable[..., str], copied: Callable[[str], Path]
) -> None:
    place = copied("ranks_cmp")
    file = next(place.glob("*.vis.db"))
    show(page, serve(place), rank=1)
    page.locator(".details .table").first.wait_for()
    becomes(page, lambda: page.url, lambda url: "node=" in url)
    before = settles(page, lambda: (page.url, current(page), names(page, "target")))
    page.get_by_label("File").first.select_option(file.name)
    page.get_by_label("Rank").first.select_option("1")
    page.get_by_role("button", name="Ranks × steps").click()
    page.locator(".heat-hint", has_text="rank 1").wait_for()
    page.locator(".heat-canvas").press("Enter")  # the cell of the graph that is shown
    page.locator(".heat").wait_for(state="hidden")
    look = lambda: settles(page, lambda: (page.url, current(page), names(page, "target")))  # noqa: E731
    becomes(page, look, lambda now: now == before)
    page.locator(".details .table").first.wait_for()


def test_two_tabs_do_not_disturb_each_other(page: Any, serve: Callable[..., str], results: Path) -> None:
    url = serve(results / "cmp_stat")
    show(page, url, node="DefaultModel")
    other = page.context.new_page()
    show(other, url, node="Functional.gelu.0.forward")
    box(page, "target", "optimizer").dblclick()
    page.wait_for_selector(".pane-golden .box:has-text('Tensor.add_')")
    assert "Tensor.add_.0.forward" not in names(other, "target")
    stands_on(other, "Functional.gelu.0.forward")
