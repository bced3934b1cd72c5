"""Two real ranks with a fault planted in one of them: the comparison names the rank and the call."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from rank_programs import start_ranks

from warm_python import run_warm

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not built in")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ranks")
    sides = ("golden", "again", "target")
    start_ranks("ring", folder, *sides)
    return {side: folder / "dump" / side / "step0" for side in sides}


def compare(target: Path, golden: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from twinprobe._cli import main; sys.exit(main(sys.argv[1:]))"
    paths = ["-tp", str(target), "-gp", str(golden), "-o", str(out)]
    return run_warm(code, "compare", *paths, "--csv", *words)


@pytest.mark.parametrize("words", [(), ("-da",)])
def test_equal_runs_of_two_ranks_agree(dumps: dict[str, Path], tmp_path: Path, words: tuple[str, ...]) -> None:
    done = compare(dumps["again"], dumps["golden"], tmp_path, *words, "--fail-on", "warning")
    assert done.returncode == 0, done.stdout + done.stderr


FAULT = "Module.ring.scaled.Scaled.forward.0"


def test_the_first_difference_over_all_ranks_is_the_planted_one(dumps: dict[str, Path], tmp_path: Path) -> None:
    done = compare(dumps["target"], dumps["golden"], tmp_path, "-da", "--json", "--fail-on", "warning")
    assert done.returncode == 1, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding.startswith(f"rank 1: the difference begins at {FAULT}")
    assert "rank 0 differs as well" in finding
    assert "rank_programs.py" in finding
    (report,) = tmp_path.glob("diff_analyze_*.json")
    (culprit,) = json.loads(report.read_text(encoding="utf-8"))["rank_1"]
    assert culprit["op_name"] == FAULT
    assert any("rank_programs.py" in frame and "self.scaled(" in frame for frame in culprit["stack_info"])


def test_each_rank_alone_shows_what_it_saw(dumps: dict[str, Path], tmp_path: Path) -> None:
    done = compare(dumps["target"], dumps["golden"], tmp_path, "--json")
    runs = {one["rank"]: one for one in json.loads(done.stdout)["ranks"]}
    assert runs["rank1"]["first"]["op"] == FAULT
    assert runs["rank1"]["first"]["origin"] == "injected"
    assert runs["rank0"]["verdicts"]["warning"] + runs["rank0"]["verdicts"]["error"] > 0
