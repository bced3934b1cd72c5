"""One layer, stored in two ways: experts as a list or as one stack, patches by a convolution or by a linear layer."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._compare.one import Comparison, Options, compare_runs
from twinprobe._runs.run import Run, open_run
from twinprobe.torch import record

WIDTH, INNER, EXPERTS, BLOCKS = 16, 24, 4, 2
IMAGE = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1))


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(hidden)) * self.w3(hidden))


class Listed(nn.Module):
    """Experts as modules, each on its own tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.norm(hidden)
        shares, chosen = self.router(normed).softmax(-1).max(-1)
        result = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero()[:, 0]
            result[rows] = expert(normed[rows])
        return hidden + result * shares[:, None]


class Stack(nn.Module):
    """The weights of all experts in one tensor each."""

    def __init__(self, experts: nn.ModuleList) -> None:
        super().__init__()
        both = [torch.cat((one.w1.weight, one.w3.weight)) for one in experts]
        self.gate_up = nn.Parameter(torch.stack(both).detach().clone())
        self.down = nn.Parameter(torch.stack([one.w2.weight for one in experts]).detach().clone())

    def forward(self, hidden: Tensor, chosen: Tensor) -> Tensor:
        gate, up = torch.einsum("th,toh->to", hidden, self.gate_up[chosen]).chunk(2, -1)
        return torch.einsum("ti,toi->to", functional.silu(gate) * up, self.down[chosen])


class Stacked(nn.Module):
    def __init__(self, listed: Listed) -> None:
        super().__init__()
        self.input_norm, self.gate = listed.norm, listed.router
        self.moe = Stack(listed.experts)

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.input_norm(hidden)
        shares, chosen = self.gate(normed).softmax(-1).max(-1)
        return hidden + self.moe(normed, chosen) * shares[:, None]


class Around(nn.Module):
    """The list of experts, called by a module of its own."""

    def __init__(self, experts: nn.ModuleList) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, hidden: Tensor, chosen: Tensor) -> Tensor:
        results = torch.stack([expert(hidden) for expert in self.experts])
        return results[chosen, torch.arange(len(hidden))]


class Block(nn.Module):
    """Scores with a table of positions, which the first block of one model holds, and the other model itself."""

    def __init__(self, *, table: bool) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if table:
            self.table = nn.Embedding(7, 1)

    def forward(self, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        scores = self.query(hidden) @ hidden.T / 4
        bias = self.table(positions()) if bias is None else bias
        scores = scores + bias[..., 0]
        return hidden + self.out(scores.softmax(-1) @ hidden), bias


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(table=at == 0) for at in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, hidden: Tensor) -> Tensor:
        bias = None
        for layer in self.layers:
            hidden, bias = layer(hidden, bias)
        return self.head(hidden)


class Beside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inside = Inside()
        self.relative, self.output = inside.layers[0].table, inside.head
        del inside.layers[0].table
        self.blocks = inside.layers

    def forward(self, hidden: Tensor) -> Tensor:
        bias = self.relative(positions())
        for layer in self.blocks:
            hidden, _ = layer(hidden, bias)
        return self.output(hidden)


class Speaker(nn.Module):
    """A vocabulary that reads and writes with one weight, or with a copy for each."""

    def __init__(self, names: tuple[str, str, str], *, tied: bool) -> None:
        super().__init__()
        self.names = names
        table, mix, head = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 9, bias=False)
        head.weight = table.weight if tied else nn.Parameter(table.weight.detach().clone())
        for name, layer in zip(names, (table, mix, head), strict=True):
            self.add_module(name, layer)

    def forward(self, ids: Tensor) -> Tensor:
        table, mix, head = (self.get_submodule(name) for name in self.names)
        return head(torch.tanh(mix(table(ids))))


class Patches(nn.Module):
    """A convolution that cuts an image into patches, or a linear layer on patches that were cut before."""

    def __init__(self, convolution: nn.Conv2d, *, cut: bool) -> None:
        super().__init__()
        if cut:
            self.embed = nn.Linear(3 * 16 * 16, WIDTH)
            # A patch is read row by row, its colours last: the weight holds the same elements in another order.
            self.embed.weight.data = convolution.weight.data.permute(0, 2, 3, 1).flatten(1).clone()
            self.embed.bias.data = convolution.bias.data.clone()
        else:
            self.stem = convolution

    def forward(self, image: Tensor) -> Tensor:
        if hasattr(self, "stem"):
            return self.stem(image).flatten(2).transpose(1, 2)
        patches = image.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 4, 5, 1)
        return self.embed(patches.flatten(3).flatten(1, 2))


def positions() -> Tensor:
    places = torch.arange(len(TOKENS))
    return (places[:, None] - places).clamp(-3, 3) + 3


def experts(*, stacked: bool, wrong: str = "") -> nn.Module:
    torch.manual_seed(0)
    blocks = [Listed() for _ in range(BLOCKS)]
    model = nn.Sequential(*(map(Stacked, blocks) if stacked else blocks), nn.Linear(WIDTH, 5))
    return broken(model, wrong)


