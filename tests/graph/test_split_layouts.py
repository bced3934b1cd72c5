"""Context and expert parallel ranks folded into one graph, and compared with their single-rank twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gloo_recorder import Recorder, gloo_recorder
from graph_drawing import draw, nodes

from support import forward, tensor, write_dump
from twinprobe._layout.layout import Layout, layouts_of_flags
from twinprobe._layout.merge import merge_ranks
from twinprobe._runs.run import open_run

PROGRAM = Path(__file__).with_name("split_model.py")
SINGLE = Layout(1, 1, 1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return gloo_recorder(PROGRAM, tmp_path_factory)


def sides(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    rows = nodes(file).values()
    target, golden = (
        {row["node_name"]: row for row in rows if row["data_source"] == source} for source in ("NPU", "Bench")
    )
    return target, golden


def values(row: dict[str, Any]) -> dict[str, dict[str, str]]:
    return row["input_data"] | row["output_data"]


def assert_exact_or_marked(target: dict[str, Any], golden: dict[str, Any], *, partial: Callable[[str], bool]) -> None:
    """Every value has the single rank's statistics and shape, but for partial sums, which have none."""
    for name, row in golden.items():
        for key, whole in values(row).items():
            ours = values(target[name])[key]
            assert ours["shape"] == whole["shape"]
            if partial(key):
                assert ours["Norm"] == "null"
            else:
                for stat in ("Max", "Min", "Mean", "Norm"):
                    if whole[stat] == ours[stat] == "null":  # of whole numbers recorders give no mean
                        continue
                    assert float(ours[stat]) == pytest.approx(float(whole[stat]), rel=1e-5, abs=1e-7)


def test_parts_of_a_sequence_agree_with_the_whole(recorded: Recorder, tmp_path: Path) -> None:
    runs = recorded("context", 2, "mix"), recorded("context", 1, "mix")
    outcome = draw(*runs, tmp_path, layouts=(Layout(2, 1, 1, cp=2), SINGLE))
    (summary,) = outcome.summaries
    assert summary.first is None
    assert summary.verdicts["error"] == 0
    target, golden = sides(outcome.files[0])
    assert [name for name, row in golden.items() if not row["matched_node_link"]] == []
    modules = {name: row for name, row in golden.items() if name.startswith("Module.")}
    assert modules.keys() == {name for name in target if name.startswith("Module.")}
    assert_exact_or_marked(target, modules, partial=lambda key: "parameters_grad" in key)
    attention = target["Module.layers.0.inner.Attention.forward.0"]
    assert "shards of one tensor" in attention["parallel_merge_info"]


def test_experts_of_all_ranks_stand_in_one_model(recorded: Recorder, tmp_path: Path) -> None:
    runs = recorded("expert", 2, "L0"), recorded("expert", 1, "L0")
    outcome = draw(*runs, tmp_path, layouts=(Layout(2, 1, 1, ep=2), SINGLE))
    (summary,) = outcome.summaries
    assert summary.first is None
    assert (summary.verdicts["error"], summary.target_only, summary.golden_only) == (0, 0, 0)
    target, golden = sides(outcome.files[0])
    for column in ("node_order", "up_node", "sub_nodes"):
        assert {name: row[column] for name, row in target.items()} == {n: row[column] for n, row in golden.items()}
    assert_exact_or_marked(target, golden, partial=lambda key: "parameters_grad" in key and ".experts." not in key)


def test_a_faulty_expert_on_the_second_rank_is_found(recorded: Recorder, tmp_path: Path) -> None:
    runs = recorded("expert", 2, "L0", faulty=3), recorded("expert", 1, "L0")
    (summary,) = draw(*runs, tmp_path, layouts=(Layout(2, 1, 1, ep=2), SINGLE)).summaries
    assert summary.first is not None
    assert summary.first.op == "Module.layers.1.inner.experts.3.up.Linear.forward.0"


def write_ranks(
    folder: Path, data: list[dict[str, Any]], parents: list[dict[str, Any]] | None = None
) -> dict[int, Any]:
    for rank, entries in enumerate(data):
        above = parents[rank] if parents else dict.fromkeys(entries)
        write_dump(folder / str(rank), entries, parents=above, stacks={})
    return {rank: open_run(folder / str(rank)) for rank in range(len(data))}


def test_copies_along_one_dimension_count_once_where_another_is_split(tmp_path: Path) -> None:
    name = "Torch.add.0.forward"
    norms = (3.0, 3.0, 4.0, 4.0)  # tp-cp: equal on both tensor parallel ranks, different parts of the sequence
    runs = write_ranks(tmp_path, [{name: forward([], [tensor(norm=norm)])} for norm in norms])
    assert merge_ranks(runs, Layout(4, 2, 1, cp=2)).run.table["norm"].to_list() == [5.0]
    by_order = merge_ranks(dict(zip((0, 2, 1, 3), runs.values(), strict=True)), Layout(4, 2, 1, cp=2, order="cp-tp"))
    assert by_order.run.table["norm"].to_list() == [5.0]


def test_a_partial_sum_inside_a_split_sequence_takes_the_reductions_whole(tmp_path: Path) -> None:
    linear, reduce = "Functional.linear.0.forward", "Distributed.all_reduce.0.forward"
    data = []
    for part, whole in ((1.0, 3.0), (2.0, 3.0), (1.5, 4.0), (2.5, 4.0)):
        piece = tensor(norm=part)
        data.append({linear: forward([], [piece]), reduce: forward([piece], [tensor(norm=whole)])})
    merged = merge_ranks(write_ranks(tmp_path, data), Layout(4, 2, 1, cp=2))
    table = merged.run.table
    assert table.filter(table["name"] == f"{linear}.output.0")["norm"].item() == 5.0
    assert "of the reduction" in merged.info[linear][0]


@pytest.mark.parametrize("numbered_through", [False, True])
def test_calls_inside_experts_keep_to_their_expert(tmp_path: Path, numbered_through: bool) -> None:
    wrapper, linear = "Module.moe.Moe.forward.0", "Functional.linear.0.forward"
    data, parents = [], []
    for rank in (0, 1):
        expert = f"Module.moe.experts.{rank if numbered_through else 0}.Expert.forward.0"
        entry = forward([], [tensor(norm=rank + 1.0)])
        data.append({linear: entry, expert: entry, wrapper: forward([], [tensor()])})
        parents.append({wrapper: None, expert: wrapper, linear: expert})
    merged = merge_ranks(write_ranks(tmp_path, data, parents), Layout(2, 1, 1, ep=2)).run
    assert merged.parents == {
        wrapper: None,
        "Module.moe.experts.0.Expert.forward.0": wrapper,
        "Functional.linear.0.forward": "Module.moe.experts.0.Expert.forward.0",
        "Module.moe.experts.1.Expert.forward.0": wrapper,
        "Functional.linear.1.forward": "Module.moe.experts.1.Expert.forward.0",
    }
    norms = dict(zip(merged.table["name"].to_list(), merged.table["norm"].to_list(), strict=True))
    assert norms["Functional.linear.1.forward.output.0"] == 2.0
    assert norms["Functional.linear.0.forward.output.0"] == 1.0


def test_flags_name_context_and_expert_sizes() -> None:
    flags = {"rank_size": [8, 1], "tp": [2, 1], "pp": [1, 1], "cp": [2, 1], "ep": [2, 1], "order": None, "vpp": None}
    assert layouts_of_flags(flags, golden=True) == (Layout(8, 2, 1, cp=2, ep=2), SINGLE)
