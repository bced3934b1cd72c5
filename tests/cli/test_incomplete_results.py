"""What was asked for and is not in the result ends in exit code 2, unless --allow-missing is given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from support import forward, slow, tensor, write_dump
from twinprobe._cli import main

CALL = {"Torch.f.0.forward": forward([tensor()], [tensor()])}


def run_at(folder: Path) -> None:
    write_dump(folder, CALL, parents=dict.fromkeys(CALL), stacks={})


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Two runs of three ranks and two steps."""
    for side in "tg":
        for step in range(2):
            for rank in range(3):
                run_at(tmp_path / side / f"step{step}" / f"rank{rank}")
    return tmp_path


def said_of(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> tuple[str, str]:
    assert main([*map(str, words)]) == code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert ("ends successfully" in said.out) == (code == 0 and "--json" not in words)
    return said.out, said.err


def _break_off(path: Path) -> None:
    more = {f"Torch.f.{number}.forward": forward([tensor()], [tensor()]) for number in range(3)}
    write_dump(path.parent, more)
    text = path.read_text()
    path.write_text(text[: text.index("Torch.f.1.forward") + 60])


LOSSES: dict[str, tuple[Any, list[str], str]] = {
    "a rank on one side": (lambda d: shutil.rmtree(d / "t/step0/rank1"), [], "rank1"),
    "a step on one side": (lambda d: shutil.rmtree(d / "g/step1"), [], "step1"),
    "a rank without its dump": (lambda d: (d / "t/step0/rank2/dump.json").unlink(), [], "rank2"),
    "a damaged rank": (lambda d: (d / "g/step1/rank0/dump.json").write_text("no json"), [], "rank0"),
    "a dump that breaks off": (lambda d: _break_off(d / "g/step1/rank0/dump.json"), [], "breaks off after 1 whole"),
    "a rank that was asked for": (lambda _: None, ["--rank", "0,7"], "rank7"),
    "a step that was asked for": (lambda _: None, ["--step", "0,9"], "step9"),
    "one of two files": (
        lambda d: write_dump(d / "t/step0/rank0", {"x.0.debug": tensor()}, name="debug.json", level="debug"),
        [], "debug.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize("analyze", [[], *slow(["-da"])], ids=["compare", "-da"])
@pytest.mark.parametrize("loss", LOSSES)
def test_compare(loss: str, analyze: list[str], dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lose, options, named = LOSSES[loss]
    lose(dumps)
    words = ["compare", "-tp", dumps / "t", "-gp", dumps / "g", "--format", "csv", *options, *analyze]
    _, error = said_of(capsys, 2, *words, "-o", dumps / "out")
    last = error.splitlines()[-1]
    assert last.startswith("twinprobe: error: the result is incomplete: ")
    assert named in last
    assert "--allow-missing" in last
    written = len(list((dumps / "out").rglob("compare_result_*")))
    assert written >= 2
    _, error = said_of(capsys, 0, *words, "-o", dumps / "more", "--allow-missing")
    assert any(line.startswith("warning: ") and named in line for line in error.splitlines())
    assert len(list((dumps / "more").rglob("compare_result_*"))) == written
    shown, _ = said_of(capsys, 2, *words, "-o", dumps / "json", "--json")
    assert any(named in failure for failure in json.loads(shown)["failures"])


def test_with_lost_ranks_nobody_claims_that_the_runs_agree(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(dumps / "t/step0/rank1")
    (dumps / "t/step1/rank1/dump.json").write_text("no json")
    words = ["compare", "-tp", dumps / "t", "-gp", dumps / "g"]
    for options in (["-da"], ["--format", "dataset"]):
        shown, _ = said_of(capsys, 2, *words, *options, "-o", dumps / options[0])
        assert "the runs agree" not in shown
        assert "no call differs in what could be compared" in shown
        assert "not everything was compared: a difference may begin there" in shown
    (file,) = (dumps / "--format").glob("compare_summary_*.json")
    found = json.loads(file.read_text())
    assert [("rank1" in failure) for failure in found["failures"]] == [True, True]


def test_a_step_in_which_neither_side_recorded_anything_is_not_missing(
    dumps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recorder that is stopped right after a step leaves such a one behind."""
    for side in "tg":
        write_dump(dumps / side / "step2" / "rank0", {}, parents={}, stacks={})
    words = ["-tp", dumps / "t", "-gp", dumps / "g", "-o", dumps / "out", "--engine", "inline"]
    _, error = said_of(capsys, 0, "compare", *words)
    assert "step2" in error
    _, error = said_of(capsys, 0, "graph_visualize", *words)
    assert "step2" in error
    said_of(capsys, 0, "graph_visualize", "-tp", dumps / "t", "-o", dumps / "one", "--engine", "inline")
    write_dump(dumps / "t" / "step2" / "rank0", CALL, parents=dict.fromkeys(CALL), stacks={})
    said_of(capsys, 2, "compare", *words)
    said_of(capsys, 2, "graph_visualize", *words)


def test_a_verdict_and_a_lost_rank_are_exit_code_2(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dump(dumps / "t/step0/rank0", {"Torch.f.0.forward": forward([tensor()], [tensor(norm=9.0)])})
    words = ["compare", "-tp", dumps / "t/step0", "-gp", dumps / "g/step0", "-o", dumps / "out", "--fail-on", "error"]
    assert main([*map(str, words)]) == 1
    capsys.readouterr()
    shutil.rmtree(dumps / "g/step0/rank2")
    said_of(capsys, 2, *words)
    assert main([*map(str, words), "--allow-missing"]) == 1


@pytest.mark.parametrize("loss", ["a rank on one side", "a damaged rank"])
def test_graph(loss: str, dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lose, _, named = LOSSES[loss]
    lose(dumps)
    words = ["graph_visualize", "-tp", dumps / "t", "-gp", dumps / "g", "--engine", "inline", "-o"]
    _, error = said_of(capsys, 2, *words, dumps / "out")
    assert named in error.splitlines()[-1]
    assert list((dumps / "out").glob("*.vis.db"))
    said_of(capsys, 0, *words, dumps / "more", "--allow-missing")
    shown, _ = said_of(capsys, 2, *words, dumps / "json", "--json")
    assert any(named in failure for failure in json.loads(shown)["failures"])


def test_graph_of_one_run(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dumps / "t/step0/rank1/dump.json").write_text("no json")
    (dumps / "compare.json").write_text(json.dumps({"npu_path": str(dumps / "t")}))
    words = ["graph", "-i", dumps / "compare.json", "--engine", "inline", "-o"]
    said_of(capsys, 2, *words, dumps / "out")
    assert len(list((dumps / "out").glob("*.vis"))) == 5
    said_of(capsys, 0, *words, dumps / "more", "--allow-missing")


def test_merge_result(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare = ["compare", "-tp", dumps / "t/step0", "-gp", dumps / "g/step0", "--quiet"]
    assert main([*map(str, compare), "-o", str(dumps / "results"), "--format", "parquet"]) == 0
    (dumps / "merge.yaml").write_text("api: [Torch.f]\n")
    (damaged,) = (dumps / "results").glob("*rank1*")
    damaged.write_bytes(b"PAR1 no parquet")
    words = ["merge_result", "-i", dumps / "results", "-config", dumps / "merge.yaml", "-o"]
    shown, error = said_of(capsys, 2, *words, dumps / "out")
    assert damaged.name in error.splitlines()[-1]
    assert "2 ranks, " in shown
    assert list((dumps / "out").glob("*.xlsx"))
    said_of(capsys, 0, *words, dumps / "more", "--allow-missing")


def test_merge_result_knows_which_ranks_compare_lost(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dumps / "t/step0/rank1/dump.json").write_text("no json")
    compare = ["compare", "-tp", dumps / "t/step0", "-gp", dumps / "g/step0", "--quiet", "-o", dumps / "results"]
    assert main([*map(str, compare), "--format", "dataset"]) == 2
    (dumps / "merge.yaml").write_text("api: [Torch.f]\n")
    words = ["merge_result", "-i", dumps / "results", "-config", dumps / "merge.yaml", "-o"]
    _, error = said_of(capsys, 2, *words, dumps / "out")
    assert "rank1" in error.splitlines()[-1]
    said_of(capsys, 0, *words, dumps / "more", "--allow-missing")


def test_a_rank_lost_among_many_is_told_in_the_overview(tmp_path: Path) -> None:
    for side, ranks in (("t", range(18)), ("g", range(17))):
        for rank in ranks:
            run_at(tmp_path / side / f"rank{rank}")
    words = ["compare", "-tp", tmp_path / "t", "-gp", tmp_path / "g", "-o", tmp_path / "out", "--quiet"]
    assert main([*map(str, words)]) == 2
    (file,) = (tmp_path / "out").glob("compare_summary_*.json")
    found = json.loads(file.read_text())
    assert [failure for failure in found["failures"] if "rank17" in failure]
    assert pl.read_parquet(tmp_path / "out/compare_dataset_*/step=0/rank=*/part.parquet").height == 17 * 2
