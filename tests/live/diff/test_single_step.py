"""single_step: every layer is fed with the reference's values, so each fault shows where it is and nowhere else."""

from __future__ import annotations

import torch
from torch import nn
from torch_pairs import Chain, ManyOutputs, Shared, numbers

from twinprobe import auto_diff

X = numbers(4, 8)


def test_ten_layers_that_agree() -> None:
    assert auto_diff(Chain(10), Chain(10), X, single_step=True, quiet=True)


def test_several_faults_are_all_named_and_nothing_else() -> None:
    base, raw = Chain(8), Chain(8)
    raw.load_state_dict(base.state_dict())
    with torch.no_grad():
        for place in (2, 5):
            raw.layers[place].weight[0, 0] += 0.5
    result = auto_diff(base, raw, X, single_step=True, auto_weights=False, diff_phase="forward", quiet=True)
    assert not result
    differing = {one.raw for one in result.differences if one.place == "output"}
    assert differing == {f"Module.layers.{place}.Linear.forward.0" for place in (2, 5)}
    assert {one.cause for one in result.differences} == {"injected"}


def test_code_between_layers_is_blamed_once() -> None:
    raw = Chain(6, at=2, change=lambda h: h + 0.01)
    result = auto_diff(Chain(6), raw, X, single_step=True, quiet=True)
    assert not result
    assert result.first.raw == "Module.layers.3.Linear.forward.0"
    assert [one.place for one in result.differences if one.decides] == ["input as computed"]


def test_a_gradient_changed_between_layers_is_blamed_once() -> None:
    def shifted(h: torch.Tensor) -> torch.Tensor:
        h.register_hook(lambda gradient: gradient + 0.01)
        return h

    for phase in ("both", "backward"):
        result = auto_diff(
            Chain(10), Chain(10, at=4, change=shifted), X, single_step=True, diff_phase=phase, quiet=True
        )
        assert not result
        assert result.first.phase == "backward"
        assert result.first.raw == "Torch.tanh.4.backward"  # the gradient of its output was shifted
        deciding = {one.raw for one in result.differences if one.decides}
        assert deciding == {"Module.layers.4.Linear.backward.0"}


def test_layers_with_several_outputs_shared_layers_and_repeated_inputs() -> None:
    x, y = numbers(4, 6), numbers(4, 6, seed=2)
    assert auto_diff(ManyOutputs(), ManyOutputs(), ({"x": x, "y": y}, {"x": x, "y": y}), single_step=True, quiet=True)
    assert auto_diff(Shared(), Shared(), x, single_step=True, quiet=True)

    class Halves(nn.Module):
        def __init__(self, scale: float = 1.0) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(6, 6), scale

        def forward(self, one, two):
            h = self.linear(one + two)
            return h[:, :3], h[:, 3:] * self.scale

    class Uses(nn.Module):
        def __init__(self, scale: float = 1.0) -> None:
            super().__init__()
            self.halves, self.last = Halves(scale), nn.Linear(3, 2)

        def forward(self, x):
            one, two = self.halves(x, x)
            return self.last(one + two)

    assert auto_diff(Uses(), Uses(), x.requires_grad_(), single_step=True, quiet=True)
    result = auto_diff(Uses(), Uses(2.0), x, single_step=True, diff_phase="forward", quiet=True)
    assert not result
    assert {one.tensor for one in result.differences if one.decides} == {"output.1"}


def test_nothing_is_left_on_the_model() -> None:
    model = Chain(3)
    auto_diff(Chain(3), model, X, single_step=True, quiet=True)
    for layer in model.modules():
        assert not layer._forward_hooks
        assert not layer._forward_pre_hooks
