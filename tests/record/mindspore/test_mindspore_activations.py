"""MindSpore approximates exp: what is made of it is no divergence from PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import torch
from mindspore import nn, ops

import twinprobe
from twinprobe.mindspore import record


def _first(tmp_path: Path, alpha: float) -> Any:
    """Of small inputs, whose exp is near 1."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape).astype(np.float32) / 4 for shape in ((32, 8), (4, 32))]
    x = 0.2 * random.standard_normal((64, 8)).astype(np.float32)

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Dense(8, 32, has_bias=False), nn.Dense(32, 4, has_bias=False)

        def construct(self, x: Any) -> Any:
            return self.last(ops.elu(self.first(x)))

    class Twin(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(8, 32, bias=False), torch.nn.Linear(32, 4, bias=False)

        def forward(self, x: Any) -> Any:
            return self.last(torch.nn.functional.elu(self.first(x), alpha))

    net, twin = Net(), Twin()
    for name, weight in zip(("first", "last"), weights, strict=True):
        getattr(net, name).weight.set_data(ms.Tensor(weight))
        getattr(twin, name).weight.data.copy_(torch.from_numpy(weight))
    with record(net, tmp_path / "b", level="mix"):
        ms.grad(lambda x: (net(x) ** 2).mean(), None, net.trainable_params())(ms.Tensor(x))
    with twinprobe.record(twin, tmp_path / "a", level="mix"):
        (twin(torch.from_numpy(x)) ** 2).mean().backward()
    return twinprobe.compare(tmp_path / "b", tmp_path / "a").first


def test_an_elu_rounds_as_the_one_that_it_takes_off(tmp_path: Path) -> None:
    assert _first(tmp_path, 1.0) is None


def test_another_alpha_of_an_elu_is_found(tmp_path: Path) -> None:
    found = _first(tmp_path, 1.001)
    assert found is not None
    assert "elu" in found.op
