"""Implementations that go another way and meet again: nothing is claimed there, and a fault is still found."""

from __future__ import annotations

import copy
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from models import llama_release
from models.catalogue import CLEAN, PAIRS, build, record_run
from models.held_out_second import HELD_OUT_SECOND
from support import needs
from twinprobe import auto_diff, compare
from twinprobe._align.calls import split
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._cli import main
from twinprobe._compare.one import Comparison, Options, compare_runs
from twinprobe._graph.read.db import TARGET, last_link
from twinprobe._runs.run import Run, open_run
from twinprobe._runs.table import OUTPUT, TENSOR
from twinprobe._view.answers import RequestArguments, Workspace
from twinprobe.torch import record

# What the two do otherwise, and a layer of the target.
WAYS = {
    "gemma / folded norms": "tower.1.mixer.merge",  # a scale outside of the embedding, one added to the norms' weights
    "mpt / paths": "ladder.1.gather.act.blend",  # the residual added one module later
    "suite / rewritten": "model.module.decoder.layers.1.mlp.linear_fc2",  # norms inside the layers that follow them
    "t5 / joint": "writer.layers.1.feed.contract",  # masks of -inf and of the lowest number
}
LEVELS = ("mix", "L0")
NEEDS = {
    "gemma / folded norms": needs("transformers", "5.0", "configurations have rope_parameters"),
    "suite / rewritten": needs("torch", "2.4", "there is rms_norm"),
}
NAMES = [pytest.param(name, marks=NEEDS.get(name, ())) for name in WAYS]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES)
def test_two_ways_to_one_result_are_no_divergence(recorded: Callable[..., Any], name: str, level: str) -> None:
    made = recorded(name, level=level)
    assert _compared(made.target, made.golden).summary.first is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_fault_behind_them_is_found(tmp_path: Path, name: str, level: str) -> None:
    pair = next(pair for pair in (*PAIRS, *HELD_OUT_SECOND) if pair.name.startswith(name))
    published, own, _ = build(pair, CLEAN)
    inputs = pair.inputs()
    golden = record_run(published, inputs, tmp_path / "golden", level=level)
    own.get_submodule(WAYS[name]).weight.data *= 1.3
    target = record_run(own, inputs, tmp_path / "target", level=level)
    first = _compared(target, golden).summary.first
    assert first is not None
    assert _place(target, first.op) == WAYS[name]


# Rotary positions that turn neighbours, as the release of Llama does, in place of halves: the rows of the projections
# of queries and keys are in another order, and so is all up to the scores.


def neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    even, odd, cos, sin = x[..., 0::2], x[..., 1::2], cos[..., :half], sin[..., :half]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def release(published: nn.Module) -> llama_release.LlamaRelease:
    model = llama_release.LlamaRelease(published.config, 2)
    model.copy_from(published, [0, 1])
    for layer in model.layers:
        for projection in (layer.attention.wq, layer.attention.wk):
            heads = projection.weight.data.unflatten(0, (4, 2, -1))
            projection.weight.data = heads.transpose(1, 2).flatten(0, 2).contiguous()
    return model


@pytest.mark.parametrize(
    ("level", "task"),
    [("mix", "statistics"), ("L0", "statistics"), pytest.param("mix", "tensor", marks=pytest.mark.slow)],
)
def test_weights_in_another_order_are_no_divergence_where_results_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, task: str
) -> None:
    monkeypatch.setattr(llama_release, "turn", neighbours)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, use_cache=False
    )
    published = LlamaForCausalLM(config)
    ids = (torch.arange(16) * 7 % 64).reshape(2, 8)

    def recorded(name: str, model: nn.Module) -> Run:
        with record(model, tmp_path / name, level=level, task=task):
            given = model(ids) if model is not published else model(input_ids=ids).logits
            given.square().mean().backward()
        return open_run(next((tmp_path / name).rglob("dump.json")))

    golden = recorded("golden", published)
    found = _compared(recorded("target", release(published)), golden)
    assert found.summary.first is None
    assert found.summary.verdicts["error"] == 0
    pairs = found.evidence.pairs
    rules = dict(zip(pairs["t_name"].to_list(), pairs["rule"].to_list(), strict=True))
    row = "Module.layers.1.attention.wk.Linear.forward.0.parameters.weight"
    assert rules[row].endswith("elements in another order")
    assert "another order" not in rules[row.replace("wk", "wv")]
    # Behind a fault nothing meets again, but the first layer has shown how the second one is stored.
    wrong = release(published)
    wrong.layers[0].feed_forward.w2.weight.data *= 1.3
    faulty = recorded("faulty", wrong)
    first = _compared(faulty, golden).summary.first
    assert first is not None
    assert _place(faulty, first.op) == "layers.0.feed_forward.w2"
    # An order that changes the results is a fault.
    wrong = release(published)
    projection = wrong.layers[1].attention.wk
    projection.weight.data = projection.weight.data.roll(16, 0).contiguous()
    faulty = recorded("rolled", wrong)
    first = _compared(faulty, golden).summary.first
    assert first is not None
    assert _place(faulty, first.op).startswith("layers.1.attention")


