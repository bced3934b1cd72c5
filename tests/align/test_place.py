"""Pairing by place: real models that make a few other calls, random trees, and what the commands say about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairing import calls, is_identity, match, matched, named, small_run
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from support import forward, slow, tensor, write_dump
from twinprobe._align.calls import bare_path
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._cli import main
from twinprobe._compare.one import Comparison, Options, compare_runs
from twinprobe._runs.run import Run, open_run
from twinprobe.torch import record

FAULTY = "model.layers.1.mlp.down_proj"
IDS = (torch.arange(16) * 7 % 64).reshape(2, 8)
OTHER_IDS = (torch.arange(16) * 5 % 64).reshape(2, 8)
Change = Callable[[nn.Module], Any]


def llama(attention: str = "eager") -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def step(model: nn.Module, ids: torch.Tensor = IDS) -> torch.Tensor:
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.detach()


def recorded(folder: Path, model: nn.Module, body: Change = step, level: str = "mix") -> tuple[Run, Any]:
    with record(model, folder, level=level, task="statistics"):
        result = body(model)
    return open_run(next(folder.rglob("dump.json"))), result


def compared(target: Run, golden: Run, **options: Any) -> Comparison:
    return compare_runs(target, golden, Options(build_matcher(MappingOptions(**options))))


def place_of_first(comparison: Comparison) -> str:
    """The path of the module where the runs part first."""
    assert comparison.summary.first is not None
    return bare_path(comparison.summary.first.module)


def mlp_of(model: nn.Module, forward: Callable[[Callable[..., Any], torch.Tensor], torch.Tensor]) -> nn.Module:
    mlp = model.model.layers[0].mlp
    known = mlp.forward
    mlp.forward = lambda hidden: forward(known, hidden)
    return model


def other_layer(model: nn.Module) -> nn.Module:
    """A residual sum beside another sum of the same shape: only values tell which of the two is the extra one."""
    norm = model.model.layers[0].post_attention_layernorm
    known = norm.forward
    norm.forward = lambda hidden: known((hidden + 1) - 1 + 0)
    return model


def twice(model: nn.Module, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        model(input_ids=OTHER_IDS)
    return step(model, ids)


def whole_step_twice(model: nn.Module, ids: torch.Tensor = IDS) -> torch.Tensor:
    """A warm-up with its way back; its gradients are thrown away."""
    step(model, ids)
    model.zero_grad()
    return step(model, ids)


def checkpointed(*, reentrant: bool) -> nn.Module:
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    return model.train()


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Any) -> Any:
        return self.module(**inputs)


def compiled() -> nn.Module:
    model = llama()
    model.model.layers[0] = torch.compile(model.model.layers[0], backend="eager")
    return model


def plain() -> nn.Module:
    return llama()


# What one run does and the other does not: the model, and what is done with it.
CHANGES: dict[str, tuple[Callable[[], nn.Module], Change]] = {
    "extra sum": (lambda: mlp_of(llama(), lambda known, hidden: known(hidden + 0)), step),
    "extra sums beside a sum": (lambda: other_layer(llama()), step),
    "warm-up": (plain, twice),
    "warm-up with its way back": (plain, whole_step_twice),
    "sdpa": (lambda: llama("sdpa"), step),
    "module called twice": (lambda: mlp_of(llama(), lambda known, hidden: known(hidden) * 0 + known(hidden)), step),
    "extra dropout": (lambda: mlp_of(llama(), lambda known, hidden: functional.dropout(known(hidden), 0.0)), step),
    "recomputed": (lambda: checkpointed(reentrant=False), step),
    "wrapped": (lambda: Wrapper(llama()), step),
    "compiled": (compiled, step),
}
CASES = [*[name for name in CHANGES if name != "compiled"], *slow("compiled")]


def broken(model: nn.Module) -> nn.Module:
    layer = model.get_submodule(("module." if isinstance(model, Wrapper) else "") + FAULTY)
    layer.weight.data *= 1.25
    return model


@pytest.fixture(scope="module", params=["mix", "L0"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, torch.Tensor, str]:
    run, loss = recorded(tmp_path_factory.mktemp("golden"), llama(), level=request.param)
    return run, loss, request.param


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_makes_other_calls_still_agrees(
    tmp_path: Path, golden: tuple[Run, torch.Tensor, str], case: str
) -> None:
    run, loss, level = golden
    model, body = CHANGES[case]
    target, changed = recorded(tmp_path, model(), body, level)
    assert torch.allclose(changed, loss, rtol=1e-5)
    for found in (compared(target, run), compared(run, target)):
        assert found.summary.first is None
        assert found.summary.verdicts["error"] == 0
        assert found.summary.matched > 0.7 * min(target.table.height, run.table.height)


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_found_at_its_module(tmp_path: Path, golden: tuple[Run, torch.Tensor, str], case: str) -> None:
    run, _, level = golden
    model, body = CHANGES[case]
    target, _ = recorded(tmp_path, broken(model()), body, level)
    assert place_of_first(compared(target, run)) == FAULTY
    assert place_of_first(compared(run, target)) == FAULTY


def test_what_is_computed_again_takes_the_way_back(tmp_path: Path, golden: tuple[Run, torch.Tensor, str]) -> None:
    """Reentrant checkpointing: the first pass has no backward calls, the second has those of the golden run."""
    run, _, level = golden
    target, _ = recorded(tmp_path, checkpointed(reentrant=True), level=level)
    found = compared(target, run)
    assert found.summary.first is None
    met = matched(target, run).values()
    alone = [name for name in run.table["name"].to_list() if name not in met]
    assert [name for name in alone if ".backward" not in name] == []
    assert len(alone) <= 3  # what goes into the first layer asks for no gradient there


class Repeating(nn.Module):
    """Two blocks that repeat their own calls on the way back, not the call of themselves."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(again=again) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Block(nn.Module):
    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again
        self.inner = nn.Linear(8, 8)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x * 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x, use_reentrant=True) if self.again else self.body(x)


