"""MindSpore models against PyTorch models, in both directions."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import nn, ops

from twinprobe import LayerMap, auto_diff
from twinprobe.errors import BadInput

EASY = {"atol": 1e-4, "rtol": 1e-4, "quiet": True}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    ms.set_seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


def array(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Cell(nn.Cell):
    """A residual MLP with a norm and dropout; ``scale`` is the fault."""

    def __init__(self, scale: float = 1.0, p: float = 0.3) -> None:
        super().__init__()
        self.first = nn.Dense(12, 12)
        self.norm = nn.LayerNorm((12,), epsilon=1e-5)
        self.drop = nn.Dropout(p=p)
        self.last = nn.Dense(12, 5)
        self.scale = scale

    def construct(self, x):
        h = self.drop(ops.relu(self.first(x)))
        h = self.norm(h + x)
        if self.scale != 1.0:
            h = h * self.scale
        return self.last(h)


class Module(torch.nn.Module):
    def __init__(self, change=None, p: float = 0.3) -> None:
        super().__init__()
        self.first = torch.nn.Linear(12, 12)
        self.norm = torch.nn.LayerNorm(12)
        self.drop = torch.nn.Dropout(p)
        self.last = torch.nn.Linear(12, 5)
        self.change = change

    def forward(self, x):
        h = self.drop(torch.relu(self.first(x)))
        h = self.norm(h + x)
        return self.last(self.change(h) if self.change is not None else h)


def cell(*args: object, **more: object) -> Cell:
    made = Cell(*args, **more)
    made.set_train()
    return made


X = array(4, 12)


def test_weights_and_dropout_masks_go_either_way() -> None:
    assert auto_diff(cell(), Module(), X, **EASY)
    assert auto_diff(Module(), cell(), X, **EASY)
    assert auto_diff(cell(), cell(), X, **EASY)
    result = auto_diff(Module(), cell(), X, **EASY)
    assert {"forward", "loss", "backward", "gradients"} <= set(result.table["phase"])
    plain = cell()
    assert not np.array_equal(plain.drop(ms.Tensor(np.ones(500, np.float32))).asnumpy(), np.ones(500)), (
        "its own is back"
    )


def test_without_weights_the_first_layer_is_named() -> None:
    result = auto_diff(Module(), cell(), X, auto_weights=False, **EASY)
    assert not result
    assert result.first.raw == "Cell.first.Dense.forward.0"


def test_faults_are_found_forward_and_backward() -> None:
    result = auto_diff(Module(), cell(scale=1.1), X, **EASY)
    assert not result
    assert result.first.raw == "Cell.last.Dense.forward.0"
    assert Path(__file__).name in result.first.raw_line

    def doubled(h):
        h.register_hook(lambda gradient: gradient * 2)
        return h

    result = auto_diff(cell(), Module(doubled), X, **EASY)
    assert not result
    assert (result.first.phase, result.first.raw) == ("backward", "Module.norm.LayerNorm.backward.0")


@pytest.mark.parametrize("fault", [False, True])
def test_single_step(fault: bool) -> None:
    assert auto_diff(cell(), Module(), X, single_step=True, **EASY)
    result = auto_diff(Module(), cell(scale=1.1 if fault else 1.0), X, single_step=True, **EASY)
    assert bool(result) is not fault
    if fault:
        deciding = {one.raw for one in result.differences if one.decides and one.phase == "forward"}
        assert deciding == {"Cell.last.Dense.forward.0"}


def test_optimizer_steps_and_losses() -> None:
    module, other = Module(p=0.0), cell(p=0.0)
    optimizers = [torch.optim.SGD(module.parameters(), 0.1), nn.SGD(other.trainable_params(), 0.1)]
    losses = [lambda output: (output**2).mean(), lambda output: ops.pow(output, 2).mean()]
    result = auto_diff(module, other, X, optimizers=optimizers, loss_fns=losses, steps=5, **EASY)
    assert result
    assert result.steps == 5
    result = auto_diff(module, other, X, loss_fns=[losses[0], lambda output: losses[1](output) + 1], **EASY)
    assert result.first.phase == "loss"


def test_forward_only_and_evaluation_mode() -> None:
    result = auto_diff(cell(), Module(), X, diff_phase="forward", random="eval", **EASY)
    assert result
    assert set(result.table["phase"]) == {"forward"}
    model = cell()
    auto_diff(model, Module(), X, random="eval", **EASY)
    assert model.training
    assert model.drop.training


def test_convolution_batch_norm_and_embedding() -> None:
    class Conv(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3, pad_mode="valid", has_bias=True), nn.BatchNorm2d(4)

        def construct(self, x):
            return ops.relu(self.norm(self.conv(x)))

    class TorchConv(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)

        def forward(self, x):
            return torch.relu(self.norm(self.conv(x)))

    for training in (True, False):
        made = Conv()
        made.set_train(training)
        assert auto_diff(TorchConv().train(training), made, array(2, 3, 8, 8), **EASY)
    tokens = np.random.default_rng(0).integers(0, 20, (2, 5)).astype(np.int32)
    table, torch_table = nn.SequentialCell(nn.Embedding(20, 8)), torch.nn.Sequential(torch.nn.Embedding(20, 8))
    assert auto_diff(torch_table, table, tokens, **EASY)


def test_ignored_and_mapped_cells() -> None:
    class Extra(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Dense(12, 12)
            self.inner = Cell(p=0.0)

        def construct(self, x):
            self.unused(x)
            return self.inner(x)

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Module(p=0.0)

        def forward(self, x):
            return self.inner(x)

    raw = Extra()
    with pytest.raises(BadInput, match="unused"):
        auto_diff(Outer(), raw, X, quiet=True)
    layer_map = LayerMap()
    layer_map.ignore_recursively(raw.unused)
    assert auto_diff(Outer(), raw, X, layer_map=layer_map, **EASY)


def test_after_an_exception_mindspore_is_as_before() -> None:
    class Raises(Cell):
        def construct(self, x):
            self.first(x)
            raise ValueError("on purpose")

    call, relu, dropout = nn.Cell.__call__, ops.relu, ops.dropout
    for single_step in (False, True):
        with pytest.raises(BadInput, match="raw model Raises"):
            auto_diff(Module(), Raises(), X, single_step=single_step, quiet=True)
    assert (nn.Cell.__call__, ops.relu, ops.dropout) == (call, relu, dropout)
    assert auto_diff(Module(), cell(), X, **EASY)


def test_a_torch_recording_stands_for_the_torch_model(tmp_path: Path) -> None:
    from twinprobe.torch import record

    module = Module(p=0.0)
    with record(module, tmp_path / "run", level="mix", task="tensor"):
        module(torch.as_tensor(X)).mean().backward()
    assert auto_diff(cell(p=0.0), tmp_path / "run", X, **EASY)
    result = auto_diff(cell(scale=1.1, p=0.0), tmp_path / "run", X, **EASY)
    assert not result
    assert result.first.raw == "Cell.last.Dense.forward.0"


def test_running_statistics_agree_and_a_reversed_momentum_is_found() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    x = np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32)
    for momentum, agrees in ((0.9, True), (0.1, False)):
        cell = ms.nn.SequentialCell(ms.nn.Dense(6, 4), ms.nn.BatchNorm1d(4, momentum=momentum)).set_train(True)
        result = auto_diff(module, cell, x, atol=1e-4, rtol=1e-4, quiet=True)
        assert bool(result) is agrees
        assert {"moving_mean", "moving_variance"} == {
            one.tensor for one in result.findings if one.phase == "buffers after"
        }
    assert result.first.phase == "buffers after"
