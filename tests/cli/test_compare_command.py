"""twinprobe compare, as a user runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import openpyxl
import polars as pl
import pytest

from support import forward, tensor, write_dump
from twinprobe._cli import main

Runs = tuple[Path, Path]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Two runs of three calls; the second call of the target is off by five per cent."""

    def data(norm: float) -> dict:
        return {
            "Functional.linear.0.forward": forward([tensor(norm=1.0)], [tensor(norm=2.0)]),
            "Torch.matmul.0.forward": forward([tensor(norm=2.0)], [tensor(norm=norm)]),
            "Tensor.add.0.forward": forward([tensor(norm=norm)], [tensor(norm=norm + 1)]),
        }

    frames = [
        "File /env/site-packages/torch/x.py, line 9, in f, \n g()",
        "File train.py, line 7, in step, \n y = a @ b",
    ]
    stacks = {"0": [["Torch.matmul.0.forward"], frames]}
    return (
        write_dump(tmp_path / "target", data(3.15), stacks=stacks),
        write_dump(tmp_path / "golden", data(3.0), stacks=stacks),
    )


def compare(runs: Runs, out: Path, *more: str) -> int:
    return main(["compare", "-tp", str(runs[0]), "-gp", str(runs[1]), "-o", str(out), *more])


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def test_the_last_line_says_that_it_went_well(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(runs, tmp_path / "out") == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-1].endswith("compare ends successfully.")


def test_the_summary_names_the_first_divergence_its_line_and_both_values(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(runs, tmp_path / "out")
    shown = capsys.readouterr().out
    for text in ("6 rows", "6 matched", "Torch.matmul.0.forward", "train.py:7", "3.15", "3.0", "injected"):
        assert text in shown


def test_the_default_result_is_one_xlsx(runs: Runs, tmp_path: Path) -> None:
    compare(runs, tmp_path / "out")
    path = only(tmp_path / "out", "*")
    assert path.name.startswith("compare_result_2")
    assert path.suffix == ".xlsx"
    sheet = openpyxl.load_workbook(path)["Sheet1"]
    assert sheet.max_row == 7
    assert sheet["A2"].value == "Functional.linear.0.forward.input.0"


@pytest.mark.parametrize(
    ("options", "suffixes"),
    [
        (["--csv"], {".csv"}),
        (["--xlsx"], {".xlsx"}),
        (["--csv", "--xlsx"], {".csv", ".xlsx"}),
        (["--format", "csv,parquet,json,html"], {".csv", ".parquet", ".json", ".html"}),
    ],
)
def test_formats_can_be_chosen(runs: Runs, tmp_path: Path, options: list[str], suffixes: set[str]) -> None:
    assert compare(runs, tmp_path / "out", *options) == 0
    assert {path.suffix for path in (tmp_path / "out").glob("compare_result_*")} == suffixes


def test_all_formats_tell_the_same(runs: Runs, tmp_path: Path) -> None:
    compare(runs, tmp_path / "out", "--format", "csv,parquet,json")
    with only(tmp_path / "out", "*.csv").open(newline="") as file:
        from_csv = [row["Result"] for row in csv.DictReader(file)]
    from_parquet = pl.read_parquet(only(tmp_path / "out", "*.parquet"))["Result"].to_list()
    document = json.loads(only(tmp_path / "out", "*.json").read_text())
    place = document["columns"].index("Result")
    from_json = [row[place] if isinstance(row, list) else row["Result"] for row in document["rows"]]
    assert from_csv == from_parquet == from_json == ["pass", "pass", "pass", "warning", "warning", "warning"]


def test_json_is_one_object_on_standard_output(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(runs, tmp_path / "out", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["first"]["op"] == "Torch.matmul.0.forward"
    assert document["verdicts"] == {"pass": 3, "warning": 3, "error": 0}


def test_quiet_prints_nothing(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(runs, tmp_path / "out", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("level", "code"), [("divergence", 1), ("error", 1), ("warning", 1)])
def test_the_exit_code_can_tell_of_a_divergence(runs: Runs, tmp_path: Path, level: str, code: int) -> None:
    assert compare(runs, tmp_path / "out", "--fail-on", level) == code


def test_the_row_log_has_a_line_per_row(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare(runs, tmp_path / "out", "-tensor_log")
    assert capsys.readouterr().err.count("<->") == 6


def test_the_framework_word_before_the_command_is_accepted(runs: Runs, tmp_path: Path) -> None:
    target, golden = map(str, runs)
    words = ["-f", "pytorch", "compare", "--target_path", target, "--golden_path", golden, "-o", str(tmp_path / "out")]
    assert main(words) == 0


def test_output_without_a_value_means_the_folder_output(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "-tp", str(runs[0]), "-gp", str(runs[1]), "-o"]) == 0
    assert only(tmp_path / "output", "*.xlsx")


def test_single_points_get_names_of_their_own(tmp_path: Path) -> None:
    def saved(side: str, norm: float) -> Path:
        data = {"loss.0.debug": tensor(norm=norm), "pair.0.debug": {"a": [tensor(), None]}}
        return write_dump(tmp_path / side, data, name="debug.json", level="debug")

    assert compare((saved("t", 2.0), saved("g", 2.5)), tmp_path / "out", "--csv") == 0
    path = only(tmp_path / "out", "*")
    assert path.name.startswith("debug_compare_result_2")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["NPU Name"] for row in rows] == ["loss.0.debug", "pair.0.debug.a.0", "pair.0.debug.a.1"]
    assert [row["Result"] for row in rows] == ["warning", "pass", "pass"]


def test_a_killed_recording_can_be_compared(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(runs[0].read_text())
    data = document.pop("data")
    lines = [json.dumps(document), *(json.dumps({name: entry}) for name, entry in list(data.items())[:2])]
    part = tmp_path / "killed" / "dump.json.part"
    part.parent.mkdir()
    part.write_text("\n".join(lines) + '\n{"Tensor.add')
    assert compare((part, runs[1]), tmp_path / "out", "--csv", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["matched"] == 4
    assert any("did not finish" in note for note in document["notes"])


def test_commands_of_older_tools_that_are_not_taken_over_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["acc_check"])
    assert caught.value.code == 2
    assert "not part of TwinProbe" in capsys.readouterr().err
