"""What holds for every alignment: a run fits itself, swapped runs mirror, order and nesting are kept."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import forward, tensor, write_dump
from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.auto.alignment import Alignment
from twinprobe._align.auto.tree import CallTree, Facts, call_tree
from twinprobe._align.calls import RunCalls
from twinprobe._runs.run import Run, open_run

WORDS = ("attn", "mlp", "norm", "q_proj", "fc1", "dense", "wrap", "layers.0", "layers.1")
CLASSES = ("Linear", "LayerNorm", "Block", "Embedding", "ReLU", "Dense")
APIS = ("Torch.add", "Functional.linear", "Tensor.__add__", "Functional.relu", "Torch.matmul")
quick = settings(deadline=None, max_examples=60)


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, str | None]]:
    """A random tree of modules and calls with random shapes and statistics."""
    data: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    numbers = itertools.count()

    def leaf() -> dict[str, Any]:
        size = draw(st.sampled_from([2, 3, 4]))
        known = draw(st.booleans())
        return tensor(shape=[2, size], norm=draw(st.sampled_from([1.0, 2.0, 3.0])) if known else None)

    def grow(path: str, parent: str | None, depth: int) -> None:
        for _ in range(draw(st.integers(0, 3 if depth else 4))):
            if draw(st.booleans()):
                name = f"{draw(st.sampled_from(APIS))}.{next(numbers)}.forward"
            else:
                own = f"{path}{draw(st.sampled_from(WORDS))}{next(numbers)}"
                name = f"Module.{own}.{draw(st.sampled_from(CLASSES))}.forward.0"
                if depth < 3:
                    grow(own + ".", name, depth + 1)
            entry = forward([leaf()], [leaf()])
            if name.startswith("Module") and draw(st.booleans()):
                entry["parameters"] = {"weight": leaf()}
            data[name] = entry
            parents[name] = parent

    grow("", None, 0)
    data["Torch.relu.999.forward"] = forward([leaf()], [leaf()])
    parents["Torch.relu.999.forward"] = None
    return data, parents


@st.composite
def changed_runs(draw: st.DrawFn) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """A run, and the same with other names, a wrapper around parts of it, and some calls left out."""
    data, parents = draw(runs())
    renamed = dict(zip(WORDS, draw(st.permutations(WORDS)), strict=True)) if draw(st.booleans()) else {}
    wrapped = draw(st.booleans())

    def name(old: str) -> str:
        if not old.startswith("Module."):
            return old
        for word, new in renamed.items():
            old = old.replace(f".{word}", f".<{new}>")
        old = old.replace("<", "").replace(">", "")
        return old.replace("Module.", "Module.outer.", 1) if wrapped else old

    around = "Module.outer.Wrapper.forward.0"
    new_data, new_parents = {}, {}
    for old, entry in data.items():
        if "999" in old or old in parents.values() or draw(st.integers(0, 9)):
            new_data[name(old)] = entry
            parent = parents[old]
            new_parents[name(old)] = name(parent) if parent else around if wrapped else None
    if wrapped:
        new_data[around] = forward([tensor()], [tensor()])
        new_parents[around] = None
    return (data, parents), (new_data, new_parents)


def _open(folder: Path, model: tuple[dict[str, Any], dict[str, Any]]) -> Run:
    return open_run(write_dump(folder, model[0], parents=model[1]))


@quick
@given(model=runs())
def test_a_run_fits_itself(tmp_path_factory: pytest.TempPathFactory, model: tuple[Any, Any]) -> None:
    run = _open(tmp_path_factory.mktemp("run"), model)
    alignment = align_runs(run, run)
    assert all(
        one.target == one.golden for one in alignment.relations if one.rule in ("layers in order", "calls in place")
    )
    modules = [name for name in run.ops if name.startswith("Module.")]
    paired = {name for one in alignment.relations for name in one.target}
    layers = [node for node in modules if node in paired]
    assert len(layers) >= 0.5 * len(modules) or len(modules) < 6


@quick
@given(one=runs(), two=runs())
def test_swapped_runs_give_the_mirrored_alignment(
    tmp_path_factory: pytest.TempPathFactory, one: tuple[Any, Any], two: tuple[Any, Any]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    target, golden = _open(folder / "t", one), _open(folder / "g", two)
    straight, swapped = align_runs(target, golden), align_runs(golden, target)
    assert {(r.target, r.golden, r.kind) for r in straight.relations} == {
        (r.golden, r.target, r.kind) for r in swapped.relations
    }


@quick
@given(models=changed_runs())
def test_order_and_nesting_are_never_broken(tmp_path_factory: pytest.TempPathFactory, models: tuple[Any, Any]) -> None:
    folder = tmp_path_factory.mktemp("runs")
    target, golden = _open(folder / "t", models[0]), _open(folder / "g", models[1])
    alignment = align_runs(target, golden)
    trees = call_tree(RunCalls(target)), call_tree(RunCalls(golden))
    pairs = _module_pairs(alignment, trees)
    for (mine, theirs), (other, partner) in itertools.combinations(pairs, 2):
        assert _encloses(trees[0], mine, other) == _encloses(trees[1], theirs, partner)
        assert _encloses(trees[0], other, mine) == _encloses(trees[1], partner, theirs)
    parallel = [branch for tree in trees for branch in _parallel(tree)]
    places = [{node: at for at, node in enumerate(tree.in_order)} for tree in trees]
    in_order = [pair for pair, rule in _layer_pairs(alignment, trees) if rule == "layers in order"]
    for (mine, theirs), (other, partner) in itertools.combinations(in_order, 2):
        crossed = (places[0][mine] < places[0][other]) != (places[1][theirs] < places[1][partner])
        assert not crossed or {mine, other} in parallel or {theirs, partner} in parallel


@quick
@given(models=changed_runs())
def test_a_changed_run_mirrors_too(tmp_path_factory: pytest.TempPathFactory, models: tuple[Any, Any]) -> None:
    folder = tmp_path_factory.mktemp("runs")
    target, golden = _open(folder / "t", models[0]), _open(folder / "g", models[1])
    straight, swapped = align_runs(target, golden), align_runs(golden, target)
    assert {(r.target, r.golden, r.kind) for r in straight.relations} == {
        (r.golden, r.target, r.kind) for r in swapped.relations
    }


def _parallel(tree: CallTree) -> list[set[int]]:
    """Pairs of linear layers of one module that read the same tensor: they have no order."""
    layers = Facts(tree).layers
    return [{one.node, two.node} for one, two in itertools.combinations(layers, 2) if one.branch == two.branch]


def _layer_pairs(alignment: Alignment, trees: tuple[CallTree, CallTree]) -> list[tuple[tuple[int, int], str]]:
    numbers = [{name: node for node, name in enumerate(tree.name)} for tree in trees]
    return [
        ((numbers[0][one.target[0]], numbers[1][one.golden[0]]), one.rule)
        for one in alignment.relations
        if one.one_to_one
    ]


def _module_pairs(alignment: Alignment, trees: tuple[CallTree, CallTree]) -> list[tuple[int, int]]:
    return [
        pair
        for pair, _ in _layer_pairs(alignment, trees)
        if trees[0].is_module[pair[0]] and trees[1].is_module[pair[1]]
    ]


def _encloses(tree: CallTree, outer: int, inner: int) -> bool:
    while inner > 0:
        inner = tree.parent[inner]
        if inner == outer:
            return True
    return False
