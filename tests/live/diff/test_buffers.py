"""Buffers are part of a model's state: they are compared before and after each step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_pairs import numbers

from twinprobe import LayerMap, auto_diff

X = numbers(8, 6)


class Normed(nn.Module):
    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4, momentum=momentum)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.linear(x)))


class Average(nn.Module):
    """Keeps a moving average of its own; from the second call on with this weight."""

    def __init__(self, later: float) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.later = later

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.later if self.calls else 0.5
        self.average.lerp_(x.detach().mean(0), weight)
        self.calls += 1
        return x * 1.0


class Averaging(nn.Module):
    def __init__(self, later: float) -> None:
        super().__init__()
        self.kept = Average(later)
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.kept(x))


@pytest.mark.parametrize("phase", ["both", "forward"])
def test_a_reversed_momentum_is_found_although_all_outputs_agree(phase: str) -> None:
    result = auto_diff(Normed(), Normed(momentum=0.9), X, diff_phase=phase, quiet=True)
    assert not result
    assert result.first.phase == "buffers after"
    assert result.first.raw == "Module.norm.BatchNorm1d.forward.0"
    assert {one.tensor for one in result.first.findings} == {"running_mean", "running_var"}
    assert "running_mean" in result.first.why
    assert "after the step" in result.first.why
    assert {one.phase for one in result.differences} == {"buffers after"}


def test_equal_buffers_are_counted_before_and_after() -> None:
    result = auto_diff(Normed(), Normed(), X, quiet=True)
    assert result
    for phase in ("buffers before", "buffers after"):
        found = {one.tensor for one in result.findings if one.phase == phase}
        assert found == {"running_mean", "running_var", "num_batches_tracked"}


def test_buffers_that_differ_before_anything_runs_come_first() -> None:
    base = Normed()
    raw = Normed()
    raw.load_state_dict(base.state_dict())
    raw.norm.running_var.mul_(2)
    result = auto_diff(base, raw, X, auto_weights=False, quiet=True)
    assert result.first.phase == "buffers before"
    assert [one.tensor for one in result.first.findings] == ["running_var"]
    assert "before anything runs" in result.first.why
    for model in (base, raw):
        model.eval()
    result = auto_diff(base, raw, X, auto_weights=False, quiet=True)
    assert result.first.phase == "buffers before"
    assert "Module.norm.BatchNorm1d.forward.0" in {one.raw for one in result.differences if one.phase == "forward"}


def test_the_step_in_which_buffers_part_is_named() -> None:
    base, raw = Averaging(0.5), Averaging(0.25)
    assert auto_diff(base, raw, X, quiet=True)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (base, raw)]
    result = auto_diff(base, raw, X, optimizers=optimizers, steps=3, quiet=True)
    assert not result
    assert (result.first.step, result.first.phase) == (1, "buffers after")
    assert [one.tensor for one in result.first.findings] == ["average"]
    assert "Average" in result.first.raw


def test_single_step_counts_no_pass_twice() -> None:
    assert auto_diff(Normed(), Normed(), X, single_step=True, quiet=True)
    assert auto_diff(Averaging(0.5), Averaging(0.5), X, single_step=True, quiet=True)
    result = auto_diff(Normed(), Normed(momentum=0.9), X, single_step=True, quiet=True)
    assert result.first.phase == "buffers after"


def test_the_backward_phase_judges_gradients_only() -> None:
    assert auto_diff(Normed(), Normed(momentum=0.9), X, diff_phase="backward", quiet=True)


def test_buffers_of_ignored_and_of_grouped_layers() -> None:
    base, raw = Normed(), Normed(momentum=0.9)
    ignored = LayerMap()
    ignored.ignore([base.norm, raw.norm])
    raw.norm.load_state_dict(base.norm.state_dict())
    assert auto_diff(base, raw, X, layer_map=ignored, quiet=True)
    grouped = LayerMap()
    grouped.group([base.linear, base.norm], [raw.linear, raw.norm])
    result = auto_diff(base, raw, X, layer_map=grouped, quiet=True)
    assert result.first.phase == "buffers after"
    assert result.first.raw == "Module.norm.BatchNorm1d.forward.0"


def test_buffers_of_another_size_are_told_but_do_not_decide() -> None:
    class Masked(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(size, size))
            self.linear = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.mask[0, 0]

    result = auto_diff(Masked(4), Masked(8), X, quiet=True)
    assert result
    assert any("mask" in note for note in result.notes)
