"""merge_result: many ranks' results in one workbook."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import openpyxl
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from merge_tools import DATA, WRITERS, call, config, merge, row, sheet, write, write_all

from twinprobe._compare.job import run_request
from twinprobe._compare.merge.config import METRICS, TENSORS
from twinprobe._compare.merge.read import natural_order
from twinprobe._compare.request import Request
from twinprobe._report.tables import csv_parts, fill_csv
from twinprobe._scale.engine import EngineOptions


def test_real_results_merge_as_before_but_groups_show_their_ranks(tmp_path: Path, reference: Path) -> None:
    text = (
        "api:\n- Distributed.all_reduce\n- Distributed.broadcast\n"
        "compare_index:\n- Max diff\n- L2norm diff\n- MeanRelativeErr\n"
    )
    outcome = merge(tmp_path, text, reference / "msprobe" / "results" / "dist_xlsx", timestamp="20260102030405")
    assert outcome.path.name == "multi_ranks_compare_merge_20260102030405.xlsx"
    assert outcome.sheets == ["Max diff", "L2norm diff", "MeanRelativeErr", "Group check"]
    (old,) = (reference / "msprobe" / "results" / "merge").glob("*.xlsx")
    book = openpyxl.load_workbook(old)
    for name in book.sheetnames:
        expected = {line[0]: line[1:] for line in book[name].iter_rows(min_row=2, values_only=True)}
        found = sheet(outcome, name)
        assert list(found) == list(expected)
        for call_name, cells in expected.items():
            if "all_reduce.1" in call_name and call_name.endswith((".group", "output.1")):
                assert set(found[call_name].values()) == {"[0, 1]"}
                continue
            for mine, theirs in zip(found[call_name].values(), cells, strict=True):
                assert str(mine) == str(theirs) or mine == pytest.approx(theirs, rel=1e-12)


def test_every_format_of_ours_gives_the_same_workbook(tmp_path: Path) -> None:
    groups = ("[0, 1]", "[0, 1]")
    ranks = [call("Distributed.all_reduce.0", 1.25, g) + call("Functional.linear.0", 3.0) for g in groups]
    ranks[1][0] |= {"Max diff": "-1.5e-07", "MeanRelativeErr": "12.5%", "L2norm diff": "inf", "Min diff": "Nan"}
    found = []
    for form in WRITERS:
        folder = write_all(tmp_path / form, ranks, form=form)
        outcome = merge(folder, "api: [Distributed.all_reduce]")
        found.append([sheet(outcome, name) for name in outcome.sheets])
        assert outcome.rows == 3
    assert found[0] == found[1] == found[2]
    first = found[0][0]["Distributed.all_reduce.0.forward.input.0"]
    assert first == {"rank0": 0, "rank1": -1.5e-07}


def test_the_printed_config_works_as_it_stands(tmp_path: Path, seeds: Path) -> None:
    (document,) = seeds.glob("004*")
    printed = re.search(r"(api:\n- Distributed.*?MeanRelativeErr)\n", document.read_text(), re.DOTALL)
    assert printed is not None
    outcome = merge(tmp_path, printed[1], DATA)
    assert outcome.sheets == ["Max diff", "L2norm diff", "MeanRelativeErr", "Group check"]
    assert any("all_gather_into_tensor" in note and "no result" in note for note in outcome.notes)


def test_cells_are_blank_or_show_both_maxima_where_there_is_no_metric(tmp_path: Path) -> None:
    cells = {"Max_diff": "N/A", "Mean_diff": "Nan", "NPU_max": "7.5", "Bench_max": "N/A"}
    none = {"Max_diff": "N/A", "NPU_max": "N/A", "Bench_max": "N/A"}
    name = "Distributed.all_reduce.0.forward."
    write_all(tmp_path, [[row(name + "input.0", **cells), row(name + "output.1", **none)], [row(name + "input.0")]])
    outcome = merge(tmp_path, "api: [Distributed]")
    assert sheet(outcome, "Max diff") == {
        name + "input.0": {"rank0": "NPU:7.5  Bench:N/A", "rank1": 0},
        name + "output.1": {"rank0": "NPU:N/A  Bench:N/A"},
    }
    assert sheet(outcome, "Mean diff")[name + "input.0"]["rank0"] == "NPU:7.5  Bench:N/A"


def test_real_data_results_have_their_own_metrics(tmp_path: Path) -> None:
    rows = call("Distributed.all_reduce.0", 1.0)
    rows[0] |= {"Cosine": "0.999", "EucDist": "unsupported"}
    write_all(tmp_path, [rows, rows], kind=TENSORS)
    outcome = merge(tmp_path, "api: [Distributed]")
    assert outcome.sheets[:-1] == list(METRICS[TENSORS])
    name = "Distributed.all_reduce.0.forward.input.0"
    assert sheet(outcome, "Cosine")[name] == {"rank0": 0.999, "rank1": 0.999}
    assert sheet(outcome, "EucDist")[name]["rank0"] == "NPU:1.0  Bench:1.0"


def test_rows_stand_in_natural_order(tmp_path: Path) -> None:
    rows = [line for number in (10, 2, 1) for line in call(f"Distributed.all_reduce.{number}", 1.0, "[0, 1]")]
    outcome = merge(write_all(tmp_path, [rows, rows]), "api: [Distributed]")
    calls = [name.split(".")[2] for name in sheet(outcome, "Max diff")]
    assert calls == ["1"] * 3 + ["2"] * 3 + ["10"] * 3


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("Distributed", 8),
        ("Distributed.all_reduce", 6),
        ("Distributed.all_reduce.1", 2),
        ("Distributed.all_reduce.1.forward", 2),
        ("Distributed.all_reduce.1.forward.", 2),
        ("Module.net.0.fc.Linear", 2),
        ("Module.net.0.fc.Linear.forward.0", 2),
        ("Module.net.0", 2),
    ],
)
def test_entries_are_prefixes_on_the_borders_of_names(tmp_path: Path, entry: str, expected: int) -> None:
    names = [
        "Distributed.all_reduce.1.forward", "Distributed.all_reduce.10.forward", "Distributed.all_reduce.1.backward",
        "Distributed.all_reduce_coalesced.1.forward",
        "Module.net.0.fc.Linear.forward.0", "Module.net.01.fc.Linear.forward.0",
    ]  # fmt: skip
    if "forward" not in entry and entry.endswith(".1"):
        expected += 2  # both directions
    rows = [row(f"{name}.{io}.0") for name in names for io in ("input", "output")]
    outcome = merge(write_all(tmp_path, [rows, rows]), f"api:\n- {entry}\ncompare_index: [Max diff]")
    assert outcome.rows == expected
    assert all(name.startswith(entry) for name in sheet(outcome, "Max diff"))


def test_two_kinds_of_results_are_merged_with_a_warning_that_names_the_files(tmp_path: Path) -> None:
    rows = call("Distributed.all_reduce.0", 1.0)
    statistics, tensors = write(tmp_path, 0, rows), write(tmp_path, 1, rows, kind=TENSORS)
    outcome = merge(tmp_path, "api: [Distributed]")
    (note,) = (note for note in outcome.notes if "two kinds" in note)
    assert f"real data: {tensors.name}" in note
    assert f"statistics: {statistics.name}" in note
    name = "Distributed.all_reduce.0.forward.input.0"
    assert set(sheet(outcome, "Max diff")[name]) == {"rank0"}
    assert set(sheet(outcome, "Cosine")[name]) == {"rank1"}
    assert set(sheet(outcome, "MaxRelativeErr")[name]) == {"rank0", "rank1"}


def test_a_rank_counts_once_whatever_it_was_written_as(tmp_path: Path) -> None:
    for rank in range(2):
        for form in WRITERS:
            write(tmp_path, rank, call("Distributed.all_reduce.0", 1.0), form=form)
    outcome = merge(tmp_path, "api: [Distributed]")
    assert outcome.ranks == [0, 1]
    assert outcome.notes == []


def test_the_newest_of_several_results_is_taken_and_said(tmp_path: Path) -> None:
    older = write(tmp_path, 0, [row("Distributed.all_reduce.0.forward.input.0", Max_diff="1")], time=1)
    for rank in range(2):
        write(tmp_path, rank, [row("Distributed.all_reduce.0.forward.input.0", Max_diff="2")], time=2, form="xlsx")
    (tmp_path / "compare_result_20260101000000.csv").write_text("a\n")
    (tmp_path / "readme.txt").write_text("a\n")
    outcome = merge(tmp_path, "api: [Distributed]")
    assert set(sheet(outcome, "Max diff")["Distributed.all_reduce.0.forward.input.0"].values()) == {2}
    assert any(older.name in note for note in outcome.notes)
    assert any("compare_result_20260101000000.csv" in note for note in outcome.notes)


def test_parts_of_a_long_result_are_read_together(tmp_path: Path) -> None:
    rows = [row(f"Distributed.all_reduce.{n}.forward.input.0") for n in range(5)]
    for rank in range(2):
        whole = tmp_path / f"compare_result_rank{rank}_20260101000000.csv"
        for part, some in csv_parts(pl.DataFrame(rows), whole, rows_per_file=2):
            fill_csv(some, part)
    assert merge(tmp_path, "api: [Distributed]").rows == 5


def test_worker_processes_give_the_same_result(tmp_path: Path) -> None:
    ranks = [call("Distributed.all_reduce.0", float(rank == 2), "[0, 1, 2]") for rank in range(3)]
    folder = write_all(tmp_path / "in", ranks)
    alone, spread = (
        merge(folder, "api: [Distributed]", engine=EngineOptions(workers=n), timestamp=f"2026010100000{n}")
        for n in (1, 2)
    )
    assert [sheet(alone, name) for name in alone.sheets] == [sheet(spread, name) for name in spread.sheets]
    assert [check.disagree for check in spread.disagreements] == [(2,)]


def test_foreign_texts_reach_the_sheet_as_text(tmp_path: Path) -> None:
    rows = [row("Distributed.all_reduce.0.forward.input.<0>&", Max_diff="=1+1", Min_diff="a\x01<b>")]
    outcome = merge(write_all(tmp_path, [rows, rows], form="parquet"), "api: [Distributed]")
    name = "Distributed.all_reduce.0.forward.input.<0>&"
    cell = openpyxl.load_workbook(outcome.path)["Max diff"]["B2"]
    assert (cell.value, cell.data_type) == ("=1+1", "s") or cell.quotePrefix
    assert sheet(outcome, "Min diff")[name]["rank0"] == "a\ufffd<b>"


PEAK = """
import resource, sys
from pathlib import Path
from twinprobe._compare.merge.job import merge_results
from twinprobe._scale.engine import EngineOptions
merge_results(*map(Path, sys.argv[1:]), engine=EngineOptions(workers=1))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak_mebibytes(folder: Path, ranks: int) -> int:
    """The peak memory of merging the first few ranks, in a fresh process."""
    part = folder / f"first{ranks}"
    part.mkdir()
    for path in folder.glob("*.csv"):
        if int(path.name.split("_")[2].removeprefix("rank")) < ranks:
            (part / path.name).hardlink_to(path)
    command = [sys.executable, "-c", PEAK, str(part), str(folder / "out"), str(config(folder, "api: [Distributed]"))]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_memory_does_not_grow_with_the_rows_that_nobody_asked_for(tmp_path: Path) -> None:
    table = pl.DataFrame(call("Distributed.all_reduce.0", 1.0, "[0, 1]"))
    others = pl.DataFrame([row("Functional.linear.0.forward.input.0", NPU_Stack_Info="File train.py, line 1, " * 20)])
    big = pl.concat([pl.concat([others] * 20_000), table], how="diagonal").fill_null("")
    first = tmp_path / "compare_result_rank0_20260101000000.csv"
    fill_csv(big, first)
    for rank in range(1, 16):
        first.with_name(f"compare_result_rank{rank}_20260101000000.csv").hardlink_to(first)
    few, many = peak_mebibytes(tmp_path, 2), peak_mebibytes(tmp_path, 16)
    assert many < few + 80  # the 14 more files hold 210 MB


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=4), min_size=1, max_size=30))
def test_natural_order_is_the_order_of_the_numbers(numbers: list[list[int]]) -> None:
    names = [".".join(["a", *map(str, parts)]) for parts in numbers]
    assert [numbers[at] for at in natural_order(names)] == sorted(numbers)


@pytest.mark.parametrize("form", ["csv", "xlsx", "parquet"])
def test_real_ranks_compared_by_us_merge_into_one_workbook(tmp_path: Path, reference: Path, form: str) -> None:
    dumps = reference / "msprobe" / "dumps"
    roots = dumps / "dist_b" / "step0", dumps / "dist_a" / "step0"
    request = Request(*roots, tmp_path / "results", (form,), "20260102030405", engine=EngineOptions(workers=1))
    run_request(request, lambda _what, _done, _total: None)
    outcome = merge(tmp_path, "api: [Distributed]\ncompare_index: [Max diff]", tmp_path / "results")
    found = sheet(outcome, "Max diff")
    assert found["Distributed.all_reduce.1.forward.input.group"] == {"rank0": "[0, 1]", "rank1": "[0, 1]"}
    cells = found["Distributed.all_reduce.0.forward.input.0"]
    assert cells["rank0"] == 0
    assert cells["rank1"] == pytest.approx(0.02, rel=1e-3)
    assert len(outcome.checks) == 5
    assert outcome.disagreements == []
