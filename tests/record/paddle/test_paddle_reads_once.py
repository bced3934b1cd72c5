"""A tensor is read once per step, and again after something may have written to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from shared_reads_once import *  # noqa: F403

from dump_reading import Dump
from twinprobe.paddle import record


def test_running_statistics_are_read_before_every_call(tmp_path: Path) -> None:
    norm = paddle.nn.BatchNorm1D(4)
    with record(norm, tmp_path, level="L1"):
        for _ in range(2):
            norm(paddle.arange(8, dtype="float32").reshape([2, 4]))
    calls = [value for name, value in Dump(tmp_path).data.items() if "batch_norm" in name]
    means = [[*call["input_args"], *call["input_kwargs"].values()][1]["Max"] for call in calls]
    assert means == pytest.approx([0.0, 0.5])


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("modes", [["all"], ["forward"]])
def test_a_parameter_is_read_again_after_the_optimiser(tmp_path: Path, level: str, modes: list[str]) -> None:
    model = paddle.nn.Sequential(paddle.nn.Linear(4, 4))
    optimizer = paddle.optimizer.Adam(0.1, parameters=model.parameters())
    expected = []
    with record(model, tmp_path, level=level, data_mode=modes):
        for _ in range(2):
            expected.append(float(np.linalg.norm(model[0].weight.numpy())))
            model(paddle.ones([2, 4])).sum().backward()
            optimizer.step()
    data = Dump(tmp_path).data
    norms = [data[f"Module.0.Linear.forward.{call}"]["parameters"]["weight"]["Norm"] for call in range(2)]
    assert norms == pytest.approx(expected, rel=1e-6)
