"""A real browser for the html report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from playwright.sync_api import Page
from report_tables import summary_of

from twinprobe._judge.summary import Summary
from twinprobe._report.reports import fill_html

Open = Callable[..., Page]


@pytest.fixture
def browser(chromium: Any) -> Any:
    """The browser that all tests share."""
    return chromium


@pytest.fixture
def open_page(window: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a table's page; fails the test if the page complains or asks for anything beyond itself."""
    complaints: list[str] = []
    pages: list[Page] = []

    def open_it(table: pl.DataFrame, summary: Summary | None = None, *, scheme: str = "light", **options: int) -> Page:
        path = tmp_path / "r.html"
        fill_html(table, summary or summary_of(table), path, **options)
        page: Page = window.new_page()
        page.set_viewport_size({"width": 1400, "height": 900})
        page.emulate_media(color_scheme=scheme)
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: request.url == path.as_uri() or complaints.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield open_it
    for page in pages:
        page.close()
    assert complaints == []
