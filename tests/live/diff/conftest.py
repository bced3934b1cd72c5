"""Tests of live comparison: small models, the same numbers every time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.manual_seed(0)
        torch.set_num_threads(1)
