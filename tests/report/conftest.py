"""A real browser for the html report."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def browser(chromium: Any) -> Any:
    """The browser that all tests share."""
    return chromium
