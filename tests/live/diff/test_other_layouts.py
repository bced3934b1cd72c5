"""Two models that keep the same values in another layout inside: that is no difference, other values are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from twinprobe import auto_diff


class Rotary(nn.Module):
    """Attention with rotary positions, whose pairs are halves of a head or neighbours."""

    def __init__(self, *, halves: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.halves = halves

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        angle = torch.outer(torch.arange(x.shape[-2]), 0.1 ** torch.arange(4))
        cos, sin = angle.cos(), angle.sin()
        if self.halves:
            a, b = x.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v)
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("converted", [True, False])
def test_rotary_weights_in_the_order_of_the_other_layout(converted: bool) -> None:
    torch.manual_seed(0)
    base, raw = Rotary(halves=True), Rotary(halves=False)
    raw.load_state_dict(base.state_dict())
    if converted:
        for layer in (raw.q, raw.k):
            layer.weight.data = layer.weight.data.view(2, 2, 4, 16).transpose(1, 2).reshape(16, 16).contiguous()
    rates = [torch.optim.AdamW(model.parameters(), 1e-2) for model in (base, raw)]
    result = auto_diff(base, raw, torch.randn(2, 5, 16), auto_weights=False, optimizers=rates, steps=2, quiet=True)
    assert bool(result) is converted
    if not converted:
        assert result.first.raw not in ("Module.q.Linear.forward.0", "Module.k.Linear.forward.0"), "they are equal"


class Pixels(nn.Module):
    """A layer for each pixel: with channels last, with channels first, or on one row for each pixel."""

    def __init__(self, layout: str, shift: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 7, 3)
        self.each = nn.Conv2d(7, 5, 1) if layout == "first" else nn.Linear(7, 5)
        self.layout, self.shift = layout, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.layout == "first":
            return self.each(x).relu().mean((2, 3))
        x = x.permute(0, 2, 3, 1)
        y = self.each((x if self.layout == "last" else x.reshape(-1, 7)) + self.shift)
        return y.relu().view(*x.shape[:3], 5).mean((1, 2))


@pytest.mark.parametrize(("layout", "shift"), [("last", 0.0), ("rows", 0.0), ("rows", 0.01)])
def test_axes_of_inner_layers_may_lie_otherwise(layout: str, shift: float) -> None:
    torch.manual_seed(0)
    base, raw = Pixels("first"), Pixels(layout, shift)
    raw.load_state_dict(
        {name: value.reshape(raw.state_dict()[name].shape) for name, value in base.state_dict().items()}
    )
    result = auto_diff(base, raw, torch.randn(2, 3, 6, 8), auto_weights=False, quiet=True)
    assert bool(result) is not bool(shift)
    if shift:
        assert result.first.raw == "Module.each.Linear.forward.0"
        assert all(finding.gap.max_abs < 0.05 for finding in result.first.findings), "axis by axis"


def test_the_models_own_result_has_one_shape() -> None:
    class Turned(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).transpose(0, 1)

    result = auto_diff(nn.Linear(4, 3), Turned(4, 3), torch.randn(5, 4), quiet=True)
    assert not result
    assert "shape [3, 5] against [5, 3]" in result.first.findings[0].gap.why


def test_a_table_and_the_sum_of_its_rows_are_a_bag() -> None:
    """What a table gives has another shape than a bag's, and becomes it one call later; another sum is found."""

    class Rows(nn.Module):
        def __init__(self, bag: bool, total: str = "sum") -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(20, 6, mode="sum") if bag else nn.Embedding(20, 6)
            self.last, self.total = nn.Linear(6, 3), total

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found = self.table(ids)
            return self.last(getattr(found, self.total)(1) if found.dim() == 3 else found)

    ids = torch.randint(0, 20, (7, 4), generator=torch.Generator().manual_seed(0))
    assert auto_diff(Rows(bag=True), Rows(bag=False), ids, quiet=True)
    assert not auto_diff(Rows(bag=True), Rows(bag=False, total="mean"), ids, quiet=True)


class Slopes(nn.Module):
    """Two attentions whose scores fall with the distance of words, which is counted in either direction."""

    def __init__(self, *, backwards: bool, scale: float = 1.0) -> None:
        super().__init__()
        names = ("qkv", "more") if backwards else ("first", "second")
        self.layers = [nn.Linear(8, 24), nn.Linear(8, 24)]
        for name, layer in zip(names, self.layers, strict=True):
            self.add_module(name, layer)
        self.backwards, self.scale = backwards, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            q, k, v = layer(x).chunk(3, -1)
            place = torch.arange(x.shape[1])
            if self.backwards:
                bias = -(torch.tensor([0.5]) * (place[:, None] - place[None, :]))
                scale = 8**-0.5 * (self.scale if number else 1.0)
                x = x + functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
            else:
                bias = torch.tensor([0.5]) * (place[None, :] - place[:, None])
                x = x + (q @ k.transpose(-1, -2) / 8**0.5 + bias).softmax(-1) @ v
        return x


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_a_sign_that_is_taken_back_hides_no_later_fault(scale: float) -> None:
    """i - j and j - i have the same extremes, mean and norm: only the elements tell them apart."""
    torch.manual_seed(0)
    base, raw = Slopes(backwards=False), Slopes(backwards=True, scale=scale)
    for mine, theirs in zip(raw.layers, base.layers, strict=True):
        mine.load_state_dict(theirs.state_dict())
    result = auto_diff(base, raw, torch.randn(2, 5, 8), auto_weights=False, quiet=True)
    assert bool(result) is (scale == 1.0), result.first
    if not result:
        assert "scaled_dot_product_attention.1" in result.first.raw
        assert "scale: 0.2475 against 0.3536" in str(result.first)
