"""Trainings in parallel layouts, each recorded once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from warm_python import run_warm

PROGRAM = Path(__file__).with_name("parallel_training.py")
Trained = Callable[..., Path]


@pytest.fixture(scope="session")
def losses() -> dict[Path, dict[int, list[float]]]:
    """What the ranks of each training printed: the loss of every step, by rank."""
    return {}


@pytest.fixture(scope="session")
def digests() -> dict[Path, list[str]]:
    """The sums of all parameters after each training, one line for each rank."""
    return {}


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory, losses: dict[Path, dict[int, list[float]]], digests: dict[Path, list[str]]
) -> Trained:
    """Trains ``kind`` on so many ranks and gives the folder of the dump."""
    known: dict[tuple[object, ...], Path] = {}

    def train(
        kind: str, ranks: int = 2, level: str = "L0", task: str = "statistics", dtype: str = "float32",
        fault: str = "none",
    ) -> Path:  # fmt: skip
        key = (kind, 1 if kind.startswith("single") else ranks, level, task, dtype, fault)
        if key not in known:
            folder = tmp_path_factory.mktemp("training") / "dump"
            done = run_warm(PROGRAM, str(folder), *map(str, key))
            assert done.returncode == 0, done.stderr
            known[key] = folder
            losses[folder] = {}
            for line in done.stdout.splitlines():
                if line.startswith("loss "):
                    _, rank, _, loss = line.split()
                    losses[folder].setdefault(int(rank), []).append(float(loss))
            digests[folder] = sorted(line for line in done.stdout.splitlines() if line.startswith("digest "))
        return known[key]

    return train
