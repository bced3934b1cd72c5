"""These tests run where MindSpore is installed; TWINPROBE_ENV=mindspore says that it has to be."""

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

_HERE = importlib.util.find_spec("mindspore") is not None
collect_ignore_glob = [] if _HERE or os.environ.get("TWINPROBE_ENV") == "mindspore" else ["*.py"]


@pytest.fixture(scope="session")
def kit() -> Any:
    """What the shared tests must know of this framework."""
    from mindspore_kit import MindSporeKit

    return MindSporeKit()


@pytest.fixture(autouse=True)
def _no_debugger_left() -> Iterator[None]:
    from twinprobe.mindspore import PrecisionDebugger

    yield
    if PrecisionDebugger._current is not None:
        PrecisionDebugger._current.close()