@pytest.mark.parametrize("turned", [False, True])
def test_a_block_that_repeats_only_its_own_calls(tmp_path: Path, *, turned: bool) -> None:
    def run(name: str, *, again: bool) -> Run:
        x = torch.linspace(-1, 1, 32).reshape(4, 8).requires_grad_()
        model = Repeating(again=again)
        return recorded(tmp_path / name, model, lambda model: model(x).square().sum().backward())[0]

    plain, repeating = run("plain", again=False), run("repeating", again=True)
    pairs = matched(plain, repeating) if turned else {b: a for a, b in matched(repeating, plain).items()}
    alone = [name for name in plain.table["name"].to_list() if name not in pairs]
    assert alone == []
    assert "Tensor.__mul__.3.backward.output.0" in pairs.values()  # of the second time


class Positioned(nn.Module):
    """A block that takes a mask, or none, before a table of positions and a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(
        self, hidden: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor, memory: torch.Tensor
    ) -> torch.Tensor:
        scores = hidden @ memory.transpose(-1, -2) + positions
        scores = scores if mask is None else scores + mask
        return self.out(torch.relu(self.mix(scores.softmax(-1) @ memory)))


class Decoder(nn.Module):
    def __init__(self, *, masked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.positions = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 5, 5))
        self.block, self.mask = Positioned(), torch.zeros(2, 5, 5) if masked else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.block(self.embed(hidden), self.mask, self.positions * 1.5, self.embed(hidden.flip(1)))


def test_gradients_of_a_module_belong_to_its_arguments(tmp_path: Path) -> None:
    """A mask that only one run gives shifts the numbers of all gradients behind it."""
    given = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))

    def run_of(name: str, *, masked: bool, wrong: bool = False) -> Run:
        model = Decoder(masked=masked)
        model.block.mix.weight.data *= 1.3 if wrong else 1.0
        return recorded(tmp_path / name, model, lambda model: model(given).square().mean().backward(), "L0")[0]

    target, golden = run_of("t", masked=False), run_of("g", masked=True)
    back = "Module.block.Positioned.backward.0.output"
    assert matched(target, golden)[f"{back}.2"] == f"{back}.3"
    for one, other in ((target, golden), (golden, target)):
        found = compared(one, other)
        assert found.summary.first is None
        assert found.summary.verdicts["error"] == 0
    assert place_of_first(compared(run_of("w", masked=False, wrong=True), golden)) == "block.mix"


def accumulated(*batches: torch.Tensor) -> Change:
    def body(model: nn.Module) -> torch.Tensor:
        return [step(model, ids) for ids in batches][-1]

    return body


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_micro_batches_meet_by_their_values(tmp_path: Path, level: str) -> None:
    target, _ = recorded(tmp_path / "t", llama(), accumulated(OTHER_IDS, IDS), level)
    golden, _ = recorded(tmp_path / "g", llama(), level=level)
    found = compared(target, golden)
    assert found.summary.first is None
    assert found.summary.golden_only == 0
    both, _ = recorded(tmp_path / "b", CHANGES["extra sum"][0](), accumulated(OTHER_IDS, IDS), level)
    assert compared(both, target).summary.first is None
    faulty, _ = recorded(tmp_path / "f", broken(llama()), level=level)
    assert place_of_first(compared(target, faulty)) == FAULTY


def test_batches_that_are_cut_otherwise_meet_in_their_order(tmp_path: Path) -> None:
    target, _ = recorded(tmp_path / "t", llama(), accumulated(IDS, OTHER_IDS), "L0")
    pieces = IDS[:1], IDS[1:], OTHER_IDS[:1], OTHER_IDS[1:]
    golden, _ = recorded(tmp_path / "g", llama(), accumulated(*pieces), "L0")
    assert compared(target, golden).summary.first is None
    other, _ = recorded(tmp_path / "o", llama(), accumulated(*reversed(pieces)), "L0")
    assert compared(target, other).summary.first is not None


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_whole_batch_meets_its_halves_put_together(tmp_path: Path, level: str) -> None:
    halves, _ = recorded(tmp_path / "t", llama(), accumulated(IDS[:1], IDS[1:]), level)
    whole, _ = recorded(tmp_path / "g", llama(), level=level)
    for one, other in ((halves, whole), (whole, halves)):
        found = compared(one, other)
        assert found.summary.first is None
        assert found.summary.verdicts["error"] == 0
        assert any("micro batches" in note for note in found.summary.notes)
    pairs = found.evidence.pairs
    shapes = pairs.filter(pairs["t_shape"].is_not_null() & pairs["g_shape"].is_not_null())
    assert shapes.height > 100
    assert (shapes["t_shape"] == shapes["g_shape"]).all()
    faulty, _ = recorded(tmp_path / "f", broken(llama()), accumulated(IDS[:1], IDS[1:]), level)
    found = compared(faulty, whole)
    assert place_of_first(found) == FAULTY
    assert place_of_first(compared(whole, faulty)) == FAULTY


def test_another_weight_is_found_where_a_norm_hides_it_and_no_gradients_are_compared(tmp_path: Path) -> None:
    given = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).bfloat16()

    def run_of(name: str, *batches: torch.Tensor, scale: float = 1.0) -> Run:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Sequential(nn.Linear(8, 8, bias=False), nn.LayerNorm(8)), nn.Linear(8, 2))
        model[0][0].weight.data *= scale
        model.bfloat16()

        def body(model: nn.Module) -> None:
            for batch in batches:
                model(batch).square().mean().backward()

        return recorded(tmp_path / name, model, body, "L0")[0]

    golden = run_of("g", given)
    assert compared(run_of("t", given[:32], given[32:]), golden).summary.first is None
    assert place_of_first(compared(run_of("w", given[:32], given[32:], scale=1.3), golden)) == "0.0"


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_swapped_weights_are_paired_by_name_and_not_crosswise(tmp_path: Path, level: str) -> None:
    model = mlp_of(llama(), lambda known, hidden: known(hidden + 0))
    attention = model.model.layers[1].self_attn
    attention.q_proj.weight.data, attention.k_proj.weight.data = (
        attention.k_proj.weight.data,
        attention.q_proj.weight.data,
    )
    target, _ = recorded(tmp_path / "t", model, level=level)
    golden, _ = recorded(tmp_path / "g", llama(), level=level)
    pairs = matched(target, golden)
    row = "Module.model.layers.1.self_attn.{}_proj.Linear.forward.0.output.0"
    assert (pairs[row.format("q")], pairs[row.format("k")]) == (row.format("q"), row.format("k"))
    assert place_of_first(compared(target, golden)).startswith("model.layers.1.self_attn.q_proj")


class Normed(nn.BatchNorm2d):
    """A norm with its activation inside, and a momentum of its own."""

    def __init__(self, width: int) -> None:
        super().__init__(width, momentum=0.01)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.relu(super().forward(hidden))


class Pictures(nn.Module):
    """Convolutions and norms under the same names, whatever the norms do."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = (3, 4, 5, 6)
        self.convs = nn.ModuleList(nn.Conv2d(one, two, 3) for one, two in itertools.pairwise(widths))
        torch.manual_seed(1)
        self.norms = nn.ModuleList(norm(width) for width in widths[1:])
        for part in self.norms:
            nn.init.normal_(part.weight, 1, 0.1)
        self.head = nn.Linear(6, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            hidden = norm(conv(hidden))
            hidden = hidden if isinstance(norm, Normed) else functional.relu(hidden)
        return self.head(hidden.mean((2, 3)))


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_an_activation_inside_or_outside_of_a_module_of_one_name_hides_no_fault(tmp_path: Path, level: str) -> None:
    pictures = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(2))

    def body(model: nn.Module) -> None:
        model.eval()(pictures).square().mean().backward()

    golden, _ = recorded(tmp_path / "g", Pictures(nn.BatchNorm2d), body, level)
    target, _ = recorded(tmp_path / "t", Pictures(Normed), body, level)
    for one, other in ((target, golden), (golden, target)):
        assert compared(one, other).summary.first is None
    wrong = Pictures(Normed)
    wrong.convs[2].weight.data *= 1.3
    faulty, _ = recorded(tmp_path / "f", wrong, body, level)
    for one, other in ((faulty, golden), (golden, faulty)):
        assert place_of_first(compared(one, other)) == "convs.2"


