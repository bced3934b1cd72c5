"""Golden's values at one place of a model: the rest agrees once this place is mended."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from replay_tools import small

from twinprobe.errors import BadInput
from twinprobe.torch import swap

IDS = torch.arange(24).reshape(2, 12)


def wrong() -> torch.nn.Module:
    model = small()
    with torch.no_grad():
        model.layers[1].down.weight.mul_(1.1)
    return model


@pytest.mark.parametrize("kind", ["module", "recording", "tensors"])
def test_the_loss_agrees_with_golden_s_values_at_the_wrong_place(kind: str, golden: Path) -> None:
    model, healthy = wrong(), small()
    before = copy.deepcopy(model.state_dict())
    given: list[torch.Tensor] = []
    healthy.layers[1].down.register_forward_hook(lambda _m, _a, out: given.append(out.detach()))
    right = healthy(IDS)
    choice = {"module": healthy.layers[1].down, "recording": golden, "tensors": given[0]}[kind]
    assert model(IDS) != right
    with swap(model, "layers.1.down", with_=choice):
        loss = model(IDS)
        assert loss == right
        loss.backward()
    assert model.layers[0].up.weight.grad is not None  # gradients flow through the place
    assert healthy.layers[1].down.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model(IDS) != right


def test_golden_s_module_may_compute_in_float32_inside_a_bfloat16_model() -> None:
    model, healthy = small(torch.bfloat16), small()
    with swap(model, "layers.2", with_=healthy.layers[2], dtype=torch.float32):
        assert model(IDS).dtype == torch.bfloat16


def test_the_model_is_restored_after_an_error() -> None:
    model = small()
    own = model.layers[1].down.forward
    with pytest.raises(RuntimeError, match="stop"), swap(model, "layers.1.down", with_=small().layers[1].down):
        raise RuntimeError("stop")
    assert model.layers[1].down.forward == own
    assert "forward" not in vars(model.layers[1].down)


def test_a_function_that_stood_in_for_forward_is_put_back() -> None:
    model = small()
    model.head.forward = own = lambda x: x.new_zeros(*x.shape[:-1], 50)  # type: ignore[method-assign]
    with swap(model, "head", with_=small().head):
        pass
    assert model.head.forward is own


def test_what_cannot_be_swapped_says_so(golden: Path) -> None:
    model = small()
    with (
        pytest.raises(BadInput, match=r"no module 'layers.1.dwn'.*did you mean 'layers.1.down'"),
        swap(model, "layers.1.dwn", with_=golden),
    ):
        pass
    with pytest.raises(BadInput, match="golden's are"), swap(model, "layers.1.down", with_=torch.zeros(3)):
        model(IDS)
    with swap(model, "layers.1.down", with_=golden):
        model(IDS)
        with pytest.raises(BadInput, match="called more than 1 times"):
            model(IDS)
    assert "forward" not in vars(model.layers[1].down)
