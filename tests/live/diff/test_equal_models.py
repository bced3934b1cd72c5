"""Models that compute the same agree, however they are written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch_pairs import Activated, ByFunction, CalledInOtherOrder, ManyOutputs, Residual, Shared, Wrapped, numbers

from twinprobe import LayerMap, auto_diff


def agree(first: nn.Module, second: nn.Module, *shape: int, **options: object) -> bool:
    x = numbers(*(shape or (4, 6)))
    return bool(auto_diff(first, second, ({"x": x}, {"x": x}), quiet=True, **options))


def test_a_residual_network_agrees_with_its_twin() -> None:
    result = auto_diff(Residual(), Residual(), numbers(4, 12), quiet=True)
    assert result
    assert result.first is None
    assert {"forward", "loss", "backward", "gradients"} <= set(result.table["phase"])


def test_without_copied_weights_the_first_layer_with_weights_is_named() -> None:
    result = auto_diff(Residual(), Residual(), numbers(4, 12), auto_weights=False, quiet=True)
    assert not result
    assert result.first.raw == "Module.linear1.Linear.forward.0"
    assert "the parameter " in result.first.why


def test_the_order_of_calls_may_differ() -> None:
    assert agree(CalledInOtherOrder(False), CalledInOtherOrder(True))


def test_calls_of_a_shared_layer_are_matched_by_their_number() -> None:
    result = auto_diff(Shared(), Shared(), numbers(4, 6), quiet=True)
    assert result
    calls = result.table.filter(result.table["phase"] == "forward")
    assert {"Module.again.Linear.forward.0", "Module.again.Linear.forward.1"} <= set(calls["raw"])


def test_lists_of_outputs_and_several_inputs() -> None:
    x, y = numbers(4, 6), numbers(4, 6, seed=2)
    both = ({"x": x, "y": y}, {"x": x, "y": y})
    assert auto_diff(ManyOutputs(), ManyOutputs(), both, quiet=True)
    result = auto_diff(ManyOutputs(), ManyOutputs(1.5), both, quiet=True)
    assert not result
    assert "output.0.3" in {one.tensor for one in result.differences if one.raw == "Module.ManyOutputs.forward.0"}


def test_an_in_place_activation_leaves_what_was_recorded_alone() -> None:
    result = auto_diff(Activated(inplace=False), Activated(inplace=True), numbers(4, 6), quiet=True)
    assert result
    rows = result.table.filter(
        (result.table["raw"] == "Module.linear1.Linear.forward.0") & (result.table["place"] == "output")
    )
    assert rows["max abs"].to_list() == [0.0]


def test_a_function_stands_for_a_layer() -> None:
    result = auto_diff(Activated(inplace=False), ByFunction(), numbers(4, 6), quiet=True)
    assert result
    pairs = {(one.raw, one.base) for one in result.findings if one.place == "output"}
    assert ("Functional.relu.0.forward", "Module.relu.ReLU.forward.0") in pairs


def test_wrappers_and_other_names_need_no_map() -> None:
    result = auto_diff(Activated(inplace=False), Wrapped(), numbers(4, 6), quiet=True)
    assert result
    pairs = {(one.raw, one.base) for one in result.findings if one.place == "output"}
    assert ("Module.body.0.Linear.forward.0", "Module.linear1.Linear.forward.0") in pairs
    assert ("Module.body.2.0.Linear.forward.0", "Module.linear2.Linear.forward.0") in pairs


def test_an_added_activation_makes_models_of_one_framework_differ() -> None:
    result = auto_diff(Residual(), Residual(torch.sigmoid), numbers(4, 12), quiet=True)
    assert not result
    assert result.first.raw == "Module.linear2.Linear.forward.0"
    assert "sigmoid" in result.first.why


@dataclass
class Answer:
    hidden: torch.Tensor
    scores: torch.Tensor


class GivesDataclass(nn.Module):
    def __init__(self, plain: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.plain = plain

    def forward(self, x: torch.Tensor) -> object:
        h = self.linear(x)
        return (h, h * 2) if self.plain else Answer(h, h * 2)


def test_dataclass_outputs_compare_also_with_a_tuple() -> None:
    assert agree(GivesDataclass(), GivesDataclass())
    result = auto_diff(GivesDataclass(), GivesDataclass(plain=True), numbers(4, 6), quiet=True)
    assert result
    assert (
        len([one for one in result.findings if one.base.startswith("Module.GivesData") and one.place == "output"]) == 2
    )


class TakesNested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, pair: tuple[torch.Tensor, dict[str, torch.Tensor]], *, scale: float) -> torch.Tensor:
        return self.linear(pair[0] + pair[1]["more"]) * scale


def test_positional_keyword_and_nested_inputs_and_arrays() -> None:
    array = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    call = (((array, {"more": array}),), {"scale": 2.0})
    assert auto_diff(TakesNested(), TakesNested(), (call, call), quiet=True)
    assert auto_diff(Shared(), Shared(), array, quiet=True)
    assert auto_diff(Shared(), Shared(), ((array,), {"x": array}), quiet=True)


def test_the_users_tensors_and_gradients_are_left_alone() -> None:
    x = numbers(4, 6).requires_grad_()
    before = x.detach().clone()
    model = Activated(inplace=True)
    auto_diff(model, Activated(inplace=True), x, quiet=True)
    assert torch.equal(x, before)
    assert x.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_element_types(dtype: torch.dtype) -> None:
    x = numbers(4, 6).to(dtype)
    first, second = Shared().to(dtype), Shared().to(dtype)
    assert auto_diff(first, second, x, quiet=True)
    with torch.no_grad():
        second.other.weight[0, 0] += 1
    assert not auto_diff(first, second, x, auto_weights=False, quiet=True)


def test_checkpointed_layers_are_compared() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(checkpoint(lambda h: torch.relu(self.one(h)), x, use_reentrant=False))

    x = numbers(4, 6).requires_grad_()
    assert auto_diff(Checkpointed(), Checkpointed(), ({"x": x}, {"x": x}), quiet=True)


def test_dropout_is_the_same_on_both_sides() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 2))

    models = net().train(), net().train()
    state = torch.get_rng_state()
    assert auto_diff(*models, numbers(4, 6), quiet=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert not auto_diff(net().train(), net().train(), numbers(4, 6), random="off", quiet=True)
    evaluated = net().train()
    assert auto_diff(evaluated, net(), numbers(4, 6), random="eval", quiet=True)
    assert evaluated.training
    assert evaluated[1].training


def test_autocast_agrees_with_full_precision_within_its_rounding() -> None:
    class Autocast(Shared):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    assert auto_diff(Shared(), Autocast(), numbers(4, 6), atol=2e-2, rtol=2e-2, quiet=True)
    assert not auto_diff(Shared(), Autocast(), numbers(4, 6), atol=1e-6, rtol=1e-6, quiet=True)


def test_a_plain_dict_serves_as_a_map() -> None:
    first, second = Activated(False), Wrapped()
    assert auto_diff(first, second, numbers(4, 6), layer_map={first.linear1: second.body[0]}, quiet=True)
    assert isinstance(LayerMap().map, dict)
