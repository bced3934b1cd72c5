"""Ranks against one process with the commands beside compare: graph, the page, the search for the first difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from support import forward, slow, tensor, write_dump
from twinprobe._cli import main
from twinprobe._view.app import ViewApp

MODEL, UP, DOWN = "Module.model.Mlp.forward.0", "Module.model.up.Linear.forward.0", "Module.model.down.Linear.forward.0"
PARENTS = {UP: MODEL, DOWN: MODEL, MODEL: None}


def of(shape: list[int], high: float, norm: float = 3.0) -> dict[str, Any]:
    return tensor(shape=shape, high=high, low=-high, mean=0.0, norm=norm)


@pytest.fixture
def sides(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """Two tensor parallel ranks and one process; with the parameter "wrong", rank 1 has another weight."""
    wrong = getattr(request, "param", "") == "wrong"

    def calls(parts: int, rank: int) -> dict[str, Any]:
        share, scale = parts**-0.5, 1.5 if wrong and parts == 2 and rank == 1 else 1.0
        result = of([2, 4], 2.5 if not wrong or parts == 1 else 3.0)
        inner = of([2, 8 // parts], 2.0 * scale, 5.0 * share * scale)
        weight = of([8 // parts, 4], 1.0 * scale, 4.0 * share * scale)
        return {
            UP: {**forward([of([2, 4], 1.0)], [inner]), "parameters": {"weight": weight}},
            DOWN: {**forward([inner], [result]), "parameters": {"weight": of([4, 8 // parts], 1.0, 4.0 * share)}},
            MODEL: forward([of([2, 4], 1.0)], [result]),
        }

    target, golden = tmp_path / "ranks", tmp_path / "single"
    for folder, parts, rank in (
        (golden / "step0" / "proc1", 1, 0),
        *((target / "step0" / f"rank{r}", 2, r) for r in (0, 1)),
    ):
        write_dump(folder, calls(parts, rank), level="L0", parents=PARENTS, stacks={})
    for rank in range(2):
        (target / "step0" / f"rank{rank}" / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 2}))
    return target, golden


def names(sides: tuple[Path, Path], out: Path) -> list[str]:
    return ["-tp", str(sides[0]), "-gp", str(sides[1]), "-o", str(out)]


def test_a_graph_puts_ranks_together(
    sides: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph_visualize", *names(sides, tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (found,) = document["ranks"]
    assert found["rank"] == "step0_whole"
    assert found["verdicts"] == {"pass": 8, "warning": 0, "error": 0}
    assert "target: 2 ranks, layout tp=2 (found)" in document["notes"]


@pytest.mark.parametrize("sides", ["wrong"], indirect=True)
@pytest.mark.parametrize("kind", ["db", *slow("vis")])
def test_the_page_shows_where_ranks_part_from_one_process(
    sides: tuple[Path, Path], tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["graph_visualize", *names(sides, out), "--file_type", kind, "--layout", "tp=2", "--json"]) == 0
    assert (
        f"{UP}.parameters.weight: rank 1's shard differs, perhaps not alone"
        in json.loads(capsys.readouterr().out)["notes"]
    )
    first = Client(ViewApp(out)).get("/api/first").get_json()
    assert UP in json.dumps(first)


@pytest.mark.parametrize("sides", ["wrong"], indirect=True)
@pytest.mark.parametrize("engine", ["inline", *slow("process", "ray")])
def test_the_first_difference_is_found_on_every_engine(
    sides: tuple[Path, Path], tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *names(sides, tmp_path / "out"), "-da", "--engine", engine, "--workers", "2"]) == 0
    assert UP in capsys.readouterr().out
    (report,) = (tmp_path / "out" / "step0").glob("diff_analyze_*.json")
    assert UP in report.read_text()


def test_a_layout_that_does_not_fit_is_named_by_graph_which_draws_the_one_that_it_finds(
    sides: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph_visualize", *names(sides, tmp_path / "out"), "--layout", "tp=3"]) == 2
    assert "layout tp=3 makes 3 ranks, but there are 2" in capsys.readouterr().err
    assert list((tmp_path / "out").glob("**/*.vis*"))