class Part(nn.Module):
    """A layer that is called as a module, or whose weights are used without calling it."""

    def __init__(self, *, calls: bool) -> None:
        super().__init__()
        self.before, self.proj, self.calls = nn.Linear(8, 8), nn.Linear(8, 8), calls

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.before(hidden).tanh()
        return self.proj(hidden) if self.calls else functional.linear(hidden, self.proj.weight, self.proj.bias)


class Attending(nn.Module):
    """Such a part, with or without a dropout behind it that does nothing."""

    def __init__(self, drop: nn.Module | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.part, self.drop, self.head = Part(calls=drop is None), drop, nn.Linear(8, 3)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        given = self.part(hidden)
        return self.head(given if self.drop is None else self.drop(given))


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_what_comes_after_a_fault_in_one_run_only_is_not_its_cause(tmp_path: Path, level: str) -> None:
    hidden = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(2))

    def body(model: nn.Module) -> None:
        model(hidden).square().mean().backward()

    golden, _ = recorded(tmp_path / "g", Attending(nn.Dropout(0.0)), body, level)
    wrong = Attending(None)
    wrong.part.proj.weight.data *= 1.3
    target, _ = recorded(tmp_path / "t", wrong, body, level)
    for one, other in ((target, golden), (golden, target)):
        assert place_of_first(compared(one, other)).startswith("part")


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 2))


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_two_unrelated_models_are_nothing_to_compare(
    tmp_path: Path, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, _ = recorded(tmp_path / "t", llama(), level=level)
    golden, _ = recorded(
        tmp_path / "g", convolutions(), lambda model: model(torch.ones(1, 3, 8, 8)).sum().backward(), level
    )
    for one, other in ((target, golden), (golden, target)):
        assert matched(one, other) == {}
        code = main(["compare", "-tp", str(one.path), "-gp", str(other.path), "-o", str(tmp_path / "out")])
        told = capsys.readouterr()
        assert code == 2
        assert "nothing to compare" in told.err
        assert str(other.path) in told.err
        assert "ends successfully" not in told.out


# What wrappers put into a path.


@pytest.mark.parametrize(
    "path",
    [
        "module.layers.0.mlp", "_orig_mod.layers.0.mlp", "layers.0._fsdp_wrapped_module.mlp",
        "layers.0._checkpoint_wrapped_module.mlp", "base_model.model.layers.0.mlp", "module.module.layers.0.mlp",
    ],
)  # fmt: skip
def test_wrappers_do_not_count(tmp_path: Path, path: str) -> None:
    mine, theirs = f"Module.{path}.MLP.forward.0", "Module.layers.0.mlp.MLP.forward.0"
    target = small_run(
        tmp_path / "t", calls("Torch.add.0.forward", "Torch.relu.0.forward", mine),
        parents={"Torch.add.0.forward": None, "Torch.relu.0.forward": mine, mine: None},
    )  # fmt: skip
    golden = small_run(
        tmp_path / "g", calls("Torch.relu.0.forward", theirs), parents={"Torch.relu.0.forward": theirs, theirs: None}
    )
    pairs = matched(target, golden)
    assert pairs[f"{mine}.output.0"] == f"{theirs}.output.0"
    assert len(pairs) == 4


# Random trees: what is untouched is paired with itself.

APIS = ("Torch.add", "Tensor.__mul__", "Functional.softmax", "Torch.matmul")
Node = tuple[str, int, list[Any]]  # API or module, an identity, what is inside


@st.composite
def trees(draw: st.DrawFn, depth: int = 0) -> list[Node]:
    nodes: list[Node] = []
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(0, 10**6))
        if depth < 2 and draw(st.booleans()):
            nodes.append((f"m{len(nodes)}", number, draw(trees(depth=depth + 1))))
        else:
            nodes.append((draw(st.sampled_from(APIS)), number, []))
    return nodes


