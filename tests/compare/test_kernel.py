"""Kernel compare: dumps of a static graph, by their layout, rank by rank and step by step."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe.cli import main
from twinprobe.compare.job import Request
from twinprobe.compare.kernel.job import run_kernel_request
from twinprobe.compare.kernel.pairs import (
    compare_kernel_pair,
    compare_kernels,
    is_kernel_folder,
    kernel_stem,
    pair_kernels,
)
from twinprobe.errors import BadInput, NothingToCompare
from twinprobe.report.write import write_reports
from twinprobe.runs.kernel.names import parse_kernel_name

DATA = Path(__file__).resolve().parents[1] / "data"
BASE = [
    "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
    "NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm",
    "Accuracy Reached or Not", "Err_message",
]  # fmt: skip
NPY = ["Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio"]
STATISTICS = [
    "Max diff", "Min diff", "Mean diff", "L2norm diff",
    "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr", "NPU CSV File", "Bench CSV File",
]  # fmt: skip
OURS = ["Result", "Reason", "Matched By", "Origin", "Relative Error"]
HEADER = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
    "Max Value,Min Value,Avg Value,L2Norm Value"
)


def only(target: Path, golden: Path, **filters: set[int]) -> tuple[pl.DataFrame, dict[str, int]]:
    """The result of dumps that have one rank and step in common."""
    asked = {"ranks": None, "steps": None} | filters
    ((_, _, table, verdicts),) = compare_kernels(target, golden, **asked)
    return table, verdicts


def save(root: Path, name: str, array: object, *, rank: int = 0, step: int = 0, graph: str = "Net/0") -> Path:
    """One dumped tensor; ``name`` is everything before the slot's format."""
    folder = root / f"rank_{rank}" / graph / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.DefaultFormat.Float32.npy"
    np.save(path, np.asarray(array))
    return path


def save_statistics(root: Path, lines: list[str], *, header: str = HEADER) -> Path:
    folder = root / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "statistic.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder / "statistic.csv"


def line(name: str, values: str, *, io: str = "output", slot: int = 0, time: int = 1, shape: str = "(2,3)") -> str:
    return f'MatMul,{name},0,0,{time},{io},{slot},24,Float32,"{shape}",{values}'


def test_the_real_pair_has_the_known_columns_and_true_numbers() -> None:
    table, verdicts = only(DATA / "kernel_dump_A", DATA / "kernel_dump_B")
    assert table.columns == BASE + NPY + OURS
    assert table.height == 23
    assert sum(verdicts.values()) == 23
    for row in table.iter_rows(named=True):
        target, golden = (np.load(row[f"{who} Name"]) for who in ("NPU", "Bench"))
        assert row["NPU Tensor Shape"] == str(list(target.shape))
        assert row["NPU Dtype"] == target.dtype.name
        assert float(row["NPU l2norm"]) == pytest.approx(np.linalg.norm(target.astype(float)), rel=1e-6)
        assert (row["Result"] == "pass") == np.array_equal(target, golden)
        if target.size > 1:
            t, g = target.astype(float).ravel(), golden.astype(float).ravel()
            assert float(row["Cosine"]) == pytest.approx(t @ g / np.linalg.norm(t) / np.linalg.norm(g), abs=1e-6)
            assert float(row["MaxAbsErr"]) == pytest.approx(np.abs(t - g).max(), abs=1e-9)


def test_the_real_pair_parts_at_the_first_product_because_its_weight_differs() -> None:
    pairs, notes = pair_kernels(DATA / "kernel_dump_A", DATA / "kernel_dump_B")
    assert notes == []
    first = compare_kernel_pair(pairs[0]).summary.first
    assert first is not None
    assert first.op == "MatMul.Default_inner-Inner_fc-Dense_MatMul-op0"
    assert "output.0: the output differs because an input from outside differs" in first.sentence


