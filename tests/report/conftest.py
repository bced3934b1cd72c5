"""A real browser for the html report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium as the system has it; without one the page is untested, which is a failure and not a skip."""
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found is None:
        pytest.fail(f"no browser to open the html report with: install one of {', '.join(_NAMES)}")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()
