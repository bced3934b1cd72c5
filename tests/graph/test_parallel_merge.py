"""The ranks of a parallel layout folded into one graph, and compared with another layout of the same model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gloo_recorder import Recorder, gloo_recorder
from graph_drawing import draw, nodes
from hypothesis import given, settings
from hypothesis import strategies as st

from support import forward, tensor, write_dump
from twinprobe._layout.layout import Layout, layouts_of, layouts_of_flags
from twinprobe._layout.merge import merge_ranks, whole_shapes
from twinprobe._layout.stages import StageNames
from twinprobe._runs.run import open_run
from twinprobe.errors import BadInput

PROGRAM = Path(__file__).with_name("parallel_model.py")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return gloo_recorder(PROGRAM, tmp_path_factory)


def compare(target: Path, golden: Path, out: Path, target_layout: Layout, golden_layout: Layout) -> Any:
    return draw(target, golden, out, layouts=(target_layout, golden_layout))


LAYOUTS = [(2, 2), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((2, 1), (1, 2)))]


@pytest.mark.parametrize(("tp", "pp"), LAYOUTS)
def test_a_layout_agrees_with_the_single_rank_twin(recorded: Recorder, tmp_path: Path, tp: int, pp: int) -> None:
    layout = Layout(tp * pp, tp, pp)
    outcome = compare(recorded(tp, pp), recorded(1, 1), tmp_path, layout, Layout(1, 1, 1))
    (summary,) = outcome.summaries
    assert summary.first is None
    assert summary.verdicts["error"] == 0
    rows = nodes(outcome.files[0])
    assert {row["rank"] for row in rows.values()} == {0}
    target = {row["node_name"]: row for row in rows.values() if row["data_source"] == "NPU"}
    golden = {row["node_name"]: row for row in rows.values() if row["data_source"] == "Bench"}
    assert [name for name, row in golden.items() if not row["matched_node_link"]] == []
    grey = {name for name, row in target.items() if not row["matched_node_link"] and row["node_type"] != "9"}
    assert all(name.startswith("Distributed.") for name in grey)
    assert {name for name in target if name.startswith("Module.")} == {n for n in golden if n.startswith("Module.")}


def test_a_fault_in_one_shard_of_one_stage_is_found_where_it_is(recorded: Recorder, tmp_path: Path) -> None:
    outcome = compare(recorded(2, 2, faulty=2), recorded(1, 1), tmp_path, Layout(4, 2, 2), Layout(1, 1, 1))
    first = outcome.summaries[0].first
    assert first is not None
    assert "layers.2.mlp.up" in first.module
    assert first.begins == "parameter"


def test_two_layouts_meet_without_a_single_rank_between_them(recorded: Recorder, tmp_path: Path) -> None:
    outcome = compare(recorded(2, 1), recorded(1, 2), tmp_path, Layout(2, 2, 1), Layout(2, 1, 2))
    assert outcome.summaries[0].first is None


def test_merged_statistics_are_those_of_the_whole_tensor(recorded: Recorder) -> None:
    runs = {rank: open_run(recorded(2, 1) / f"rank{rank}") for rank in (0, 1)}
    merged = merge_ranks(runs, Layout(2, 2, 1)).run
    single = open_run(recorded(1, 1) / "rank0")
    name = "Module.module.layers.1.mlp.up.ColumnLinear.forward.0.output.0"
    ours, whole = (run.table.filter(run.table["name"] == name).row(0, named=True) for run in (merged, single))
    for stat in ("max", "min", "mean", "norm"):
        assert ours[stat] == pytest.approx(whole[stat], rel=1e-5, abs=1e-7)


def test_what_was_put_together_is_told_on_the_node(recorded: Recorder, tmp_path: Path) -> None:
    outcome = compare(recorded(2, 1), recorded(1, 1), tmp_path, Layout(2, 2, 1), Layout(1, 1, 1))
    row = nodes(outcome.files[0])["NPU_0_0_Module.module.layers.0.mlp.up.ColumnLinear.forward.0"]
    assert "shards of one tensor" in row["parallel_merge_info"]
    assert row["output_data"][f"{row['node_name']}.output.0"]["shape"] == "[3, 5, 32]"
    bench = nodes(outcome.files[0])["Bench_0_0_Module.module.layers.0.mlp.up.ColumnLinear.forward.0"]
    assert bench["parallel_merge_info"] == ""


def test_a_single_merged_graph_is_drawn(recorded: Recorder, tmp_path: Path) -> None:
    (file,) = draw(recorded(2, 2), None, tmp_path, layouts=(Layout(4, 2, 2), None)).files
    names = {row["node_name"] for row in nodes(file).values()}
    assert {f"Module.module.layers.{at}.Block.forward.0" for at in range(4)} <= names


def test_a_merged_run_is_written_as_a_dump_and_drawn_like_any_other(recorded: Recorder, tmp_path: Path) -> None:
    outcome = draw(recorded(2, 2), None, tmp_path / "dump", "json", layouts=(Layout(4, 2, 2), None))
    folder = tmp_path / "dump" / "step0" / "rank0"
    assert [file.relative_to(folder).name for file in outcome.files] == ["construct.json", "dump.json", "stack.json"]
    assert json.loads((folder / "dump.json").read_text())["is_merged"] is True
    (direct,) = draw(recorded(2, 2), None, tmp_path / "direct", layouts=(Layout(4, 2, 2), None)).files
    (again,) = draw(folder, None, tmp_path / "again").files
    ours, theirs = nodes(again), nodes(direct)
    assert ours.keys() == theirs.keys()
    for name, row in theirs.items():
        for column in ("node_order", "up_node", "sub_nodes"):
            assert ours[name][column] == row[column]
        assert ours[name]["output_data"].keys() == row["output_data"].keys()


def test_a_merged_dump_of_two_runs_is_refused(recorded: Recorder, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="made of one run"):
        draw(recorded(2, 1), recorded(1, 1), tmp_path, "json", layouts=(Layout(2, 2, 1), Layout(1, 1, 1)))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 1), st.integers(0, 2**32 - 1))
def test_shards_of_any_array_give_the_statistics_of_the_array(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, rows: int, axis: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(seed)
    shards = [rng.standard_normal((rows + 1, 2 + at) if axis else (2 + at, rows + 1)) for at in range(ranks)]
    whole = np.concatenate(shards, axis=axis)
    name = "Torch.add.0.forward"
    for rank, shard in enumerate(shards):
        leaf = tensor(
            high=shard.max(),
            low=shard.min(),
            mean=shard.mean(),
            norm=math.sqrt((shard**2).sum()),
            shape=list(shard.shape),
        )
        write_dump(folder / str(rank), {name: forward([], [leaf])}, parents={name: None}, stacks={})
    merged = merge_ranks({rank: open_run(folder / str(rank)) for rank in range(ranks)}, Layout(ranks, ranks, 1)).run
    row = merged.table.row(0, named=True)
    expected = {"max": whole.max(), "min": whole.min(), "mean": whole.mean(), "norm": math.sqrt((whole**2).sum())}
    for stat, number in expected.items():
        assert row[stat] == pytest.approx(number, rel=1e-12, abs=1e-12)
    shapes = [str(list(shard.shape)) for shard in shards]
    assert list(whole.shape) in whole_shapes(shapes)


def test_partial_sums_take_the_statistics_of_their_reduction(tmp_path: Path) -> None:
    linear, reduce = "Functional.linear.0.forward", "Distributed.all_reduce.0.forward"
    for rank, norm in enumerate((3.0, 5.0)):
        part, whole = tensor(norm=norm), tensor(norm=7.0)
        data = {linear: forward([tensor()], [part]), reduce: forward([part], [whole])}
        write_dump(tmp_path / str(rank), data, parents=dict.fromkeys(data), stacks={})
    merged = merge_ranks({rank: open_run(tmp_path / str(rank)) for rank in (0, 1)}, Layout(2, 2, 1))
    table = merged.run.table
    assert table.filter(table["name"] == f"{linear}.output.0")["norm"].item() == 7.0
    assert "of the reduction" in merged.info[linear][0]


def test_layers_of_later_stages_are_counted_on_and_wrappers_keep_both_ends(tmp_path: Path) -> None:
    wrapper = "Module.module.Model.forward.0"
    for stage in (0, 1):
        block = "Module.module.layers.0.Block.forward.0"
        inner = forward([tensor(norm=stage + 1.0)], [tensor(norm=stage + 2.0)])
        data = {block: inner, "Torch.add.0.forward": inner, wrapper: inner}
        parents = {wrapper: None, block: wrapper, "Torch.add.0.forward": block}
        write_dump(tmp_path / str(stage), data, parents=parents, stacks={})
    merged = merge_ranks({rank: open_run(tmp_path / str(rank)) for rank in (0, 1)}, Layout(2, 1, 2)).run
    assert merged.parents == {
        wrapper: None,
        "Module.module.layers.0.Block.forward.0": wrapper,
        "Torch.add.0.forward": "Module.module.layers.0.Block.forward.0",
        "Module.module.layers.1.Block.forward.0": wrapper,
        "Torch.add.1.forward": "Module.module.layers.1.Block.forward.0",
    }
    rows = {row["name"]: row["norm"] for row in merged.table.iter_rows(named=True)}
    assert rows[f"{wrapper}.input.0"] == 1.0
    assert rows[f"{wrapper}.output.0"] == 3.0


def test_virtual_stages_are_folded_in_the_order_of_the_model() -> None:
    names = StageNames(chunks=True)
    found = []
    for chunk in (0, 1):
        for _stage in (0, 1):
            name = f"Module.{chunk}.module.layers.0.Block.forward.0"
            found.append(names.stage([name])[name])
    assert found == [f"Module.0.module.layers.{at}.Block.forward.0" for at in range(4)]


def test_layers_that_are_numbered_through_already_keep_their_numbers() -> None:
    names = StageNames(chunks=False)
    for at in range(3):
        name = f"Module.layers.{at}.Block.forward.0"
        assert names.stage([name])[name] == name


@pytest.mark.parametrize(("order", "expected"), [
    ("tp-cp-ep-dp-pp", [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (0, 1, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1)]),
    ("tp-pp-dp", [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]),
])  # fmt: skip
def test_ranks_stand_where_the_order_says(order: str, expected: list[tuple[int, int, int]]) -> None:
    layout = Layout(8, 2, 2, order=order)
    places = [layout.place(rank) for rank in range(8)]
    assert [(place.dp, place.pp, place.tp) for place in places] == expected


def test_layouts_come_from_compare_json_or_flags() -> None:
    side = {"rank_size": 4, "tp": 2, "pp": 2}
    assert layouts_of({"npu": side}, golden=False) == (Layout(4, 2, 2), None)
    both = layouts_of_flags({"rank_size": [4, 1], "tp": [2, 1], "pp": [2, 1], "vpp": None, "order": None}, golden=True)
    assert both == (Layout(4, 2, 2), Layout(1, 1, 1))
    assert layouts_of({}, golden=True) == layouts_of_flags({"tp": None}, golden=True) == (None, None)


@pytest.mark.parametrize(("document", "golden", "words"), [
    ({"npu": {"rank_size": 3, "tp": 2, "pp": 1}}, False, "not a multiple"),
    ({"npu": {"tp": 2, "pp": 1}}, False, "missing: rank_size"),
    ({"npu": {"rank_size": 2, "tp": 2, "pp": 1, "x": 1}}, False, "unknown: x"),
    ({"npu": {"rank_size": 2, "tp": 2, "pp": 1, "order": "tp-tp"}}, False, "order is"),
    ({"npu": {"rank_size": 2, "tp": 0, "pp": 1}}, False, "tp is 0"),
    ({"npu": {"rank_size": 2, "tp": 2, "pp": 1}}, True, "bench"),
    ({"npu": 5}, False, "not an object"),
])  # fmt: skip
def test_a_bad_layout_is_refused(document: dict[str, Any], golden: bool, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        layouts_of(document, golden=golden)


def test_a_missing_rank_is_named(recorded: Recorder, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="rank 2 of 4 is missing"):
        draw(recorded(2, 1), None, tmp_path, layouts=(Layout(4, 4, 1), None))


def test_checksums_cannot_be_merged(reference: Path, tmp_path: Path) -> None:
    folder = reference / "graph" / "dumps" / "base_md5" / "step0"
    with pytest.raises(BadInput, match="only statistics"):
        draw(folder, None, tmp_path, layouts=(Layout(1, 1, 1), None))
