"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

PROJECT = Path(__file__).resolve().parents[1]
REFERENCE = PROJECT.parent / "shared" / "reference"

# The one place that decides what is random. Without TWINPROBE_SEED every test sees the same numbers each time and on
# every machine; ./test --all sets it to a number of its own and prints it, so that what failed can be run again.
SEED = os.environ.get("TWINPROBE_SEED")
# A slow machine is no failure (no deadline, no check of the time that examples take), and no run depends on an
# earlier one (no database of examples).
COMMON: Any = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("fixed", derandomize=True, **COMMON)
settings.register_profile("random", derandomize=False, **COMMON)
settings.load_profile("random" if SEED else "fixed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hand the seed to hypothesis before its own plugin looks for it; let Ctrl-C act, which shells switch off in the
    background, and tests of it with that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if SEED:
        config.option.hypothesis_seed = SEED


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed the shared generators before fixtures are made: no test depends on which ones ran before it."""
    seed = int(SEED or 0)
    random.seed(seed)
    np.random.seed(seed)
    for name, seeded in (("torch", "manual_seed"), ("paddle", "seed"), ("mindspore", "set_seed")):
        if name in sys.modules:
            getattr(sys.modules[name], seeded)(seed)


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
    from playwright.sync_api import expect, sync_playwright  # the environments of the other frameworks have none

    def patient(make: Any) -> Any:
        """Time limits end a hang: a busy machine is no failure."""

        def made(**options: Any) -> Any:
            context_or_page = make(**options)
            context_or_page.set_default_timeout(600_000)
            return context_or_page

        return made

    expect.set_options(timeout=600_000)

    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.fail(f"no browser to open the pages with: install one of {', '.join(names)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=600_000)
        browser.new_context, browser.new_page = patient(browser.new_context), patient(browser.new_page)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def window(chromium: Any) -> Any:
    """A window that tests open their pages in: one of its own takes a second to open. Nothing passes from one page to
    the next, since ours store nothing in the browser. A blank page keeps the window's processes alive."""
    context = chromium.new_context(viewport={"width": 1600, "height": 950}, locale="en-US", color_scheme="light")
    context.new_page()
    return context


@pytest.fixture(scope="session")
def axe() -> Callable[[Any], list[str]]:
    """What axe-core finds on a page to be in somebody's way."""
    from axe_playwright_python.sync_playwright import Axe  # not among the oldest versions, which open no browser

    return lambda page: [
        f"{entry['id']}: {entry['help']}: {[node['html'][:160] for node in entry['nodes'][:4]]}"
        for entry in Axe().run(page).response["violations"]
        if entry["impact"] in ("serious", "critical")
    ]
