"""merge_result: the collectives whose outputs must agree within a group."""

from __future__ import annotations

from pathlib import Path

import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from merge_tools import DATA, call, marked, merge, row, sheet, write_all

from twinprobe._compare.merge.config import METRICS, STATISTICS
from twinprobe._compare.merge.read import group_ranks


def test_real_collectives_agree_and_the_gathered_input_is_not_held_against_them(tmp_path: Path) -> None:
    outcome = merge(tmp_path, "api: [Distributed]", DATA)
    assert [check.name for check in outcome.checks] == [
        "Distributed.all_reduce.0.forward.output.0",
        "Distributed.all_reduce.1.forward.output.0",
        "Distributed.all_gather.0.forward.output.0.0",
        "Distributed.all_gather.0.forward.output.0.1",
        "Distributed.broadcast.0.forward.output.0",
    ]
    assert outcome.disagreements == []
    assert outcome.ranks == [0, 1]
    assert outcome.sheets[:-1] == list(METRICS[STATISTICS])


@pytest.mark.parametrize("text", ["tp-0-1-2-3", "[0, 1, 2, 3]"])
def test_groups_show_their_text_on_every_sheet_but_the_flags(tmp_path: Path, text: str) -> None:
    rows = call("Distributed.all_reduce.0", 1.0, text)
    outcome = merge(write_all(tmp_path, [rows] * 4), "api: [Distributed]")
    name = "Distributed.all_reduce.0.forward.input.group"
    for metric in METRICS[STATISTICS][:-1]:
        assert set(sheet(outcome, metric)[name].values()) == {text}
    assert set(sheet(outcome, "Requires_grad Consistent")[name].values()) == {"True"}


@pytest.mark.parametrize("text", [("tp-0-1-2-3", "tp-4-5-6-7"), ("[0, 1, 2, 3]", "[4, 5, 6, 7]"), ("", "")])
def test_the_rank_that_disagrees_within_its_group_is_marked(tmp_path: Path, text: tuple[str, str]) -> None:
    ranks = [call("Distributed.all_reduce.0", 1.0 if rank != 6 else 1.001, text[rank // 4]) for rank in range(8)]
    outcome = merge(write_all(tmp_path, ranks), "api: [Distributed.all_reduce]")
    (found,) = outcome.disagreements
    assert found.disagree == (6,)
    name = "Distributed.all_reduce.0.forward.output.0"
    for metric in METRICS[STATISTICS]:
        assert marked(outcome, metric) == {(name, "rank6")}
    titles, first, *rest = openpyxl.load_workbook(outcome.path)["Group check"].iter_rows(values_only=True)
    found_row = dict(zip(titles, first, strict=True))
    assert (found_row["NPU Name"], found_row["Result"], found_row["Ranks That Disagree"]) == (name, "error", "rank6")
    assert "max 1.001" in found_row["Detail"]
    assert [line[2] for line in rest] == ["pass"] * (len(outcome.checks) - 1)
    assert any("rank 6" in note and name in note for note in outcome.notes)


def test_outputs_of_different_groups_need_not_agree(tmp_path: Path) -> None:
    ranks = [
        call("Distributed.all_reduce.0", float(rank // 2), f"[{rank // 2 * 2}, {rank // 2 * 2 + 1}]")
        for rank in range(4)
    ]
    outcome = merge(write_all(tmp_path, ranks), "api: [Distributed]")
    assert len(outcome.checks) == 2
    assert outcome.disagreements == []


@pytest.mark.parametrize(
    "op", ["reduce_scatter_tensor", "reduce_scatter", "isend", "irecv", "all_to_all_single", "send"]
)
def test_collectives_whose_outputs_may_differ_are_not_checked(tmp_path: Path, op: str) -> None:
    outcome = merge(
        write_all(tmp_path, [call(f"Distributed.{op}.0", float(n), "[0, 1]") for n in range(2)]), "api: [Distributed]"
    )
    assert outcome.checks == []
    assert "Group check" not in outcome.sheets


@pytest.mark.parametrize("op", ["all_gather", "all_gather_into_tensor", "all_reduce", "broadcast"])
def test_collectives_whose_outputs_must_agree_are_checked(tmp_path: Path, op: str) -> None:
    outcome = merge(
        write_all(tmp_path, [call(f"Distributed.{op}.0", float(n), "[0, 1]") for n in range(2)]), "api: [Distributed]"
    )
    assert [check.disagree for check in outcome.checks] == [(0, 1)]


def test_keyword_arguments_do_not_hide_which_output_is_the_result(tmp_path: Path) -> None:
    name = "Distributed.all_gather.0.forward"
    ranks = [
        [
            row(f"{name}.input.tensor", float(rank)), row(f"{name}.input.tensor_list.0", 9.0),
            row(f"{name}.output.0", float(rank)), row(f"{name}.output.1.0", 9.0),
        ]
        for rank in range(2)
    ]  # fmt: skip
    outcome = merge(write_all(tmp_path, ranks), "api: [Distributed]")
    assert [(check.name, check.agrees) for check in outcome.checks] == [(f"{name}.output.1.0", True)]


def test_ranks_that_number_their_calls_differently_are_linked_by_order_within_the_group(tmp_path: Path) -> None:
    one = call("Distributed.all_reduce.0", 1.0, "[0]") + call("Distributed.all_reduce.1", 2.0, "[0, 1]")
    other = call("Distributed.all_reduce.0", 3.0, "[0, 1]")
    outcome = merge(write_all(tmp_path, [one, other]), "api: [Distributed.all_reduce.1]")
    (found,) = outcome.disagreements
    assert found.places == (
        (0, "Distributed.all_reduce.1.forward.output.0"), (1, "Distributed.all_reduce.0.forward.output.0"),
    )  # fmt: skip
    assert marked(outcome, "Max diff") == {("Distributed.all_reduce.1.forward.output.0", "rank0")}


def test_rounding_of_the_statistics_is_no_disagreement_and_nan_agrees_with_nan(tmp_path: Path) -> None:
    ranks = [call("Distributed.all_reduce.0", 1.0), call("Distributed.all_reduce.0", 1.0)]
    ranks[1][1] |= {"NPU mean": "1.00000005", "NPU l2norm": "0.99999995"}
    ranks = [rows + call("Distributed.all_reduce.1", float("nan")) for rows in ranks]
    assert merge(write_all(tmp_path, ranks), "api: [Distributed]").disagreements == []


def test_a_rank_without_the_call_is_named(tmp_path: Path) -> None:
    ranks = [call("Distributed.all_reduce.0", 1.0, "[0, 1, 2]") for _ in range(2)] + [
        call("Distributed.broadcast.0", 1.0)
    ]
    outcome = merge(write_all(tmp_path, ranks), "api: [Distributed]")
    assert outcome.checks[0].missing == (2,)
    assert sheet(outcome, "Group check")["Distributed.all_reduce.0.forward.output.0"]["Ranks Without It"] == "rank2"


@settings(deadline=None)
@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20), st.text("abcp_", min_size=1, max_size=5))
def test_both_spellings_of_a_group_name_its_ranks(ranks: list[int], label: str) -> None:
    assert group_ranks(str(ranks)) == ranks
    assert group_ranks("-".join([label, *map(str, ranks)])) == ranks
    assert group_ranks(label) == []
