"""Fixtures for recording real PyTorch programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dump_reading import Dump

sys.path.insert(0, str(Path(__file__).parent))

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_debugger_left() -> Iterator[None]:
    from twinprobe.torch import PrecisionDebugger

    yield
    if PrecisionDebugger._current is not None:
        PrecisionDebugger._current.close()


@pytest.fixture
def dump_of() -> type[Dump]:
    return Dump
