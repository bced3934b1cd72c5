"""Who may ask, what may be read, and what names full of markup can do: nothing."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evil_files import EVIL, evil_file
from graph_files import flat, node, write_pair
from page_tools import becomes, box_of, show

from twinprobe._cli.view import _check
from twinprobe._view.app import is_loopback
from twinprobe.errors import BadInput


def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as reply:
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def test_names_and_stacks_full_of_markup_stay_text(page: Any, serve: Callable[..., str], tmp_path: Path) -> None:
    evil_file(tmp_path / "compare_<b>1.vis")
    show(page, serve(tmp_path))
    page.wait_for_selector(".banner.found")
    for name in EVIL:
        page.locator(".search-input").fill(name.split("\u0000")[0][:20])
        page.wait_for_selector(".list-row")
    for row in page.locator(".pane-target .box:not(.open) > .head").all():
        row.click()
        page.wait_for_selector(".details .stack li")
    page.locator(".pane-target .box:not(.open) > .head").first.click(button="right")
    page.wait_for_selector(".menu")
    assert (
        page.evaluate(
            "() => document.querySelectorAll('img, svg[onload], script:not([src]), .page b i, .page iframe').length"
        )
        == 0
    )
    becomes(page, page.locator(".banner .said").inner_text, lambda text: text == f"{EVIL[0]}: {EVIL[1]}: {EVIL[0]}")
    assert page.locator(".details .stack li").first.inner_text().strip()


def test_marks_that_turn_the_reading_direction_are_spelled_out(
    page: Any, serve: Callable[..., str], tmp_path: Path
) -> None:
    name = "Torch.photo\u202egpj.exe\x1b.0.forward"
    write_pair(tmp_path / "compare_1.vis", flat([name]), flat([name]))
    show(page, serve(tmp_path))
    page.locator(".pane-target .box:not(.open) > .head").first.click()
    page.wait_for_selector(".details .who-name")
    texts = page.evaluate(
        "() => [document.body.innerText, ...[...document.querySelectorAll('[title]')].map((e) => e.title)].join('|')"
    )
    assert r"photo\u202egpj.exe\u001b" in texts
    assert not {"\u202e", "\x1b"} & set(texts)


def test_answers_carry_a_strict_policy(serve: Callable[..., str], results: Path) -> None:
    url = serve(results)
    for path in ("", "static/index.js", "api/files", "nothing"):
        _, headers, _ = get(url + path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:6060", "127.0.0.1.evil.example", "", "0.0.0.0"])
def test_another_name_for_this_machine_is_not_answered(serve: Callable[..., str], results: Path, host: str) -> None:
    assert get(serve(results) + "api/files", Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1:1", "LOCALHOST", "[::1]:8080"])
def test_a_forwarded_port_of_this_machine_is_answered(serve: Callable[..., str], results: Path, host: str) -> None:
    assert get(serve(results) + "api/files", Host=host)[0] == 200


def test_an_address_that_others_can_reach_demands_the_token(serve: Callable[..., str], results: Path) -> None:
    url = serve(results, host="0.0.0.0")
    base, token = url.split("?token=")
    here = "http://127.0.0.1:" + base.rsplit(":", 1)[1]
    assert len(token) >= 20
    assert get(here + "api/files")[0] == 403
    assert get(here + "?token=wrong")[0] == 403
    status, headers, _ = get(f"{here}?token={token}")
    assert status == 200
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert get(here + "api/files", Cookie=cookie.split(";")[0])[0] == 200
    assert get(here + "api/files", Cookie=cookie.split(";")[0], Host="evil.example")[0] == 421
    assert get(here + "api/files", Cookie=cookie.split(";")[0], Host="10.1.2.3:80")[0] == 200


def test_the_page_works_with_its_token(page: Any, serve: Callable[..., str], results: Path) -> None:
    base, token = serve(results / "cmp_stat", host="0.0.0.0").split("?token=")
    page.goto(f"http://127.0.0.1:{base.rsplit(':', 1)[1]}?token={token}")
    page.wait_for_selector(".banner.found")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_what_is_not_loopback_is_known(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "path",
    ["static/../app.py", "static/%2e%2e/app.py", "static//etc/passwd", "static/..%2fapp.py", "app.py", "api/../app.py"],
)
def test_only_the_files_of_the_front_end_are_served(serve: Callable[..., str], results: Path, path: str) -> None:
    status, _, body = get(serve(results) + path)
    assert status == 404
    assert b"WSGI" not in body


def test_only_graph_files_of_the_folder_are_read(serve: Callable[..., str], results: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    outside = evil_file(tmp_path / "outside.vis")
    (inside / "link.vis").symlink_to(outside)
    (inside / "folder").symlink_to(results)
    write_pair(inside / "compare_1.vis", flat(["Torch.add.0.forward"]), flat(["Torch.add.0.forward"]))
    url = serve(inside)
    assert [file["id"] for file in json.loads(get(url + "api/files")[2])["files"]] == ["compare_1.vis"]
    for name in ("link.vis", "../outside.vis", str(outside), "folder/cmp_stat/compare_20261115024710.vis.db"):
        assert get(url + "api/open?file=" + urllib.request.quote(name, safe=""))[0] == 422


def test_a_foreign_page_cannot_change_matches(serve: Callable[..., str], results: Path) -> None:
    url = serve(results / "cmp_lm2")
    for headers in ({}, {"X-TwinProbe": "1", "Origin": "http://evil.example"}):
        request = urllib.request.Request(
            url + "api/change", data=b'{"action": "remove", "target": "x"}', headers=headers
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        assert caught.value.code == 403
    assert list((results / "cmp_lm2").glob("*.matches.json")) == []


def test_reading_leaves_the_folder_as_it_was(
    page: Any, serve: Callable[..., str], copied: Callable[[str], Path]
) -> None:
    place = copied("cmp_stat")
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    show(page, serve(place))
    page.wait_for_selector(".details .table")
    assert {path.name: path.stat().st_mtime_ns for path in place.iterdir()} == before


def test_a_node_whose_name_is_a_property_of_every_object_is_a_node(
    page: Any, serve: Callable[..., str], tmp_path: Path
) -> None:
    nodes = flat(["__proto__"])
    nodes["__proto__"] = node("__proto__", "DefaultModel", ["constructor"])
    nodes["constructor"] = node("constructor", "__proto__")
    write_pair(tmp_path / "compare_1.vis", nodes, nodes)
    show(page, serve(tmp_path))
    page.locator(".pane-target .box > .head", has_text="__proto__").dblclick()
    page.wait_for_selector(".pane-golden .box:has-text('constructor')")


def test_a_double_click_counts_even_if_the_first_click_is_drawn_in_the_middle_of_the_second(
    page: Any, serve: Callable[..., str], tmp_path: Path
) -> None:
    nodes = flat(["Module.outer.Outer.forward.0"])
    nodes["Module.outer.Outer.forward.0"] = node("Module.outer.Outer.forward.0", "DefaultModel", ["inner"])
    nodes["inner"] = node("inner", "Module.outer.Outer.forward.0")
    write_pair(tmp_path / "compare_1.vis", nodes, nodes)
    show(page, serve(tmp_path))
    place = box_of(page, page.locator(".pane-target .box > .head .name", has_text="outer"))
    at = (place["x"] + 5, place["y"] + 5)
    held = "window.held = []; window.soon = requestAnimationFrame; requestAnimationFrame = (work) => held.push(work)"
    page.evaluate(f"() => {{ {held} }}")
    page.mouse.click(*at)
    page.mouse.down(click_count=2)
    page.evaluate("() => held.splice(0).forEach((work) => work())")
    page.mouse.up(click_count=2)
    page.evaluate("() => { requestAnimationFrame = soon; held.splice(0).forEach((work) => work()) }")
    page.wait_for_selector(".pane-target .box:has-text('inner')")


def test_the_command_refuses_what_it_cannot_show(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    for place, words in ((tmp_path / "none", "not exist"), (tmp_path, "holds no"), (tmp_path / "x.txt", "not a .vis")):
        with pytest.raises(BadInput, match=words):
            _check(place)