def test_the_reference_dumps_give_the_same_result_as_their_copies(reference: Path) -> None:
    dumps = reference / "mindspore" / "dumps"
    here, _ = only(DATA / "kernel_dump_A", DATA / "kernel_dump_B")
    there, _ = only(dumps / "kernel_dump_A", dumps / "kernel_dump_B")
    assert there.drop("NPU Name", "Bench Name").equals(here.drop("NPU Name", "Bench Name"))


def test_a_dump_against_itself_only_passes() -> None:
    table, verdicts = only(DATA / "kernel_dump_A", DATA / "kernel_dump_A")
    assert verdicts == {"pass": 23, "warning": 0, "error": 0}
    assert set(table["Matched By"]) == {"kernel"}
    assert set(table["Accuracy Reached or Not"]) == {"Yes", "None"}  # None: single elements have no cosine


def test_swapped_sides_mirror_the_result() -> None:
    one, _ = only(DATA / "kernel_dump_A", DATA / "kernel_dump_B")
    other, _ = only(DATA / "kernel_dump_B", DATA / "kernel_dump_A")
    assert one["NPU max"].to_list() == other["Bench max"].to_list()
    assert one["Cosine"].to_list() == other["Cosine"].to_list()


def test_kernels_of_one_side_only_are_listed_with_a_warning(tmp_path: Path) -> None:
    for side, own in (("t", "OnlyT"), ("g", "OnlyG")):
        save(tmp_path / side, "Add.Both.0.0.5.output.0", [1.0, 2.0])
        save(tmp_path / side, f"Add.{own}.0.0.6.output.0", [1.0, 2.0])
    table, verdicts = only(tmp_path / "t", tmp_path / "g")
    assert verdicts == {"pass": 1, "warning": 2, "error": 0}
    only_t, only_g = table.row(1, named=True), table.row(2, named=True)
    assert (only_t["Bench Name"], only_g["NPU Name"]) == ("N/A", "N/A")
    assert only_t["Reason"] == "no counterpart in the golden run"
    assert only_g["Reason"] == "no counterpart in the target run"
    assert only_t["Accuracy Reached or Not"] == only_g["Accuracy Reached or Not"] == "Unmatched"
    assert only_g["Bench Name"].endswith(".npy")


def test_a_kernel_that_runs_again_is_paired_in_the_order_of_time(tmp_path: Path) -> None:
    for side, times in (("t", (100, 20, 3)), ("g", (999, 1000, 98))):
        for time in times:
            save(tmp_path / side, f"Add.loop.0.0.{time}.output.0", [float(sorted(times).index(time)), 1.0])
    table, verdicts = only(tmp_path / "t", tmp_path / "g")
    assert verdicts == {"pass": 3, "warning": 0, "error": 0}
    assert table["NPU max"].to_list() == ["1.0", "1.0", "2.0"]


def test_graph_and_task_numbers_of_another_version_are_bridged_and_said(tmp_path: Path) -> None:
    save(tmp_path / "t", "Add.one.7.0.1.output.0", [1.0, 2.0])
    save(tmp_path / "g", "Add.one.9.0.1.output.0", [1.0, 2.0])
    save(tmp_path / "t", "Add.two.1.0.2.output.0", [1.0, 2.0], graph="Net/0")
    save(tmp_path / "g", "Add.two.1.0.2.output.0", [1.0, 2.0], graph="Net/4")
    table, verdicts = only(tmp_path / "t", tmp_path / "g")
    assert verdicts["pass"] == 2
    assert table["Matched By"].to_list() == ["kernel of another task", "kernel of another graph"]


