"""A Paddle model that ran elsewhere, against a MindSpore model here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from twinprobe import auto_diff

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recorded"))
from small_net import RUNS, X, mindspore_net

EASY = {"atol": 1e-5, "rtol": 1e-4, "quiet": True}


@pytest.mark.parametrize("inputs", [X, None], ids=["inputs given", "inputs of the recording"])
def test_a_mindspore_model_takes_the_weights_of_a_paddle_recording_and_agrees(inputs) -> None:
    result = auto_diff(mindspore_net(), RUNS["paddle"], inputs, **EASY)
    assert result, result
    pairs = {(one.raw, one.base, one.place) for one in result.findings}
    for cell, name in (
        ("first.Dense", "first.Linear"),
        ("norm.LayerNorm", "norm.LayerNorm"),
        ("last.Dense", "last.Linear"),
    ):
        assert (f"Cell.{cell}.forward.0", f"Module.{name}.forward.0", "output") in pairs
        assert (f"Cell.{cell}.backward.0", f"Module.{name}.backward.0", "gradient of output") in pairs
        assert (f"Cell.{cell}.parameters_grad.0", f"Module.{name}.parameters_grad.0", "gradient") in pairs
    assert not auto_diff(mindspore_net(), RUNS["paddle"], X, auto_weights=False, **EASY)


def test_a_fault_is_found_against_a_paddle_recording() -> None:
    result = auto_diff(mindspore_net(lambda h: h * 1.1), RUNS["paddle"], X, **EASY)
    assert (result.first.phase, result.first.raw) == ("forward", "Cell.last.Dense.forward.0")
