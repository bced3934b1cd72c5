"""Ranks that cut weights and the batch, and accumulate the gradients of micro batches, as one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinprobe._cli import main
from warm_python import run_warm

PROGRAM = Path(__file__).with_name("accumulating_shards.py")


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_table_cut_by_words_under_accumulation_agrees(
    level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is claimed of single ranks, of losses that are sums, or of the layout, which at L1 optimizers tell."""
    for ranks in (1, 4):
        done = run_warm(PROGRAM, str(tmp_path / str(ranks)), str(ranks), level)
        assert done.returncode == 0, done.stderr
    words = ["compare", "-tp", str(tmp_path / "4"), "-gp", str(tmp_path / "1"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--format", "csv"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["ranks"]
    assert [result["rank"] for result in found] == ["step0/whole", "step0/optimizer"]
    notes = found[0]["notes"]
    assert "target: 4 ranks, layout tp=2,dp=2 (found)" in notes
    assert not [note for note in notes if any(word in note for word in ("replica", "copies", "setting", "shard"))]
    assert [result["first"] for result in found] == [None, None]
    assert [result["verdicts"]["error"] for result in found] == [0, 0]
    assert found[0]["verdicts"]["pass"] > 150