def test_ranks_and_steps_are_filters_and_what_is_missing_is_named(tmp_path: Path) -> None:
    for side, ranks in (("t", (0, 1, 2)), ("g", (0, 1, 3))):
        for rank in ranks:
            for step in (0, 1):
                save(tmp_path / side, "Add.a.0.0.1.output.0", [1.0, 2.0], rank=rank, step=step)
    roots = tmp_path / "t", tmp_path / "g"
    notes: list[str] = []
    every = [(rank, step) for rank, step, _, _ in compare_kernels(*roots, ranks=None, steps=None, notes=notes)]
    assert every == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert any("rank 2 step 0, rank 2 step 1" in note for note in notes)
    assert any("rank 3 step 0" in note for note in notes)
    assert [(r, s) for r, s, _, _ in compare_kernels(*roots, ranks={1}, steps={0, 5})] == [(1, 0)]
    with pytest.raises(BadInput, match=r"no rank and step in common.*rank 2 step 0.*nothing there"):
        list(compare_kernels(*roots, ranks={2}, steps=None))


def test_the_layout_is_recognised_and_ordinary_dumps_are_not(tmp_path: Path) -> None:
    dump = DATA / "kernel_dump_A"
    assert is_kernel_folder(dump)
    assert is_kernel_folder(dump / "rank_0")
    assert is_kernel_folder(dump / "rank_0" / "Net" / "0" / "0")
    ordinary = tmp_path / "step0" / "rank0" / "dump_tensor_data"
    ordinary.mkdir(parents=True)
    np.save(ordinary / "Functional.linear.0.forward.output.0.npy", np.zeros(3))
    (tmp_path / "step0" / "rank0" / "dump.json").write_text("{}")
    assert not is_kernel_folder(tmp_path / "step0")
    assert not is_kernel_folder(tmp_path / "missing")
    assert not is_kernel_folder(ordinary.parent / "dump.json")
    bare = tmp_path / "bare" / "3" / "Net" / "0" / "12"
    bare.mkdir(parents=True)
    np.save(bare / "Add.a.0.0.1.output.0.DefaultFormat.Float32.npy", np.zeros(3))
    ((rank, step, _, _),) = compare_kernels(tmp_path / "bare", tmp_path / "bare", ranks=None, steps=None)
    assert (rank, step) == (3, 12)


def test_relative_paths_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA / "kernel_dump_A" / "rank_0")
    ((rank, step, table, _),) = compare_kernels(Path(), Path("../../kernel_dump_B"), ranks=None, steps=None)
    assert (rank, step, table.height) == (0, 0, 23)


def test_mapping_csv_gives_back_the_names_that_were_too_long(tmp_path: Path) -> None:
    long = "Add." + "Default_" * 40 + "Add-op0.0.0.7.output.0.DefaultFormat.Float32.npy"
    for side in ("t", "g"):
        folder = save(tmp_path / side, "Add.short.0.0.1.output.0", [1.0, 2.0]).parent
        np.save(folder / f"{side}123.npy", np.array([3.0, 4.0]))
        (folder / "mapping.csv").write_text(f"short,long\n{side}123.npy,{long}\n")
    table, verdicts = only(tmp_path / "t", tmp_path / "g")
    assert verdicts["pass"] == 2
    assert table["NPU Name"][1].endswith("t123.npy")


def test_files_that_are_no_kernels_are_left_out_with_a_note(tmp_path: Path) -> None:
    folder = save(tmp_path, "Add.a.0.0.1.output.0", [1.0, 2.0]).parent
    np.save(folder / "other.npy", np.zeros(2))
    notes: list[str] = []
    ((_, _, table, _),) = compare_kernels(tmp_path, tmp_path, ranks=None, steps=None, notes=notes)
    assert table.height == 1
    assert "other.npy" in notes[0]


