"""Properties of every mapping: a run meets itself row by row, and swapped runs give the mirrored result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairing import DATA, MAPPING, backward, calls, is_identity, match, named, small_run, yaml_file

from support import forward, slow, tensor
from twinprobe._align.calls import split
from twinprobe._align.mapping.yaml_files import Names
from twinprobe._align.matcher import match_names
from twinprobe._runs.names import parse_op
from twinprobe._runs.run import Run, open_run

MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "fuzzy": {"fuzzy": True},
    "api": {"api": True},
    "api file": {"api": MAPPING / "am_list_outputs.yaml"},
    "cell": {"cell": True},
    "cell file": {"cell": MAPPING / "cm_good.yaml"},
    "data": {"data": MAPPING / "dm_good.yaml"},
    "layer": {"layer": MAPPING / "lm_good.yaml"},
    "all": {"api": True, "cell": True, "data": MAPPING / "dm_bad.yaml", "layer": MAPPING / "lm_partial.yaml"},
}
FEW = ["none", "layer", "data", *slow(*(mode for mode in MODES if mode not in ("none", "layer", "data")))]
WORDS = ("a", "b", "layers.0", "layers.1", "mlp")
CLASSES = ("Linear", "ParallelTransformer", "Dense")
APIS = ("Torch.add", "Tensor.__add__", "Tensor.add", "Functional.softmax", "Mint.add", "Functional.add", "Torch.matmul")


@st.composite
def models(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, str | None]]:
    """A small random run: modules inside modules, functions inside them, backward calls in any order."""
    data: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    numbers = dict.fromkeys(APIS, 0)
    way_back: list[str] = []
    for path in draw(
        st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), unique_by=".".join, max_size=5)
    ):
        head = f"Module.{'.'.join(path)}.{draw(st.sampled_from(CLASSES))}"
        for call in range(draw(st.integers(1, 2))):
            name = f"{head}.forward.{call}"
            parents[name] = None
            for api in draw(st.lists(st.sampled_from(APIS), max_size=4)):
                child = f"{api}.{numbers[api]}.forward"
                numbers[api] += 1
                shape = draw(st.sampled_from([[2], [3]]))
                data[child] = forward([tensor(shape=shape), tensor()], [tensor(shape=shape)])
                parents[child] = name
                way_back.append(child.replace("forward", "backward"))
            data |= calls(name)
            way_back.append(f"{head}.backward.{call}")
        data |= calls(f"{head}.parameters_grad.0")
    for name in draw(st.permutations(way_back)):
        data[name] = backward([tensor()], [tensor()])
    data |= calls("Torch.relu.0.forward")
    return data, parents if draw(st.booleans()) else {}


quick = settings(deadline=None, max_examples=40)


@pytest.mark.parametrize("mode", FEW)
@quick
@given(model=models(), framework=st.sampled_from(["pytorch", "mindspore"]))
def test_a_run_meets_itself(
    tmp_path_factory: pytest.TempPathFactory, mode: str, model: tuple[dict[str, Any], dict[str, Any]], framework: str
) -> None:
    data, parents = model
    run = small_run(tmp_path_factory.mktemp("run"), data, parents=parents, framework=framework)
    assert is_identity(run, match(run, run, **MODES[mode]))


@pytest.mark.parametrize("mode", FEW)
@quick
@given(one=models(), two=models(), frameworks=st.sampled_from([("mindspore", "pytorch"), ("pytorch", "pytorch")]))
def test_swapped_runs_give_the_mirrored_result(
    tmp_path_factory: pytest.TempPathFactory, mode: str, one: tuple[Any, Any], two: tuple[Any, Any], frameworks: Any
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    target = small_run(folder / "t", one[0], parents=one[1], framework=frameworks[0])
    golden = small_run(folder / "g", two[0], parents=two[1], framework=frameworks[1])
    pairs = named(target, golden, match(target, golden, **MODES[mode]))
    assert len(set(pairs.values())) == len(pairs)
    mirrored = named(golden, target, match(golden, target, **MODES[mode]))
    assert mirrored == {other: row for row, other in pairs.items()}


@quick
@given(model=models(), mirrored=st.booleans())
def test_renamed_layers_are_found_again(
    tmp_path_factory: pytest.TempPathFactory, model: tuple[dict[str, Any], dict[str, Any]], mirrored: bool
) -> None:
    """Rename the top of every path; a layer mapping that says so links each value with its renamed self."""
    folder = tmp_path_factory.mktemp("runs")
    data, parents = model

    def renamed(name: str) -> str:
        for word in ("a", "b", "layers", "mlp"):
            if name.startswith(f"Module.{word}."):
                return name.replace(f"Module.{word}.", f"Module.new_{word}.", 1)
        return name

    left = small_run(folder / "l", data, parents=parents)
    right = small_run(
        folder / "r", {renamed(name): entry for name, entry in data.items()},
        parents={renamed(name): renamed(parent) if parent else None for name, parent in parents.items()},
    )  # fmt: skip
    file = yaml_file(folder, "TopLayer: {a: new_a, b: new_b, layers: new_layers, mlp: new_mlp}\n")
    if mirrored:
        assert named(right, left, match(right, left, layer=file)) == {renamed(row): row for row in left.table["name"]}
    else:
        assert named(left, right, match(left, right, layer=file)) == {row: renamed(row) for row in left.table["name"]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["ms", "pt"])
def test_a_real_run_meets_itself(name: str, mode: str) -> None:
    run = open_run(DATA / name)
    assert is_identity(run, match(run, run, **MODES[mode]))


@pytest.mark.parametrize("mode", FEW)
def test_every_recorded_level_and_task_meets_itself(reference: Path, mode: str) -> None:
    dumps = sorted((reference / "msprobe" / "dumps").glob("*/step0/*/d*.json"))
    assert len(dumps) > 20
    for path in dumps:
        run = open_run(path)
        assert is_identity(run, match(run, run, **MODES[mode])), path


@pytest.mark.parametrize("mode", ["fuzzy", "api", "cell", "layer", "data"])
def test_within_one_framework_a_mapping_changes_no_pair_of_equal_runs(reference: Path, mode: str) -> None:
    one, two = (
        open_run(next((reference / "msprobe" / "dumps" / f"mix_stat_{side}").rglob("dump.json"))) for side in "ba"
    )
    assert named(one, two, match(one, two, **MODES[mode])) == named(one, two, match_names(one, two))


def test_names_are_taken_apart_as_the_grammar_says(ms: Run, pt: Run) -> None:
    for name in [*ms.ops, *pt.ops, "Module.a.A.parameters_grad", "Jit.f.0.forward", "odd", "Torch.add.x.forward"]:
        op = parse_op(name)
        head, direction, call = split(name)
        if not op.direction:
            assert (head, direction, call) == (name, "", -1)
            continue
        assert (direction, call) == (op.direction, op.call)
        assert head == ".".join(part for part in (op.prefix, op.body, op.cls) if part)


def test_the_nearest_name_is_found_among_very_many() -> None:
    names = Names(f"Module.layers.{at}.mlp.{part}.Linear" for at in range(20_000) for part in ("up", "down"))
    assert names.hint("Module.layers.137.mlp.upp.Linear") == "; did you mean 'Module.layers.137.mlp.up.Linear'?"
    assert names.hint("Module.layers.137.mlp.up.Linear") == ""
    assert names.hint("zzz") == ""
