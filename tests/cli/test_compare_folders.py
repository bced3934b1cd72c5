"""twinprobe compare on folders: steps and ranks find each other by their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import forward, tensor, write_dump
from twinprobe._cli import main


def run_at(folder: Path, norm: float = 2.0, **options: Any) -> None:
    write_dump(folder, {"Torch.f.0.forward": forward([tensor()], [tensor(norm=norm)])}, **options)


def point_at(folder: Path, norm: float = 2.0) -> None:
    write_dump(folder, {"x.0.debug": tensor(norm=norm)}, name="debug.json", level="debug")


def compare(target: Path, golden: Path, out: Path, *more: str) -> int:
    return main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--csv", *more])


def results(out: Path) -> list[str]:
    """Result files of single steps and ranks with the timestamp left out."""
    return sorted(str(p.relative_to(out)).rpartition("_")[0] for p in out.rglob("*compare_result*.csv"))


def test_ranks_pair_by_number_and_the_lonely_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, norm in ((0, 1.0), (1, 2.0), (10, 3.0)):
        run_at(tmp_path / "t/step0" / f"rank{rank}", norm)
    for rank, norm in ((1, 2.0), (2, 9.0), (10, 3.0)):
        run_at(tmp_path / "g/step0" / f"rank{rank}", norm)
    # Ranks that one side lacks are asked for and not compared: without --allow-missing that is no success.
    assert compare(tmp_path / "t/step0", tmp_path / "g/step0", tmp_path / "out", "--json") == 2
    document = json.loads(capsys.readouterr().out)
    assert results(tmp_path / "out") == ["compare_result_rank1", "compare_result_rank10"]
    assert [rank["verdicts"]["pass"] for rank in document["ranks"]] == [2, 2]
    assert any("t/step0 has rank0" in failure for failure in document["failures"])
    assert any("g/step0 has rank2" in failure for failure in document["failures"])


def test_the_summary_is_a_table_of_rank_by_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, norm in (("t", 2.5), ("g", 2.0)):
        run_at(tmp_path / side / "rank0")
        run_at(tmp_path / side / "rank1", norm)
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert "2 ranks compared" in shown
    assert "Torch.f.0.forward" in shown
    assert shown.rstrip().endswith("compare ends successfully.")


def test_single_processes_pair_whatever_their_numbers(tmp_path: Path) -> None:
    run_at(tmp_path / "t/step0/proc17")
    run_at(tmp_path / "g/step0/proc4711")
    assert compare(tmp_path / "t/step0", tmp_path / "g/step0", tmp_path / "out") == 0
    assert results(tmp_path / "out") == ["compare_result_proc17"]


def test_all_steps_of_a_dump_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, steps in (("t", (0, 2, 10)), ("g", (0, 10, 11))):
        for step in steps:
            run_at(tmp_path / side / f"step{step}" / "rank0")
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "out", "--json") == 2  # two steps have no counterpart
    assert results(tmp_path / "out") == ["step0/compare_result_rank0", "step10/compare_result_rank0"]
    failures = json.loads(capsys.readouterr().out)["failures"]
    assert any("step2" in failure for failure in failures)
    assert any("step11" in failure for failure in failures)


def test_two_different_steps_can_be_named(tmp_path: Path) -> None:
    run_at(tmp_path / "t/step0/rank0")
    run_at(tmp_path / "g/step5/rank0")
    assert compare(tmp_path / "t/step0", tmp_path / "g/step5", tmp_path / "out") == 0


def test_graph_and_pynative_results_lie_under_the_same_folders(tmp_path: Path) -> None:
    for side in "tg":
        for mode in ("graph", "pynative"):
            run_at(tmp_path / side / mode / "step0" / "rank", framework="mindspore")
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "out") == 0
    assert results(tmp_path / "out") == ["graph/step0/compare_result_rank", "pynative/step0/compare_result_rank"]


def test_single_points_of_ranks_and_processes(tmp_path: Path) -> None:
    for side in "tg":
        point_at(tmp_path / side / "step0" / "rank0")
        point_at(tmp_path / side / "step0" / "rank1")
        run_at(tmp_path / side / "step0" / "rank1")
        point_at(tmp_path / side / "step1" / "proc123")
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "out") == 0
    assert results(tmp_path / "out") == [
        "step0/compare_result_rank1",
        "step0/debug_compare_result_rank0",
        "step0/debug_compare_result_rank1",
        "step1/debug_compare_result_proc123",
    ]


def test_rank_and_step_are_filters(tmp_path: Path) -> None:
    for side in "tg":
        for step in range(3):
            for rank in range(3):
                run_at(tmp_path / side / f"step{step}" / f"rank{rank}")
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "out", "--rank", "0,2", "--step", "1-2") == 0
    assert results(tmp_path / "out") == [f"step{step}/compare_result_rank{rank}" for step in (1, 2) for rank in (0, 2)]


def test_a_broken_rank_costs_only_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in "tg":
        for rank in range(3):
            run_at(tmp_path / side / f"rank{rank}")
    (tmp_path / "t/rank1/dump.json").write_text("broken")
    (tmp_path / "t/rank2/dump.json").unlink()
    # The rest is compared and written; the exit code says that not all of it was.
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "out", "--json") == 2
    document = json.loads(capsys.readouterr().out)
    assert results(tmp_path / "out") == ["compare_result_rank0"]
    assert any("rank1/dump.json: is not JSON" in failure for failure in document["failures"])
    assert any("rank2: no dump.json" in failure for failure in document["failures"])


@pytest.mark.parametrize("options", [["--rank", "7"], ["--step", "3"]])
def test_a_rank_or_step_that_neither_side_has_is_named_with_those_there_are(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for side in "tg":
        run_at(tmp_path / side / "step0" / "rank0")
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "out", *options) == 2
    said = capsys.readouterr().err
    assert f"has {options[0].removeprefix('--')}{options[1]} (" in said
    assert "has step0/rank0)" in said


def test_ranks_of_the_reference(reference: Path, tmp_path: Path) -> None:
    dumps = reference / "msprobe/dumps"
    assert compare(dumps / "dist_b/step0", dumps / "dist_a/step0", tmp_path / "out") == 0
    assert results(tmp_path / "out") == ["compare_result_rank0", "compare_result_rank1"]