def test_a_damaged_or_hostile_file_costs_its_own_row(tmp_path: Path) -> None:
    secret = tmp_path / "secret.npy"
    np.save(secret, np.ones(2))
    for side in ("t", "g"):
        for name in ("cut", "object", "linked", "sound"):
            save(tmp_path / side, f"Add.{name}.0.0.1.output.0", [1.0, 2.0])
    paths = {name: save(tmp_path / "t", f"Add.{name}.0.0.1.output.0", [1.0]) for name in ("cut", "object", "linked")}
    paths["cut"].write_bytes(paths["cut"].read_bytes()[:-4])
    np.save(paths["object"], np.array([{}], dtype=object), allow_pickle=True)
    paths["linked"].unlink()
    paths["linked"].symlink_to(secret)
    table, verdicts = only(tmp_path / "t", tmp_path / "g")
    assert verdicts == {"pass": 1, "warning": 3, "error": 0}
    reasons = dict(zip(table["Bench Name"].str.extract(r"Add\.(\w+)\."), table["Reason"], strict=True))
    assert "only 4 are there" in reasons["cut"]
    assert "Python objects" in reasons["object"]
    assert "outside of the dump" in reasons["linked"]


@pytest.mark.parametrize(
    ("target", "golden", "verdict", "accuracy"),
    [
        ([1.0, np.nan], [1.0, 2.0], "error", "No"),
        ([1.0, np.inf], [1.0, -np.inf], "error", None),
        ([1.0, 2.0, 3.0], [1.0, 2.0], "error", "Unmatched"),
        (np.ones(4, np.float16), np.ones(4, np.float32), "error", "Yes"),
        ([1.0, 2.0], [1.0, 2.0 + 1e-15], "pass", "Yes"),
        ([0.0, 100.0], [100.0, 0.0], "error", "No"),
    ],
    ids=["nan on one side", "infinities of two signs", "shape", "dtype", "rounding", "far off"],
)
def test_verdicts_tell_what_the_old_columns_hide(
    tmp_path: Path, target: object, golden: object, verdict: str, accuracy: str | None
) -> None:
    for side, array in (("t", target), ("g", golden)):
        save(tmp_path / side, "Add.a.0.0.1.input.0", [1.0, 2.0])
        save(tmp_path / side, "Add.a.0.0.2.output.0", array)
    table, _ = only(tmp_path / "t", tmp_path / "g")
    row = table.row(1, named=True)
    assert row["Result"] == verdict
    assert accuracy is None or row["Accuracy Reached or Not"] == accuracy


def test_statistics_have_the_known_columns_and_unsigned_accuracy(tmp_path: Path) -> None:
    target = save_statistics(tmp_path / "t", [line("a", "-5,-6,-5.5,10"), line("b", "1.0,-1.0,0.5,2.0", time=2)])
    save_statistics(tmp_path / "g", [line("a", "-1,-2,-1.5,4"), line("b", "1.0,-1.0,0.5,2.0", time=2)])
    table, verdicts = only(tmp_path / "t", tmp_path / "g")
    assert table.columns == BASE + STATISTICS + OURS
    a, b = table.rows(named=True)
    assert a["NPU Name"] == "a.0.output.0"
    assert a["NPU CSV File"] == str(target)
    assert (a["NPU Tensor Shape"], a["NPU Dtype"]) == ("[2, 3]", "Float32")
    assert (a["Max diff"], a["MaxRelativeErr"]) == ("4.0", "400.0%")
    assert a["Accuracy Reached or Not"] == "No"  # with signs, 4 / -1 would be below one half
    assert a["Result"] != "pass"
    assert (b["Accuracy Reached or Not"], b["Result"], b["Max diff"]) == ("Yes", "pass", "0.0")
    assert sum(verdicts.values()) == 2


def test_values_that_were_not_computed_stay_unknown_to_the_verdict(tmp_path: Path) -> None:
    save_statistics(tmp_path / "t", [line("a", "True,False,null,null"), line("b", "null,null,null,null", slot=1)])
    save_statistics(tmp_path / "g", [line("a", "True,False,null,null"), line("b", "0,0,0,0", slot=1)])
    table, _ = only(tmp_path / "t", tmp_path / "g")
    a, b = table.rows(named=True)
    assert [a[f"NPU {stat}"] for stat in ("max", "min", "mean", "l2norm")] == ["1.0", "0.0", "0", "0"]
    assert a["MeanRelativeErr"] == "N/A"
    assert a["Result"] == "pass"
    assert b["Result"] == "warning"
    assert b["Reason"] == "nothing that could be compared was recorded"


