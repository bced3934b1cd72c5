"""merge_result: many ranks' results in one workbook, and the collectives that must agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import openpyxl
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe.compare.job import Request, run_request
from twinprobe.compare.merge.config import METRICS, STATISTICS, TENSORS
from twinprobe.compare.merge.groups import group_ranks
from twinprobe.compare.merge.job import MergeOutcome, merge_results
from twinprobe.compare.merge.read import natural_order
from twinprobe.errors import BadInput, NothingToCompare
from twinprobe.report.tables import write_csv, write_parquet
from twinprobe.report.xlsx import write_xlsx

DATA = Path(__file__).resolve().parents[1] / "data" / "rank_results"
RED = "FFFFC7CE"
WRITERS = {"csv": write_csv, "parquet": write_parquet, "xlsx": write_xlsx}
Rows = list[dict[str, str]]
Sheet = dict[str, dict[str, object]]


def config(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def merge(folder: Path, text: str, results: Path | None = None, **options: object) -> MergeOutcome:
    return merge_results(results or folder, folder / "out", config(folder, text), **options)


def sheet(outcome: MergeOutcome, name: str) -> Sheet:
    """A sheet as {row name: {rank: cell}}, in its order; blank cells are left out."""
    rows = openpyxl.load_workbook(outcome.path)[name].iter_rows(values_only=True)
    titles = next(rows)
    return {row[0]: {t: c for t, c in zip(titles[1:], row[1:], strict=True) if c is not None} for row in rows}


def marked(outcome: MergeOutcome, name: str) -> set[tuple[str, str]]:
    """The (row name, rank) of every cell that has the error fill."""
    table = openpyxl.load_workbook(outcome.path)[name]
    titles = [cell.value for cell in table[1]]
    return {
        (row[0].value, title)
        for row in table.iter_rows(min_row=2)
        for title, cell in zip(titles, row, strict=True)
        if cell.fill.fgColor.rgb == RED
    }


def row(name: str, number: float = 1.0, *, group: str | None = None, **cells: str) -> dict[str, str]:
    """A row of a statistics result: a tensor, or with ``group`` a process group."""
    value = group if group is not None else str(number)
    basic = {
        "NPU Name": name, "Bench Name": name,
        "NPU Dtype": "torch.ProcessGroup" if group is not None else "torch.float32", "NPU Tensor Shape": "[2, 3]",
        "NPU Requires_grad": "False", "Requires_grad Consistent": "True", "Result": "pass",
    }  # fmt: skip
    metrics = {m: "0" for kind in METRICS for m in METRICS[kind][:-1]}
    stats = {f"{side} {stat}": value for side in ("NPU", "Bench") for stat in ("max", "min", "mean", "l2norm")}
    return basic | metrics | stats | {key.replace("_", " "): text for key, text in cells.items()}


def call(name: str, number: float, group: str | None = None) -> Rows:
    """A collective with its input, its group if it has one, and its output."""
    inputs = [row(f"{name}.forward.input.0", number)]
    inputs += [row(f"{name}.forward.input.group", group=group)] if group else []
    return [*inputs, row(f"{name}.forward.output.0", number)]


def write(folder: Path, rank: int, rows: Rows, *, kind: str = STATISTICS, form: str = "csv", time: int = 1) -> Path:
    """One rank's result in one format."""
    table = pl.DataFrame(rows)
    table = table.drop([m for k, ms in METRICS.items() for m in ms[:-1] if k != kind and m not in METRICS[kind]])
    folder.mkdir(exist_ok=True)
    path = folder / f"compare_result_rank{rank}_{20260101000000 + time}.{form}"
    WRITERS[form](table, path)
    return path


def write_all(folder: Path, ranks: list[Rows], **options: object) -> Path:
    for rank, rows in enumerate(ranks):
        write(folder, rank, rows, **options)
    return folder


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
        write_csv(pl.DataFrame(rows), tmp_path / f"compare_result_rank{rank}_20260101000000.csv", rows_per_file=2)
    assert merge(tmp_path, "api: [Distributed]").rows == 5


def bad_config(tmp_path: Path, text: str) -> BadInput:
    with pytest.raises(BadInput) as caught:
        merge(tmp_path, text, DATA)
    assert "config.yaml" in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("compare_index: [Max diff]", 'has no "api"'),
        ("api:", '"api" is empty'),
        ("api: []", '"api" is empty'),
        ('api: [""]', "empty"),
        ("api: [{a: b}]", "name was expected"),
        ("", "empty"),
        ("- Distributed", "a mapping was expected"),
        ("api: [Distributed]\napi: [Torch]", "'api' stands here and in line 1"),
        ("api: [Distributed", "is not YAML"),
        ("api: [Distributed]\ncompare_index: [Max dif]", "Max diff"),
        ("api: [Distributed]\ncompare_index: [Cosine]", "only results of real data have it"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_with_its_place(tmp_path: Path, text: str, what: str) -> None:
    assert what in str(bad_config(tmp_path, text))


def test_an_unknown_metric_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    message = str(bad_config(tmp_path, "api: [Distributed]\ncompare_index: [Speed]"))
    assert all(metric in message for metric in METRICS[STATISTICS])


def test_an_exploding_config_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    bad_config(tmp_path, "\n".join([*lines, "api: *a8"]))


def test_calls_that_are_nowhere_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NothingToCompare, match=r"config\.yaml"):
        merge(tmp_path, "api: [Distributed.all_red, istributed]", DATA)


