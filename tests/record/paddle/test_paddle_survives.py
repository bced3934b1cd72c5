"""A killed process leaves a readable dump; a full disk or a defect in the recorder never stops the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paddle
import pytest

import survival
from dump_reading import Dump
from twinprobe.paddle import record

SCRIPT = (
    f"import os, signal, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    """
import paddle
from paddle_networks import Residual, batch
from twinprobe.paddle import PrecisionDebugger
{before}
model = Residual()
debugger = PrecisionDebugger(dump_path={path!r}, level="mix", task={task!r})
for step in range(3):
    debugger.start(model=model)
    model(batch()).sum().backward()
    {inside}
    debugger.stop()
    debugger.step()
print("trained to the end", flush=True)
"""
)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_killed_process_leaves_a_readable_dump(tmp_path: Path, task: str) -> None:
    survival.check_kill(SCRIPT, tmp_path / "dump", task)


def test_a_full_disk_stops_recording_and_not_the_training(tmp_path: Path) -> None:
    survival.check_full_disk(SCRIPT, tmp_path / "dump")


def test_an_unwritable_place_stops_recording_and_not_the_training(tmp_path: Path) -> None:
    survival.check_unwritable(SCRIPT, tmp_path / "file")


def test_an_earlier_dump_is_not_overwritten(tmp_path: Path) -> None:
    survival.check_earlier_dump(SCRIPT, tmp_path / "dump")


class Awkward:
    """An argument whose attributes cannot be read."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("do not look at me")


class Inner(paddle.nn.Layer):
    def forward(self, x: paddle.Tensor, ignored: Any) -> paddle.Tensor:
        return x * 2


class TakesAnything(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.inner(x, Awkward()) + self.inner(x, Awkward())


def test_an_error_in_the_recorder_is_logged_once_and_training_goes_on(tmp_path: Path) -> None:
    model = TakesAnything()
    with record(model, tmp_path / "dump", level="mix"):
        output = model(paddle.ones([3]))
    assert output.tolist() == [4.0, 4.0, 4.0]
    dump = Dump(tmp_path / "dump")
    assert dump.log().count("RuntimeError: do not look at me") == 1
    assert "Tensor.__mul__.1.forward" in dump.data