def test_nan_and_inf_in_statistics_are_told(tmp_path: Path) -> None:
    save_statistics(tmp_path / "t", [line("a", "nan,nan,nan,nan"), line("b", "inf,1,2,inf", slot=1)])
    save_statistics(tmp_path / "g", [line("a", "nan,nan,nan,nan"), line("b", "1,1,1,1", slot=1)])
    table, _ = only(tmp_path / "t", tmp_path / "g")
    a, b = table.rows(named=True)
    assert (a["Accuracy Reached or Not"], a["Result"], a["MaxRelativeErr"]) == ("Yes", "pass", "Nan")
    assert (b["Accuracy Reached or Not"], b["Result"], b["Max diff"]) == ("No", "error", "inf")


def test_a_line_that_is_cut_off_is_left_out_with_a_note(tmp_path: Path) -> None:
    path = save_statistics(tmp_path, [line("a", "1,1,1,1"), line("b", "1,1,1,1", time=2)])
    path.write_text(path.read_text()[:-30])
    notes: list[str] = []
    ((_, _, table, _),) = compare_kernels(tmp_path, tmp_path, ranks=None, steps=None, notes=notes)
    assert table["NPU Name"].to_list() == ["a.0.output.0"]
    assert "cut off" in notes[0]


def test_columns_are_found_by_their_titles(tmp_path: Path) -> None:
    save_statistics(tmp_path / "g", [line("a", "1,2,3,4")])
    header = HEADER.replace("Max Value,Min Value", "Min Value,Max Value") + ",MD5"
    save_statistics(tmp_path / "t", [line("a", "2,1,3,4,abc")], header=header)
    _, verdicts = only(tmp_path / "t", tmp_path / "g")
    assert verdicts["pass"] == 1


def test_inputs_that_cannot_be_compared_are_refused_with_their_place(tmp_path: Path) -> None:
    save(tmp_path / "npy", "Add.a.0.0.1.output.0", [1.0])
    save(tmp_path / "other", "Mul.b.0.0.1.output.0", [1.0])
    save_statistics(tmp_path / "csv", [line("a", "1,1,1,1")])
    save_statistics(tmp_path / "narrow", ["a,b"], header="a,b")
    save_statistics(tmp_path / "empty", [])
    raw = tmp_path / "bin" / "rank_0" / "Net" / "0" / "0"
    raw.mkdir(parents=True)
    (raw / "Add.a.0.0.1.bin").write_bytes(b"x")
    (tmp_path / "nothing").mkdir()
    for target, golden, what in (
        ("npy", "csv", "holds npy files, but .* holds statistic.csv"),
        ("narrow", "narrow", "has 2 columns, at least 13"),
        ("bin", "bin", "neither npy files nor statistic.csv"),
        ("nothing", "npy", "holds no kernel dump"),
        ("missing", "npy", "does not exist"),
    ):
        with pytest.raises(BadInput, match=what):
            only(tmp_path / target, tmp_path / golden)
    for target, golden in (("npy", "other"), ("empty", "csv")):
        with pytest.raises(NothingToCompare):
            only(tmp_path / target, tmp_path / golden)


