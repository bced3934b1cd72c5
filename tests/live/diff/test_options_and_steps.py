"""Phases, steps, losses, optimizers, tolerances: what is asked for is done, what is unknown is refused."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch_pairs import Chain, Residual, numbers

from twinprobe import auto_diff
from twinprobe.errors import BadInput

X = numbers(4, 8)


def test_forward_only_leaves_no_gradient() -> None:
    base, raw = Chain(), Chain()
    result = auto_diff(base, raw, X, diff_phase="forward", quiet=True)
    assert result
    assert set(result.table["phase"]) == {"forward"}
    assert all(one.grad is None for model in (base, raw) for one in model.parameters())


def test_backward_only_does_not_judge_the_forward_pass() -> None:
    result = auto_diff(Chain(), Chain(at=2, change=lambda h: h.register_hook(lambda g: g * 2) and h), X,
                       diff_phase="backward", quiet=True)  # fmt: skip
    assert not result
    assert result.first.phase == "backward"
    assert "forward" not in set(result.table["phase"])


def test_stale_gradients_do_not_count() -> None:
    base, raw = Chain(), Chain()
    raw(X).sum().backward()
    assert auto_diff(base, raw, X, quiet=True)


def test_optimizer_steps_really_run() -> None:
    base, raw = Chain(), Chain()
    raw.load_state_dict(base.state_dict())
    before = base.layers[0].weight.detach().clone()
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (base, raw)]
    result = auto_diff(base, raw, X, optimizers=optimizers, steps=10, quiet=True)
    assert result
    assert result.steps == 10
    assert set(result.table["step"]) == set(range(10))
    assert not torch.equal(before, base.layers[0].weight)
    assert optimizers[0].state[base.layers[0].weight]["step"] == 10


def test_optimizers_that_differ_show_in_the_weights_of_the_first_step() -> None:
    base, raw = Chain(), Chain()
    optimizers = [torch.optim.SGD(model.parameters(), lr=rate) for model, rate in ((base, 0.1), (raw, 0.2))]
    result = auto_diff(base, raw, X, optimizers=optimizers, steps=5, quiet=True)
    assert not result
    assert (result.first.phase, result.first.step) == ("weights", 0)


def test_an_optimizer_may_be_a_function() -> None:
    base, raw = Chain(), Chain()
    ran = []

    def step(model: nn.Module) -> None:
        ran.append(type(model).__name__)
        with torch.no_grad():
            for one in model.parameters():
                one.sub_(0.1 * one.grad)

    assert auto_diff(base, raw, X, optimizers=[partial(step, base), partial(step, raw)], steps=2, quiet=True)
    assert len(ran) == 4


def test_losses_with_bound_labels_are_called_and_compared() -> None:
    label = numbers(4, 8, seed=3)
    called = []

    def loss(output: torch.Tensor, *, label: torch.Tensor, more: float = 0.0) -> torch.Tensor:
        called.append(more)
        return nn.functional.mse_loss(output, label) + more

    same = partial(loss, label=label)
    assert auto_diff(Chain(), Chain(), X, loss_fns=[same, same], quiet=True)
    assert auto_diff(Chain(), Chain(), X, loss_fns=same, quiet=True)
    assert len(called) == 4
    result = auto_diff(Chain(), Chain(), X, loss_fns=[same, partial(loss, label=label, more=1.0)], quiet=True)
    assert not result
    assert result.first.phase == "loss"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"compare_mod": "mean"}, "compare_mode"), ({"lossfn": [1, 2]}, "loss_fn"), ({"atol": -1}, "atol"),
        ({"compare_mode": "exact"}, "compare_mode"), ({"diff_phase": "sideways"}, "diff_phase"),
        ({"steps": 0}, "steps"),
        ({"single_step": 1}, "single_step"), ({"random": "dice"}, "random"),
        ({"loss_fns": [None, None]}, "loss_fns"), ({"optimizers": 3}, "optimizers"), ({"formats": ["doc"]}, "doc"),
        ({"auto_weights": 1}, "auto_weights"),
    ],
)  # fmt: skip
def test_unknown_and_wrong_options_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        auto_diff(Chain(), Chain(), X, quiet=True, **options)


def test_options_of_one_call_do_not_leak_into_the_next() -> None:
    far = Chain(at=2, change=lambda h: h + 1)
    assert auto_diff(Chain(), far, X, atol=1e3, diff_phase="forward", quiet=True)
    assert not auto_diff(Chain(), far, X, diff_phase="forward", quiet=True)


@pytest.mark.parametrize(
    "keywords",
    [
        {}, {"layer_map": {}}, {"loss_fns": lambda output: output.mean()}, {"atol": 1e-3}, {"steps": 1},
        {"single_step": True}, {"auto_weights": True},
    ],
    ids=lambda keywords: next(iter(keywords), "none"),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:auto_weights=True:FutureWarning")
def test_the_first_model_keeps_its_weights_whatever_else_is_given(
    keywords: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    base, raw = Residual(), Residual()
    kept = base.linear1.weight.detach().clone()
    result = auto_diff(base, raw, numbers(4, 12), **keywords)
    assert result
    assert torch.equal(base.linear1.weight, kept)
    assert torch.equal(raw.linear1.weight, kept)
    assert "weights: copied from base Residual (PyTorch) to raw Residual (PyTorch)" in capsys.readouterr().out
    assert result.to_dict()["weights_copied"]
    assert "weights: copied from base" in result._repr_html_()


def test_nothing_is_said_of_weights_that_were_not_copied(capsys: pytest.CaptureFixture[str]) -> None:
    result = auto_diff(Residual(), Residual(), numbers(4, 12), auto_weights=False)
    assert not result.weights_copied
    assert "weights: copied" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("older", "keywords", "named"),
    [
        ((True,), {}, "more than three arguments"),
        ((True, {"atol": 1e-4}), {}, "more than three arguments"),
        ((), {"options": {"atol": 1e-4}}, r"options= \(give its entries as keywords\)"),
        ((), {"loss_fn": [torch.mean, torch.mean]}, r"loss_fn= \(it is called loss_fns\)"),
        ((), {"optimizer": [None, None]}, r"optimizer= \(it is called optimizers\)"),
        ((), {"reference": "second"}, r"reference= \(the reference is first\)"),
    ],
)
def test_a_call_that_used_to_overwrite_the_first_model_is_refused_with_what_to_write(
    older: tuple[object, ...], keywords: dict[str, object], named: str
) -> None:
    models = Residual(), Residual()
    kept = [model.linear1.weight.detach().clone() for model in models]
    with pytest.raises(BadInput, match=named) as caught:
        auto_diff(*models, numbers(4, 12), *older, **keywords)
    assert "from padiff import auto_diff" in str(caught.value)
    assert all(torch.equal(model.linear1.weight, was) for model, was in zip(models, kept, strict=True))


def test_keywords_that_change_their_meaning_or_name_say_so() -> None:
    with pytest.warns(FutureWarning, match="no longer makes the second model the reference"):
        auto_diff(Chain(), Chain(), X, auto_weights=True, quiet=True)
    with pytest.warns(FutureWarning, match="auto_init is called auto_weights"):
        assert not auto_diff(Chain(), Chain(), X, auto_init=False, quiet=True).weights_copied


def test_steps_without_optimizers_are_said_to_be_one() -> None:
    result = auto_diff(Chain(), Chain(), X, steps=5, quiet=True)
    assert result
    assert result.steps == 1
    assert any("without optimizers" in note for note in result.notes)


def test_no_model_no_inputs_and_one_model_too_many() -> None:
    with pytest.raises(BadInput, match="int"):
        auto_diff(3, Chain(), X)
    with pytest.raises(BadInput, match="inputs"):
        auto_diff(Chain(), Chain())
    with pytest.raises(BadInput, match="tuple of 3"):
        auto_diff(Chain(), Chain(), (X, X, X))
