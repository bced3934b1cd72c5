"""Kernel compare: statistic.csv on both sides."""

from __future__ import annotations

from pathlib import Path

from kernel_dumps import BASE, HEADER, OURS, STATISTICS, compare_kernels, line, only, save_statistics


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
