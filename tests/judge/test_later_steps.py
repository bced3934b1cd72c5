"""Several steps in a row: a fault that begins in a later one is named there, and noise that steps leave is no fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe

WIDTH, STEPS = 24, 3
Step = Callable[[int, nn.Module, Any], None]


class Attention(nn.Module):
    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.fused = fused
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-1, -2) / WIDTH**0.5).softmax(-1) @ v
        return x + self.out(mixed)


class Net(nn.Module):
    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention(fused), Attention(fused)])
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 if at == 0 else 12, 12, 3, padding=1) for at in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(12) for _ in range(3)])
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.relu(norm(conv(x)))
        return self.head(x.mean((2, 3)))


def trained(
    folder: Path, model: nn.Module, before: Step | None = None, *, level: str = "mix", lr: float = 2e-3,
    clip: Any = None, smooth: Any = None, cast: bool = False, image: bool = False,
) -> Path:  # fmt: skip
    """Record a few steps of AdamW; ``before`` is called before each of them, with the optimizer."""
    data = torch.Generator().manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    with twinprobe.record(model, folder, level=level) as recording:
        for step in range(STEPS):
            x = torch.randn((8, 3, 12, 12) if image else (4, 6, WIDTH), generator=data)
            if image and next(model.parameters()).stride()[1] == 1:
                x = x.contiguous(memory_format=torch.channels_last)
            y = torch.randint(0, 5, (len(x),), generator=data)
            if before is not None:
                before(step, model, optimizer)
            with torch.autocast("cpu", enabled=cast):
                smoothing = smooth(step) if smooth else 0.0
                loss = functional.cross_entropy(model(x), y, label_smoothing=smoothing)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip(step))
            optimizer.step()
            if not getattr(optimizer, "keeps", False):
                optimizer.zero_grad()
            recording.step()
    return folder


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def said(target: Path, golden: Path, step: int = 2) -> str:
    """What is said of a pair that agrees up to the step before."""
    for agreeing in range(step):
        assert twinprobe.compare(target / f"step{agreeing}", golden / f"step{agreeing}").first is None
    found = twinprobe.compare(target / f"step{step}", golden / f"step{step}")
    assert found.first is not None, found.summary
    return f"{found.first.op}: {found.first.sentence}"


def forget(name: str) -> Step:
    def before(step: int, _: nn.Module, optimizer: Any) -> None:
        for state in optimizer.state.values() if step == 2 else ():
            state[name].zero_()

    return before


@pytest.mark.parametrize(
    ("state", "level", "words"),
    [
        ("exp_avg_sq", "mix", "it is the optimizer's state so far and differs: norm 0 against"),
        ("step", "mix", "it is the optimizer's state so far and differs: norm 0 against 2"),
        ("step", "L0", "step: 0 against 2"),
    ],
)
def test_a_state_of_the_optimizer_that_was_reset(tmp_path: Path, state: str, level: str, words: str) -> None:
    target = trained(tmp_path / "b", made(Net), forget(state), level=level)
    golden = trained(tmp_path / "a", made(Net), level=level)
    assert words in said(target, golden)


def test_a_call_before_the_model_is_not_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from twinprobe._cli.main import main

    target, golden = trained(tmp_path / "b", made(Net), forget("step")), trained(tmp_path / "a", made(Net))
    main(["compare", str(target), str(golden), "-o", str(tmp_path / "out"), "--json", "--format", "csv"])
    steps = json.loads(capsys.readouterr().out.splitlines()[-1])["steps"]
    assert (steps["step"], steps["cause"]) == (2, "call"), steps


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_gradients_of_the_step_before_that_were_not_cleared(tmp_path: Path, level: str) -> None:
    def keep(step: int, _: nn.Module, optimizer: Any) -> None:
        optimizer.keeps = step == 1

    target = trained(tmp_path / "b", made(Net), keep, level=level)
    assert "is zero_grad missing?" in said(target, trained(tmp_path / "a", made(Net), level=level))


def test_gradients_of_a_batch_in_parts_that_were_not_cleared(tmp_path: Path) -> None:
    """No pass of the step gives what the optimizer reads: they add up. And those of the step before are much alike."""
    for side in ("target", "golden"):
        model = made(Net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x, y = torch.randn(8, 6, WIDTH, generator=torch.Generator().manual_seed(3)), torch.arange(8) % 5
        with twinprobe.record(model, tmp_path / side, level="mix") as recording:
            for _ in range(STEPS):
                for part in range(2):
                    (functional.cross_entropy(model(x[part::2]), y[part::2]) / 2).backward()
                optimizer.step()
                if side == "golden":
                    optimizer.zero_grad()
                recording.step()
    assert "is zero_grad missing?" in said(tmp_path / "target", tmp_path / "golden", step=1)


def test_gradients_of_a_pass_that_only_looks_ahead(tmp_path: Path) -> None:
    """The first of two passes of a step finds where the second begins; its gradient is much like the second's."""
    for side in ("target", "golden"):
        model = made(Net)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        x, y = torch.randn(8, 6, WIDTH, generator=torch.Generator().manual_seed(3)), torch.arange(8) % 5
        with twinprobe.record(model, tmp_path / side, level="mix"):
            functional.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=1e-2)
            if side == "golden":
                optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert "still holds the gradient of an earlier pass" in said(tmp_path / "target", tmp_path / "golden", step=0)


