"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
REFERENCE = PROJECT.parent / "shared" / "reference"


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
