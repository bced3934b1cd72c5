"""Paths that are no dumps, dumps of other models, trees that are no trees: one line, and exit code 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from llm_command import Run
from llm_dumps import Sizes, atb_layer, atb_model, decoder_values, write_atb_model


def test_bad_input_is_told_in_one_line_with_exit_code_2(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    empty, both = tmp_path / "empty", tmp_path / "both"
    empty.mkdir()
    shutil.copytree(golden.parent, both / "7_npu0")
    shutil.copytree(tmp_path / "ait_dump", both / "ait_dump")
    cases = [
        ((golden, tmp_path / "nowhere"), "does not exist"),
        ((empty, mine), "neither a torch dump nor an ATB dump"),
        ((golden / "root" / "output.pth", mine), "is a file"),
        ((golden, mine / "1_CommonLayer"), "inside a token"),
        ((both, mine), "several dumps"),
    ]
    for (gold, my), words in cases:
        said = llm("compare", "-gp", gold, "-mp", my, "-o", tmp_path / "o")
        assert said.code == 2, words
        assert words in said.err
        assert said.err.count("\n") == 1
        assert "Traceback" not in said.err


def test_dumps_of_different_models_are_told(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, _ = dumps
    sizes = Sizes(layers=3, hidden=8, kv=8, wide=12, vocab=10)
    other = write_atb_model(
        tmp_path / "b" / "ait_dump", "0_8", {0: decoder_values(sizes, 5)}, atb_model(3, atb_layer())
    )
    said = llm("compare", "-gp", golden, "-mp", other, "-o", tmp_path / "o")
    assert said.code == 0
    assert "my run has 3 layers, the golden one 2" in said.out
    tiny = Sizes(layers=1, hidden=5, kv=5, wide=3, vocab=3, rows=7)
    stranger = write_atb_model(tmp_path / "c" / "ait_dump", "0_8", {0: decoder_values(tiny)}, atb_model(1, atb_layer()))
    said = llm("compare", "-gp", golden, "-mp", stranger, "-o", tmp_path / "o2")
    assert said.code == 2
    assert "no tensor has a counterpart" in said.err


@pytest.mark.parametrize("text", ["{", "[]", '{"name": 3}', '{"name": "root", "children": 1}', "x" * 10])
def test_a_tree_that_is_no_tree_is_refused(llm: Run, dumps: tuple[Path, Path], tmp_path: Path, text: str) -> None:
    golden, mine = dumps
    (golden.parent / "model_tree.json").write_text(text)
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o")
    assert said.code == 2
    assert "model_tree.json" in said.err


def test_a_topology_of_another_run_is_refused(llm: Run, dumps: tuple[Path, Path], tmp_path: Path) -> None:
    golden, mine = dumps
    topology = next(tmp_path.glob("ait_dump/model/8/*.json"))
    topology.write_text('{"nodes": [{"opName": "Other_0", "opType": "Other"}]}')
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o")
    assert said.code == 2
    assert "another run" in said.err
    topology.write_text("{}")
    assert "not an ATB topology" in llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o").err
