"""Calls that MindSpore recorded, run again in PyTorch by a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

import twinprobe
import twinprobe.mindspore


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(8, 8)
        self.norm = nn.LayerNorm((8,))

    def construct(self, x: Any) -> Any:
        x = self.norm(self.dense(x))
        parts = [
            ops.softmax(x, axis=-1), ops.gelu(x), ops.matmul(x, x.T), ops.sigmoid(x), ops.exp(x), ops.tanh(x),
            mint.matmul(x, x.T), mint.nn.functional.silu(x), mint.mean(x, dim=-1), x * 2.0, x + x, x - 0.5,
        ]  # fmt: skip
        return sum((one * one).sum() for one in parts)


def test_mindspore_s_calls_are_replayed(tmp_path: Path) -> None:
    ms.set_seed(0)
    net = Net()
    x = ms.Tensor(np.random.RandomState(0).randn(4, 8).astype(np.float32))
    with twinprobe.mindspore.record(net, tmp_path, level="mix", task="tensor"):
        net(x)
    run = twinprobe.open(tmp_path)
    kinds = ("Functional.", "Mint", "Tensor.__", "Primitive.matmul", "Cell.dense", "Cell.norm")
    names = [op.text for op in run.op_names if op.direction == "forward" and op.text.startswith(kinds)]
    assert len(names) > 12
    found = {name: twinprobe.replay(run, call=name) for name in names}
    assert {name: one.sentence for name, one in found.items() if one.off != "neither" or not one.values} == {}
    # A result that is wrong is found: the file of one output is changed.
    file = next(tmp_path.rglob("Functional.gelu.0.forward.output.0.npy"))
    np.save(file, np.load(file) * np.float32(1.001))
    assert twinprobe.replay(run, call="Functional.gelu.0.forward").off == "target"
