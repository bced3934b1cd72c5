"""A real server and a real Chromium for the tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from page_tools import serving


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    with ExitStack() as stack:
        yield lambda place, **options: stack.enter_context(serving(place, **options))


@pytest.fixture
def page(window: Any, serve: Callable[..., str]) -> Iterator[Any]:
    """A page of 1600 x 950 that fails the test if the browser reports an error; closed before any server is."""
    others = set(window.pages)
    page = window.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(f"{message.text} {message.location}") if message.type == "error" else None,
    )
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.complaints = complaints
    yield page
    for opened in set(window.pages) - others:
        opened.close()
    assert complaints == []


@pytest.fixture
def results(reference: Path) -> Path:
    return reference / "graph" / "results"


@pytest.fixture
def copied(results: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a result folder that a test may write to."""

    def copy(name: str) -> Path:
        target = tmp_path / name
        target.mkdir()
        for file in (results / name).iterdir():
            shutil.copyfile(file, target / file.name)
        return target

    return copy
