"""The real pair of runs: one small transformer written in MindSpore and in PyTorch, with equal weights."""

from __future__ import annotations

import pytest
from pairing import DATA

from twinprobe._runs.run import Run, open_run


@pytest.fixture(scope="session")
def ms() -> Run:
    """The MindSpore run."""
    return open_run(DATA / "ms")


@pytest.fixture(scope="session")
def pt() -> Run:
    """The PyTorch run."""
    return open_run(DATA / "pt")
