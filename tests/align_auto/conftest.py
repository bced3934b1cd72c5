"""Recorded pairs, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.catalogue import CLEAN, PAIRS, Recorded, record_pair
from models.held_out import HELD_OUT
from models.held_out_second import HELD_OUT_SECOND
from twinprobe._runs.run import Run, open_run


@pytest.fixture(scope="session")
def mindspore_pair(reference: Path) -> tuple[Run, Run]:
    """The reference pair: one transformer in MindSpore and in PyTorch."""
    folder = reference / "mindspore" / "dumps"
    return tuple(open_run(next((folder / f"{side}_mix_statistics").rglob("dump.json"))) for side in ("ms", "pt"))  # type: ignore[return-value]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Record a pair of the catalogue by the beginning of its name; the same pair is recorded once."""
    known: dict[tuple[str, str, str, str], Recorded] = {}

    def made(name: str, disturbance: str = CLEAN, level: str = "mix", task: str = "statistics") -> Recorded:
        key = (name, disturbance, level, task)
        if key not in known:
            pair = next(pair for pair in (*PAIRS, *HELD_OUT, *HELD_OUT_SECOND) if pair.name.startswith(name))
            known[key] = record_pair(pair, disturbance, tmp_path_factory.mktemp("pair"), level=level, task=task)
        return known[key]

    return made
