"""Two implementations of one model under other names: harmless detours do not hide a fault, and its cause is named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe

WIDTH, HEADS = 16, 2


def compared(folder: Path, target: nn.Module, golden: nn.Module, x: torch.Tensor) -> Any:
    """The target gets golden's parameters in their order; both are recorded and compared."""
    with torch.no_grad():
        for mine, theirs in zip(target.parameters(), golden.parameters(), strict=True):
            mine.copy_(theirs)
    for model, name in ((target, "target"), (golden, "golden")):
        with twinprobe.record(model, folder / name, level="mix"):
            model(x).square().mean().backward()
    return twinprobe.compare(folder / "target", folder / "golden")


class Written(nn.Module):
    """Attention step by step."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [w(self.norm(x)).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)]
        q, k, v = (heads[at] for at in ((0, 2, 1) if self.fault == "exchanged" else (0, 1, 2)))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH if self.fault == "scale" else WIDTH // HEADS)
        if self.fault != "mask":
            scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1) > 0, -1e9)
        mixed = scores.softmax(-2 if self.fault == "axis" else -1) @ v
        return x + self.wo(mixed.transpose(1, 2).flatten(2))


class BuiltIn(nn.Module):
    """The same by PyTorch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(WIDTH)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.ln(x)
        q, k, v = (w(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.q_proj, self.k_proj, self.v_proj))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o_proj(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("", ""),
        ("scale", "scale: 0.25 against 0.3536"),
        ("axis", "axis of the softmax: -2 against -1"),
        ("mask", "mask: none against is_causal"),
        ("exchanged", "is what golden takes as its"),
    ],
)
def test_an_attention_written_out_against_the_built_in_one(fault: str, words: str, tmp_path: Path) -> None:
    """A mask of -1e9, which one run alone makes, is no noise that would hide what comes behind it."""
    torch.manual_seed(0)
    target = nn.ModuleDict({"a": Written(fault)})["a"]
    first = compared(tmp_path, nn.Sequential(target), nn.Sequential(BuiltIn()), torch.randn(2, 6, WIDTH)).first
    assert (first is None) is (not fault), first
    if first is not None:
        assert "attention" in first.golden_row, first
        assert words in first.sentence


class Pyramid(nn.Module):
    """Two branches that are joined, and one beside them that is computed last."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one, self.two = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 3, padding=1)
        self.mix, self.skip, self.head = nn.Conv2d(12, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(12, 3, 1)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.stem(x)
        two = self.two(low)
        parts = [self.one(low), functional.leaky_relu(two) if self.fault == "leaky" else two.relu()]
        mixed = self.mix(torch.cat(parts[:: -1 if self.fault == "order" else 1], 1)).relu()
        return self.head(torch.cat([mixed, self.skip(low)], 1))


class Named(Pyramid):
    """The same, under names that say nothing."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault)
        for number, name in enumerate(("stem", "one", "two", "mix", "skip", "head")):
            self._modules[f"layer_{number}"] = self._modules.pop(name)

    def __getattr__(self, name: str) -> Any:
        places = ("stem", "one", "two", "mix", "skip", "head")
        return super().__getattr__(f"layer_{places.index(name)}" if name in places else name)


@pytest.mark.parametrize(
    ("fault", "call", "words"),
    [("", "", ""), ("leaky", "leaky_relu", "relu"), ("order", "conv2d", "golden's values in another order")],
)
def test_a_branch_that_agrees_is_not_where_a_difference_ends(fault: str, call: str, words: str, tmp_path: Path) -> None:
    """Nor is a call that one run alone makes the cause of values that are all there, in another order."""
    torch.manual_seed(0)
    first = compared(tmp_path, Named(fault), Pyramid(), torch.randn(2, 3, 8, 8)).first
    assert (first is None) is (not fault), first
    if first is not None:
        assert call in first.op, first
        assert words in first.sentence


