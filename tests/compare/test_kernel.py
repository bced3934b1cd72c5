"""Kernel compare: dumps of a static graph, by their layout, rank by rank and step by step."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_dumps import BASE, DATA, NPY, OURS, compare_kernels, only, save

from twinprobe._compare.kernel import compare_kernel_pair, pair_kernels
from twinprobe._runs.kernel_dump import is_kernel_folder, parse_kernel_name
from twinprobe.errors import BadInput


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
    first = compare_kernel_pair(pairs[0])[1].first
    assert first is not None
    assert first.op == "MatMul.Default_inner-Inner_fc-Dense_MatMul-op0"
    assert "input.1: it comes from outside and differs" in first.sentence


def test_the_reference_dumps_give_the_same_result_as_their_copies(reference: Path) -> None:
    dumps = reference / "mindspore" / "dumps"
    here, _ = only(DATA / "kernel_dump_A", DATA / "kernel_dump_B")
    there, _ = only(dumps / "kernel_dump_A", dumps / "kernel_dump_B")
    assert there.drop("NPU Name", "Bench Name").equals(here.drop("NPU Name", "Bench Name"))


def test_a_dump_against_itself_only_passes() -> None:
    table, verdicts = only(DATA / "kernel_dump_A", DATA / "kernel_dump_A")
    assert verdicts == {"pass": 23, "warning": 0, "error": 0}
    assert set(table["Matched By"]) == {"kernel"}
    assert set(table["Accuracy Reached or Not"]) == {"Yes"}


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
    assert "leads outside the dump" in reasons["linked"]


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