def test_gradients_that_are_scaled_before_the_update_were_not_kept(tmp_path: Path) -> None:
    def halve(step: int, model: nn.Module, optimizer: Any) -> None:
        if step == 2:
            act = optimizer.step

            def stepped() -> None:
                for parameter in model.parameters():
                    parameter.grad.mul_(0.5)
                act()

            optimizer.step = stepped

    target = trained(tmp_path / "b", made(Net), halve, level="L0")
    sentence = said(target, trained(tmp_path / "a", made(Net), level="L0"))
    assert "zero_grad" not in sentence
    assert "the optimizer is given another gradient" in sentence
    assert "0.5 x golden's" in sentence


def test_running_statistics_that_were_reset(tmp_path: Path) -> None:
    def reset(step: int, model: Any, _: Any) -> None:
        if step == 2:
            model.norms[1].reset_running_stats()

    target = trained(tmp_path / "b", made(Convolutions), reset, image=True)
    golden = trained(tmp_path / "a", made(Convolutions), image=True)
    assert "batch_norm.1.forward: input.1: running_mean differs before the call" in said(target, golden)


class Centred(Convolutions):
    """The mean of what the last norm gets is zero but for rounding: it follows a norm, and nothing is cut off."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(functional.conv2d(x, conv.weight.mean((2, 3), keepdim=True)))
        return self.head(functional.relu(x).mean((2, 3)))


def test_a_running_mean_of_nothing_but_rounding(tmp_path: Path) -> None:
    turned = made(Centred).to(memory_format=torch.channels_last)
    target = trained(tmp_path / "b", turned, image=True)
    golden = trained(tmp_path / "a", made(Centred), image=True)
    for step in range(STEPS):
        found = twinprobe.compare(target / f"step{step}", golden / f"step{step}")
        assert found.first is None, found.summary

    def reset(step: int, model: Any, _: Any) -> None:
        if step == 2:
            model.norms[0].reset_running_stats()

    other = trained(tmp_path / "c", made(Centred), reset, image=True)
    assert "batch_norm.0.forward: input.1: running_mean differs before the call" in said(other, golden)


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_large_rate_makes_large_steps_of_the_noise_of_16_bits(tmp_path: Path, level: str) -> None:
    """Adam moves as many elements by a whole step, one way or the other, as have a gradient below its error."""
    target = trained(tmp_path / "b", made(lambda: Net(fused=False)), lr=0.02, cast=True, level=level)
    golden = trained(tmp_path / "a", made(Net), lr=0.02, cast=True, level=level)
    for step in range(STEPS):
        found = twinprobe.compare(target / f"step{step}", golden / f"step{step}")
        assert found.first is None, found.summary

    def scale(step: int, model: Any, _: Any) -> None:
        if step == 2:
            model.layers[1].out.weight.data *= 1.5

    other = trained(tmp_path / "c", made(lambda: Net(fused=False)), scale, lr=0.02, cast=True, level=level)
    assert "parameter" in said(other, golden)


def test_clipping_to_another_norm_is_named_where_only_modules_were_recorded(tmp_path: Path) -> None:
    target = trained(tmp_path / "b", made(Net), level="L0", clip=lambda step: 0.1 if step == 2 else 0.2)
    golden = trained(tmp_path / "a", made(Net), level="L0", clip=lambda _: 0.2)
    assert "gradients are clipped to a norm of 0.1 against 0.2" in said(target, golden)


def test_another_loss_is_not_blamed_on_the_last_module(tmp_path: Path) -> None:
    target = trained(tmp_path / "b", made(Net), level="L0", smooth=lambda step: 0.2 if step == 2 else 0.0)
    golden = trained(tmp_path / "a", made(Net), level="L0")
    assert "the loss is computed or scaled otherwise" in said(target, golden)


def test_a_layer_of_an_earlier_step_is_no_drift_where_all_other_parameters_are_equal(tmp_path: Path) -> None:
    kept: dict[str, Any] = {}

    def load(step: int, model: Any, _: Any) -> None:
        if step == 0:
            kept.update(copy.deepcopy(model.layers[1].state_dict()))
        if step == 2:
            model.layers[1].load_state_dict(kept)

    target = trained(tmp_path / "b", made(Net), load, cast=True)
    golden = trained(tmp_path / "a", made(Net), cast=True)
    assert "parameter differs" in said(target, golden)


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_parameters_that_the_loss_does_not_depend_on_may_drift(tmp_path: Path, level: str) -> None:
    """The keys' bias has no gradient but rounding, and Adam moves it by whole steps, however large they are."""
    target = trained(tmp_path / "b", made(lambda: Net(fused=False)), lr=2e-2, level=level)
    golden = trained(tmp_path / "a", made(Net), lr=2e-2, level=level)
    for step in range(STEPS):
        found = twinprobe.compare(target / f"step{step}", golden / f"step{step}")
        assert found.first is None, found.summary


def test_errors_that_a_batch_has_in_common_do_not_cancel_in_the_gradient_of_a_weight(tmp_path: Path) -> None:
    """After a mean over the image all places have one gradient, and one error: channels_last sums otherwise."""
    target = trained(tmp_path / "b", made(Convolutions).to(memory_format=torch.channels_last), image=True)
    golden = trained(tmp_path / "a", made(Convolutions), image=True)
    for step in range(STEPS):
        found = twinprobe.compare(target / f"step{step}", golden / f"step{step}")
        assert found.first is None, found.summary
