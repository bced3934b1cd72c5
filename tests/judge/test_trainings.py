"""Trainings as people write them (losses, gradients, optimizers): what is said of a pair; nothing of a healthy one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe
from recorded_programs import WIDTH, compared, said


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def test_a_loss_that_is_not_divided_is_found_although_clipping_hides_it(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(4):
            (model(torch.randn(8, WIDTH)).square().mean() / (1 if wrong else 4)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    assert "__truediv__" in said(found := compared(tmp_path, train, mlp))
    assert "1 against 4" in said(found)
    assert "loss differs" in found.summary


def test_an_optimiser_that_is_written_by_hand(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        model(torch.randn(8, WIDTH)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad.sign(), alpha=-0.02 if wrong else -0.01)

    assert "add_" in said(found := compared(tmp_path, train, mlp))
    assert "alpha: -0.02 against -0.01" in said(found)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_setting_of_the_optimiser_is_named_whatever_its_calls_make_of_it(tmp_path: Path, level: str) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3 if wrong else 1e-8)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, WIDTH)).square().mean().backward()
            optimizer.step()

    found = compared(tmp_path, train, mlp, level=level)
    assert ("Optimizer." if level == "L0" else "a setting of the optimizer differs: ") in said(found)
    assert "eps: 0.001 against 1e-08" in said(found)
    assert "updated parameters differ" in found.summary
    assert "other divergences" not in found.summary


def test_an_optimiser_that_computes_otherwise_has_no_other_setting(tmp_path: Path) -> None:
    class Steeper(torch.optim.SGD):
        slope = 1.0

        @torch.no_grad()
        def step(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-self.slope * group["lr"])

    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = Steeper(model.parameters(), lr=0.01)
        optimizer.slope = 2.0 if wrong else 1.0
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()

    found = compared(tmp_path, train, mlp)
    assert "alpha: -0.02 against -0.01" in said(found)
    assert "setting" not in said(found)


@pytest.mark.parametrize("taken_off", [True, False])
def test_a_scale_of_the_loss_that_is_taken_off_is_no_fault_where_only_modules_were_recorded(
    tmp_path: Path, taken_off: bool
) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scale = 4.0 if wrong else 1.0
        (scale * model(torch.randn(8, WIDTH)).square().mean()).backward()
        for parameter in model.parameters() if taken_off else ():
            parameter.grad.div_(scale)
        optimizer.step()

    found = compared(tmp_path, train, mlp, level="L0")
    assert (found.first is None) == taken_off
    assert ("a scale of the loss" in found.summary) == taken_off
    assert taken_off or "4 x golden" in said(found)


@pytest.mark.parametrize("divided", [True, False])
def test_what_an_optimiser_reads_is_compared_where_a_batch_comes_in_parts(tmp_path: Path, divided: bool) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.randn(16, WIDTH)
        for part in batch.chunk(4) if wrong else [batch]:
            loss = model(part).square().mean()
            (loss / 4 if wrong and divided else loss).backward()
        optimizer.step()

    found = compared(tmp_path, train, mlp)
    assert (found.first is None) == divided, found.first
    assert divided or "another gradient: 4 x golden's" in said(found)
    assert ("updated parameters agree" in found.summary) == divided


def test_one_gradient_differs_where_all_else_is_equal(tmp_path: Path) -> None:
    """A temperature that has an optimiser of its own: no module takes it."""

    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.log_alpha = mlp(), nn.Parameter(torch.tensor(-1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    def train(model: Any, wrong: bool) -> None:
        loss = model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        torch.optim.Adam(model.layer.parameters(), lr=0.01).step()
        (model.log_alpha * (loss.detach() + (3.0 if wrong else -3.0))).backward()
        torch.optim.Adam([model.log_alpha], lr=0.01).step()

    assert "Optimizer.log_alpha" in said(found := compared(tmp_path, train, Actor, level="L0"))
    assert "updated parameters differ" in found.summary


@pytest.mark.parametrize("zeros", [True, False])
def test_a_gradient_that_is_taken_away_before_the_update(tmp_path: Path, zeros: bool) -> None:
    def train(model: Any, wrong: bool) -> None:
        model(torch.randn(8, WIDTH)).square().mean().backward()
        for parameter in model[2].parameters():
            parameter.grad = None if wrong else torch.zeros_like(parameter) if zeros else parameter.grad
        torch.optim.SGD(model.parameters(), lr=0.01).step()

    found = compared(tmp_path, train, mlp, level="L0")
    if zeros:  # they change nothing, as no gradient does
        assert found.first is None
    else:
        assert "Optimizer.2.weight" in said(found)
        assert "only the golden run's optimizer changes this parameter and 1 more" in said(found)


def test_a_parameter_that_only_one_run_trains(tmp_path: Path) -> None:
    def train(model: Any, wrong: bool) -> None:
        model[2].weight.requires_grad_(not wrong)
        model(torch.randn(8, WIDTH)).square().mean().backward()

    assert "requires_grad of weight: False against True" in said(compared(tmp_path, train, mlp))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 1))
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x).mean((2, 3))))


def test_sums_in_another_order_are_noise(tmp_path: Path) -> None:
    """Kernels for channels_last sum an image in one go. A bias before a norm has no gradient, and Adam moves it."""

    def train(model: nn.Module, wrong: bool) -> None:
        layout = torch.channels_last if wrong else torch.contiguous_format
        model.to(memory_format=layout)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randn(4, 3, 32, 32).contiguous(memory_format=layout)
            functional.cross_entropy(model(x), torch.tensor([0, 1, 0, 1])).backward()
            optimizer.step()

    assert compared(tmp_path, train, Convolutions).first is None


def test_other_calls_before_the_loss_are_named_where_updates_hide_them(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        states, rewards = torch.randn(16, WIDTH), torch.randn(16)
        for _ in range(2):
            with torch.no_grad():
                ahead = model(states.roll(1, 0))
                best = (
                    ahead.max(1).values if wrong else ahead.gather(1, model(states).argmax(1, keepdim=True)).squeeze(1)
                )
                meant = rewards + 0.9 * best * (rewards > 0)
            functional.smooth_l1_loss(model(states)[:, 0], meant).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert said(compared(tmp_path, train, mlp)).startswith("Tensor.max.0.forward: output.0: only the target run makes")


def test_a_parameter_is_named_where_it_is_used_not_where_it_is_updated(tmp_path: Path) -> None:
    factors = iter((1.012, 1.0))

    class Routed(nn.Module):
        """A gate whose weight hardly moves what comes out in 16 bits."""

        def __init__(self) -> None:
            super().__init__()
            self.gate, self.body = nn.Linear(WIDTH, 4, bias=False), nn.Linear(WIDTH, WIDTH)
            self.gate.weight.data *= next(factors)
            self.to(torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x) * (1 + self.gate(x).softmax(-1).amax(-1, keepdim=True) / 100)

    def train(model: nn.Module, _wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model(torch.randn(8, WIDTH).bfloat16()).float().square().mean().backward()
        optimizer.step()

    first = compared(tmp_path, train, Routed).first
    assert first is not None
    assert (first.module, first.begins) == ("gate", "parameter")


def test_a_value_that_one_run_has_detached_explains_its_gradients(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        hidden = model[0](torch.randn(8, WIDTH))
        snapped = hidden.detach().round()
        model[2](snapped if wrong else hidden + (snapped - hidden).detach()).square().mean().backward()

    found = compared(tmp_path, train, mlp)
    assert "linear" in said(found)
    assert "gradients flow back in one run only: requires_grad of input: False against True" in said(found)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_that_was_not_cleared_is_named(tmp_path: Path, scaled: bool) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(2):
            if scaled or not wrong:
                optimizer.zero_grad()
            model(torch.randn(8, WIDTH)).square().mean().backward()
            for parameter in model.parameters() if scaled and wrong else ():
                parameter.grad = torch.from_numpy(3 * parameter.grad.numpy())
            optimizer.step()

    found = compared(tmp_path, train, mlp)
    assert found.first is not None
    assert ("still holds the gradient of an earlier pass, Module.0.Linear.parameters_grad.0" in said(found)) != scaled
    assert ("zero_grad" in said(found)) != scaled


@pytest.mark.parametrize("white", [False, True])
def test_a_reader_of_one_run_explains_another_gradient(tmp_path: Path, white: bool) -> None:
    """Weights of which the sum is 1: adding what is missing to 1 changes no value, and the gradient."""

    def train(model: nn.Module, wrong: bool) -> None:
        shares = model(torch.randn(8, WIDTH))
        weights = shares + ((1 - shares.sum(-1, keepdim=True)) / WIDTH).detach()
        colour = (weights * torch.linspace(0, 1, WIDTH)).sum(-1)
        if white or not wrong:
            colour = colour + (1 - weights.sum(-1))
        colour.square().mean().backward()

    found = compared(tmp_path, train, mlp)
    if white:
        assert found.first is None
    else:
        assert "only golden calls" in said(found)
        assert said(found).startswith("Tensor.sum.")


def test_a_parameter_that_is_zero_in_golden_is_no_noise(tmp_path: Path) -> None:
    """It acts on nothing but its own update."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(8, WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 0.0 * functional.interpolate(self.table.T[None], size=8)[0].T

    def train(model: nn.Module, wrong: bool) -> None:
        model[1].table.data.numpy()[:] = [[wrong * (row + 1.0)] * WIDTH for row in range(8)]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()

    found = compared(tmp_path, train, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Positions()))
    assert found.first is not None
    assert "parameter" in found.first.sentence


