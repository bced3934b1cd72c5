"""A MindSpore model that ran elsewhere, against a Paddle model here."""

from __future__ import annotations

import sys
from pathlib import Path

import paddle
import pytest

from twinprobe import auto_diff
from twinprobe._live.checks import check_report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recorded"))
from small_net import RUNS, X, paddle_net

EASY = {"atol": 1e-5, "rtol": 1e-4, "quiet": True}


@pytest.mark.parametrize("inputs", [X, None], ids=["inputs given", "inputs of the recording"])
def test_a_paddle_model_takes_the_weights_of_a_mindspore_recording_and_agrees(inputs) -> None:
    result = auto_diff(paddle_net(), RUNS["mindspore"], inputs, **EASY)
    assert result, result
    pairs = {(one.raw, one.base, one.place) for one in result.findings}
    for name, cell in (
        ("first.Linear", "first.Dense"),
        ("norm.LayerNorm", "norm.LayerNorm"),
        ("last.Linear", "last.Dense"),
    ):
        assert (f"Module.{name}.forward.0", f"Cell.{cell}.forward.0", "output") in pairs
        assert (f"Module.{name}.backward.0", f"Cell.{cell}.backward.0", "gradient of output") in pairs
        assert (f"Module.{name}.parameters_grad.0", f"Cell.{cell}.parameters_grad.0", "gradient") in pairs
    assert not auto_diff(paddle_net(), RUNS["mindspore"], X, auto_weights=False, **EASY)


def test_faults_forward_and_backward_are_found_against_a_mindspore_recording() -> None:
    result = auto_diff(paddle_net(lambda h: h * 1.1), RUNS["mindspore"], X, **EASY)
    assert (result.first.phase, result.first.raw) == ("forward", "Module.last.Linear.forward.0")

    def doubled(h: paddle.Tensor) -> paddle.Tensor:
        h.register_hook(lambda gradient: gradient * 2)
        return h

    result = auto_diff(paddle_net(doubled), RUNS["mindspore"], X, **EASY)
    assert (result.first.phase, result.first.raw) == ("backward", "Module.norm.LayerNorm.backward.0")


def test_two_recordings_of_the_two_frameworks_are_checked_without_either() -> None:
    assert not check_report(RUNS["mindspore"], RUNS["paddle"], {"atol": 1e-5}, quiet=True), "their weights differ"
