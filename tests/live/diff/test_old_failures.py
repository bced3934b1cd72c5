"""What went wrong in the tool that came before, each shown to be right here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch_pairs import Chain, Residual, Shared, numbers

from twinprobe import auto_diff
from twinprobe.errors import BadInput
from twinprobe.live import check_report
from twinprobe.torch import record

X = numbers(4, 8)


class Raises(nn.Module):
    def __init__(self, at: str) -> None:
        super().__init__()
        self.linear, self.at = nn.Linear(8, 8), at

    def forward(self, x):
        h = self.linear(x)
        if self.at == "forward":
            raise ValueError("on purpose")
        if self.at == "backward":
            h.register_hook(lambda gradient: {}["on purpose"])
        return h


def test_models_of_one_class_are_two_models() -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(8, 8), scale

        def forward(self, x):
            return self.linear(x) * self.scale

    assert not auto_diff(Scaled(1.0), Scaled(5.0), X, quiet=True)


@pytest.mark.parametrize("at", ["forward", "backward"])
@pytest.mark.parametrize("single_step", [False, True])
def test_after_an_exception_everything_is_as_before(at: str, single_step: bool) -> None:
    models = Raises(""), Raises(at)
    state = torch.get_rng_state()
    dropout = nn.functional.dropout
    with pytest.raises(BadInput, match=r"raw model Raises \(PyTorch\) failed") as caught:
        auto_diff(*models, X, single_step=single_step, random="masks", quiet=True)
    assert caught.value.__cause__ is not None
    assert torch.equal(torch.get_rng_state(), state)
    assert nn.functional.dropout is dropout
    for module in (part for model in models for part in model.modules()):
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        assert not any(hooks)
    assert torch._C._len_torch_function_stack() == 0
    assert all(not one._backward_hooks for model in models for one in model.parameters())
    assert auto_diff(Chain(), Chain(), X, quiet=True)


def test_a_missing_bias_is_an_error_that_names_it() -> None:
    def net(bias: bool) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4, bias=bias))

    with pytest.raises(BadInput, match=r"1\.bias"):
        auto_diff(net(True), net(False), X, quiet=True)


def test_parameters_that_do_not_fit_are_an_error_with_both_shapes() -> None:
    with pytest.raises(BadInput) as caught:
        auto_diff(nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 6)), X, quiet=True)
    assert "[8, 8]" in str(caught.value)
    assert "[6, 8]" in str(caught.value)


def test_running_statistics_are_copied_without_a_map() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())

    base, raw = net().eval(), net().eval()
    with torch.no_grad():
        base[1].running_mean.uniform_()
        base[1].running_var.uniform_(1, 2)
    assert auto_diff(base, raw, numbers(2, 3, 8, 8), quiet=True)
    assert torch.equal(base[1].running_mean, raw[1].running_mean)


def test_equal_gradients_are_really_compared() -> None:
    """Three layers, the gradient tripled between two of them: found without a positional input, in both call forms."""

    def tripled(h: torch.Tensor) -> torch.Tensor:
        h.register_hook(lambda gradient: gradient * 3)
        return h

    for form in ({}, {"auto_weights": True}):
        raw = Chain(3, at=1, change=tripled)
        pair = (Chain(3), raw) if not form else (raw, Chain(3))
        result = auto_diff(*pair, ({"x": X}, {"x": X}), quiet=True, **form)
        assert not result
        assert result.first.raw == "Torch.tanh.1.backward"  # the gradient of its output was tripled


def test_user_folders_are_never_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("padiff_dump", "diff_log", "auto_diff", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").write_text("kept")
    auto_diff(Chain(), Chain(at=1, change=torch.sin), X, report="out", quiet=True)
    for name in ("padiff_dump", "diff_log", "auto_diff", "out"):
        assert (tmp_path / name / "mine.txt").read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"padiff_dump", "diff_log", "auto_diff", "out"}


def test_repeated_forward_passes_do_not_pile_up(tmp_path: Path) -> None:
    model = Shared()
    counts = [auto_diff(model, Shared(), numbers(4, 6), quiet=True).counts()["compared"] for _ in range(3)]
    assert len(set(counts)) == 1


def test_swapped_inputs_are_explained() -> None:
    class TakesText(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, tokens):
            return self.linear(tokens)

    with pytest.raises(BadInput, match="inputs in the right order"):
        auto_diff(TakesText(), Chain(6), ({"x": X}, {"tokens": X}), auto_init=False, quiet=True)


def test_different_numbers_of_layers_are_told_with_their_places() -> None:
    with pytest.raises(BadInput, match=r"layers\.5"):
        auto_diff(Chain(5), Chain(6), X, quiet=True)


def test_a_recording_compares_all_its_steps(tmp_path: Path) -> None:
    for name, shift in (("one", 0.0), ("other", 1.0)):
        torch.manual_seed(0)
        model = Residual()
        with record(model, tmp_path / name, level="L0", task="tensor") as recording:
            for step in range(3):
                model(numbers(2, 12) + (shift if step == 2 else 0.0)).mean().backward()
                if step < 2:
                    recording.step()
    result = check_report(tmp_path / "one", tmp_path / "other", quiet=True)
    assert not result
    assert result.first.step == 2


def test_api_calls_inside_a_layer_of_the_user_are_nodes_of_their_own() -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return torch.relu(self.linear(x)) * 2 + 1

    result = auto_diff(Calls(), Calls(), X.clone().requires_grad_(), quiet=True)
    assert result
    for phase in ("forward", "backward"):
        calls = {one.raw for one in result.findings if one.phase == phase}
        assert len(calls) == 5, calls