def test_a_batch_in_parts_under_autocast_is_as_far_off_as_its_products_round(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batch = torch.randn(16, WIDTH)
        for part in batch.chunk(4) if wrong else [batch]:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(part).float().square().mean()
            (loss / 4 if wrong else loss).backward()
        optimizer.step()

    found = compared(tmp_path, train, mlp)
    assert found.first is None, found.first
    assert "updated parameters agree" in found.summary


def test_parameters_drift_by_whole_steps_where_16_bits_flip_the_signs_of_gradients(tmp_path: Path) -> None:
    """RMSprop moves each element by ten times its learning rate in its first step, whatever its gradient's size."""
    for coarse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
        optimizer = torch.optim.RMSprop(model.parameters(), lr=4e-3)
        with twinprobe.record(model, tmp_path / str(coarse), level="mix", step=[0, 1]) as recording:
            for seed in range(2):
                torch.manual_seed(seed)
                with torch.autocast("cpu", torch.bfloat16, enabled=coarse):
                    loss = (model(torch.randn(64, WIDTH)).float() + 3).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                recording.step()
    dumps = [next((tmp_path / str(coarse) / "step1").rglob("dump.json")) for coarse in (True, False)]
    found = twinprobe.compare(*dumps)
    moved = found.table.filter(found.table["target"].str.ends_with("parameters.weight"))["relative_error"]
    assert moved.max() > 0.02  # more than any rounding by itself
    assert found.first is None, found.first


def test_a_gradient_that_no_module_passes_on_is_compared_where_all_else_is_equal(tmp_path: Path) -> None:
    """A penalty on the slope: at level L0 nothing but the parameters' gradients shows its weight."""

    def train(model: nn.Module, wrong: bool) -> None:
        x = torch.randn(8, WIDTH, requires_grad=True)
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.square().mean() + (0.012 if wrong else 0.01) * slope.square().mean()).backward()

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    assert "parameters_grad" in said(compared(tmp_path, train, model, level="L0"))


def test_a_loss_that_is_not_divided_is_named_by_the_call_that_is_missing(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        for _ in range(2):
            loss = functional.cross_entropy(model(torch.randn(8, WIDTH)), torch.arange(8))
            (loss if wrong else loss / 2).backward()

    assert "Tensor.__truediv__.0.forward" in said(compared(tmp_path, train, mlp))


def test_small_divisors_make_large_errors(tmp_path: Path) -> None:
    """Noise is much the same for all elements; of those that are divided by, the smallest are the furthest off."""

    def train(model: nn.Module, changed: bool) -> None:
        order = torch.arange(WIDTH).flip(0) if changed else torch.arange(WIDTH)
        y = functional.linear(torch.randn(64, WIDTH)[:, order], model[0].weight[:, order]).abs() + 3e-3
        _ = torch.ones_like(y) / y

    assert compared(tmp_path, train, mlp).first is None
