"""Optimizers that go through their parameters in another order, in loops and in lists."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

import twinprobe

torch = pytest.importorskip("torch")
nn = torch.nn


PLAIN = ("q", "k", "v", "norm")
TURNED = PLAIN[::-1]
PORT = ("layer_norm", "values", "keys", "queries")  # other names, and turned


class Attention(nn.Module):
    """The gradient of the keys' bias is zero in theory. ``names``: of its layers, as they are registered."""

    def __init__(self, names: tuple[str, ...] = PLAIN) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.LayerNorm(16) if "norm" in name else nn.Linear(16, 16))
        self.layers = names if names[0] == "q" else names[::-1]

    def forward(self, x: Any) -> Any:
        q, k, v, norm = map(self.get_submodule, self.layers)
        weights = torch.softmax(q(x) @ k(x).transpose(-1, -2) / 4, -1)
        return norm(x + weights @ v(x))


def _train(
    folder: Path, kind: str, *, lists: bool, names: tuple[str, ...] = PLAIN, fault: bool = False, steps: int = 2
) -> Path:
    torch.manual_seed(0)
    plain, model = Attention(), Attention(names)
    for own, name in zip(plain.layers, model.layers, strict=True):
        model.get_submodule(name).load_state_dict(plain.get_submodule(own).state_dict())
    if kind == "AdamW":
        optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-2, foreach=lists)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=lists)
    x = torch.randn(4, 6, 16)
    with twinprobe.record(model, folder, level="mix") as recording:
        for _ in range(steps):
            (model(x) * x).square().mean().backward()
            if fault:
                model.get_submodule(model.layers[1]).weight.grad.numpy()[:] *= 0.3
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    return folder


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
@pytest.mark.parametrize("lists", [(False, False), (True, True), (True, False), (False, True)])
@pytest.mark.parametrize("names", [TURNED, PORT])
def test_calls_of_an_optimizer_belong_together_by_parameter(
    tmp_path: Path, kind: str, lists: tuple[bool, bool], names: tuple[str, ...]
) -> None:
    target = _train(tmp_path / "target", kind, lists=lists[0], names=names)
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


@pytest.mark.parametrize(
    ("kind", "lists", "names"),
    [*product(("AdamW", "SGD"), (False, True), (PLAIN, TURNED)), ("SGD", False, PORT)],
)
def test_a_gradient_that_somebody_changed_is_named_at_its_parameter(
    tmp_path: Path, kind: str, lists: bool, names: tuple[str, ...]
) -> None:
    target = _train(tmp_path / "target", kind, lists=lists, names=names, fault=True, steps=1)
    golden = _train(tmp_path / "golden", kind, lists=lists, steps=1)
    first = twinprobe.compare(target, golden).first
    assert first is not None
    place = 2 if names == PLAIN else 4  # of the keys' weight among the parameters
    call = {"AdamW": "lerp_", "SGD": "add_"}[kind]
    if lists:
        assert (first.call, first.argument) == (f"Torch._foreach_{call}.0.forward", f"input.1.{place}")
    else:
        assert (first.call, first.argument) == (f"Tensor.{call}.{place}.forward", "input.1")


def test_where_nobody_knows_which_parameter_is_which_calls_are_paired_in_their_order(tmp_path: Path) -> None:
    target = _train(tmp_path / "target", "SGD", lists=False, names=TURNED)
    golden = _train(tmp_path / "golden", "SGD", lists=False)
    for file in golden.rglob("optimizer.json"):
        file.unlink()
    assert "paired by parameter" not in twinprobe.compare(target, golden).summary
