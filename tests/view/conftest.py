"""A real server and a real Chromium for the tests of the page."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from twinprobe._view.serve import make


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@contextmanager
def serving(place: Path, **options: Any) -> Iterator[str]:
    server = make(place, port=0, **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.wsgi.shutdown()
        thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    with ExitStack() as stack:
        yield lambda place, **options: stack.enter_context(serving(place, **options))


@pytest.fixture
def page(chromium: Any, serve: Callable[..., str]) -> Iterator[Any]:
    """A page of 1600 x 950 that fails the test if the browser reports an error; closed before any server is."""
    context = chromium.new_context(viewport={"width": 1600, "height": 950}, locale="en-US", color_scheme="light")
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(f"{message.text} {message.location}") if message.type == "error" else None,
    )
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.complaints = complaints
    yield page
    context.close()
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
