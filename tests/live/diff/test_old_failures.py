"""What went wrong in the tool that came before, each shown to be right here; the table is in test_scenarios.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_pairs import Chain, Shared, numbers

from twinprobe import auto_diff
from twinprobe.errors import BadInput

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

    result = auto_diff(Scaled(1.0), Scaled(5.0), X, quiet=True)
    assert not result
    (output,) = [one for one in result.first.findings if one.place == "output"]
    assert output.gap.max_abs > 0.1


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


class Hostile(Mapping):
    """A result that cannot be looked into: the tool's own hook fails on it."""

    def __getitem__(self, key: str) -> torch.Tensor:
        raise RuntimeError("do not touch")

    def __iter__(self):
        raise RuntimeError("do not touch")

    def __len__(self) -> int:
        return 1


def test_an_exception_in_the_tools_own_hook_is_noted_and_leaves_no_trace() -> None:
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.odd = nn.Linear(8, 8), Gives.Odd()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear(x)
            self.odd(h)
            return h

        class Odd(nn.Module):
            def forward(self, x: torch.Tensor) -> Hostile:
                return Hostile()

    models = Gives(), Gives()
    result = auto_diff(*models, X, quiet=True)
    assert result, "what could be looked at agrees"
    assert any("the recorder met" in note and "RuntimeError" in note for note in result.notes), result.notes
    assert not any(part._forward_hooks or part._forward_pre_hooks for model in models for part in model.modules())
    assert torch._C._len_torch_function_stack() == 0
    again = auto_diff(Chain(), Chain(at=1, change=torch.sin), X, quiet=True)
    assert not again, "later calls in this process are as good as the first"
    assert again.notes == auto_diff(Chain(), Chain(at=1, change=torch.sin), X, quiet=True).notes


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
    """Three layers, the gradient tripled between two of them: found without a positional input."""

    def tripled(h: torch.Tensor) -> torch.Tensor:
        h.register_hook(lambda gradient: gradient * 3)
        return h

    result = auto_diff(Chain(3), Chain(3, at=1, change=tripled), ({"x": X}, {"x": X}), quiet=True)
    assert not result
    assert result.first.raw == "Torch.tanh.1.backward"  # the gradient of its output was tripled


def test_a_difference_in_one_field_of_a_dataclass_is_found() -> None:
    @dataclass
    class Answer:
        score: torch.Tensor
        state: torch.Tensor

    class Gives(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(8, 8), scale

        def forward(self, x: torch.Tensor) -> Answer:
            h = self.linear(x)
            return Answer(h, h * self.scale)

    result = auto_diff(Gives(1.0), Gives(2.0), X, quiet=True)
    assert not result
    wrong = {one.tensor for one in result.differences if one.phase == "forward" and one.raw == "Module.Gives.forward.0"}
    assert wrong == {"output.0.state"}


def test_a_fault_inside_a_checkpointed_block_is_found() -> None:
    class Block(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.inner, self.scale = nn.Linear(8, 8), scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.inner(x)) * self.scale

    class Checkpointed(nn.Module):
        def __init__(self, scale: float = 1.0) -> None:
            super().__init__()
            self.block, self.last = Block(scale), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(checkpoint(self.block, x, use_reentrant=False))

    x = X.clone().requires_grad_()
    assert auto_diff(Checkpointed(), Checkpointed(), x, quiet=True)
    result = auto_diff(Checkpointed(), Checkpointed(1.5), x, quiet=True)
    assert not result
    assert (result.first.raw, result.first.phase) == ("Tensor.__mul__.0.forward", "forward")
    outputs = {one.raw: one.differs for one in result.findings if one.phase == "forward" and one.place == "output"}
    assert outputs["Module.block.Block.forward.0"]
    assert not outputs["Module.block.inner.Linear.forward.0"]


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
        auto_diff(TakesText(), Chain(6), ({"x": X}, {"tokens": X}), auto_weights=False, quiet=True)


def test_different_numbers_of_layers_are_told_with_their_places() -> None:
    with pytest.raises(BadInput, match=r"layers\.5"):
        auto_diff(Chain(5), Chain(6), X, quiet=True)


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