def changed(draw: st.DrawFn, nodes: list[Node]) -> list[Node]:
    found: list[Node] = []
    for name, number, inside in nodes:
        if draw(st.integers(0, 5)) == 0:
            found.append((draw(st.sampled_from(APIS)), draw(st.integers(10**6 + 1, 2 * 10**6)), []))
        if name not in APIS or draw(st.integers(0, 7)):
            found.append((name, number, changed(draw, inside)))
    return found


@st.composite
def two_trees(draw: st.DrawFn) -> tuple[list[Node], list[Node]]:
    tree = draw(trees())
    return tree, changed(draw, tree)


def run_of(folder: Path, nodes: list[Node]) -> tuple[Run, dict[str, int]]:
    """Record a tree: every call has values of its own, told by its identity."""
    data: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    numbers = dict.fromkeys(APIS, 0)
    identity: dict[str, int] = {}

    def add(nodes: list[Node], around: str | None, path: str) -> None:
        for name, number, inside in nodes:
            if name in APIS:
                call = f"{name}.{numbers[name]}.forward"
                numbers[name] += 1
            else:
                call = f"Module.{path}{name}.Block.forward.0"
                add(inside, call, f"{path}{name}.")
            data[call] = forward([tensor(norm=number + 1.0)], [tensor(norm=2.0 * number + 3.0)])
            parents[call] = around
            identity[call] = number

    add(nodes, None, "")
    return small_run(folder, data, parents=parents), identity


