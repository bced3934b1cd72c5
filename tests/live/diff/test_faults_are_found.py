"""A fault planted in one model is named, in forward and in backward, and what follows from it is told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_pairs import Branches, Chain, Residual, numbers

from twinprobe import auto_diff, compare
from twinprobe.torch import record


def test_a_fault_in_a_layer_is_injected_there_and_inherited_after_it() -> None:
    base, raw = Chain(), Chain()
    raw.load_state_dict(base.state_dict())
    with torch.no_grad():
        raw.layers[2].weight[1, 1] += 0.1
    result = auto_diff(base, raw, numbers(4, 8), auto_weights=False, quiet=True)
    assert not result
    assert result.first.raw == result.first.base == "Module.layers.2.Linear.forward.0"
    causes = {one.raw: one.cause for one in result.differences if one.place == "output" and one.phase == "forward"}
    assert causes["Module.layers.2.Linear.forward.0"] == "injected"
    assert causes["Module.layers.3.Linear.forward.0"] == "inherited"
    assert "Module.layers.1.Linear.forward.0" not in causes


def test_a_doubled_gradient_is_found_in_its_branch() -> None:
    result = auto_diff(Branches(), Branches(lambda gradient: gradient * 2), numbers(4, 6), quiet=True)
    assert not result
    assert result.first.phase == "backward"
    assert result.first.raw == "Module.left.Linear.backward.0"
    differing = {one.raw for one in result.differences}
    assert "Module.right.Linear.backward.0" not in differing
    assert "Module.right.Linear.parameters_grad.0" not in differing
    assert {"Module.left.Linear.parameters_grad.0", "Module.stem.Linear.parameters_grad.0"} <= differing


def test_a_layers_own_share_of_a_gradient_is_compared() -> None:
    result = auto_diff(Branches(), Branches(), numbers(4, 6).requires_grad_(), quiet=True)
    assert result
    rows = [one for one in result.findings if one.place == "gradient of input"]
    assert {"Module.left.Linear.backward.0", "Module.right.Linear.backward.0"} <= {one.raw for one in rows}


def test_a_wrong_backward_of_a_layer_is_its_own_fault() -> None:
    class WrongBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    class Faulty(nn.Module):
        def forward(self, x):
            return WrongBackward.apply(x)

    class Right(nn.Module):
        def forward(self, x):
            return x.clone()

    def net(middle: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), middle, nn.Linear(6, 6))

    result = auto_diff(net(Right()), net(Faulty()), numbers(4, 6), quiet=True)
    assert not result
    assert result.first.raw == "Module.1.Faulty.backward.0"
    assert result.first.cause == "injected"


def test_code_between_layers_is_named_with_its_line() -> None:
    result = auto_diff(Residual(), Residual(lambda h: h * 1.01), numbers(4, 12), quiet=True)
    assert not result
    assert result.first.raw == "Module.linear2.Linear.forward.0"
    assert "torch_pairs.py" in result.first.raw_line
    assert result.first.why.startswith("Tensor.__mul__.0.forward (")
    assert "only the target run makes this call" in result.first.why


def scaled_weight() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    base, raw = Chain(), Chain()
    raw.load_state_dict(base.state_dict())
    with torch.no_grad():
        raw.layers[2].weight[1, 1] += 0.1
    return base, raw, numbers(4, 8)


def other_activation() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    base, raw = (
        nn.Sequential(nn.Linear(6, 6), nn.GELU(approximate=kind), nn.Linear(6, 6)) for kind in ("none", "tanh")
    )  # fmt: skip
    raw.load_state_dict(base.state_dict())
    return base, raw, numbers(4, 6)


def extra_call() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    base, raw = Residual(), Residual(lambda h: h * 1.01)
    raw.load_state_dict(base.state_dict())
    return base, raw, numbers(4, 12)


@pytest.mark.parametrize(("fault", "level"), [(scaled_weight, "L0"), (other_activation, "L0"), (extra_call, "mix")])
def test_a_fault_recorded_or_run_live_gets_the_same_sentence(fault: Any, level: str, tmp_path: Path) -> None:
    """Inside a layer without layers auto_diff records no functions; between layers it does."""
    base, raw, x = fault()
    for model, name in ((base, "golden"), (raw, "target")):
        with record(model, tmp_path / name, level=level, task="tensor"):
            model(x).mean().backward()
    recorded = compare(tmp_path / "target", tmp_path / "golden").first
    live = auto_diff(base, raw, x, auto_weights=False, quiet=True).first
    assert recorded.sentence
    assert live.why.endswith(recorded.sentence)
    assert recorded.op in (live.raw, live.why.partition(" ")[0])


def test_different_inputs_are_said_to_be_the_reason() -> None:
    result = auto_diff(Chain(), Chain(), (numbers(4, 8), numbers(4, 8, seed=9)), quiet=True)
    assert not result
    assert "different inputs" in result.first.why


def test_differences_that_cancel_are_listed() -> None:
    class Cancelling(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.scale = scale

        def forward(self, x):
            return self.two(self.one(x * self.scale) / self.scale)

    result = auto_diff(Cancelling(1.0), Cancelling(4.0), numbers(4, 6), quiet=True)
    assert not result
    assert result.first.raw == "Tensor.__mul__.0.forward"
    assert [one for one in result.differences if one.raw == "Module.one.Linear.forward.0" and one.decides]
    assert not [one for one in result.differences if one.raw == "Module.Cancelling.forward.0"]


def test_nan_equals_nothing() -> None:
    class Nan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            return self.linear(x) * float("nan")

    assert not auto_diff(Nan(), Nan(), numbers(4, 6), diff_phase="forward", quiet=True)
    result = auto_diff(Residual(), Residual(lambda h: h + float("nan")), numbers(4, 12), quiet=True)
    assert not result
    assert "NaN" in result.first.findings[0].gap.why


def test_permuted_rows_and_other_shapes_are_differences_unless_means_are_asked_for() -> None:
    class Flipped(nn.Module):
        def __init__(self, turn: str = "") -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.turn = turn

        def forward(self, x):
            h = self.linear(x)
            return h.flip(0) if self.turn == "flip" else h.reshape(4, 6) if self.turn == "shape" else h

    x = numbers(6, 4)
    for turn in ("flip", "shape"):
        assert not auto_diff(Flipped(), Flipped(turn), x, diff_phase="forward", quiet=True)
    assert auto_diff(Flipped(), Flipped("flip"), x, diff_phase="forward", compare_mode="mean", quiet=True)
    assert auto_diff(Flipped(), Flipped("flip"), x, diff_phase="forward", compare_mode="abs_mean", quiet=True)
    assert not auto_diff(Flipped(), Flipped("shape"), x, diff_phase="forward", compare_mode="mean", quiet=True)


def test_a_parameter_without_a_gradient_on_one_side_is_a_difference() -> None:
    base, raw = Chain(2), Chain(2)
    raw.layers[0].weight.requires_grad_(False)
    result = auto_diff(base, raw, numbers(4, 8), quiet=True)
    assert not result
    assert "only the base model has a gradient" in result.first.findings[0].gap.why


def test_results_are_deterministic() -> None:
    def once() -> list[tuple[object, ...]]:
        torch.manual_seed(5)
        result = auto_diff(Chain(), Chain(at=3, change=torch.sin), numbers(4, 8), quiet=True)
        return result.table.rows()

    assert str(once()) == str(once())
