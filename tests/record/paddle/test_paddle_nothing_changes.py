"""Observing changes nothing: outputs, gradients, weights and random numbers stay bit-identical."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle_networks import Convolutional, PostNorm, Recomputed, Residual, batch

from models import small_transformer_paddle
from twinprobe.paddle import record

MODELS: dict[str, Callable[[], paddle.nn.Layer]] = {
    "in-place and dropout": Residual,
    "recompute": Recomputed,
    "convolution": Convolutional,
    "many users of one tensor": PostNorm,
}


def trained(make: Callable[[], paddle.nn.Layer], observe: Any, *, amp: bool = False) -> list[np.ndarray]:
    """Two training steps; everything that could differ, as arrays."""
    paddle.seed(5)
    model = make()
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters(), learning_rate=0.01)
    seen: list[np.ndarray] = []
    with observe(model):
        for _ in range(2):
            inputs = batch()
            inputs.stop_gradient = False
            with paddle.amp.auto_cast(level="O1", dtype="bfloat16") if amp else nullcontext():
                output = model(inputs)
                loss = output.astype("float32").pow(2).mean()
            loss.backward()
            seen += [output.numpy().copy(), loss.numpy().copy(), inputs.grad.numpy().copy()]
            seen += [one.grad.numpy().copy() for one in model.parameters() if one.grad is not None]
            optimizer.step()
            optimizer.clear_grad()
    seen += [one.numpy().copy() for one in model.state_dict().values()]
    return [*seen, paddle.rand([4]).numpy()]


def assert_same_bits(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    assert len(first) == len(second)
    for at, (one, other) in enumerate(zip(first, second, strict=True)):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes(), at


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("kind", MODELS)
def test_training_is_bit_identical_when_recorded(tmp_path: Path, kind: str, level: str) -> None:
    plain = trained(MODELS[kind], lambda model: nullcontext())
    recorded = trained(MODELS[kind], lambda model: record(model, tmp_path / "dump", level=level))
    assert_same_bits(plain, recorded)
    assert not list((tmp_path / "dump").glob("*/*/dump_error_info.log"))


@pytest.mark.parametrize(
    "options", [{"task": "tensor"}, {"summary_mode": "md5"}, {"summary_mode": "xor"}, {"risk_level": "ALL"}]
)
def test_every_task_leaves_training_alone(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = trained(Residual, lambda model: nullcontext())
    recorded = trained(Residual, lambda model: record(model, tmp_path / "dump", level="mix", **options))
    assert_same_bits(plain, recorded)
    assert not list((tmp_path / "dump").glob("*/*/dump_error_info.log"))


def test_mixed_precision_training_is_bit_identical(tmp_path: Path) -> None:
    plain = trained(Residual, lambda model: nullcontext(), amp=True)
    recorded = trained(Residual, lambda model: record(model, tmp_path / "dump", level="mix"), amp=True)
    assert_same_bits(plain, recorded)


def penalty(model: paddle.nn.Layer) -> list[np.ndarray]:
    inputs = batch()
    inputs.stop_gradient = False
    (slope,) = paddle.grad(model(inputs).sum(), inputs, create_graph=True)
    slope.pow(2).sum().backward()
    return [slope.numpy(), *[one.grad.numpy() for one in model.parameters() if one.grad is not None]]


def test_a_gradient_of_a_gradient_is_bit_identical(tmp_path: Path) -> None:
    def net() -> paddle.nn.Layer:
        paddle.seed(9)
        return paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1))

    plain, model = penalty(net()), net()
    with record(model, tmp_path / "dump", level="mix"):
        recorded = penalty(model)
    assert_same_bits(plain, recorded)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_transformer_is_bit_identical(tmp_path: Path, level: str) -> None:
    plain, recorded = small_transformer_paddle.model(), small_transformer_paddle.model()
    small_transformer_paddle.train_step(plain)
    with record(recorded, tmp_path / "dump", level=level):
        small_transformer_paddle.train_step(recorded)
    for one, other in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert one.grad.numpy().tobytes() == other.grad.numpy().tobytes()


def test_everything_is_put_back_after_an_exception(tmp_path: Path) -> None:
    before = {name: getattr(paddle.nn.functional, name) for name in dir(paddle.nn.functional)}
    methods = {name: vars(paddle.Tensor)[name] for name in vars(paddle.Tensor)}
    call = paddle.nn.Layer.__call__
    model = Residual()
    with pytest.raises(ValueError, match=r"shape|dim|size|mismatch"), record(model, tmp_path / "dump", level="mix"):
        model(paddle.ones([2, 5]))
    assert {name: getattr(paddle.nn.functional, name) for name in dir(paddle.nn.functional)} == before
    assert {name: vars(paddle.Tensor)[name] for name in vars(paddle.Tensor)} == methods
    assert paddle.nn.Layer.__call__ is call
    assert all(not layer._forward_pre_hooks and not layer._forward_post_hooks for layer in model.sublayers())