@settings(max_examples=60)
@given(pair=two_trees())
def test_what_is_untouched_is_paired_with_itself(
    tmp_path_factory: pytest.TempPathFactory, pair: tuple[list[Node], list[Node]]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    target, mine = run_of(folder / "t", pair[0])
    if not pair[1]:
        return
    golden, theirs = run_of(folder / "g", pair[1])
    assert is_identity(target, match(target, target))
    found = named(target, golden, match(target, golden))
    assert {other: row for row, other in found.items()} == named(golden, target, match(golden, target))
    together = {row.removesuffix(".input.0"): other.removesuffix(".input.0") for row, other in found.items()}
    counts = [list(known.values()) for known in (mine, theirs)]
    for call, number in mine.items():
        like = [other for other, known in theirs.items() if known == number]
        if counts[0].count(number) == 1 and len(like) == 1:
            assert together.get(call) == like[0]


# What the commands say.


def shifted(folder: Path, extra: int) -> Path:
    """A run of two modules; the first makes so many more sums."""
    data: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    number = 0
    for place, count in (("a", 1 + extra), ("b", 1)):
        module = f"Module.{place}.Block.forward.0"
        for at in range(count):
            norm = 1.0 if place == "a" and at < count - 1 else 2.0 if place == "a" else 9.0
            name = f"Torch.add.{number}.forward"
            number += 1
            data[name] = forward([tensor(norm=norm)], [tensor(norm=norm + 1)])
            parents[name] = module
        data[module] = forward([tensor(norm=1.0)], [tensor(norm=5.0 if place == "a" else 7.0)])
        parents[module] = None
    return write_dump(folder, data, level="mix", parents=parents)


def test_the_terminal_says_what_was_paired_by_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(shifted(tmp_path / name, extra)) for name, extra in (("t", 2), ("g", 0))]
    command = ["compare", "-tp", paths[0], "-gp", paths[1], "-o", str(tmp_path / "out")]
    assert main([*command, "--fail-on", "error"]) == 0
    assert "2 calls exist in one run only; the rest was paired by place" in capsys.readouterr().out
    assert main([*command, "--pair", "numbers"]) == 0
    told = capsys.readouterr().out
    assert "1 call was paired by number with a call of another module, Torch.add.1.forward first" in told
    assert "by place" not in told
    assert main(command, prog="msprobe", pair="numbers") == 0
    assert "paired by number" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [["--pair", "numbers", "-fm"], ["--pair", "place", "--align", "none"], ["--pair", "place", "--alignment", "a.json"],
     ["-fm", "--align", "none"]],
)  # fmt: skip
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(shifted(tmp_path / "t", 0))
    assert main(["compare", "-tp", path, "-gp", path, "-o", str(tmp_path / "out"), *flags]) == 2
    assert "contradicts" in capsys.readouterr().err
