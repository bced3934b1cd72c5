"""Optimizers that users write themselves, compared with those of the framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import twinprobe

torch = pytest.importorskip("torch")


class OwnAdamW(torch.optim.Optimizer):
    """AdamW as a paper has it: the moments are corrected first; ``uncorrected``: one parameter's are not."""

    def __init__(self, parameters: Any, rate: float, uncorrected: int = -1, squares: bool = False) -> None:
        super().__init__(parameters, {"lr": rate, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2})
        self.steps, self.uncorrected, self.squares = 0, uncorrected, squares

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for group in self.param_groups:
            (one, two), rate = group["betas"], group["lr"]
            for number, weight in enumerate(group["params"]):
                if weight not in self.state:
                    self.state[weight] = {"m": torch.zeros_like(weight), "v": torch.zeros_like(weight)}
                m, v = self.state[weight]["m"], self.state[weight]["v"]
                weight.mul_(1 - rate * group["weight_decay"])
                if self.squares:
                    m.lerp_(weight.grad, 1 - one)
                    v.lerp_(weight.grad * weight.grad, 1 - two)
                else:
                    m.mul_(one).add_(weight.grad, alpha=1 - one)
                    v.mul_(two).addcmul_(weight.grad, weight.grad, value=1 - two)
                first = m / (1 - one**self.steps)
                second = v / (1 - two**self.steps)
                if number == self.uncorrected:
                    first = m
                weight.sub_(rate * first / (second.sqrt() + group["eps"]))


def _train(folder: Path, own: bool, level: str, sketch: bool = True, **settings: Any) -> Path:
    """Two steps; ``settings`` are those of the own optimizer."""
    torch.manual_seed(0)
    parts = [torch.nn.Linear(8, 24), torch.nn.LayerNorm(24), torch.nn.GELU(), torch.nn.Linear(24, 24), torch.nn.GELU()]
    model = torch.nn.Sequential(*parts, torch.nn.Linear(24, 4))
    optimizer = OwnAdamW(model.parameters(), 1e-2, **settings) if own else torch.optim.AdamW(model.parameters(), 1e-2)
    with twinprobe.record(model, folder, level=level, sketch=sketch) as recording:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
            recording.step()
    return folder


def _first(tmp_path: Path, step: int = 0) -> Any:
    sides = [next((tmp_path / side / f"step{step}").glob("*/dump.json")) for side in ("target", "golden")]
    return twinprobe.compare(*sides).first


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_another_order_of_the_same_formula_is_no_difference(tmp_path: Path, level: str) -> None:
    _train(tmp_path / "target", own=True, level=level)
    _train(tmp_path / "golden", own=False, level=level)
    assert _first(tmp_path) is None
    assert _first(tmp_path, step=1) is None


def test_a_square_of_a_gradient_is_no_moment_times_a_number(tmp_path: Path) -> None:
    """Both are products, at the same place, of two written optimizers."""
    _train(tmp_path / "target", own=True, level="mix", squares=True)
    _train(tmp_path / "golden", own=True, level="mix")
    assert _first(tmp_path) is None
    assert _first(tmp_path, step=1) is None


def test_an_update_that_is_wrong_for_one_parameter_is_found_at_it(tmp_path: Path) -> None:
    _train(tmp_path / "target", own=True, level="mix", uncorrected=4)
    _train(tmp_path / "golden", own=False, level="mix")
    first = _first(tmp_path)
    assert first is not None
    assert first.op == "Tensor.sub_.4.forward"  # not a step of the formula: those of other parameters differ, too


@pytest.mark.parametrize("sketch", [True, False])
def test_the_parameter_is_named_by_what_its_optimizer_saw(tmp_path: Path, sketch: bool) -> None:
    """Also where no sketches tell: a matrix that is off by a step is not noise, a bias may be."""
    _train(tmp_path / "target", own=True, level="L0", sketch=sketch, uncorrected=4)
    _train(tmp_path / "golden", own=False, level="L0", sketch=sketch)
    first = _first(tmp_path)
    assert first is not None
    assert first.op == "Optimizer.3.weight.OwnAdamW.0.forward"


def _average(folder: Path, decay: float) -> Path:
    """A model and a moving average of it, whose parameters no optimizer trains."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"online": torch.nn.Linear(8, 8), "average": torch.nn.Linear(8, 8)})
    model["average"].load_state_dict(model["online"].state_dict())
    model["average"].requires_grad_(False)
    optimizer = torch.optim.AdamW(model["online"].parameters(), 1e-2)
    with twinprobe.record(model, folder, level="L0") as recording:
        for _ in range(2):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            (model["online"](x) - model["average"](x).detach() - x).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for mean, weight in zip(model["average"].parameters(), model["online"].parameters(), strict=True):
                    mean.lerp_(weight, 1 - decay)
            recording.step()
    return folder


def test_an_average_is_not_noise_where_all_that_is_trained_is_equal(tmp_path: Path) -> None:
    """Adam makes whole steps of noise; without noise it makes none, however large the rate is."""
    _average(tmp_path / "target", 0.99)
    _average(tmp_path / "golden", 0.9)
    first = _first(tmp_path, step=1)
    assert first is not None
    assert first.op == "Module.average.Linear.forward.0"


def test_parameters_that_belong_to_no_module(tmp_path: Path) -> None:
    """What functions read, and what is written to it by hand after the backward pass."""
    for name, rate in (("target", 0.05), ("golden", 0.1)):
        torch.manual_seed(0)
        weight, bias = torch.randn(6, 5, requires_grad=True), torch.randn(5, requires_grad=True)
        with twinprobe.record(outer := torch.nn.Identity(), tmp_path / name, level="mix") as recording:
            for _ in range(2):
                outer(torch.tanh(torch.randn(4, 6) @ weight + bias)).square().mean().backward()
                with torch.no_grad():
                    weight -= 0.1 * weight.grad
                    bias -= rate * bias.grad
                weight.grad = bias.grad = None
                recording.step()
    parting = twinprobe.compare(tmp_path / "target", tmp_path / "golden").steps.parting
    assert parting.step == 0
    assert "an argument differs: argument 1: 0.05 against 0.1" in parting.sentence
