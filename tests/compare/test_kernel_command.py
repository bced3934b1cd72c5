"""Kernel compare as a command: what it takes, refuses and writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from kernel_dumps import DATA, line, only, save, save_statistics

from twinprobe._cli import main
from twinprobe._compare.kernel import compare_kernel_pair, pair_kernels, run_kernel_request
from twinprobe._compare.request import Request
from twinprobe._scale.engine import EngineOptions
from twinprobe.errors import BadInput, NothingToCompare


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


def test_a_rank_that_one_side_lacks_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, ranks in (("t", (0, 1)), ("g", (0,))):
        for rank in ranks:
            save(tmp_path / side, "Add.a.0.0.1.output.0", [1.0, 2.0], rank=rank, step=3)
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "--csv", "-o"]
    assert main([*words, str(tmp_path / "out")]) == 2
    assert "the result is incomplete: only " in capsys.readouterr().err
    assert list((tmp_path / "out").glob("compare_result_0_3_*"))
    assert main([*words, str(tmp_path / "more"), "--allow-missing"]) == 0
    assert main([*words, str(tmp_path / "asked"), "--rank", "0,5"]) == 2
    assert "no dump has rank 5" in capsys.readouterr().err


def test_results_can_be_written_in_every_format(tmp_path: Path) -> None:
    roots = DATA / "kernel_dump_A", DATA / "kernel_dump_B"
    formats = ("xlsx", "csv", "parquet", "json", "html")
    outcome = run_kernel_request(
        Request(*roots, tmp_path, formats, "20260102030405"), lambda _what, _done, _total: None
    )
    files = [Path(file) for file in outcome.summaries[0].files]
    assert [file.name for file in files] == [f"compare_result_0_0_20260102030405.{suffix}" for suffix in formats]
    table, _ = compare_kernel_pair(pair_kernels(*roots)[0][0])
    assert pl.read_csv(files[1], infer_schema=False)["NPU Name"].to_list() == table["NPU Name"].to_list()


def test_a_request_over_several_ranks_writes_a_result_for_each(tmp_path: Path) -> None:
    for side in ("t", "g"):
        for rank in (0, 1):
            save(tmp_path / side, "Add.a.0.0.1.output.0", [1.0, 2.0], rank=rank, step=3)
    request = Request(
        tmp_path / "t",
        tmp_path / "g",
        tmp_path / "out",
        ("csv", "xlsx"),
        "20260102030405",
        engine=EngineOptions(workers=2),
    )
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


@pytest.mark.parametrize(
    ("mine", "theirs", "reached"),
    [
        (np.bool_(True), np.bool_(True), "Yes"),
        (np.bool_(True), np.bool_(False), "No"),
        (np.int64(0), np.int64(0), "Yes"),
        (np.int64(3), np.int64(4), "No"),
        (np.array([2**60]), np.array([2**60 + 1]), "No"),
        (np.float32(3), np.float32(3.0001), "Yes"),
        (np.float32(0.01), np.float32(-0.01), "No"),
        (np.array([], np.float32), np.array([], np.float32), "None"),
    ],
    ids=str,
)
def test_single_numbers_and_flags_are_answered_too(mine: object, theirs: object, reached: str, tmp_path: Path) -> None:
    for side, value in (("a", mine), ("b", theirs)):
        save(tmp_path / side, "MatMul.m.0.0.1.input.2", value)
    words = ["-tp", str(tmp_path / "a"), "-gp", str(tmp_path / "b"), "-o", str(tmp_path / "out"), "--format", "csv"]
    assert main(["compare", *words, "--rank", "0", "--step", "0"]) == 0
    (file,) = (tmp_path / "out").glob("compare_result_0_0_*.csv")
    assert pl.read_csv(file, infer_schema_length=0)["Accuracy Reached or Not"].to_list() == [reached]
