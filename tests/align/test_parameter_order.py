"""Optimizers that go through their parameters in another order, in loops and in lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import twinprobe

torch = pytest.importorskip("torch")
nn = torch.nn


class Attention(nn.Module):
    """The gradient of the keys' bias is zero in theory. ``turned``: its layers are registered in reverse."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        layers = {name: nn.Linear(16, 16) for name in ("q", "k", "v")} | {"norm": nn.LayerNorm(16)}
        for name in reversed(layers) if turned else layers:
            self.add_module(name, layers[name])

    def forward(self, x: Any) -> Any:
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2) / 4, -1)
        return self.norm(x + weights @ self.v(x))


def _train(folder: Path, kind: str, *, lists: bool, turned: bool = False, fault: bool = False, steps: int = 2) -> Path:
    torch.manual_seed(0)
    weights = Attention().state_dict()
    model = Attention(turned)
    model.load_state_dict(weights)
    if kind == "AdamW":
        optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-2, foreach=lists)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=lists)
    x = torch.randn(4, 6, 16)
    with twinprobe.record(model, folder, level="mix") as recording:
        for _ in range(steps):
            (model(x) * x).square().mean().backward()
            if fault:
                model.k.weight.grad.numpy()[:] *= 0.3
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    return folder


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
@pytest.mark.parametrize("lists", [(False, False), (True, True), (True, False), (False, True)])
def test_calls_of_an_optimizer_belong_together_by_parameter(
    tmp_path: Path, kind: str, lists: tuple[bool, bool]
) -> None:
    target = _train(tmp_path / "target", kind, lists=lists[0], turned=True)
    golden = _train(tmp_path / "golden", kind, lists=lists[1])
    compared = twinprobe.compare(target, golden)
    assert compared.agrees
    assert "parameters in another order: their calls were paired by parameter" in compared.summary
    assert "updated parameters differ" not in compared.summary
    table = twinprobe.compare(target / "step1", golden / "step1").table
    moved = table.filter(table["paired_by"] == "place: the parameter")
    assert moved.height > 8
    assert moved["target_shape"].equals(moved["golden_shape"])
    assert moved["relative_error"].fill_nan(0).max() < 1e-3


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
@pytest.mark.parametrize("lists", [False, True])
def test_a_gradient_that_somebody_changed_is_named_at_its_parameter(
    tmp_path: Path, kind: str, lists: bool, turned: bool
) -> None:
    target = _train(tmp_path / "target", kind, lists=lists, turned=turned, fault=True, steps=1)
    golden = _train(tmp_path / "golden", kind, lists=lists, steps=1)
    first = twinprobe.compare(target, golden).first
    assert first is not None
    place = 4 if turned else 2  # of the keys' weight among the parameters
    call = {"AdamW": "lerp_", "SGD": "add_"}[kind]
    if lists:
        assert (first.call, first.argument) == (f"Torch._foreach_{call}.0.forward", f"input.1.{place}")
    else:
        assert (first.call, first.argument) == (f"Tensor.{call}.{place}.forward", "input.1")


def test_parameters_of_other_names_are_paired_as_before(tmp_path: Path) -> None:
    """Only where both optimizers took parameters of the same names is it known which belongs to which."""
    target = _train(tmp_path / "target", "SGD", lists=False)
    golden = _train(tmp_path / "golden", "SGD", lists=False)
    for file in golden.rglob("optimizer.json"):
        file.write_text(file.read_text().replace("Optimizer.q.", "Optimizer.query."))
    assert "paired by parameter" not in twinprobe.compare(target, golden).summary
