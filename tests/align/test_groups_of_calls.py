"""Calls that are equal in meaning: two ways to write one computation are compared where their values meet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pairing import match
from test_place import compared, place_of_first, recorded
from torch import Tensor, nn
from torch.nn import functional

from twinprobe._align.links import Pairs
from twinprobe._runs.names import FORWARD
from twinprobe._runs.run import Run
from twinprobe._runs.table import INPUT, OUTPUT

Way = Callable[["Block", Tensor, float], Tensor]
B, S, H, D = 2, 6, 4, 8


class Block(nn.Module):
    """A layer before and after one computation; ``wrong`` is 1.0 in a sound run."""

    def __init__(self, way: Way, wrong: float = 1.0) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(H * D, H * D), nn.Linear(H * D, H * D)
        self.weight = nn.Parameter(torch.randn(H * D, H * D) / D)
        self.scale = nn.Parameter(torch.rand(H * D) + 0.5)
        self.way, self.wrong = way, wrong

    def forward(self, hidden: Tensor) -> Tensor:
        return self.after(self.way(self, self.before(hidden), self.wrong).tanh())


class Net(nn.Module):
    def __init__(self, way: Way, wrong: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block, self.last = nn.Linear(H * D, H * D), Block(way, wrong), nn.Linear(H * D, 3)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.last(self.block(self.first(hidden)))


def heads(hidden: Tensor) -> Tensor:
    return hidden.view(B, S, H, D).transpose(1, 2)


def attention_in_parts(block: Block, hidden: Tensor, wrong: float) -> Tensor:
    query = heads(hidden)
    weights = torch.matmul(query, query.transpose(2, 3)) * (wrong * D**-0.5)
    weights = weights + torch.full((S, S), -1e4).triu(1)
    weights = functional.dropout(functional.softmax(weights, dim=-1), 0.0)
    return torch.matmul(weights, query).transpose(1, 2).reshape(B, S, H * D)


def attention_in_one(block: Block, hidden: Tensor, wrong: float) -> Tensor:
    query = heads(hidden)
    given = functional.scaled_dot_product_attention(query, query, query, is_causal=True, scale=wrong * D**-0.5)
    return given.transpose(1, 2).reshape(B, S, H * D)


def norm_in_parts(block: Block, hidden: Tensor, wrong: float) -> Tensor:
    size = hidden.pow(2).mean(-1, keepdim=True)
    return block.scale * (hidden * torch.rsqrt(size * wrong + 1e-6))


def rotated(block: Block, hidden: Tensor, wrong: float) -> Tensor:
    angle = torch.arange(S).view(S, 1) * torch.rand(D // 2, generator=torch.Generator().manual_seed(1)) * wrong
    cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    query = heads(hidden)
    turned = torch.cat((-query[..., D // 2 :], query[..., : D // 2]), dim=-1)
    return (query * cos + turned * sin).transpose(1, 2).reshape(B, S, H * D)


def rotated_by_halves(block: Block, hidden: Tensor, wrong: float) -> Tensor:
    angle = torch.arange(S).view(S, 1) * torch.rand(D // 2, generator=torch.Generator().manual_seed(1)) * wrong
    left, right = heads(hidden).chunk(2, dim=-1)
    turned = left * angle.cos() - right * angle.sin(), left * angle.sin() + right * angle.cos()
    return torch.concat(turned, dim=-1).transpose(1, 2).reshape(B, S, H * D)


WAYS: dict[str, tuple[Way, Way]] = {
    "times 0.5, over 2": (lambda b, x, w: x * (0.5 * w), lambda b, x, w: x / (2 / w)),
    "addmm, linear": (
        lambda b, x, w: torch.addmm(b.scale * w, x.view(-1, H * D), b.weight.t()).view(B, S, H * D),
        lambda b, x, w: functional.linear(x, b.weight, b.scale * w),
    ),
    "matmul, einsum": (
        lambda b, x, w: torch.matmul(x, b.weight * w), lambda b, x, w: torch.einsum("bsi,io->bso", x, b.weight * w)
    ),
    "baddbmm, bmm and sum": (
        lambda b, x, w: torch.baddbmm(b.scale, x, (b.weight * w).expand(B, H * D, H * D)),
        lambda b, x, w: torch.bmm(x, (b.weight * w).expand(B, H * D, H * D)) + b.scale,
    ),
    "attention": (attention_in_parts, attention_in_one),
    "norm": (norm_in_parts, lambda b, x, w: functional.rms_norm(x, (H * D,), b.scale, 1e-6) * w ** -0.5),
    "masked_fill, where": (
        lambda b, x, w: x.masked_fill(x < 0.1 * w, 0.5), lambda b, x, w: torch.where(x < 0.1 * w, 0.5, x)
    ),
    "a mask of what is filled, of what is kept": (
        lambda b, x, w: x.masked_fill(torch.full_like(x, 0.1 * w) > x, -3.0),
        lambda b, x, w: torch.where(torch.full_like(x, 0.1 * w) <= x, x, -3.0),
    ),
    "rotary": (rotated, rotated_by_halves),
}  # fmt: skip
if not hasattr(functional, "rms_norm"):  # before torch 2.4
    del WAYS["norm"]
# The factor that is wrong in a faulty run enters inside the group; elsewhere a call of its own, paired, has it.
INSIDE = {"times 0.5, over 2", "attention"}


def run_of(folder: Path, way: Way, wrong: float = 1.0, **options: Any) -> tuple[Run, Tensor]:
    def body(model: nn.Module) -> Tensor:
        loss = model(torch.randn(B, S, H * D, generator=torch.Generator().manual_seed(2))).square().mean()
        loss.backward()
        return loss.detach()

    return recorded(folder, Net(way, wrong), body, **options)


def grouped(run: Run, pairs: Pairs, *, golden: bool = False) -> set[str]:
    """The calls that are parts of groups."""
    groups = [group.golden if golden else group.target for group in pairs.call_groups]
    return {run.ops[op] for group in groups for op in group}


@pytest.mark.parametrize("name", WAYS)
def test_two_ways_to_write_one_computation_agree(tmp_path: Path, name: str) -> None:
    ways = WAYS[name]
    target, loss = run_of(tmp_path / "t", ways[0])
    golden, other = run_of(tmp_path / "g", ways[1])
    assert torch.allclose(loss, other, rtol=1e-5)
    for one, two in ((target, golden), (golden, target)):
        found, pairs = compared(one, two), match(one, two)
        assert found.summary.first is None
        assert found.summary.verdicts["error"] == 0
        forward = [group for group in pairs.call_groups if FORWARD in one.ops[group.target[0]]]
        assert forward, "no group"
        # Inside a group only what enters and what leaves is compared, each with its like.
        rows = found.evidence.pairs
        inside = rows.filter(rows["group"].is_not_null() & rows["t_name"].is_not_null() & rows["g_name"].is_not_null())
        assert set(inside["t_role"]) <= {INPUT, OUTPUT}
        assert (inside["t_role"] == inside["g_role"]).all()
        assert inside.filter((inside["t_norm"] - inside["g_norm"]).abs() > 1e-4 * inside["g_norm"].abs()).is_empty()
        assert not any("in one run only" in note for note in pairs.notes)
        for group in forward:
            leaving = rows.filter(rows["t_op"].is_in(group.target) & (rows["t_role"] == OUTPUT))
            assert leaving["g_name"].null_count() < leaving.height


@pytest.mark.parametrize("name", WAYS)
def test_a_fault_inside_is_found_at_the_module(tmp_path: Path, name: str) -> None:
    ways = WAYS[name]
    target, _ = run_of(tmp_path / "t", ways[0], 1.3)
    golden, _ = run_of(tmp_path / "g", ways[1])
    for one, two in ((target, golden), (golden, target)):
        found = compared(one, two)
        assert place_of_first(found) == "block"
        if name in INSIDE:
            assert found.summary.first is not None
            assert found.summary.first.op in grouped(one, match(one, two))


class Parallel(nn.Module):
    """Two parts that read one norm; the residual is added before the second of them runs, or after both."""

    def __init__(self, *, early: bool) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(H * D), nn.Dropout(0.0)
        self.one, self.two = nn.Linear(H * D, H * D), nn.Linear(H * D, H * D)
        self.early = early

    def forward(self, hidden: Tensor) -> Tensor:
        known = self.norm(hidden)
        if self.early:
            hidden = self.one(known) + hidden
            return self.two(known) + hidden
        one = self.drop(self.one(known))
        return one + self.drop(self.two(known)) + hidden


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_sum_is_no_dropout_even_where_both_lie_between_the_same_calls(tmp_path: Path, level: str) -> None:
    def run(name: str, *, early: bool, wrong: float = 1.0) -> Run:
        torch.manual_seed(0)
        model = nn.Sequential(*(Parallel(early=early) for _ in range(3))).eval()
        model[1].two.weight.data *= wrong
        given = torch.randn(B, S, H * D, generator=torch.Generator().manual_seed(2))
        return recorded(tmp_path / name, model, lambda known: known(given).square().mean().backward(), level)[0]

    golden = run("g", early=False)
    assert compared(run("t", early=True), golden).summary.first is None
    assert place_of_first(compared(run("f", early=True, wrong=1.3), golden)) == "1.two"