@pytest.mark.parametrize(
    "option",
    [["-fm"], ["-am"], ["-cm"], ["-dm", "x.yaml"], ["-lm", "x.yaml"], ["-da"]],
    ids=lambda option: option[0],
)
def test_mapping_options_are_refused_by_name(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "-tp", str(DATA / "kernel_dump_A"), "-gp", str(DATA / "kernel_dump_B"), "-o", str(tmp_path)]
    assert main([*words, *option]) == 2
    assert f"{option[0]} (--" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_recognises_kernel_folders_by_their_layout(tmp_path: Path) -> None:
    words = ["compare", "-tp", str(DATA / "kernel_dump_A"), "-gp", str(DATA / "kernel_dump_B"), "-o", str(tmp_path)]
    assert main([*words, "--rank", "0", "--step", "0"]) == 0
    (result,) = tmp_path.iterdir()
    assert result.name.startswith("compare_result_0_0_")


def test_results_can_be_written_in_every_format(tmp_path: Path) -> None:
    pairs, _ = pair_kernels(DATA / "kernel_dump_A", DATA / "kernel_dump_B")
    result = compare_kernel_pair(pairs[0])
    stem = kernel_stem(result.rank, result.step, "20260102030405")
    files = write_reports(result.table, result.summary, tmp_path, stem, ["xlsx", "csv", "parquet", "json", "html"])
    assert [file.name.rpartition(".")[0] for file in files] == ["compare_result_0_0_20260102030405"] * 5
    assert pl.read_csv(files[1], infer_schema=False)["NPU Name"].to_list() == result.table["NPU Name"].to_list()


def test_a_request_over_several_ranks_writes_a_result_for_each(tmp_path: Path) -> None:
    for side in ("t", "g"):
        for rank in (0, 1):
            save(tmp_path / side, "Add.a.0.0.1.output.0", [1.0, 2.0], rank=rank, step=3)
    request = Request(tmp_path / "t", tmp_path / "g", tmp_path / "out", ("csv", "xlsx"), "20260102030405", workers=2)
    outcome = run_kernel_request(request, lambda _what, _done, _total: None)
    assert [summary.rank for summary in outcome.summaries] == ["step3/rank0", "step3/rank1"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"compare_result_{rank}_3_20260102030405.{form}" for rank in (0, 1) for form in ("csv", "xlsx")
    ]


def test_the_output_of_a_collective_may_have_begun_on_another_rank(tmp_path: Path) -> None:
    for side, last in (("t", 1.5), ("g", 1.0)):
        for time, kind in enumerate(("AllReduce", "Add")):
            save(tmp_path / side, f"{kind}.{kind}-op0.0.0.{time}1.input.0", np.ones(10))
            save(tmp_path / side, f"{kind}.{kind}-op0.0.0.{time}2.output.0", [1.0] * 9 + [last])
    table, _ = only(tmp_path / "t", tmp_path / "g")
    _, received, _, added = table.rows(named=True)
    assert "may have begun on another rank" in received["Reason"]
    assert (received["Origin"], added["Origin"]) == ("inherited", "injected")


part = st.text(st.characters(categories=("Lu", "Ll"), include_characters="_-"), min_size=1, max_size=12)
number = st.integers(0, 10**16).map(str)


@settings(deadline=None)
@given(part, part, number, number, number, st.sampled_from(["input", "output"]), st.integers(0, 99).map(str), part)
def test_any_kernel_name_is_read_back(
    kind: str, op: str, task: str, stream: str, time: str, io: str, slot: str, form: str
) -> None:
    found = parse_kernel_name(f"{kind}.{op}.{task}.{stream}.{time}.{io}.{slot}.{form}.Float32.npy")
    assert found is not None
    assert (found.op_type, found.op, found.task, found.time) == (kind, op, task, int(time))
    assert (found.io, found.slot) == (io, slot)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_text_upsets_the_reading_of_names(text: str) -> None:
    assert parse_kernel_name(text) is None or text.count(".") >= 5


def test_copies_of_a_dump_elsewhere_still_match(tmp_path: Path) -> None:
    shutil.copytree(DATA / "kernel_dump_A", tmp_path / "copy")
    _, verdicts = only(DATA / "kernel_dump_A", tmp_path / "copy")
    assert verdicts["pass"] == 23
