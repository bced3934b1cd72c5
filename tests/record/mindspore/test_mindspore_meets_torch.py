"""A fresh recording against the kept one of PyTorch: equal weights, other names, a layer mapping between them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cross import DATA, assert_fault_found, assert_forward_agrees, compared

sys.path.insert(0, str(DATA))


def test_every_forward_pair_agrees_within_rounding(tmp_path: Path) -> None:
    from remake import record

    record("mindspore", tmp_path / "run")
    comparison = compared(tmp_path / "run", DATA / "torch", "mindspore_torch.yaml")
    assert_forward_agrees(comparison, calls=21, parts=("input", "output", "parameters"))


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    from remake import record

    record("mindspore", tmp_path / "run", fault=True)
    comparison = compared(tmp_path / "run", DATA / "torch", "mindspore_torch.yaml")
    assert_fault_found(comparison, "Cell.layers.1.feed_forward.dense_out.")


@pytest.mark.parametrize(("eps", "agrees"), [(1e-8, True), (1e-3, False)])
def test_the_same_eps_of_adam_is_no_finding_although_the_formulas_differ(
    tmp_path: Path, eps: float, agrees: bool
) -> None:
    """nn.Adam adds it before it corrects the bias: recorded is 3.2e-7 for 1e-8 in the first step."""
    import mindspore
    import torch

    import twinprobe

    values = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 3))
    ours = mindspore.nn.SequentialCell(mindspore.nn.Dense(6, 6), mindspore.nn.Dense(6, 3))
    for mine, other in zip(ours.trainable_params(), theirs.parameters(), strict=True):
        mine.set_data(mindspore.Tensor(other.detach().numpy()))
    with twinprobe.record(theirs, tmp_path / "torch", level="mix"):
        optimizer = torch.optim.Adam(theirs.parameters(), lr=1e-3)
        theirs(values).square().mean().backward()
        optimizer.step()
    step = mindspore.value_and_grad(lambda x: ours(x).square().mean(), None, ours.trainable_params())
    with twinprobe.record(ours, tmp_path / "mindspore", level="mix"):
        adam = mindspore.nn.Adam(ours.trainable_params(), learning_rate=1e-3, eps=eps)
        adam(step(mindspore.Tensor(values.numpy()))[1])
    dumps = [next((tmp_path / name).rglob("dump.json")) for name in ("mindspore", "torch")]
    first = twinprobe.compare(*dumps).first
    assert (first is None) == agrees, first
    assert first is None or "eps: 0.03" in first.sentence
