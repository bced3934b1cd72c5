"""What a comparison must say aloud: other modes, weights left alone, NaN inputs, whose error it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_pairs import Residual, numbers

from twinprobe import LayerMap, auto_diff
from twinprobe.errors import BadInput

X = numbers(4, 12)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop, self.norm = nn.Linear(12, 12), nn.Dropout(0.5), nn.BatchNorm1d(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.drop(self.linear(x)))


def test_one_model_in_training_and_the_other_in_evaluation_is_told() -> None:
    base, raw = Dropped().eval(), Dropped()
    result = auto_diff(base, raw, X, quiet=True)
    (note,) = [note for note in result.notes if "evaluation" in note]
    assert "the base model is in evaluation mode, the raw model in training mode" in note
    raw.eval()
    raw.drop.train()
    (note,) = [note for note in auto_diff(base, raw, X, quiet=True).notes if "training" in note]
    assert "drop" in note
    for result in (auto_diff(base, raw, X, random="eval", quiet=True), auto_diff(Dropped(), Dropped(), X, quiet=True)):
        assert not [note for note in result.notes if "training" in note]


def test_weights_of_ignored_layers_that_were_not_copied_are_told() -> None:
    base, raw = Residual(), Residual()
    layer_map = LayerMap()
    layer_map.ignore([base.linear1, raw.linear1])
    result = auto_diff(base, raw, X, layer_map=layer_map, quiet=True)
    (note,) = [note for note in result.notes if "linear1" in note]
    assert "not copied" in note
    assert "linear1.weight" in note
    assert "different inputs" not in result.first.why


@pytest.mark.parametrize("equal_nan", [False, True])
def test_identical_nan_inputs_are_not_called_different(equal_nan: bool) -> None:
    x = X.clone()
    x[1, 2] = float("nan")
    result = auto_diff(Residual(), Residual(), x, equal_nan=equal_nan, quiet=True)
    assert bool(result) is equal_nan
    if not equal_nan:
        assert "different inputs" not in result.first.why
        assert "NaN" in result.first.why
        assert "equal_nan" in result.first.why
    other = x.clone()
    other[0, 0] = 9
    result = auto_diff(Residual(), Residual(), (x, other), quiet=True)
    assert "different inputs" in result.first.why


def test_an_error_in_the_loss_is_the_losss_own() -> None:
    def wrong(output: torch.Tensor) -> torch.Tensor:
        raise ValueError("labels are missing")

    def no_tensor(output: torch.Tensor) -> float:
        return float(output.mean())

    with pytest.raises(BadInput, match=r"loss_fn of the raw model .*failed: ValueError: labels are missing") as raised:
        auto_diff(Residual(), Residual(), X, loss_fns=[torch.mean, wrong], quiet=True)
    assert "inputs in the right order" not in str(raised.value)
    with pytest.raises(BadInput, match=r"loss_fn of the base model .*returned a float"):
        auto_diff(Residual(), Residual(), X, loss_fns=[no_tensor, no_tensor], quiet=True)

    def breaks(h: torch.Tensor) -> torch.Tensor:
        raise ValueError("in the model")

    with pytest.raises(BadInput, match=r"the raw model Residual .*failed: ValueError: in the model"):
        auto_diff(Residual(), Residual(breaks), X, quiet=True)


def test_swapped_and_foreign_optimizers_are_refused_by_name() -> None:
    base, raw = Residual(), Residual()
    optimizers = [torch.optim.SGD(raw.parameters(), 0.1), torch.optim.SGD(base.parameters(), 0.1)]
    before = raw.linear1.weight.clone()
    with pytest.raises(BadInput, match="parameters of the other model") as raised:
        auto_diff(base, raw, X, optimizers=optimizers, quiet=True)
    assert "of the first model, of the second" in str(raised.value)
    assert torch.equal(raw.linear1.weight, before), "refused before anything is changed"
    with pytest.raises(BadInput, match=r"optimizer for the base model .* is a str"):
        auto_diff(base, raw, X, optimizers=["sgd", "sgd"], quiet=True)
    stranger = torch.optim.SGD(Residual().parameters(), 0.1)
    with pytest.raises(BadInput, match="none of the parameters"):
        auto_diff(base, raw, X, optimizers=[optimizers[1], stranger], quiet=True)


def test_the_words_count_what_differs_without_deciding() -> None:
    class ThereAndBack(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor / self.factor

    base, raw = (nn.Sequential(nn.Linear(12, 12), ThereAndBack(factor)) for factor in (2.0, 4.0))
    layer_map = LayerMap()
    layer_map.ignore([base[1], raw[1]])
    result = auto_diff(base, raw, X, layer_map=layer_map, quiet=True)
    assert result
    differing = len(result.differences)
    assert differing > 0
    assert not any(one.decides for one in result.differences)
    assert f"{result.counts()['compared'] - differing} pairs agree, but {differing} inner ones" in repr(result)
    same = nn.Sequential(nn.Linear(12, 12))
    assert repr(auto_diff(same, nn.Sequential(nn.Linear(12, 12)), X, quiet=True)).endswith("pairs agree>")


def test_a_sum_against_a_mean_is_told_by_its_factor() -> None:
    x = torch.randn(6, 3)
    pair = nn.Linear(3, 2), nn.Linear(3, 2)
    result = auto_diff(*pair, x, loss_fns=[lambda y: y.square().mean(), lambda y: y.square().sum()], quiet=True)
    assert "raw's is 12 times base's, a sum against a mean?" in result.first.why
    other = auto_diff(*pair, x, loss_fns=[lambda y: y.square().mean(), lambda y: y.abs().mean()], quiet=True)
    assert "times" not in other.first.why


def test_another_rate_of_a_dropout_is_no_other_random_number() -> None:
    pair = (nn.Sequential(nn.Linear(3, 40), nn.Dropout(rate)) for rate in (0.0, 0.4))
    result = auto_diff(*pair, torch.randn(6, 3), quiet=True)
    assert "p: 0.4 against 0" in result.first.why
    assert "random numbers" not in result.first.why


def test_what_follows_in_the_gradients_does_not_also_begin(capsys: pytest.CaptureFixture[str]) -> None:
    def net(slope: float) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(slope), nn.Conv2d(8, 8, 3))

    auto_diff(net(0.01), net(0.3), torch.randn(4, 3, 9, 9), loss_fns=lambda y: y.square().mean())
    assert "also begins" not in capsys.readouterr().out


@pytest.mark.parametrize("in_raw", [True, False])
def test_a_bias_that_one_model_lacks_is_where_they_part(in_raw: bool) -> None:
    """Everything else is copied; a norm without scale and shift computes what one with ones and zeros does."""

    def net(bias: bool, affine: bool) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6, bias=bias), nn.LayerNorm(6, elementwise_affine=affine))

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    result = auto_diff(net(not in_raw, True), net(in_raw, False), x, quiet=True)
    assert result.first is not None
    assert result.first.raw == "Module.1.Linear.forward.0"
    assert f"only {'the target' if in_raw else 'golden'} has bias [6]" in result.first.why
    note = "only raw has 1.bias [6] (Linear), base's" if in_raw else "only base has 1.bias [6] (Linear), raw's"
    assert any(one.startswith(note) for one in result.notes), result.notes
    result = auto_diff(net(True, True), net(True, False), x, quiet=True)
    assert result, result.first
    assert any("only base has 2.weight [6] (LayerNorm)" in note for note in result.notes)


def test_a_value_that_goes_elsewhere_in_the_base_is_named() -> None:
    class Residual(nn.Module):
        def __init__(self, normed: bool) -> None:
            super().__init__()
            self.norm, self.inner, self.normed = nn.LayerNorm(8), nn.Linear(8, 8), normed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.tanh()
            normed = self.norm(x)
            return (normed if self.normed else x) + self.inner(normed)

    result = auto_diff(Residual(normed=False), Residual(normed=True), torch.randn(6, 8), quiet=True)
    assert result.first is not None
    assert "it holds what golden has in Module." in result.first.why
