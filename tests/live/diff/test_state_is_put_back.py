"""What a comparison leaves in the models: gradients, buffers and weights, when it ends well and when it does not."""

from __future__ import annotations

import copy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_pairs import numbers

from twinprobe import auto_diff
from twinprobe.errors import BadInput
from twinprobe.torch import record

X = numbers(8, 6)


class Normed(nn.Module):
    """``fails`` is called in the forward pass of this number."""

    def __init__(self, fails: Any = None, at: int = 0) -> None:
        super().__init__()
        self.linear, self.norm, self.last = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.fails, self.left = fails, at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.last(self.norm(self.linear(x)))
        if self.fails is not None:
            if not self.left:
                self.fails()
            self.left -= 1
        return x


def on_purpose() -> None:
    raise ValueError("on purpose")


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def trained(model: nn.Module) -> nn.Module:
    model(X.flip(0)).square().mean().backward()
    return model


def held(model: nn.Module) -> dict[str, Any]:
    found = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        found[f"{name}.grad"] = None if parameter.grad is None else parameter.grad.clone()
    return found


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    assert one.keys() == other.keys()
    return all(value is other[name] or torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("phase", ["both", "forward"])
@pytest.mark.parametrize("single_step", [False, True])
def test_gradients_and_buffers_are_as_before_and_weights_are_the_references(phase: str, single_step: bool) -> None:
    base, raw = trained(Normed()), Normed()
    gradient = base.linear.weight.grad
    before = held(base)
    assert auto_diff(base, raw, X, diff_phase=phase, single_step=single_step, quiet=True)
    assert same(before, held(base))
    assert base.linear.weight.grad is gradient
    assert all(parameter.grad is None for parameter in raw.parameters())
    assert same(base.state_dict(), raw.state_dict()), "the copied weights stay"


@pytest.mark.parametrize(("fails", "error"), [(on_purpose, BadInput), (ctrl_c, KeyboardInterrupt)])
@pytest.mark.parametrize("auto_weights", [True, False])
def test_after_an_exception_or_ctrl_c(fails: Any, error: type, auto_weights: bool) -> None:
    base, raw = trained(Normed()), Normed(fails)
    raw.linear.weight.grad = torch.ones(4, 6)
    before = held(base), held(raw)
    with pytest.raises(error) as raised:
        auto_diff(base, raw, X, auto_weights=auto_weights, quiet=True)
    told = [*getattr(raised.value, "__notes__", []), str(raised.value)]
    assert same(before[0], held(base))
    assert torch.equal(raw.linear.weight.grad, torch.ones(4, 6))
    assert raw.last.weight.grad is None
    if auto_weights:
        assert same(base.state_dict(), raw.state_dict())
        assert any("Normed (PyTorch) holds the weights of Normed (PyTorch) now" in one for one in told)
    else:
        assert same(before[1], held(raw))
        assert not any("holds the weights" in one for one in told)


def test_weights_that_cannot_be_copied_change_nothing_and_the_error_says_so() -> None:
    base, raw = trained(Normed()), nn.Sequential(nn.Linear(6, 3))
    before = held(raw)
    with pytest.raises(BadInput, match="nothing was changed") as raised:
        auto_diff(base, raw, X, quiet=True)
    assert "holds" not in str(raised.value)
    assert same(before, held(raw))


def test_an_exception_after_optimizer_steps_says_how_many_were_taken() -> None:
    base, raw = trained(Normed()), Normed(ctrl_c, at=2)
    gradient = base.linear.weight.grad
    optimizers = [torch.optim.Adam(model.parameters(), 0.1) for model in (base, raw)]
    with pytest.raises(KeyboardInterrupt) as raised:
        auto_diff(base, raw, X, optimizers=optimizers, steps=4, quiet=True)
    (note,) = raised.value.__notes__
    assert "changed the weights 2 times" in note
    assert base.linear.weight.grad is gradient


def test_with_optimizers_the_models_stay_where_they_were_taken() -> None:
    base, raw = trained(Normed()), Normed()
    expected = copy.deepcopy(base)
    expected.zero_grad()
    sgd = torch.optim.SGD(expected.parameters(), 0.1)
    expected(X).mean().backward()
    sgd.step()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (base, raw)]
    gradient = base.linear.weight.grad
    assert auto_diff(base, raw, X, optimizers=optimizers, quiet=True)
    assert same(expected.state_dict(), base.state_dict())
    assert base.linear.weight.grad is gradient


@pytest.mark.parametrize("fails", [None, on_purpose])
def test_a_model_against_a_recording(fails: Any, tmp_path: Path) -> None:
    model = Normed()
    with record(model, tmp_path, level="mix", task="tensor"):
        model(X).mean().backward()
    raw = Normed(fails)
    raw.linear.weight.grad = torch.ones(4, 6)
    if fails is None:
        assert auto_diff(raw, tmp_path, X, quiet=True)
        assert torch.equal(raw.linear.weight, model.linear.weight)
        assert torch.equal(raw.linear.weight.grad, torch.ones(4, 6))
        assert torch.equal(raw.norm.running_mean, torch.zeros(4))
        return
    with pytest.raises(BadInput, match=f"on purpose.* holds the weights of {tmp_path}"):
        auto_diff(raw, tmp_path, X, quiet=True)
    assert torch.equal(raw.linear.weight.grad, torch.ones(4, 6))
