"""Two implementations of one model over several steps of an optimizer: rounding is no difference, settings are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from twinprobe import auto_diff


class Attention(nn.Module):
    """Causal attention, written out or by PyTorch's own function. The bias of its keys has no gradient but rounding."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.fused = nn.Linear(24, 72), nn.Linear(24, 24), fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 3, width // 3).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) * (width // 3) ** -0.5
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Words(nn.Module):
    def __init__(self, *, fused: bool, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.table, self.first, self.second = nn.Embedding(31, 24), nn.LayerNorm(24), nn.LayerNorm(24)
        self.attention = Attention(fused=fused)
        self.up, self.activation, self.down = nn.Linear(24, 48), activation or nn.GELU(), nn.Linear(48, 31)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        x = x + self.attention(self.first(x))
        return self.down(self.activation(self.up(self.second(x))))


WORDS = torch.randint(0, 31, (4, 12), generator=torch.Generator().manual_seed(3))


def trained(
    raw: nn.Module, *, rates: tuple[float, float] = (1e-2, 1e-2), base: nn.Module | None = None, **options: Any
):
    torch.manual_seed(0)
    models = base or Words(fused=False), raw
    optimizers = [
        torch.optim.AdamW(model.parameters(), rate) for model, rate in zip(models, rates, strict=True)
    ]  # fmt: skip
    return auto_diff(
        *models, WORDS[:, :-1], optimizers=optimizers, steps=3, quiet=True, **options,
        loss_fns=lambda scores: functional.cross_entropy(scores.flatten(0, 1).float(), WORDS[:, 1:].flatten()),
    )  # fmt: skip


def test_adam_makes_whole_steps_of_rounding_and_that_is_no_difference() -> None:
    result = trained(Words(fused=True))
    assert result
    assert any("no more than rounding explains" in note for note in result.notes)


def test_a_tolerance_of_the_users_own_decides() -> None:
    result = trained(Words(fused=True), atol=1e-5, rtol=1.3e-6)
    assert not result
    assert result.first.phase == "weights"


def test_another_rate_is_found_and_named() -> None:
    result = trained(Words(fused=True), rates=(1e-3, 1.1e-3))
    assert (result.first.step, result.first.phase) == (0, "weights")
    assert "a setting of the optimizer differs: lr: 0.0011 against 0.001" in result.first.why


def test_a_setting_without_effect_so_far_is_a_note() -> None:
    torch.manual_seed(0)
    base, raw = Words(fused=False), Words(fused=False)
    optimizers = [torch.optim.AdamW(base.parameters()), torch.optim.AdamW(raw.parameters(), amsgrad=True)]
    result = auto_diff(base, raw, WORDS, optimizers=optimizers, steps=2, quiet=True)
    assert result
    assert "a setting of the optimizer differs: amsgrad: True against False" in result.notes


def test_another_activation_is_named_beside_other_attention() -> None:
    result = trained(Words(fused=True, activation=nn.GELU("tanh")))
    assert result.first.raw == "Module.activation.GELU.forward.0"
    assert "the layers were built with approximate: tanh against none" in result.first.why


@pytest.mark.parametrize(("activation", "agrees"), [(None, True), (nn.ReLU(), False)])
def test_in_16_bits_no_fixed_tolerance_fits(activation: nn.Module | None, agrees: bool) -> None:
    raw = Words(fused=True, activation=activation).bfloat16()
    result = trained(raw, base=Words(fused=False).bfloat16())
    assert bool(result) is agrees
    assert agrees or result.first.raw == "Module.activation.ReLU.forward.0"


class Patches(nn.Module):
    """A convolution, or a product of all patches with its weights: [N, C, H, W] against [N, H * W, C]."""

    def __init__(self, *, unfolded: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.filter, self.out, self.unfolded, self.factor = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.Linear(6, 3),
            unfolded,
            factor,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.unfolded:
            patches = functional.unfold(x, 3, padding=1).transpose(1, 2)
            made = patches @ self.filter.weight.flatten(1).T + self.filter.bias
            made = (made * self.factor if self.factor != 1.0 else made).transpose(1, 2).unflatten(-1, x.shape[2:])
        else:
            made = self.filter(x)
        return self.out(made.relu().mean((2, 3)))


@pytest.mark.parametrize(("factor", "agrees"), [(1.0, True), (1.01, False)])
def test_what_lies_along_other_axes_is_turned_before_it_is_compared(factor: float, agrees: bool) -> None:
    picture = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    result = auto_diff(Patches(unfolded=True, factor=factor), Patches(unfolded=False), picture, quiet=True)
    assert bool(result) is agrees