class Logits(nn.Module):
    """A published model that gives its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=ids).logits


def test_auto_diff_knows_weights_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_release, "turn", neighbours)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, use_cache=False
    )
    published = LlamaForCausalLM(config).eval()
    ids = (torch.arange(16) * 7 % 64).reshape(2, 8)

    def diff(model: nn.Module) -> Any:
        return auto_diff(Logits(published), model.eval(), ids, auto_weights=False, quiet=True, atol=1e-5)

    result = diff(release(published))
    assert result, result.first
    rules = dict(zip(result.table["raw"].to_list(), result.table["rule"].to_list(), strict=True))
    assert any(rule.endswith("elements in another order") for rule in rules.values())
    wrong = release(published)
    wrong.layers[0].feed_forward.w2.weight.data *= 1.3
    result = diff(wrong)
    assert not result
    assert "layers.0.feed_forward.w2" in result.first.raw


def split_projections(published: nn.Module) -> nn.Module:
    """The published model with one projection for queries, keys and values, which are three in the release."""
    for layer in published.model.layers:
        layer.self_attn.forward = types.MethodType(fused_attention, layer.self_attn)
        parts = [getattr(layer.self_attn, f"{name}_proj") for name in "qkv"]
        fused = nn.Linear(64, 3 * 64, bias=False)
        fused.weight.data = torch.cat([part.weight.data for part in parts])
        layer.self_attn.qkv = fused
        for name in "qkv":
            delattr(layer.self_attn, f"{name}_proj")
    return published


def fused_attention(
    self: Any, hidden_states: torch.Tensor, position_embeddings: Any = None, **_: Any
) -> tuple[torch.Tensor, None]:
    batch, length, width = hidden_states.shape
    parts = [part.view(batch, length, 4, -1).transpose(1, 2) for part in self.qkv(hidden_states).chunk(3, dim=-1)]
    query, key = apply_rotary_pos_emb(parts[0], parts[1], *position_embeddings)
    given = nn.functional.scaled_dot_product_attention(query, key, parts[2], is_causal=True)
    return self.o_proj(given.transpose(1, 2).reshape(batch, length, width)), None


def called_twice(published: nn.Module) -> nn.Module:
    """The same model, of which one module is called for another input first: its second call is the golden first."""
    model = copy.deepcopy(published)
    part = model.model.layers[0].mlp
    once = part.forward
    part.forward = lambda hidden: (once(hidden * 2), once(hidden))[1]
    return model


@pytest.mark.parametrize("made", ["split and fused", "another order", "called twice"])
def test_compare_graph_page_and_auto_diff_pair_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, use_cache=False
    )
    published = LlamaForCausalLM(config).eval()
    if made == "another order":
        monkeypatch.setattr(llama_release, "turn", neighbours)
        own: nn.Module = release(published).eval()
    elif made == "called twice":
        own = Logits(called_twice(published))
    else:
        own = llama_release.LlamaRelease(config, 2).eval()
        own.copy_from(published, [0, 1])
        published = split_projections(published)
    base, ids = Logits(published), (torch.arange(16) * 7 % 64).reshape(2, 8)
    runs = []
    for name, model in (("t", own), ("g", base)):
        with record(model, tmp_path / name, level="mix", task="statistics"):
            model(ids).mean().backward()
        model.zero_grad()
        runs.append(open_run(next((tmp_path / name).rglob("dump.json"))))
    result = auto_diff(base, own, ids, auto_weights=False, quiet=True, atol=1e-5)
    assert result, result.first
    live = result.table.filter((result.table["phase"] == "forward") & (result.table["place"] == "output"))
    by_auto_diff = set(zip(live["raw"].to_list(), live["base"].to_list(), strict=True))
    by_auto_diff.remove((f"Module.{type(own).__name__}.forward.0", "Module.Logits.forward.0"))  # record() leaves it out
    pairs = _compared(*runs).evidence.pairs
    outputs = pairs.filter((pairs["t_role"] == OUTPUT) & (pairs["g_role"] == OUTPUT) & (pairs["t_kind"] == TENSOR))
    by_compare = {
        (runs[0].ops[op], runs[1].ops[other])
        for op, other in zip(outputs["t_op"].to_list(), outputs["g_op"].to_list(), strict=True)
        if all(run.ops[at].startswith("Module.") for run, at in zip(runs, (op, other), strict=True))
        and ".forward." in runs[0].ops[op]
    }
    assert len(by_compare) > 20
    assert {pair for pair in by_auto_diff if all(name.startswith("Module.") for name in pair)} == by_compare
    places = dict(zip(("npu_path", "bench_path"), (str(run.path.parent) for run in runs), strict=True))
    (tmp_path / "compare.json").write_text(json.dumps(places), encoding="utf-8")
    assert main(["graph", "-i", str(tmp_path / "compare.json"), "-o", str(tmp_path / "graph")]) == 0
    workspace, asked = Workspace(tmp_path / "graph"), RequestArguments({})
    with workspace.view(asked) as view:
        on_page = {(name, str(view.detail(TARGET, name)[TARGET].get("match"))) for name, _ in by_compare}
        stored = {(name, last_link(view.graph.node(TARGET, name)["matched_node_link"])) for name, _ in by_compare}
    assert on_page == stored == by_compare


def _compared(target: Run, golden: Run) -> Comparison:
    return compare_runs(target, golden, Options(build_matcher(MappingOptions())))


def _place(run: Run, name: str) -> str:
    while not name.startswith("Module."):
        name = run.parents[name] or "Module.."
    return split(name)[0].removeprefix("Module.").rpartition(".")[0]


class Coder(nn.Module):
    """A variational autoencoder with a block behind it; a port has other names, and a ``fault``."""

    def __init__(self, port: bool, fault: str = "") -> None:
        super().__init__()
        self.fault, self.names = (
            fault,
            ("encode", "mean", "scale", "decode") if port else ("enc", "mu", "logvar", "dec"),
        )
        last = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12))
        layers = nn.Linear(12, 8), nn.Linear(8, 6), nn.Linear(8, 6), last
        for name, layer in zip(self.names, layers, strict=True):
            self.add_module(name, layer)
        self.norm, self.act = nn.LayerNorm(12), nn.GELU(approximate="tanh" if fault == "gelu" else "none")

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        encode, mean, scale, decode = (getattr(self, name) for name in self.names)
        hidden = torch.tanh(encode(x))
        mu, logvar = mean(hidden), scale(hidden)
        spread = logvar if self.fault == "std" else 0.5 * logvar
        made = decode(mu + torch.exp(spread) * noise)
        made = self.norm(made + 0.5 * self.act(made))
        lost = functional.mse_loss(made, x, reduction="sum") / len(x)
        return lost - 0.1 * (1 + logvar - mu.pow(2) - logvar.exp()).sum() / len(x)


@pytest.mark.parametrize(
    ("fault", "said"), [("", ""), ("std", "only golden calls __mul__"), ("gelu", "approximate: tanh")]
)
def test_what_is_diluted_or_runs_beside_a_fault_is_no_other_way(tmp_path: Path, fault: str, said: str) -> None:
    """A term of the loss that agrees meets nothing again; an error that a sum dilutes is no other value."""
    random = torch.Generator().manual_seed(0)
    x, noise = torch.randn(16, 12, generator=random), torch.randn(16, 6, generator=random)
    torch.manual_seed(0)
    models = {"golden": Coder(port=False), "target": Coder(port=True, fault=fault)}
    for own, other in zip(models["target"].parameters(), models["golden"].parameters(), strict=True):
        own.data = other.data.clone()
    for name, model in models.items():
        with record(model, tmp_path / name, level="mix"):
            model(x, noise).backward()
    first = compare(*(next((tmp_path / name).rglob("dump.json")) for name in ("target", "golden"))).first
    assert (first is None) == (not fault), first
    assert first is None or said in first.sentence, first
