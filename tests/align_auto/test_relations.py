"""Relations beyond one-to-one: fused layers, a module against a call, a residual added inside, chains of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.auto.alignment import COMPOSITE, FUSED, MODULE_CALL, RESIDUAL, Relation
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._compare.one import Options, compare_runs


def _kind(made: Any, kind: str) -> list[Relation]:
    return [one for one in align_runs(made.target, made.golden).relations if one.kind == kind]


def test_a_fused_projection_is_its_parts_together(recorded: Callable[..., Any]) -> None:
    found = [one for one in _kind(recorded("llama / suite"), FUSED) if one.target[0].startswith("Module")]
    golden = {tuple(name.split(".")[-4] for name in one.golden) for one in found}
    assert golden == {("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")}
    assert all("add up" in one.reason for one in found)
    assert len(found) == 8


def test_fused_rows_compare_by_the_statistics_of_the_concatenation(recorded: Callable[..., Any]) -> None:
    made = recorded("llama / suite")
    comparison = compare_runs(made.target, made.golden, Options(match=build_matcher(MappingOptions())))
    table = comparison.table()
    weights = table.filter(
        table["Matched By"].str.contains("merged") & table["NPU Name"].str.contains("parameters.weight")
    )
    assert weights.height == 8
    assert weights["Result"].to_list() == ["pass"] * 8
    assert all(";" in name for name in weights["Bench Name"].to_list())
    assert weights["Bench Tensor Shape"].to_list()[:2] == ["[64, 32]", "[96, 32]"]


def test_split_target_rows_meet_a_fused_golden_row(recorded: Callable[..., Any]) -> None:
    made = recorded("gpt2 / split", "bf16")
    pairs = build_matcher(MappingOptions())(made.target, made.golden)
    names = made.target.table["name"].to_list()
    first = next(row for row in pairs.groups if names[row].endswith("blocks.0.mixer.query.Linear.forward.0.output.0"))
    mine, theirs = pairs.groups[first]
    assert [names[row].split(".")[-6] for row in mine] == ["query", "key", "value"]
    assert len(theirs) == 1
    assert (pairs.target[: made.target.table.height] == np.arange(made.target.table.height)).all()
    assert "part of the row" in pairs.rule[mine[1]]


def test_a_module_may_be_a_call_on_the_other_side(recorded: Callable[..., Any]) -> None:
    found = _kind(recorded("llama / suite"), MODULE_CALL)
    assert {one.golden[0].split(".")[-3] for one in found} == {"SiLUActivation"}
    assert all(one.target[0].startswith("Functional.silu.") for one in found)


def test_a_residual_may_be_added_inside_or_outside(recorded: Callable[..., Any]) -> None:
    made = recorded("bloom")
    found = _kind(made, RESIDUAL)
    assert len(found) == 8  # attention and mlp of four layers
    assert {one.inside for one in found} == {"golden"}
    pairs = build_matcher(MappingOptions())(made.target, made.golden)
    names = made.target.table["name"].to_list()
    row = names.index("Module.units.0.attention.Attention.forward.0.output.0")
    assert pairs.golden[row] < 0  # the other module's output is another thing
    added = next(one for one in found if one.golden[0] == "Tensor.__add__.3.forward")
    assert pairs.golden[names.index(f"{added.target[0]}.output.0")] >= 0


def test_a_chain_of_calls_may_be_one_call(recorded: Callable[..., Any]) -> None:
    made = recorded("llama / release", "one layer missing")
    found = [one for one in _kind(made, COMPOSITE) if "scaled_dot_product_attention" in one.golden[0]]
    assert found
    assert [name.split(".")[1] for name in found[0].target] == ["matmul", "__truediv__", "__add__", "softmax", "matmul"]


def test_a_shortcut_may_run_before_or_after_the_main_path(recorded: Callable[..., Any]) -> None:
    made = recorded("resnet")
    rules = {one.target[0]: one.rule for one in align_runs(made.target, made.golden).relations}
    assert rules["Module.layer2.0.downsample.0.Conv2d.forward.0"] == "parallel branches"
    assert rules["Module.layer2.0.conv1.Conv2d.forward.0"] == "layers in order"
