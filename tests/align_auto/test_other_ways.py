"""Implementations that go another way and meet again: nothing is claimed there, and a fault is still found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.catalogue import CLEAN, PAIRS, build, record_run
from models.held_out_second import HELD_OUT_SECOND
from twinprobe._align.calls import split
from twinprobe._align.matcher import MappingOptions, build_matcher
from twinprobe._compare.one import Comparison, Options, compare_runs
from twinprobe._runs.run import Run

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


def _compared(target: Run, golden: Run) -> Comparison:
    return compare_runs(target, golden, Options(build_matcher(MappingOptions())))


def _place(run: Run, name: str) -> str:
    while not name.startswith("Module."):
        name = run.parents[name] or "Module.."
    return split(name)[0].removeprefix("Module.").rpartition(".")[0]
