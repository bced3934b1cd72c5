"""Fixtures shared by all tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[1]
REFERENCE = PROJECT.parent / "shared" / "reference"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs the browser is marked so: ``-m "not browser"`` leaves it out."""
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of real dumps and real results made with the tools that TwinProbe replaces."""
    if not REFERENCE.is_dir():
        pytest.skip("reference data is not here (../shared/reference is missing)")
    return REFERENCE


@pytest.fixture(scope="session")
def seeds() -> Path:
    """The users' own documents, whose commands and files must work as printed."""
    folder = PROJECT.parent / "shared" / "seeds"
    if not folder.is_dir():
        pytest.skip("seed documents are not here (../shared/seeds is missing)")
    return folder


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Chromium as the system has it, one for all tests; without it the pages are untested, which is a failure."""
    from playwright.sync_api import sync_playwright  # the environments of the other frameworks have none

    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.fail(f"no browser to open the pages with: install one of {', '.join(names)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