def patches(*, cut: bool, wrong: str = "") -> nn.Module:
    torch.manual_seed(0)
    convolution, rest = nn.Conv2d(3, WIDTH, 16, 16), (nn.LayerNorm(WIDTH), Expert(), nn.Linear(WIDTH, 5))
    return broken(nn.Sequential(Patches(convolution, cut=cut), *rest), wrong)


def broken(model: nn.Module, path: str) -> nn.Module:
    if path:
        model.get_submodule(path).weight.data *= 1.3
    return model


def run_of(folder: Path, model: nn.Module, given: Tensor, level: str, task: str = "statistics") -> Run:
    with record(model, folder, level=level, task=task):
        model(given).square().mean().backward()
    return open_run(next(folder.rglob("dump.json")))


def compared(target: Run, golden: Run) -> Comparison:
    return compare_runs(target, golden, Options(build_matcher(MappingOptions())))


@pytest.mark.parametrize(("level", "task"), [("L0", "statistics"), ("mix", "statistics"), ("L0", "tensor")])
def test_stacked_experts_are_all_their_layers(tmp_path: Path, level: str, task: str) -> None:
    golden = run_of(tmp_path / "golden", experts(stacked=True), TOKENS, level, task)
    target = run_of(tmp_path / "target", experts(stacked=False), TOKENS, level, task)
    found = compared(target, golden)
    assert found.summary.first is None
    stacked = pl.col("rule").str.contains("stacked layers") & pl.col("g_row").is_not_null()
    # Two weights in each of two blocks, and their gradients.
    assert found.evidence.pairs.filter(stacked & pl.col("t_row").is_not_null()).height == 2 * 2 * 2
    wrong = run_of(tmp_path / "wrong", experts(stacked=False, wrong="1.experts.2.w3"), TOKENS, level, task)
    first = compared(wrong, golden).summary.first
    assert first is not None
    assert first.op.startswith("Module.1.experts.")
    assert "1.moe.Stack.forward.0.parameters.gate_up" in first.golden_row
    turned = compared(golden, wrong).summary.first
    assert turned is not None
    assert turned.op.startswith("Module.1.moe.")


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_convolution_of_patches_is_a_linear_layer(tmp_path: Path, level: str) -> None:
    golden = run_of(tmp_path / "golden", patches(cut=False), IMAGE, level)
    target = run_of(tmp_path / "target", patches(cut=True), IMAGE, level)
    assert compared(target, golden).summary.first is None
    # Sums in another order stand before the fault, and are not it.
    wrong = run_of(tmp_path / "wrong", patches(cut=True, wrong="2.w2"), IMAGE, level)
    first = compared(wrong, golden).summary.first
    assert first is not None
    assert first.module == "2.w2"


def test_a_stack_meets_the_module_around_a_list(tmp_path: Path) -> None:
    torch.manual_seed(0)
    blocks = [Stacked(Listed()) for _ in range(BLOCKS)]
    golden = run_of(tmp_path / "golden", nn.Sequential(*blocks, nn.Linear(WIDTH, 5)), TOKENS, "L0")
    torch.manual_seed(0)
    for at in range(BLOCKS):
        listed = Listed()
        blocks[at] = Stacked(listed)
        blocks[at].moe = Around(listed.experts)
    target = run_of(tmp_path / "target", nn.Sequential(*blocks, nn.Linear(WIDTH, 5)), TOKENS, "L0")
    alignment = align_runs(target, golden)
    assert [one.target for one in alignment.relations if one.rule == "as many weights in all"] == [
        (f"Module.{at}.moe.Around.forward.0",) for at in range(BLOCKS)
    ]


def test_the_only_layer_of_its_shapes_is_paired_wherever_it_is(tmp_path: Path) -> None:
    torch.manual_seed(0)
    golden = run_of(tmp_path / "golden", Inside(), TOKENS, "L0")
    torch.manual_seed(0)
    target = run_of(tmp_path / "target", Beside(), TOKENS, "L0")
    found = [one for one in align_runs(target, golden).relations if one.rule == "the only layer of its shapes"]
    assert [(one.target, one.golden) for one in found] == [
        (("Module.relative.Embedding.forward.0",), ("Module.layers.0.table.Embedding.forward.0",))
    ]


def test_gradients_of_a_weight_that_two_layers_share_are_no_finding(tmp_path: Path) -> None:
    ids = torch.arange(18).reshape(2, 9) % 9
    torch.manual_seed(0)
    golden = run_of(tmp_path / "golden", Speaker(("wte", "fc", "lm_head"), tied=True), ids, "L0")
    torch.manual_seed(0)
    target = run_of(tmp_path / "target", Speaker(("embed", "dense", "out"), tied=False), ids, "L0")
    for one, other in ((target, golden), (golden, target)):
        assert compared(one, other).summary.first is None
