"""Weights of grouped layers: copied where they pair up in order, otherwise left alone with a word about it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from twinprobe import LayerMap, assign_weight, auto_diff
from twinprobe._live.weights.copying import copy_weights


class Apart(nn.Module):
    """Layers one by one under names of their own."""

    def __init__(self, middle: int = 9) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, middle), nn.Linear(middle, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.down(torch.relu(self.up(x)))))


class Together(nn.Module):
    """The same layers in one module, defined in another place."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 2)
        self.block = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6), nn.BatchNorm1d(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(x))


def grouped(one: Apart, other: nn.Module, turned: bool) -> LayerMap:
    layer_map = LayerMap()
    sides = [one.up, one.down, one.norm], [other.block]
    layer_map.group(*(reversed(sides) if turned else sides))
    return layer_map


@pytest.mark.parametrize("turned", [False, True])
def test_several_layers_are_copied_to_one_that_holds_the_same(turned: bool) -> None:
    torch.manual_seed(0)
    base, raw = Apart(), Together()
    base.norm.running_mean.add_(0.5)
    x = torch.randn(4, 6)
    assert auto_diff(base, raw, x, layer_map=grouped(base, raw, turned), quiet=True)
    assert torch.equal(raw.block[2].weight, base.down.weight)
    back = Apart()
    assert assign_weight(back, raw, grouped(back, raw, turned))
    assert torch.equal(back.up.bias, base.up.bias)
    assert torch.equal(back.norm.running_mean, raw.block[3].running_mean)


def test_what_does_not_pair_up_is_kept_and_named() -> None:
    base, raw = Apart(middle=7), Together()
    before = {name: value.clone() for name, value in raw.block.state_dict().items()}
    report = copy_weights(raw, base, grouped(base, raw, False))
    (notice,) = report.notices
    assert "add_special_init" in notice
    assert "[9, 6], [9]" in notice
    assert "[7, 6], [7]" in notice
    assert all(torch.equal(before[name], value) for name, value in raw.block.state_dict().items())
    assert torch.equal(raw.last.weight, base.last.weight), "the rest is copied"
    assert "block.0.weight" in report.kept


def test_a_group_without_weights_costs_no_word() -> None:
    class Activations(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.last = nn.ReLU(), nn.Identity(), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.two(self.one(x)))

    base, raw = Activations(), Activations()
    layer_map = LayerMap()
    layer_map.group([base.one, base.two], [raw.one, raw.two])
    assert copy_weights(raw, base, layer_map).notices == []
