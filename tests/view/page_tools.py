"""Using the page in Chromium: opening it, and reading what it shows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from twinprobe._view.app import make


def show(page: Any, url: str, file: str = "", **state: Any) -> None:
    fields = {"file": file, **state}
    page.goto(url + "#" + "&".join(f"{key}={quote(str(value), safe='')}" for key, value in fields.items() if value))
    page.wait_for_selector(".pane-target .box .name", state="attached")
    page.wait_for_selector(".tabs .count, .banner.calm", state="attached")


def current(page: Any, side: str = "target") -> str:
    return str(page.locator(f".pane-{side} .box.current .head").get_attribute("title")).split("\n")[0]


def box(page: Any, side: str, text: str) -> Any:
    return page.locator(f".pane-{side} .box > .head").filter(has_text=text).first


def names(page: Any, side: str) -> list[str]:
    return [
        str(title).split("\n")[0]
        for title in page.eval_on_selector_all(f".pane-{side} .box > .head", "all => all.map(e => e.title)")
    ]


def becomes(page: Any, read: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """Read until the value is the wanted one; a page takes its time on a busy machine."""
    value = read()
    for _ in range(12000):
        if wanted(value):
            break
        page.wait_for_timeout(50)
        value = read()
    assert wanted(value), value
    return value


def box_of(page: Any, part: Any) -> dict[str, float]:
    """Where a part of the page lies. While the page writes a text anew, there is no part to measure for a moment."""
    box: dict[str, float] = becomes(page, part.bounding_box, bool)
    return box


def opens(page: Any, head: Any, inside: str) -> None:
    """Open a box by a double click. Where the page is laid out anew between the two clicks, it takes another one."""
    for _ in range(20):
        head.dblclick()
        for _ in range(400):
            if page.locator(inside).count():
                return
            page.wait_for_timeout(50)
    raise AssertionError(f"nothing opened shows {inside}")


def stands_on(page: Any, name: str, *sides: str) -> None:
    """Wait until the named node is the current one on these sides (target alone, if none is given)."""
    for side in sides or ("target",):
        becomes(page, lambda side=side: current(page, side), lambda now: now == name)  # type: ignore[misc]


def settles(page: Any, read: Callable[[], Any]) -> Any:
    """The value once it no longer changes."""
    value, same = read(), 0
    for _ in range(300):
        page.wait_for_timeout(100)
        now = read()
        same = same + 1 if now == value else 0
        value = now
        if same == 6:
            break
    return value


@contextmanager
def serving(place: Path, **options: Any) -> Iterator[str]:
    """The viewer's server at a folder, with its address."""
    server = make(place, port=0, **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.wsgi.shutdown()
        thread.join()
