"""Checkpoints that Paddle writes are opened, and compared with those of torch: its linear weights are [in, out]."""

from __future__ import annotations

from pathlib import Path

import paddle
import torch

import twinprobe


def test_a_checkpoint_of_paddle_against_one_of_torch(tmp_path: Path) -> None:
    layer = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.LayerNorm(3), paddle.nn.Linear(3, 3))
    paddle.save(layer.state_dict(), str(tmp_path / "net.pdparams"))
    run = twinprobe.open(tmp_path / "net.pdparams")
    assert run.framework == "paddle"
    assert dict(zip(run.ops, run.table["shape"].to_list(), strict=True))["0.weight"] == "[4, 3]"
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 3))
    for name, parameter in model.named_parameters():
        value = torch.from_numpy(layer.state_dict()[name].numpy().copy())
        parameter.data = value.t().contiguous() if value.dim() == 2 else value
    torch.save(model.state_dict(), tmp_path / "net.pt")
    result = twinprobe.compare(tmp_path / "net.pdparams", tmp_path / "net.pt")
    assert result
    assert "transposed: 0.weight; 2.weight" in result.summary
    model[2].bias.data += 1
    torch.save(model.state_dict(), tmp_path / "net.pt")
    first = twinprobe.compare(tmp_path / "net.pdparams", tmp_path / "net.pt").first
    assert first is not None
    assert first.op == "2.bias"


def test_the_state_of_an_optimizer(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(4, 3)
    optimizer = paddle.optimizer.AdamW(parameters=layer.parameters())
    layer(paddle.ones([2, 4])).sum().backward()
    optimizer.step()
    paddle.save(optimizer.state_dict(), str(tmp_path / "net.pdopt"))
    run = twinprobe.open(tmp_path / "net.pdopt")
    assert any("moment1" in name for name in run.ops)
