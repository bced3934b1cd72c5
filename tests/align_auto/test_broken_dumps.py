"""Dumps that no recorder writes: alignment ends, and says what it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import forward, tensor, write_dump
from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.auto.tree import ROOT, call_tree
from twinprobe._align.calls import RunCalls
from twinprobe._runs.run import Run, open_run


def _run(folder: Path, names: list[str], parents: dict[str, object] | None, **leaf: object) -> Run:
    data = {name: forward([tensor(**leaf)], [tensor(**leaf)]) for name in names}  # type: ignore[arg-type]
    return open_run(write_dump(folder, data, parents=parents))


def test_a_circle_of_parents_is_cut(tmp_path: Path) -> None:
    names = [f"Module.{word}.Block.forward.0" for word in ("a", "b", "c")]
    run = _run(tmp_path, names, {names[0]: names[1], names[1]: names[2], names[2]: names[0]})
    tree = call_tree(RunCalls(run))
    assert sorted(tree.in_order) == list(range(len(tree)))
    align_runs(run, run)


def test_modules_without_values_still_nest(tmp_path: Path) -> None:
    inner, middle, outer = (f"Module.{path}.Block.forward.0" for path in ("a.b.c", "a.b", "a"))
    run = _run(tmp_path, [inner, outer], {inner: middle, middle: outer, outer: None})
    tree = call_tree(RunCalls(run))
    number = {name: node for node, name in enumerate(tree.name)}
    assert tree.parent[number[inner]] == number[middle]
    assert tree.parent[number[middle]] == number[outer]
    assert tree.parent[number[outer]] == ROOT


def test_without_a_hierarchy_paths_tell_the_nesting(tmp_path: Path) -> None:
    names = [
        "Module.a.b.Linear.forward.0",
        "Module.a.Block.forward.0",
        "Module.a.b.Linear.forward.1",
        "Module.a.Block.forward.1",
    ]
    run = _run(tmp_path, names, None)
    tree = call_tree(RunCalls(run))
    number = {name: node for node, name in enumerate(tree.name)}
    assert tree.parent[number[names[0]]] == number[names[1]]
    assert tree.parent[number[names[2]]] == number[names[3]]
    assert any("no construct.json" in note for note in align_runs(run, run).notes)


@pytest.mark.parametrize("shape", [[], [0], [1] * 60, [2, 0, 3]])
def test_odd_shapes_do_no_harm(tmp_path: Path, shape: list[int]) -> None:
    name = "Module.a.Linear.forward.0"
    run = _run(tmp_path, [name, "Torch.add.0.forward"], {name: None}, shape=shape)
    align_runs(run, run)


@pytest.mark.parametrize("norm", [None, "nan", "inf", 0.0, -1.0])
def test_odd_statistics_do_no_harm(tmp_path: Path, norm: object) -> None:
    name = "Module.a.Linear.forward.0"
    run = _run(tmp_path, [name, "Torch.add.0.forward"], {name: None}, norm=norm)
    found = align_runs(run, run)
    assert [one.target for one in found.relations] == [(name,), ("Torch.add.0.forward",)]


def test_names_outside_the_grammar_are_kept_apart(tmp_path: Path) -> None:
    names = [
        "Module.forward.0",
        "Module..Linear.forward.0",
        "x.forward",
        "Module.é.中.forward.0",
        "Torch.add.0.forward",
    ]
    run = _run(tmp_path, names, dict.fromkeys(names))
    align_runs(run, run)
