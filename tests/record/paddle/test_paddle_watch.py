"""level="watch": each step is there, nothing changes, and runs are compared with PyTorch's too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
from shared_watch import *  # noqa: F403

from twinprobe._runs.watch import read_watch, watch_files
from twinprobe.paddle import record


def test_gradients_asked_for_by_keyword(tmp_path: Path) -> None:
    """paddle.grad and paddle.autograd.backward take all of their arguments by keyword, watched as well."""
    model = paddle.nn.Linear(3, 2)
    optimizer = paddle.optimizer.SGD(0.1, model.parameters())
    inputs = paddle.to_tensor(np.ones((4, 3), np.float32), stop_gradient=False)
    with record(model, tmp_path, level="watch"):
        output = model(inputs)
        (slope,) = paddle.grad(outputs=output.sum(), inputs=inputs, create_graph=True)
        paddle.autograd.backward(tensors=[output.mean() + slope.square().sum()])
        optimizer.step()
    watched = read_watch(watch_files(tmp_path)[0])
    assert "loss" in watched.names
