"""Gradients of parameters are read where the backward pass left them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_pairs import numbers

from twinprobe import auto_diff

X = numbers(4, 8)


class Three(nn.Module):
    """Three layers, defined in another order than they run in; ``scales`` are factors on their weights' gradients."""

    def __init__(self, **scales: float) -> None:
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        for name, factor in scales.items():
            getattr(self, name).weight.register_hook(lambda gradient, factor=factor: gradient * factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.middle(self.first(x)))
        return result


def test_the_first_gradient_that_differs_is_the_first_that_was_computed() -> None:
    result = auto_diff(Three(), Three(first=2.0, middle=3.0), X, quiet=True)
    assert result.first is not None
    assert result.first.phase == "gradients"
    assert result.first.raw == "Module.middle.Linear.parameters_grad.0"
    differing = {(one.raw.split(".")[1], one.tensor) for one in result.findings if one.differs}
    assert differing == {("first", "weight"), ("middle", "weight")}


def test_gradients_that_are_used_up_while_the_pass_runs_are_seen() -> None:
    """Some train inside of backward, and let go of each gradient at once."""

    def used_up(model: nn.Module) -> nn.Module:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
        return model

    result = auto_diff(used_up(Three()), used_up(Three(middle=2.0)), X, quiet=True)
    gradients = [one for one in result.findings if one.phase == "gradients"]
    assert len(gradients) == 6
    assert [(one.raw, one.tensor) for one in gradients if one.differs] == [
        ("Module.middle.Linear.parameters_grad.0", "weight")
    ]


class Recomputing(Three):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda h: self.middle(self.first(h)), x, use_reentrant=True)
        result: torch.Tensor = self.last(hidden)
        return result


def test_a_pass_inside_a_pass_leaves_one_gradient_for_each_parameter() -> None:
    x = X.clone().requires_grad_()
    for raw, differing in ((Recomputing(), 0), (Recomputing(first=2.0), 1)):
        result = auto_diff(Three(), raw, x, quiet=True)
        gradients = [one for one in result.findings if one.phase == "gradients"]
        assert len(gradients) == 6
        assert sum(one.differs for one in gradients) == differing


class Borrowing(nn.Module):
    """A layer that is never called: only its weight is used."""

    def __init__(self, use: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.lent, self.use = nn.Linear(8, 8, bias=False), use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.use(self.lent.weight)


def test_a_gradient_of_a_layer_that_was_never_called_is_compared() -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    same = auto_diff(Borrowing(torch.clone), Borrowing(torch.clone), X, quiet=True)
    assert same
    assert [one.raw for one in same.findings if one.phase == "gradients"] == ["Module.lent.Linear.parameters_grad.0"]
    assert not auto_diff(Borrowing(torch.clone), Borrowing(Scale.apply), X, quiet=True)


def test_gradients_from_before_the_call_play_no_part() -> None:
    base, raw = Three(), Three()
    raw(X * 3).sum().backward()
    assert auto_diff(base, raw, X, quiet=True)
