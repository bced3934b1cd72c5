"""The collector's thresholds are the program's own again when recording stops."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from twinprobe.torch import record


def test_thresholds_come_back_and_a_programs_own_change_stays(tmp_path: Path) -> None:
    before = gc.get_threshold()
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    try:
        with record(model, tmp_path / "a", level="L0"):
            assert gc.get_threshold() != before
            model(torch.ones(1, 2)).sum().backward()
        assert gc.get_threshold() == before
        with record(model, tmp_path / "b", level="L0"):
            gc.set_threshold(123, 4, 5)
            model(torch.ones(1, 2))
        assert gc.get_threshold() == (123, 4, 5)
        gc.set_threshold(0)
        with record(model, tmp_path / "c", level="L0"):
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