class Gated(nn.Module):
    """A convolution over one half of the features, gated by the other."""

    def __init__(self, exchanged: bool = False) -> None:
        super().__init__()
        self.fc, self.conv, self.exchanged = nn.Linear(6, 16), nn.Conv1d(8, 8, 3, padding=1), exchanged

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.fc(x).chunk(2, -1)
        a, b = (b, a) if self.exchanged else (a, b)
        return self.conv(a.transpose(1, 2)).transpose(1, 2) * functional.silu(b)


def test_golden_s_value_of_elsewhere_with_its_axes_in_another_order(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = compared(tmp_path, Gated(exchanged=True), Gated(), torch.randn(2, 5, 6)).first
    assert first is not None
    assert "conv" in first.row
    assert "it holds what golden has in Functional.silu.0.forward.input.0, with its axes in another order" in str(
        first.sentence
    )


class Feeds(nn.Module):
    """A block whose parts one run calls as modules and the other as functions."""

    def __init__(self, by_hand: bool, fault: str = "") -> None:
        super().__init__()
        self.up, self.gate, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.act, self.drop, self.by_hand, self.fault = nn.GELU(), nn.Dropout(0.0), by_hand, fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.by_hand:
            return x + self.down(self.act(self.up(x)) * torch.sigmoid(self.gate(x)))
        gate = functional.linear(x, self.gate.weight, self.gate.bias)
        inner = self.drop(torch.relu(self.up(x))) if self.fault == "act" else functional.gelu(self.up(x))
        gate = torch.tanh(gate) if self.fault == "gate" else torch.sigmoid(gate)
        return x + self.down(inner * gate)


class Stack(nn.Module):
    """Blocks and a norm, which one run calls in a module around them."""

    def __init__(self, by_hand: bool, fault: str) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            *(Feeds(by_hand and fault != "norm", fault * (at == 1)) for at in range(3)), nn.LayerNorm(WIDTH)
        )
        self.head, self.by_hand, self.fault = nn.Linear(WIDTH, 3), by_hand, fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.trunk[: 3 if self.fault == "norm" else 4] if self.by_hand else [self.trunk]:
            x = part(x)
        return self.head(x.mean(1) if self.fault == "pool" else x[:, 0])


@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize(
    ("fault", "calls", "words"),
    [
        ("", ("", ""), ""),
        ("act", ("trunk.1.drop", "trunk.1"), "relu, dropout against gelu"),
        ("gate", ("Torch.tanh.0.forward", "trunk.1"), "tanh is called where golden calls sigmoid"),
        ("pool", ("Tensor.mean.0.forward", "head"), "only target calls mean here"),
        ("norm", ("trunk.3", "trunk.3"), "only golden calls layer_norm here"),
    ],
)
def test_parts_that_one_run_calls_alone_are_no_causes(
    fault: str, calls: tuple[str, str], words: str, level: str, tmp_path: Path
) -> None:
    """Another block has them too, and agrees; a dropout that drops nothing gives what it takes."""
    for name in ("target", "golden"):
        torch.manual_seed(0)
        model = Stack(name == "target", fault if name == "target" else "")
        with twinprobe.record(model, tmp_path / name, level=level):
            model(torch.randn(4, 6, WIDTH)).square().mean().backward()
    first = twinprobe.compare(tmp_path / "target", tmp_path / "golden").first
    assert (first is None) is (not fault), first
    if first is not None:
        assert calls[level == "L0"] in (first.op, first.module), first
        assert words in first.sentence or level == "L0", first


class Words(nn.Module):
    """Two tables; ``looks``: it first looks a number up in a buffer, as some models of transformers do."""

    def __init__(self, looks: bool, fault: bool = False) -> None:
        super().__init__()
        self.words, self.types, self.head = nn.Embedding(20, WIDTH), nn.Embedding(2, WIDTH), nn.Linear(WIDTH, 20)
        self.register_buffer("zeros", torch.zeros(1, 30, dtype=torch.long))
        self.looks, self.fault = looks, fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(x.shape[1]).expand_as(x)
        types = torch.gather(self.zeros.expand(len(x), -1), 1, at) if self.looks else torch.zeros_like(x)
        inner = self.words(x) + self.types(types)
        return self.head(torch.relu(inner) if self.fault else torch.tanh(inner))


