"""Checkpoints that MindSpore writes are opened, and compared with those of torch."""

from __future__ import annotations

from pathlib import Path

import mindspore
import numpy as np
import torch
from mindspore import nn

import twinprobe


def test_a_checkpoint_of_mindspore_against_one_of_torch(tmp_path: Path) -> None:
    cell = nn.SequentialCell(nn.Dense(4, 3), nn.LayerNorm((3,)))
    for parameter in cell.get_parameters():
        parameter.set_data(mindspore.Tensor(np.random.rand(*parameter.shape).astype(np.float32)))
    mindspore.save_checkpoint(cell, str(tmp_path / "net.ckpt"))
    run = twinprobe.open(tmp_path / "net.ckpt")
    assert run.framework == "mindspore"
    assert dict(zip(run.ops, run.table["shape"].to_list(), strict=True)) == {
        "0.weight": "[3, 4]", "0.bias": "[3]", "1.gamma": "[3]", "1.beta": "[3]",
    }  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    for parameter, other in zip(model.parameters(), cell.get_parameters(), strict=True):
        parameter.data = torch.from_numpy(other.asnumpy().copy())
    torch.save(model.state_dict(), tmp_path / "net.pt")
    assert twinprobe.compare(tmp_path / "net.ckpt", tmp_path / "net.pt")
    model[1].weight.data += 1
    torch.save(model.state_dict(), tmp_path / "net.pt")
    first = twinprobe.compare(tmp_path / "net.ckpt", tmp_path / "net.pt").first
    assert first is not None
    assert first.op == "1.gamma"


def test_bfloat16_in_a_checkpoint(tmp_path: Path) -> None:
    value = mindspore.Tensor(np.array([1.5, -2.0, 3.25], np.float32)).astype(mindspore.bfloat16)
    mindspore.save_checkpoint([{"name": "w", "data": value}], str(tmp_path / "half.ckpt"))
    table = twinprobe.open(tmp_path / "half.ckpt").table
    assert table["dtype"].to_list() == ["bfloat16"]
    assert table["max"].to_list() == [3.25]
