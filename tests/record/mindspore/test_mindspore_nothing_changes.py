"""Observing changes nothing: outputs, gradients, weights and random numbers stay bit-identical."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore_networks import Convolutional, PostNorm, Residual, WithJitted, batch, seeded

from models import small_transformer_mindspore
from twinprobe.mindspore import record


def recomputed() -> nn.Cell:
    net = PostNorm()
    net.attention[1].recompute()
    return net


MODELS: dict[str, Callable[[], nn.Cell]] = {
    "dropout": Residual,
    "convolution": Convolutional,
    "many users of one tensor": PostNorm,
    "recompute": recomputed,
    "a compiled cell": WithJitted,
}


def trained(make: Callable[[], nn.Cell], observe: Any) -> list[np.ndarray]:
    """Two training steps; everything that could differ, as arrays."""
    model = seeded(make)
    model.set_train()
    optimizer = nn.Adam(model.trainable_params(), learning_rate=0.01)
    step = ms.value_and_grad(lambda x: ops.pow(model(x), 2).mean(), 0, model.trainable_params())
    seen: list[np.ndarray] = []
    with observe(model):
        for _ in range(2):
            loss, (inputs, gradients) = step(batch())
            seen += [one.asnumpy().copy() for one in (loss, inputs, *gradients)]
            optimizer(gradients)
    seen += [one.asnumpy().copy() for one in model.get_parameters()]
    return [*seen, ops.rand(4).asnumpy()]


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
    assert not list((tmp_path / "dump").rglob("dump_error_info.log"))


@pytest.mark.parametrize("options", [{"task": "tensor"}, {"summary_mode": "md5"}, {"summary_mode": "xor"}])
def test_every_task_leaves_training_alone(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = trained(Residual, lambda model: nullcontext())
    recorded = trained(Residual, lambda model: record(model, tmp_path / "dump", level="mix", **options))
    assert_same_bits(plain, recorded)
    assert not list((tmp_path / "dump").rglob("dump_error_info.log"))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_transformer_is_bit_identical(tmp_path: Path, level: str) -> None:
    _, plain = small_transformer_mindspore.train_step(small_transformer_mindspore.model())
    model = small_transformer_mindspore.model()
    with record(model, tmp_path / "dump", level=level):
        _, recorded = small_transformer_mindspore.train_step(model)
    assert_same_bits([one.asnumpy() for one in plain], [one.asnumpy() for one in recorded])


def functions() -> dict[str, Any]:
    found = {f"ops.{name}": getattr(ops, name) for name in dir(ops)}
    found |= {f"mint.{name}": getattr(ms.mint, name) for name in dir(ms.mint)}
    found |= {f"Tensor.{name}": vars(ms.Tensor)[name] for name in vars(ms.Tensor)}
    return found | {"call": nn.Cell.__call__, "primitive": ops.MatMul.__call__}


def test_everything_is_put_back_after_an_exception(tmp_path: Path) -> None:
    before = functions()
    model = seeded(Residual)
    with pytest.raises(ValueError, match=r"shape|dim|size|mismatch"), record(model, tmp_path / "dump", level="mix"):
        model(ms.Tensor(np.ones((2, 5), np.float32))).asnumpy()
    after = functions()
    assert [name for name in before if before[name] is not after.get(name)] == []
    assert before.keys() == after.keys()
    assert all(not cell._forward_hook and not cell._forward_pre_hook for _, cell in model.cells_and_names())