@pytest.mark.parametrize("fault", [False, True])
def test_what_two_other_functions_take_is_no_other_data(fault: bool, tmp_path: Path) -> None:
    for name in ("target", "golden"):
        torch.manual_seed(0)
        model = nn.Sequential(Words(name == "golden", fault and name == "target"))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with twinprobe.record(model, tmp_path / name, level="mix") as recording:
            for _ in range(2):
                optimizer.zero_grad()
                functional.cross_entropy(
                    model(words := torch.randint(20, (3, 8))).flatten(0, 1), words.flatten()
                ).backward()
                optimizer.step()
                recording.step()
    found = twinprobe.compare(tmp_path / "target", tmp_path / "golden")
    assert found.agrees is not fault
    if fault:
        assert found.steps.parting.cause == "call"
        assert "relu against tanh" in found.first.sentence


class _Scaled(torch.autograd.Function):
    """A product whose way back is written by hand."""

    @staticmethod
    def forward(ctx: Any, scores: Any, factor: Any) -> Any:
        ctx.save_for_backward(factor)
        return scores * factor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (factor,) = ctx.saved_tensors
        return (factor * gradient.mul(-1)).mul(-1), None


class _Gate(nn.Module):
    def __init__(self, name: str, by_hand: bool) -> None:
        super().__init__()
        self.add_module(name, nn.Linear(8, 8))
        self.layer, self.by_hand = name, by_hand

    def forward(self, x: Any) -> Any:
        y = getattr(self, self.layer)(x)
        factor = torch.sigmoid(y.detach())
        return _Scaled.apply(y, factor) if self.by_hand else y * factor


@pytest.mark.parametrize("fault", [1.0, 1.2])
@pytest.mark.parametrize("by_hand", [(True, False), (False, True), (True, True)])
def test_a_way_back_that_is_written_by_hand_is_no_riddle(
    tmp_path: Path, by_hand: tuple[bool, bool], fault: float
) -> None:
    """Its calls stand inside the backward pass of a module, and nothing comes after them in order."""
    for folder, name, hand in zip(("target", "golden"), ("gate", "router"), by_hand, strict=True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), _Gate(name, hand), nn.Linear(8, 8))
        with torch.no_grad():
            model[1].get_submodule(name).weight.mul_(fault if folder == "target" else 1.0)
        with twinprobe.record(model, tmp_path / folder, level="mix"):
            model(torch.randn(4, 8)).square().mean().backward()
    first = twinprobe.compare(tmp_path / "target", tmp_path / "golden").first
    assert (None if first is None else first.call) == (None if fault == 1 else "Functional.linear.1.forward")


class _Masked(nn.Module):
    """Attention that cuts its mask to size; ``early``: where the scores are scaled."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.early = *(nn.Linear(8, 8) for _ in "qkv"), early

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k = self.q(x), self.k(x).transpose(-1, -2)
        scores = (q * 0.7) @ k if self.early else (q @ k) * 0.7
        return torch.softmax(scores + mask[:, :, : x.shape[1]], -1) @ self.v(x)


class _WithMask(nn.Module):
    """``wide``: the mask has a column more, for a cache, and is made by another call."""

    def __init__(self, wide: bool, scale: float) -> None:
        super().__init__()
        self.wide, self.scale, self.attention, self.out = wide, scale, _Masked(early=wide), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, lowest = x.shape[1], torch.finfo(torch.float32).min
        if self.wide:
            mask = torch.full((1, tokens, tokens + 1), lowest).triu(1)
        else:
            mask = torch.where(torch.ones(1, tokens, tokens).tril() > 0, torch.zeros(()), lowest)
        return self.out(self.attention(x, mask)) * self.scale


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1.05])
def test_a_mask_of_another_size_is_no_difference_where_attention_agrees(
    tmp_path: Path, wide: bool, scale: float
) -> None:
    first = compared(tmp_path, _WithMask(wide, scale), _WithMask(not wide, 1.0), 3 * torch.randn(4, 30, 8)).first
    assert (None if first is None else first.call) == (None if scale == 1 else "Tensor.__mul__.1.forward")
