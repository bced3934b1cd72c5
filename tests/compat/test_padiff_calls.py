"""auto_diff, assign_weight and check_dataloader, called by the names of both of PaDiff's versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import padiff

X = torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
INPUTS = {"x": X}, {"x": X}


class Net(nn.Module):
    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor] = lambda h: h) -> None:
        super().__init__()
        self.one, self.two, self.change = nn.Linear(4, 4), nn.Linear(4, 2), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(self.two(torch.relu(self.one(x))))


def mean(output: torch.Tensor) -> torch.Tensor:
    return output.mean()


def test_results_are_true_and_false_themselves() -> None:
    """PaDiff's manual stops a loop with `if result == False: break`."""
    assert padiff.auto_diff(Net(), Net(), INPUTS, auto_weights=True) is True
    assert padiff.auto_diff(Net(), Net(), INPUTS, auto_weights=False) is False
    result = padiff.auto_diff(Net(), Net(lambda h: h + 1), INPUTS, atol=1e-4)
    assert result == False  # noqa: E712  as users write it
    batches = [torch.ones(2), torch.zeros(2)]
    assert padiff.check_dataloader(batches, batches) is True
    assert padiff.check_dataloader(batches, batches[::-1]) is False
    assert padiff.check_dataloader(batches, [torch.ones(2) + 1e-3, torch.zeros(2)], atol=1e-2) is True
    assert padiff.assign_weight(Net(), Net()) is True


RELEASED = {
    "layer, module": lambda one, two: padiff.auto_diff(layer=one, module=two, example_inp=INPUTS),
    "auto_weights": lambda one, two: padiff.auto_diff(one, two, INPUTS, auto_weights=True),
    "auto_weights by position": lambda one, two: padiff.auto_diff(one, two, INPUTS, True),
    "options by position": lambda one, two: padiff.auto_diff(
        one, two, INPUTS, True, {"atol": 1e-4}, None, [mean, mean]
    ),
    "options": lambda one, two: padiff.auto_diff(one, two, example_inp=INPUTS, options={"atol": 1e-4}),
    "loss_fn": lambda one, two: padiff.auto_diff(one, two, INPUTS, loss_fn=[mean, mean]),
    "optimizer, steps": lambda one, two: padiff.auto_diff(
        one, two, INPUTS, optimizer=[lambda: None, lambda: None], steps=2
    ),
    "assign_weight": lambda one, two: padiff.assign_weight(one, two, padiff.LayerMap()),
    "assign_weight by name": lambda one, two: padiff.assign_weight(layer=one, module=two),
}
DEVELOPMENT = {
    "base_model, raw_model": lambda one, two: padiff.auto_diff(base_model=one, raw_model=two, inputs=INPUTS),
    "nothing else": lambda one, two: padiff.auto_diff(one, two, INPUTS),
    "loss_fns by position": lambda one, two: padiff.auto_diff(one, two, INPUTS, [mean, mean]),
    "loss_fns": lambda one, two: padiff.auto_diff(one, two, INPUTS, loss_fns=[mean, mean], atol=1e-4),
    "optimizers by position": lambda one, two: padiff.auto_diff(one, two, INPUTS, None, [lambda: None, lambda: None]),
    "auto_weights beside atol": lambda one, two: padiff.auto_diff(one, two, INPUTS, auto_weights=True, atol=1e-4),
    "single_step": lambda one, two: padiff.auto_diff(one, two, INPUTS, single_step=True, diff_phase="both"),
    "assign_weight": padiff.assign_weight,
    "assign_weight by name": lambda one, two: padiff.assign_weight(base_model=one, raw_model=two),
}


@pytest.mark.parametrize(
    ("call", "source"),
    [*((call, 1) for call in RELEASED.values()), *((call, 0) for call in DEVELOPMENT.values())],
    ids=[*(f"released: {name}" for name in RELEASED), *(f"development: {name}" for name in DEVELOPMENT)],
)
def test_each_form_writes_to_the_model_that_its_version_writes_to(
    call: Callable[[Any, Any], bool], source: int, capsys: pytest.CaptureFixture[str]
) -> None:
    models = Net(), Net()
    kept = models[source].one.weight.detach().clone()
    assert call(*models) is True
    assert [torch.equal(model.one.weight, kept) for model in models] == [True, True]
    assert "weights: copied from base Net (PyTorch) to raw Net (PyTorch)" in capsys.readouterr().out


def test_losses_and_optimizers_belong_to_the_models_in_the_order_of_the_call() -> None:
    seen: list[str] = []

    def loss(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def told(output: torch.Tensor) -> torch.Tensor:
            seen.append(name)
            return output.mean() * (3.0 if name == "second" else 1.0)

        return told

    layer, module = Net(), Net()
    losses = [loss("first"), loss("second")]
    assert padiff.auto_diff(layer, module, INPUTS, loss_fn=losses) is False
    assert seen == ["second", "first"], "the released form's reference, the second model, runs first"
    gradient = module.two.bias.grad
    assert gradient is None or torch.allclose(gradient, 3.0 * torch.full((2,), 0.5))
    seen.clear()
    assert padiff.auto_diff(layer, module, INPUTS, loss_fns=losses) is False
    assert seen == ["first", "second"]


def test_weights_that_do_not_fit_are_an_answer_of_no_and_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    small, large = nn.Sequential(nn.Linear(4, 2)), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    kept = small[0].weight.detach().clone()
    x = {"input": X}, {"input": X}
    assert padiff.auto_diff(large, small, x, atol=1e-4) is False
    assert "Weights were not copied" in capsys.readouterr().out
    assert torch.equal(small[0].weight, kept)


def test_means_are_compared_by_default_as_there_and_what_they_hide_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows in another order have the same mean: PaDiff says yes, and so does this, but not in silence."""
    models = Net(), Net(lambda h: h.flip(0))
    assert padiff.auto_diff(*models, INPUTS, atol=1e-5) is True
    told = capsys.readouterr().out
    assert "means agree, but elements of" in told
    assert 'compare_mode="strict"' in told
    assert padiff.auto_diff(*models, INPUTS, atol=1e-5, compare_mode="strict") is False
    assert padiff.auto_diff(Net(), Net(), INPUTS, atol=1e-5) is True
    assert "means agree" not in capsys.readouterr().out


def test_backward_alone_needs_single_step_as_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert padiff.auto_diff(Net(), Net(lambda h: h * 2), INPUTS, diff_phase="backward", atol=1e-4) is False
    assert "both phases are compared" in capsys.readouterr().out


def test_an_option_that_nobody_knows_is_refused() -> None:
    other = Net()
    kept = other.one.weight.detach().clone()
    with pytest.raises(Exception, match=r"unknown option 'atoll'.*did you mean 'atol'"):
        padiff.auto_diff(Net(), other, INPUTS, atoll=1e-4)
    assert torch.equal(other.one.weight, kept)
