"""Observing changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
from framework_kit import Kit, assert_same_bits
from paddle_networks import Residual, batch
from shared_nothing_changes import *  # noqa: F403
from shared_nothing_changes import assert_nothing_changes

from twinprobe.paddle import record


def test_mixed_precision_training_is_bit_identical(kit: Kit, tmp_path: Path) -> None:
    assert_nothing_changes(kit, tmp_path, Residual, {"amp": True}, level="mix")


def net() -> paddle.nn.Layer:
    paddle.seed(9)
    return paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1))


def penalty(model: paddle.nn.Layer) -> list[np.ndarray]:
    inputs = batch()
    inputs.stop_gradient = False
    (slope,) = paddle.grad(model(inputs).sum(), inputs, create_graph=True)
    slope.pow(2).sum().backward()
    return [slope.numpy(), *[one.grad.numpy() for one in model.parameters() if one.grad is not None]]


def test_a_gradient_of_a_gradient_is_bit_identical(tmp_path: Path) -> None:
    plain, model = penalty(net()), net()
    with record(model, tmp_path / "dump", level="mix"):
        recorded = penalty(model)
    assert_same_bits(plain, recorded)


def twice(model: paddle.nn.Layer) -> list[np.ndarray]:
    """Two passes over one graph, from an input that gets a gradient."""
    inputs = batch()
    inputs.stop_gradient = False
    loss = model(inputs).mean()
    loss.backward(retain_graph=True)
    once = inputs.grad.numpy().copy()
    loss.backward()
    return [once, inputs.grad.numpy(), *[one.grad.numpy() for one in model.parameters()]]


def test_a_second_pass_over_a_graph_is_bit_identical(tmp_path: Path) -> None:
    plain, model = twice(net()), net()
    with record(model, tmp_path / "dump", level="mix"):
        recorded = twice(model)
    assert_same_bits(plain, recorded)
