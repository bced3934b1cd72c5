"""Own metrics of a user: a column of their own, and what happens when they are wrong, hang or die."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path

import pytest
from llm_command import Run, report


def algorithm(tmp_path: Path, body: str) -> str:
    path = tmp_path / "own.py"
    path.write_text(f"def own(golden, my):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n")
    return f"{path}:own"


def test_own_metrics_get_a_column(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    spec = algorithm(tmp_path, "return float(abs(golden - my).max()), 'seen' if golden.size == 40 else ''")
    assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o", "-alg", spec).code == 0
    rows = report(tmp_path / "o")
    for row in rows:
        assert float(row["own"]) == pytest.approx(float(row["max_absolute_error"]), abs=1e-6)
    assert any(row["cmp_fail_reason"] == "seen" for row in rows)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 1", "a value and a text"),
        ("return [1], 'x'", "a number or a text"),
        ("raise RuntimeError('broken')", "broken"),
        ("import os; os._exit(3)", "died"),
    ],
)
def test_own_metrics_that_cannot_work_are_refused_at_once(
    llm: Run, dumps: tuple[Path, Path], tmp_path: Path, body: str, words: str
) -> None:
    golden, mine = dumps
    spec = algorithm(tmp_path, body)
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o", "-alg", spec)
    assert said.code == 2
    assert words in said.err
    assert not list(tmp_path.glob("o/*.csv"))


@pytest.mark.parametrize(
    ("body", "words", "seconds"),
    [
        ("import time\nif golden.size > 1: time.sleep(3600)\nreturn 1, ''", "no answer within", 1),
        ("import os\nif golden.size > 1: os._exit(3)\nreturn 1, ''", "died", 600),
    ],
)
def test_own_metrics_that_hang_or_die_cost_their_cells_only(
    llm: Run, dumps: tuple[Path, Path], tmp_path: Path, body: str, words: str, seconds: int
) -> None:
    golden, mine = dumps
    spec = algorithm(tmp_path, body)
    began = time.monotonic()
    asked = ("-gp", golden, "-mp", mine, "-cl", "layer", "-o", tmp_path / "o", "-alg", spec)
    said = llm("compare", *asked, "--timeout", seconds)
    assert time.monotonic() - began < 3600
    assert said.code == 0, said.err
    rows = report(tmp_path / "o")
    assert all(row["own"] == "" and row["cosine_similarity"] for row in rows)
    assert words in rows[0]["cmp_fail_reason"]
    assert "not called again" in rows[-1]["cmp_fail_reason"]
