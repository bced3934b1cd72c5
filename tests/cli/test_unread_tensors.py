"""twinprobe compare where tensor files cannot be read: the recorded statistics are compared instead, and it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from support import forward, tensor, write_dump
from twinprobe._cli import main


def run_at(folder: Path, factor: float = 1.0, *, calls: int = 4) -> Path:
    """Calls in a row, each fed by the one before; from the second on, values are off by a factor."""
    store = folder / "dump_tensor_data"
    store.mkdir(parents=True)
    base = np.linspace(0.5, 2.0, 64, dtype=np.float32)
    data: dict[str, Any] = {}

    def leaf(name: str, values: np.ndarray) -> dict[str, Any]:
        np.save(store / f"{name}.npy", values)
        numbers = {"high": values.max(), "low": values.min(), "mean": values.mean(), "norm": np.linalg.norm(values)}
        found = {key: float(value) for key, value in numbers.items()}
        return tensor(shape=list(values.shape), data_name=f"{name}.npy", **found)

    for at in range(calls):
        op = f"Torch.f.{at}.forward"
        taken, given = ((base + np.float32(at + more)) * np.float32(factor if at + more > 1 else 1) for more in (0, 1))
        data[op] = forward([leaf(f"{op}.input.0", taken)], [leaf(f"{op}.output.0", given)])
    return write_dump(folder, data, task="tensor")


def lose(run: Path, *names: str) -> None:
    for file in [run.parent / "dump_tensor_data" / f"{name}.npy" for name in names] or run.parent.rglob("*.npy"):
        file.unlink()


def compare(target: Path, golden: Path, out: Path, *more: str) -> int:
    return main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), *more])


def test_where_all_tensors_of_a_side_are_gone_the_statistics_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, golden = run_at(tmp_path / "t", 3.0), run_at(tmp_path / "g")
    lose(target)
    assert compare(target, golden, tmp_path / "out", "--csv", "--fail-on", "error") == 1
    shown = capsys.readouterr().out
    assert "8 unreadable" in shown
    assert "first divergence" in shown
    assert "Torch.f.1.forward" in shown
    (csv,) = (tmp_path / "out").glob("*.csv")
    table = pl.read_csv(csv, infer_schema=False)
    same, other = table["Reason"][0], table["Reason"][3]
    assert "could not be read: " in same
    assert "Torch.f.0.forward.input.0.npy: is missing" in same
    assert "the recorded statistics are compared instead" in same
    assert table["Result"].to_list()[:4] == ["warning"] * 3 + ["error"]
    assert "norm is off by more than 50 %" in other
    assert float(table["Relative Error"][3]) == pytest.approx(2.0)
    assert table["Cosine"].to_list() == ["unsupported"] * 8


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-9], ids=["equal statistics", "a difference too small to be seen"])
def test_a_gate_does_not_pass_on_tensors_that_nobody_read(
    factor: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, golden = run_at(tmp_path / "t", factor), run_at(tmp_path / "g")
    lose(golden, "Torch.f.1.forward.output.0", "Torch.f.2.forward.input.0", "Torch.f.2.forward.output.0")
    lose(golden, "Torch.f.3.forward.input.0", "Torch.f.3.forward.output.0")
    assert compare(target, golden, tmp_path / "out", "--fail-on", "error") == 2
    said = capsys.readouterr()
    assert "ends successfully" not in said.out
    assert "5 tensors could not be read" in said.err
    assert "--allow-missing" in said.err
    assert compare(target, golden, tmp_path / "more", "--fail-on", "error", "--allow-missing") == 0
    assert "ends successfully" in capsys.readouterr().out
    assert compare(target, golden, tmp_path / "free") == 0


def test_a_first_divergence_behind_unread_rows_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chromium: Any
) -> None:
    target, golden = run_at(tmp_path / "t", 3.0), run_at(tmp_path / "g")
    lose(target, "Torch.f.0.forward.output.0", "Torch.f.1.forward.input.0", "Torch.f.3.forward.output.0")
    words = "2 rows before it could not be read: the difference may begin earlier"
    assert compare(target, golden, tmp_path / "out", "--format", "json,html") == 0
    assert words in capsys.readouterr().out
    assert compare(target, golden, tmp_path / "again", "--format", "json", "--json") == 0
    (file,) = (tmp_path / "out").glob("*.json")
    for summary in (json.loads(capsys.readouterr().out), json.loads(file.read_text())["summary"]):
        assert summary["unread"] == 3
        assert summary["first"]["op"] == "Torch.f.1.forward"
        assert words in summary["first"]["sentence"]
    page = chromium.new_page()
    (file,) = (tmp_path / "out").glob("compare_result*.html")
    page.goto(file.as_uri())
    assert words in page.inner_text("#first-sentence")
    assert "3\nunreadable" in page.inner_text("#cards")
    page.close()


def test_without_a_divergence_the_page_and_the_terminal_do_not_claim_agreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chromium: Any
) -> None:
    target, golden = run_at(tmp_path / "t"), run_at(tmp_path / "g")
    lose(target, "Torch.f.0.forward.output.0")
    assert compare(target, golden, tmp_path / "out", "--format", "html") == 0
    words = "1 row could not be read"
    assert words in capsys.readouterr().out
    page = chromium.new_page()
    (file,) = (tmp_path / "out").glob("compare_result*.html")
    page.goto(file.as_uri())
    assert words in page.inner_text("#first-sentence")
    page.close()


def test_over_all_ranks_unread_rows_are_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        target = run_at(tmp_path / "t" / f"rank{rank}", 3.0 if rank else 1.0)
        run_at(tmp_path / "g" / f"rank{rank}")
    lose(target, "Torch.f.0.forward.output.0")
    sides = tmp_path / "t", tmp_path / "g"
    words = "1 row could not be read: a difference may begin earlier"
    assert compare(*sides, tmp_path / "out", "--format", "dataset") == 0
    shown = capsys.readouterr().out
    assert "unreadable" in shown
    assert words in shown
    (file,) = (tmp_path / "out").glob("compare_summary_*.json")
    summary = json.loads(file.read_text())
    assert summary["unread"] == 1
    assert [entry["unread"] for entry in summary["map"]] == [0, 1]
    assert compare(*sides, tmp_path / "da", "-da") == 0
    assert words in capsys.readouterr().out


def test_runs_whose_differing_tensors_are_gone_are_not_said_to_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, golden = run_at(tmp_path / "t"), run_at(tmp_path / "g")
    lose(target)
    for form in (["-da"], ["--format", "dataset", "--engine", "inline"]):
        assert compare(target, golden, tmp_path / form[0], *form, "--json") == 0
        assert "the runs agree" not in capsys.readouterr().out


def test_the_graph_command_counts_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = run_at(tmp_path / "t"), run_at(tmp_path / "g")
    for run in (target, golden):
        names = json.loads(run.read_text())["data"]
        (run.parent / "construct.json").write_text(json.dumps(dict.fromkeys(names)))
        (run.parent / "stack.json").write_text("{}")
    lose(target, "Torch.f.0.forward.output.0")
    assert main(["graph_visualize", "-tp", str(target.parent), "-gp", str(golden.parent), "-o", str(tmp_path)]) == 0
    assert "1 row could not be read" in capsys.readouterr().out
