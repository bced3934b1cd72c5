"""A fresh recording against the kept one of PyTorch: equal weights, other names, a layer mapping between them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(("eps", "agrees", "new"), [(1e-8, True, False), (1e-3, False, False), (1e-3, False, True)])
def test_the_same_eps_of_adam_is_no_finding_although_the_formulas_differ(
    tmp_path: Path, eps: float, agrees: bool, new: bool
) -> None:
    """Both Adams add it before they correct the bias: recorded is 3.2e-7 for 1e-8 in the first step."""
    import mindspore
    import torch
    from mindspore.experimental import optim

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
        kind = optim.Adam if new else partial(mindspore.nn.Adam, learning_rate=1e-3)
        adam = kind(ours.trainable_params(), eps=eps)
        adam(step(mindspore.Tensor(values.numpy()))[1])
    dumps = [next((tmp_path / name).rglob("dump.json")) for name in ("mindspore", "torch")]
    first = twinprobe.compare(*dumps).first
    assert (first is None) == agrees, first
    assert first is None or "eps: 0.03" in first.sentence


class Padded:
    """A convolution with a stride, a pooling and a norm, in both frameworks; padding by word in MindSpore."""

    def __init__(self, conv: str, pool: str) -> None:
        import mindspore
        import torch

        self.theirs = torch.nn.Sequential(
            torch.nn.Conv2d(3, 6, 3, stride=2, padding=1), torch.nn.MaxPool2d(3, 2, 1),
            torch.nn.Conv2d(6, 6, 3, padding=1), torch.nn.LayerNorm(4),
        )  # fmt: skip
        nn, pad = mindspore.nn, {"pad_mode": "pad", "padding": 1}
        self.ours = nn.SequentialCell(
            nn.Conv2d(3, 6, 3, stride=2, has_bias=True, **(pad if conv == "pad" else {"pad_mode": conv})),
            nn.MaxPool2d(3, 2, **(pad if pool == "pad" else {"pad_mode": pool})),
            nn.Conv2d(6, 6, 3, pad_mode="same", has_bias=True), nn.LayerNorm((4,), epsilon=1e-5),
        )  # fmt: skip
        for at in (0, 2):
            for name in ("weight", "bias"):
                value = getattr(self.theirs[at], name).detach().numpy()
                getattr(self.ours[at], name).set_data(mindspore.Tensor(value))

    def compared(self, folder: Path, level: str) -> Any:
        import mindspore
        import torch

        import twinprobe

        values = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        with twinprobe.record(self.theirs, folder / "torch", level=level):
            self.theirs(values)[..., 0].square().mean().backward()
        step = mindspore.value_and_grad(
            lambda x: self.ours(x)[..., 0].square().mean(), None, self.ours.trainable_params()
        )
        with twinprobe.record(self.ours, folder / "mindspore", level=level):
            step(mindspore.Tensor(values.numpy()))
        return twinprobe.compare(*(next((folder / name).rglob("dump.json")) for name in ("mindspore", "torch")))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_padding_by_a_word_is_the_number_that_it_means(tmp_path: Path, level: str) -> None:
    """With a stride of one, "same" is a number; the norm's mean and variance, which PyTorch hides, are no choices."""
    found = Padded("pad", "pad").compared(tmp_path, level)
    assert found.agrees, found.summary
    assert "built otherwise" not in found.summary
    assert "picks" not in found.summary


@pytest.mark.parametrize(("conv", "pool", "where"), [("same", "pad", "0"), ("pad", "same", "1")])
def test_padding_that_is_no_number_is_named(tmp_path: Path, conv: str, pool: str, where: str) -> None:
    """With a stride of two, "same" pads at one end only."""
    first = Padded(conv, pool).compared(tmp_path, "L0").first
    assert first is not None
    assert first.module == where
    assert "built with padding: same against 1" in first.sentence


@pytest.mark.parametrize("kept", [0.9, 0.5])
def test_what_mindspore_decays_and_a_momentum_beside_it(tmp_path: Path, kept: float) -> None:
    """Its optimizers leave out gamma and beta. Another momentum comes before their step, and both are told."""
    import mindspore
    import torch

    import twinprobe

    values = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3))
    nn = mindspore.nn
    ours = nn.SequentialCell(nn.Dense(6, 6), nn.BatchNorm1d(6, momentum=kept), nn.Dense(6, 3))
    twinprobe.copy_weights(ours, theirs)
    ours.set_train()
    with twinprobe.record(theirs, tmp_path / "torch", level="L0"):
        theirs(values).square().mean().backward()
        torch.optim.SGD(theirs.parameters(), 0.1, weight_decay=0.01).step()
    step = mindspore.value_and_grad(lambda x: ours(x).square().mean(), None, ours.trainable_params())
    with twinprobe.record(ours, tmp_path / "mindspore", level="L0"):
        nn.SGD(ours.trainable_params(), 0.1, weight_decay=0.01)(step(mindspore.Tensor(values.numpy()))[1])
    result = twinprobe.compare(*(next((tmp_path / name).rglob("dump.json")) for name in ("mindspore", "torch")))
    first, decay = result.first, "MindSpore's optimizers leave out what is called gamma or beta"
    assert first is not None
    if kept == 0.9:
        assert "gamma" in first.op
        assert f"weight_decay: 0 against 0.01: {decay}" in first.sentence
    else:
        assert "1.BatchNorm1d" in first.op
        assert "momentum: 0.5 against 0.1" in first.sentence
        assert decay in result.summary
