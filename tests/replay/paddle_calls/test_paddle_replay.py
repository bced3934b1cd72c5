"""Calls that Paddle recorded, run again in PyTorch by a table."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path
from typing import Any

import paddle
import pytest
from paddle.nn import functional

import twinprobe
import twinprobe.paddle


class Net(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embed = paddle.nn.Embedding(10, 8)
        self.linear = paddle.nn.Linear(8, 6)  # stored [in, out]
        self.norm = paddle.nn.LayerNorm(6)

    def forward(self, ids: Any) -> Any:
        x = self.norm(self.linear(self.embed(ids)))
        results = [
            functional.softmax(x), functional.softmax(x, axis=0), functional.gelu(x), functional.gelu(x, True),
            functional.silu(x), functional.relu(x), functional.log_softmax(x), functional.leaky_relu(x),
            functional.layer_norm(x, 6), functional.linear(x, self.linear.weight.t()), functional.mse_loss(x, x * 0.5),
            paddle.matmul(x, x, transpose_y=True), x @ x.t(), x * 2.0, x + x, 1.0 - x, x / 3, x**2, paddle.exp(x),
            paddle.tanh(x), paddle.rsqrt(paddle.abs(x) + 1), paddle.mean(x, axis=-1), x.sum(-1),
            paddle.concat([x, x], axis=0), paddle.maximum(x, x * 0.5),
        ]  # fmt: skip
        return sum((one * one).sum() for one in results)


def record(folder: Path) -> Path:
    paddle.seed(0)
    net = Net()
    with twinprobe.paddle.record(net, folder, level="mix", task="tensor"):
        net(paddle.arange(5)).backward()
    return folder


def test_paddle_s_calls_are_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = record(tmp_path / "golden")
    right = functional.silu

    @functools.wraps(right)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        return right(*args, **kwargs) * 1.001

    monkeypatch.setattr(functional, "silu", wrong)
    target = record(tmp_path / "target")
    run = twinprobe.open(golden)
    kinds = ("Functional.", "Paddle.", "Tensor.__", "Module.embed", "Module.linear", "Module.norm")
    names = [op.text for op in run.op_names if op.direction == "forward" and op.text.startswith(kinds)]
    assert len(names) > 60
    found = {name: twinprobe.replay(run, call=name) for name in names}
    assert {name: one.sentence for name, one in found.items() if one.off != "neither" or not one.values} == {}
    assert twinprobe.replay(target, golden, call="Functional.silu.0.forward").off == "target"
    assert twinprobe.replay(target, golden, call="Functional.gelu.0.forward").off == "neither"
    written = twinprobe.reproduce(
        target, golden, call="linear", output_path=tmp_path / "out"
    )  # a lambda stands in for Paddle's layout
    monkeypatch.setattr("sys.argv", ["reproduce.py"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(written.folder / "reproduce.py"), run_name="__main__")
    assert not stop.value.code
