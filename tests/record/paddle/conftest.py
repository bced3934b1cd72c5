"""These tests run where Paddle is installed; TWINPROBE_ENV=paddle says that it has to be."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "frameworks")]
pytest.register_assert_rewrite(
    *(f"shared_{name}" for name in ("nothing_changes", "reads_once", "records", "survives", "updates", "watch"))
)

_HERE = importlib.util.find_spec("paddle") is not None
collect_ignore_glob = [] if _HERE or os.environ.get("TWINPROBE_ENV") == "paddle" else ["*.py"]


@pytest.fixture(scope="session")
def kit() -> Any:
    """What the shared tests must know of this framework."""
    from paddle_kit import PaddleKit

    return PaddleKit()


@pytest.fixture(autouse=True)
def _no_debugger_left() -> Iterator[None]:
    from twinprobe.paddle import PrecisionDebugger

    yield
    if PrecisionDebugger._current is not None:
        PrecisionDebugger._current.close()
