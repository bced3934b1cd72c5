"""Recordings with tensors: golden, and a target whose kernels are wrong at two calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_tools import record


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("golden") / "run")


@pytest.fixture(scope="session")
def two_faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gelu of layer 1 and the softmax of layer 3 are off; all that follows layer 1 has other inputs."""
    faults = {("gelu", 1): lambda out: out * 1.001, ("softmax", 3): lambda out: out * 1.0005}
    return record(tmp_path_factory.mktemp("target") / "run", faults)
