"""The tree of a run: parents, and what a recorder could not know about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support import forward, tensor, write_dump
from twinprobe._graph.tree import API, COLLECTION, MODULE, ROOT, Tree, assign_micro_steps, build_tree, node_kind
from twinprobe._runs.run import open_run

CALL = forward([tensor()], [tensor()])


def tree_of(folder: Path, parents: dict[str, Any], *, data: list[str] | None = None, stacks: Any = None) -> Tree:
    names = data if data is not None else [name for name in parents if "." in name]
    entries: dict[str, Any] = {name: {"weight": [tensor()]} if "parameters_grad" in name else CALL for name in names}
    write_dump(folder, entries, level="mix", parents=parents, stacks=stacks or {})
    run = open_run(folder)
    tree = build_tree(run)
    assign_micro_steps(tree, folder / "construct.json")
    return tree


def parent(tree: Tree, name: str) -> str:
    return tree.names[tree.parents[tree.index[name]]]


def children(tree: Tree, name: str) -> list[str]:
    return [tree.names[child] for child in tree.children[tree.index[name]]]


def test_a_backward_call_without_parent_goes_where_its_forward_call_lies(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {
        "Module.a.A.forward.0": None,
        "Module.a.b.B.forward.0": "Module.a.A.forward.0",
        "Functional.relu.0.forward": "Module.a.b.B.forward.0",
        "Module.a.A.backward.0": None,
        "Module.a.b.B.backward.0": None,
        "Functional.relu.0.backward": None,
    })  # fmt: skip
    assert parent(tree, "Module.a.b.B.backward.0") == "Module.a.A.backward.0"
    assert parent(tree, "Functional.relu.0.backward") == "Module.a.b.B.backward.0"
    assert parent(tree, "Module.a.A.backward.0") == ROOT


def test_a_backward_module_seen_inside_a_stranger_goes_home(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {
        "Module.a.A.forward.0": None,
        "Module.a.act.ReLU.forward.0": "Module.a.A.forward.0",
        "Module.b.B.forward.0": None,
        "Module.b.B.backward.0": None,
        "Module.a.act.ReLU.backward.0": "Module.b.B.backward.0",
        "Module.a.A.backward.0": None,
    })  # fmt: skip
    assert parent(tree, "Module.a.act.ReLU.backward.0") == "Module.a.A.backward.0"


def test_a_module_recomputed_in_the_backward_pass_hangs_under_the_backward_parent(tmp_path: Path) -> None:
    frames = [
        "File /x/model.py, line 3, in forward, \n return self.mlp(x)",
        "File /x/torch/utils/checkpoint.py, line 1200, in recompute_fn, \n fn(*args, **kwargs)",
        "File /x/torch/utils/checkpoint.py, line 1110, in unpack_hook, \n frame.recompute_fn(*args)",
    ]
    stacks = {"0": [["Module.a.mlp.MLP.forward.1"], frames], "1": [["Module.a.mlp.MLP.forward.0"], frames[:1]]}
    parents = {
        "Module.a.A.forward.0": None,
        "Module.a.mlp.MLP.forward.0": "Module.a.A.forward.0",
        "Module.a.A.backward.0": None,
        "Module.a.mlp.MLP.forward.1": None,
        "Module.a.mlp.MLP.backward.0": "Module.a.A.backward.0",
    }
    tree = tree_of(tmp_path, parents, stacks=stacks)
    assert children(tree, "Module.a.A.backward.0") == ["Module.a.mlp.MLP.forward.1", "Module.a.mlp.MLP.backward.0"]
    plain = tree_of(tmp_path / "again", parents, stacks={"1": stacks["1"]})
    assert parent(plain, "Module.a.mlp.MLP.forward.1") == ROOT


def test_gradients_of_parameters_hang_under_the_last_backward_of_their_module(tmp_path: Path) -> None:
    parents = {
        "Module.a.A.forward.0": None, "Module.a.A.forward.1": None, "Module.b.B.forward.0": None,
        "Module.a.A.backward.0": None, "Module.a.A.backward.1": None,
    }  # fmt: skip
    gradients = ["Module.a.A.parameters_grad.0", "Module.b.B.parameters_grad", "Module.c.C.parameters_grad"]
    tree = tree_of(tmp_path, parents, data=[*parents, *gradients])
    assert parent(tree, gradients[0]) == "Module.a.A.backward.1"
    assert parent(tree, gradients[1]) == "Module.b.B.forward.0"
    assert parent(tree, gradients[2]) == ROOT


def test_only_apis_in_a_row_at_the_top_are_gathered(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {
        "Torch.add.0.forward": None,
        "Module.a.A.forward.0": None,
        "Torch.add.1.forward": "Module.a.A.forward.0",
        "Torch.add.2.forward": "Module.a.A.forward.0",
        "Torch.add.3.forward": None,
        "Torch.add.4.forward": None,
        "optimizer": None,
    })  # fmt: skip
    assert children(tree, ROOT) == [
        "Torch.add.0.forward", "Module.a.A.forward.0", "Apis_Between_Modules.0", "optimizer",
    ]  # fmt: skip
    assert children(tree, "Apis_Between_Modules.0") == ["Torch.add.3.forward", "Torch.add.4.forward"]
    assert tree.kinds[tree.index["Apis_Between_Modules.0"]] == COLLECTION


def test_each_round_of_forward_and_backward_is_a_micro_step(tmp_path: Path) -> None:
    parents: dict[str, str | None] = {}
    for at in range(3):
        parents |= {
            f"Module.a.A.forward.{at}": None,
            f"Torch.add.{at}.forward": None,
            f"Module.a.A.backward.{at}": None,
        }
        parents[f"Torch.mul.{at}.forward"] = f"Module.a.A.forward.{at}"
    tree = tree_of(tmp_path, parents)
    for name, at in tree.index.items():
        if name != ROOT:
            number = next(int(part) for part in reversed(name.split(".")) if part.isdigit())
            assert tree.micro_steps[at] == number


def test_micro_steps_that_the_dump_itself_numbers_are_taken(tmp_path: Path) -> None:
    parents = {
        "Module.a.A.forward.0": [None, 0],
        "Module.a.A.forward.1": [None, 1],
        "Module.a.b.B.forward.1": ["Module.a.A.forward.1", 1],
        "megatron_micro_step_number": 2,
    }
    tree = tree_of(tmp_path, parents, data=list(parents)[:3])
    assert [tree.micro_steps[tree.index[name]] for name in list(parents)[:3]] == [0, 1, 1]


def test_kinds_go_by_prefix_and_unknown_prefixes_by_the_form_of_the_name() -> None:
    assert node_kind("Module.a.A.forward.0") == MODULE
    assert node_kind("Cell.a.A.forward.0") == MODULE
    assert node_kind("clip_grad") == MODULE
    assert node_kind("MintFunctional.relu.0.forward") == API
    assert node_kind("Paddle.add.3.backward") == API
    assert node_kind("something else") == MODULE


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(
    st.sampled_from([f"Module.m{at}.M.{way}.0" for at in range(6) for way in ("forward", "backward")]),
    st.none() | st.sampled_from([f"Module.m{at}.M.{way}.0" for at in range(8) for way in ("forward", "backward")]),
    min_size=1,
))  # fmt: skip
def test_every_node_is_reached_once_whatever_construct_json_says(
    tmp_path_factory: Any, parents: dict[str, str | None]
) -> None:
    tree = tree_of(tmp_path_factory.mktemp("dump"), parents)
    order = tree.order
    assert sorted(order) == list(range(len(tree)))
    assert order[-1] == 0
    assert sorted(tree.pre_order()) == sorted(order)
    named = set(parents) | {name for name in parents.values() if name}
    assert set(parents) | {ROOT} <= set(tree.names) <= named | {ROOT}
    place = {node: at for at, node in enumerate(order)}
    assert all(place[node] < place[tree.parents[node]] for node in order[:-1])


def test_a_chain_of_fifty_thousand_modules_is_no_problem(tmp_path: Path) -> None:
    names = [f"Module.m{at}.M.forward.0" for at in range(50_000)]
    parents = {name: names[at - 1] if at else None for at, name in enumerate(names)}
    write_dump(tmp_path, {names[0]: CALL}, parents=parents, stacks={})
    (tmp_path / "construct.json").write_text(json.dumps(parents))
    assert len(build_tree(open_run(tmp_path)).order) == 50_001
