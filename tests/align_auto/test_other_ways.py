"""Implementations that go another way and meet again: nothing is claimed there, and a fault is still found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from models import llama_release
from models.catalogue import CLEAN, PAIRS, build, record_run
from models.held_out_second import HELD_OUT_SECOND
from twinprobe._align.calls import split
from twinprobe._align.matcher import MappingOptions, build_matcher
from twinprobe._compare.one import Comparison, Options, compare_runs
from twinprobe._runs.run import Run, open_run
from twinprobe.torch import record

# What the two do otherwise, and a layer of the target.
WAYS = {
    "gemma / folded norms": "tower.1.mixer.merge",  # a scale outside of the embedding, one added to the norms' weights
    "mpt / paths": "ladder.1.gather.act.blend",  # the residual added one module later
    "suite / rewritten": "model.module.decoder.layers.1.mlp.linear_fc2",  # norms inside the layers that follow them
    "t5 / joint": "writer.layers.1.feed.contract",  # masks of -inf and of the lowest number
}
LEVELS = ("mix", "L0")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", WAYS)
def test_two_ways_to_one_result_are_no_divergence(recorded: Callable[..., Any], name: str, level: str) -> None:
    made = recorded(name, level=level)
    assert _compared(made.target, made.golden).summary.first is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [name for name in WAYS if not name.startswith("t5")])
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


def _compared(target: Run, golden: Run) -> Comparison:
    return compare_runs(target, golden, Options(build_matcher(MappingOptions())))


def _place(run: Run, name: str) -> str:
    while not name.startswith("Module."):
        name = run.parents[name] or "Module.."
    return split(name)[0].removeprefix("Module.").rpartition(".")[0]
