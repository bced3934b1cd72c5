"""Fixtures for recording real PyTorch programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


class Dump:
    """One step folder, read with the standard library only."""

    def __init__(self, path: Path, step: int = 0, index: str = "dump") -> None:
        (self.folder,) = sorted((path / f"step{step}").iterdir())
        self.document: dict[str, Any] = json.loads((self.folder / f"{index}.json").read_text(encoding="utf-8"))
        self.data: dict[str, Any] = self.document["data"]

    def side(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture
def dump_of() -> type[Dump]:
    return Dump
