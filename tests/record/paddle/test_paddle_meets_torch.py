"""A fresh recording against the kept one of PyTorch: equal weights, other names, a layer mapping between them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cross import DATA, assert_fault_found, assert_forward_agrees, compared

sys.path.insert(0, str(DATA))


def test_every_forward_pair_agrees_within_rounding(tmp_path: Path) -> None:
    from remake import record

    record("paddle", tmp_path / "run")
    comparison = compared(tmp_path / "run", DATA / "torch", "paddle_torch.yaml")
    assert_forward_agrees(comparison, calls=21, parts=("input", "output", "parameters"))


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    from remake import record

    record("paddle", tmp_path / "run", fault=True)
    comparison = compared(tmp_path / "run", DATA / "torch", "paddle_torch.yaml")
    assert_fault_found(comparison, "Module.blocks.1.ffn.down.")


@pytest.mark.parametrize("kept", [0.9, 0.7])
def test_the_momentum_of_running_statistics_says_what_is_kept(tmp_path: Path, kept: float) -> None:
    """Paddle's 0.9 is PyTorch's 0.1; another one shows in no result of this step, and is named."""
    import paddle
    import torch

    import twinprobe

    values = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    nn = paddle.nn
    ours = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8, momentum=kept), nn.ReLU(), nn.Linear(8, 3))
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    for at in (0, 3):
        ours[at].weight.set_value(theirs[at].weight.detach().T.numpy())
        ours[at].bias.set_value(theirs[at].bias.detach().numpy())
    for model, x, name in ((ours, paddle.to_tensor(values.numpy()), "paddle"), (theirs, values, "torch")):
        with twinprobe.record(model, tmp_path / name, level="mix"):
            model(x).square().mean().backward()
    dumps = [next((tmp_path / name).rglob("dump.json")) for name in ("paddle", "torch")]
    first = twinprobe.compare(*dumps).first
    assert (first is None) == (kept == 0.9), first
    assert first is None or "momentum: 0.3 against 0.1" in first.sentence