def test_an_unknown_key_is_noted(tmp_path: Path) -> None:
    outcome = merge(tmp_path, "api: Distributed\ncolour: red", DATA)
    assert any("'colour'" in note for note in outcome.notes)


def test_results_that_cannot_be_merged_are_refused_by_name(tmp_path: Path) -> None:
    rows = call("Distributed.all_reduce.0", 1.0)
    sound = write(tmp_path, 0, rows)
    bad = tmp_path / "compare_result_rank1_20260101000001.csv"
    md5 = pl.DataFrame({"NPU Name": ["a"], "NPU Requires_grad": ["False"], "NPU MD5": ["1"], "BENCH MD5": ["1"]})
    kernels = pl.DataFrame(
        {"NPU Name": ["a"], "NPU max": ["1"], "Bench max": ["1"], "Accuracy Reached or Not": ["Yes"]}
    )
    other = pl.DataFrame({"a": ["1"]})
    for table, what in ((md5, "md5"), (kernels, "kernels of a static graph"), (other, "no result of compare")):
        table.write_csv(bad)
        with pytest.raises(BadInput, match=f"{bad.name}.*{what}"):
            merge(tmp_path, "api: [Distributed]")
    bad.write_bytes(b"PAR1 no parquet")
    bad.rename(bad.with_suffix(".parquet"))
    with pytest.raises(BadInput, match=r"rank1_.*parquet: cannot be read"):
        merge(tmp_path, "api: [Distributed]")
    bad.with_suffix(".parquet").unlink()
    shutil.copy(sound, tmp_path / "compare_result_0_0_20260101000001.csv")
    with pytest.raises(BadInput, match=r"compare_result_0_0_.*kernels"):
        merge(tmp_path, "api: [Distributed]")


def test_fewer_than_two_ranks_are_refused_with_what_was_found(tmp_path: Path) -> None:
    write(tmp_path, 3, call("Distributed.all_reduce.0", 1.0))
    with pytest.raises(BadInput, match="at least two ranks are needed, found: rank 3"):
        merge(tmp_path, "api: [Distributed]")
    above = tmp_path / "above"
    above.mkdir()
    write_all(above / "step0", [call("Distributed.all_reduce.0", 1.0)] * 2)
    with pytest.raises(BadInput, match="one level below, in step0"):
        merge(tmp_path, "api: [Distributed]", above)
    with pytest.raises(BadInput, match="does not exist"):
        merge(tmp_path, "api: [Distributed]", tmp_path / "missing")


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(NothingToCompare):
        merge(tmp_path, "api: [Nothing]", DATA)
    assert list((tmp_path / "out").iterdir()) == []


def test_worker_processes_give_the_same_result(tmp_path: Path) -> None:
    ranks = [call("Distributed.all_reduce.0", float(rank == 2), "[0, 1, 2]") for rank in range(3)]
    folder = write_all(tmp_path / "in", ranks)
    alone, spread = (merge(folder, "api: [Distributed]", workers=n, timestamp=f"2026010100000{n}") for n in (1, 2))
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
from twinprobe.compare.merge.job import merge_results
merge_results(*map(Path, sys.argv[1:]), workers=1)
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
    write_csv(big, first)
    for rank in range(1, 16):
        first.with_name(f"compare_result_rank{rank}_20260101000000.csv").hardlink_to(first)
    few, many = peak_mebibytes(tmp_path, 2), peak_mebibytes(tmp_path, 16)
    assert many < few + 80  # the 14 more files hold 210 MB


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=4), min_size=1, max_size=30))
def test_natural_order_is_the_order_of_the_numbers(numbers: list[list[int]]) -> None:
    names = [".".join(["a", *map(str, parts)]) for parts in numbers]
    assert [numbers[at] for at in natural_order(names)] == sorted(numbers)


@settings(deadline=None)
@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20), st.text("abcp_", min_size=1, max_size=5))
def test_both_spellings_of_a_group_name_its_ranks(ranks: list[int], label: str) -> None:
    assert group_ranks(str(ranks)) == ranks
    assert group_ranks("-".join([label, *map(str, ranks)])) == ranks
    assert group_ranks(label) == []


@pytest.mark.parametrize("form", ["csv", "xlsx", "parquet"])
def test_real_ranks_compared_by_us_merge_into_one_workbook(tmp_path: Path, reference: Path, form: str) -> None:
    dumps = reference / "msprobe" / "dumps"
    roots = dumps / "dist_b" / "step0", dumps / "dist_a" / "step0"
    request = Request(*roots, tmp_path / "results", (form,), "20260102030405", workers=1)
    run_request(request, lambda _what, _done, _total: None)
    outcome = merge(tmp_path, "api: [Distributed]\ncompare_index: [Max diff]", tmp_path / "results")
    found = sheet(outcome, "Max diff")
    assert found["Distributed.all_reduce.1.forward.input.group"] == {"rank0": "[0, 1]", "rank1": "[0, 1]"}
    cells = found["Distributed.all_reduce.0.forward.input.0"]
    assert cells["rank0"] == 0
    assert cells["rank1"] == pytest.approx(0.02, rel=1e-3)
    assert len(outcome.checks) == 5
    assert outcome.disagreements == []
