"""The layouts of two runs that are both made of ranks, where neither was recorded nor given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wrong_ranks import UP, Calls, compared, layer, record

from twinprobe._cli import main

Capture = pytest.CaptureFixture[str]
RANDOM = np.random.default_rng(5)
WORDS, TABLE = RANDOM.integers(0, 32, (8, 16)), RANDOM.standard_normal((32, 8)).astype(np.float32)
WEIGHTS, VALUES = RANDOM.standard_normal((4, 8, 8), dtype=np.float32), RANDOM.standard_normal((8, 8), dtype=np.float32)
PARTS = {"cp": "sequences are cut otherwise in the other run", "ep": "ranks hold other experts",
         "pp": "stages hold other parameters"}  # fmt: skip


def ranks(folder: Path, calls: list[Calls], parents: list[dict[str, Any]] | None = None) -> None:
    for rank, own in enumerate(calls):
        place = folder / "step0" / f"rank{rank}"
        record(place, own, parents=parents[rank] if parents else None)
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": len(calls)}))


def sequences(count: int, *, images: bool = False) -> list[Calls]:
    """Each rank has all parameters and a part of every sequence."""
    if images:  # of values, not of words
        return [{UP: {"input.0": TABLE[own], "parameters.weight": TABLE, "output.0": TABLE[own]}}
                for own in np.split(WORDS, count, axis=1)]  # fmt: skip
    return [{UP: {"input.0": own, "parameters.weight": TABLE, "output.0": TABLE[own]}}
            for own in np.split(WORDS, count, axis=1)]  # fmt: skip


def experts(count: int, name: str = "experts", replicas: int = 1) -> list[Calls]:
    """Each rank has some experts, and all else; the router sees its own samples."""
    found = []
    for rank in range(count * replicas):
        own = np.split(np.arange(4), count)[rank % count]
        part = np.split(VALUES, count * replicas)[rank]
        calls = {"Module.router.Linear.forward.0": layer(TABLE, part), UP: layer(VALUES, part)}
        calls |= {f"Module.mlp.{name}.{at}.Linear.forward.0": layer(WEIGHTS[number], VALUES)
                  for at, number in enumerate(own)}  # fmt: skip
        found.append(calls)
    return found


def stages(count: int) -> list[Calls]:
    """Each rank has some layers, numbered from zero."""
    return [{f"Module.layers.{at}.Linear.forward.0": layer(WEIGHTS[number], VALUES) for at, number in enumerate(own)}
            for own in np.split(np.arange(4), count)]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "golden", "axis"),
    [
        (sequences(2), sequences(4), "cp"),
        (sequences(2, images=True), sequences(4, images=True), "cp"),
        (experts(2), experts(4), "ep"),
        (experts(4, "branches"), experts(2, "branches"), "ep"),
        (stages(2), stages(4), "pp"),
    ],
)
def test_two_runs_of_ranks_need_no_layout(
    target: list[Calls], golden: list[Calls], axis: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks(tmp_path / "t", target)
    ranks(tmp_path / "g", golden)
    found = compared(tmp_path, capsys, "")
    for side, calls in (("target", target), ("golden", golden)):
        assert f"{side}: {len(calls)} ranks, layout {axis}={len(calls)} (found: {PARTS[axis]})" in found["notes"]
    assert found["first"] is None
    assert found["verdicts"]["error"] == 0


def test_experts_that_several_ranks_hold_are_not_more_experts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks(tmp_path / "t", experts(2, replicas=2))
    ranks(tmp_path / "g", experts(2))
    notes = compared(tmp_path, capsys, "")["notes"]
    assert f"target: 4 ranks, layout ep=2,dp=2 (found: {PARTS['ep']})" in notes


def test_a_wrong_expert_is_found_between_two_runs_of_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = experts(4)
    name = "Module.mlp.experts.0.Linear.forward.0"
    wrong[2][name] = layer(WEIGHTS[2] * np.float32(1.5), VALUES)
    ranks(tmp_path / "t", wrong)
    ranks(tmp_path / "g", experts(2))
    first = compared(tmp_path, capsys, "")["first"]
    assert first["op"] == "Module.mlp.experts.2.Linear.forward.0"


def test_ranks_that_have_nothing_in_common_with_the_other_run_are_not_guessed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three sequences of another length no number of ranks makes the other run's batch."""
    ranks(tmp_path / "t", sequences(2))
    longer = [
        {UP: {"input.0": own, "parameters.weight": TABLE, "output.0": TABLE[own]}} for own in (WORDS[:3, :5],) * 4
    ]
    ranks(tmp_path / "g", longer)
    notes = compared(tmp_path, capsys, "", code=2)["notes"]
    assert not [note for note in notes if "(found" in note]


def ring(rank: int, whole: np.ndarray, exchange: str) -> tuple[Calls, dict[str, Any]]:
    """A module that works on its own block, then on those of the ranks before it: a mask leaves out the others."""
    around, own = "Module.attn.Ring.forward.0", np.split(whole, 2, axis=1)
    blocks = [f"Tensor.mul.{at}.forward" for at in range(rank + 1)]
    calls: Calls = {blocks[0]: {"output.0": own[rank]}, exchange: {"output.0": own[1 - rank]}}
    calls |= {name: {"output.0": own[0] * 2} for name in blocks[1:]}
    after = f"Tensor.mul.{rank + 1}.forward"  # outside of the module, with another number on each rank
    calls |= {around: {"output.0": own[rank]}, after: {"output.0": own[rank] * 3}}
    return calls, {**dict.fromkeys([*blocks, exchange], around), around: None, after: None}


@pytest.mark.parametrize(("layout", "said"), [("cp=2", True), ("dp=2", False)])
def test_steps_of_a_ring_are_left_out(
    layout: str, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only ranks that share sequences deal with pieces of one another."""
    whole = RANDOM.standard_normal((4, 8, 8)).astype(np.float32)
    if layout == "dp=2":
        whole = whole.transpose(1, 0, 2)
    exchange = "Distributed.batch_isend_irecv.0.forward"
    calls, parents = zip(*(ring(rank, whole, exchange) for rank in range(2)), strict=True)
    ranks(tmp_path / "t", list(calls), list(parents))
    around, first, after = "Module.attn.Ring.forward.0", "Tensor.mul.0.forward", "Tensor.mul.1.forward"
    one = {first: {"output.0": whole}, around: {"output.0": whole}, after: {"output.0": whole * 3}}
    record(tmp_path / "g" / "step0" / "proc1", one, parents={first: around, around: None, after: None})
    notes = compared(tmp_path, capsys, layout)["notes"]
    assert ("target: 3 calls of functions on pieces of other ranks: left out" in notes) is said
    assert bool([note for note in notes if "rank 1 calls Tensor.mul here" in note]) is not said


def updates(folder: Path, factors: list[float]) -> None:
    """What an optimizer was given: gradients that were clipped to a norm of 2."""
    calls: Calls = {}
    for at, factor in enumerate(factors):
        gradient = WEIGHTS[at % 4] * np.float32(factor)
        values = {"input.0": gradient, "output.0": VALUES - gradient, "parameters.before": VALUES}
        calls[f"Optimizer.layers.{at}.weight.SGD.0.forward"] = values
    calls["Optimizer.total_norm.SGD.0.forward"] = {"input.0": np.full(1, 2.0, np.float32)}
    record(folder, {UP: {"output.0": VALUES}})
    record(folder, calls, name="optimizer")


@pytest.mark.parametrize(("factors", "named"), [([0.9, 0.9, 1.4, 0.9], 2), ([0.9, 0.8, 1.4, 0.7], 0)])
def test_the_gradient_that_clips_all_others_is_named(
    factors: list[float], named: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    updates(tmp_path / "g" / "step0" / "proc1", [1.0] * 4)
    for rank in range(2):
        updates(tmp_path / "t" / "step0" / f"rank{rank}", factors)
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "dp=2"]) == 0
    results = json.loads(capsys.readouterr().out)["ranks"]
    (found,) = (one for one in results if one["rank"].endswith("optimizer"))
    assert found["first"]["op"] == f"Optimizer.layers.{named}.weight.SGD.0.forward"


@pytest.mark.parametrize("outer", ["dp", "pp"])
def test_stages_lie_where_ranks_hold_the_same_layers(outer: str, tmp_path: Path, capsys: Capture) -> None:
    """A mesh of (dp, pp) has the stages of a copy in a row, one of (pp, dp) the copies of a stage."""
    record(tmp_path / "g" / "step0" / "proc1", every_layer(VALUES))
    for rank in range(4):
        copy, stage = divmod(rank, 2) if outer == "dp" else divmod(rank, 2)[::-1]
        own = every_layer(np.split(VALUES, 2)[copy])
        record(tmp_path / "t" / "step0" / f"rank{rank}", dict(list(own.items())[2 * stage : 2 * stage + 2]))
    found = compared(tmp_path, capsys, "")
    assert "target: 4 ranks, layout dp=2,pp=2 (found)" in found["notes"]
    assert found["first"] is None
    assert found["matched"] == found["rows"] == 8


def every_layer(values: np.ndarray) -> Calls:
    return {f"Module.layers.{at}.Linear.forward.0": layer(weight, values) for at, weight in enumerate(WEIGHTS)}


def test_layers_of_several_stages_on_a_rank_may_be_numbered_through(tmp_path: Path, capsys: Capture) -> None:
    """Optimizers name parameters without the number of the stage, where no two have one name."""
    updates = {f"Optimizer.layers.{at}.weight.SGD.0.forward": {"parameters.before": weight, "output.0": weight}
               for at, weight in enumerate(WEIGHTS)}  # fmt: skip
    record(tmp_path / "g" / "step0" / "proc1", every_layer(VALUES))
    record(tmp_path / "g" / "step0" / "proc1", updates, name="optimizer")
    for rank in range(2):
        place, calls = tmp_path / "t" / "step0" / f"rank{rank}", list(every_layer(VALUES).items())
        own = [(name.replace("Module", f"Module.{at // 2}"), calls[at][1]) for at, (name, _) in enumerate(calls)]
        record(place, dict(own[rank::2]))
        record(place, dict(list(updates.items())[rank::2]), name="optimizer")
        pipeline = {"stages": 4, "held": [rank, rank + 2], "stage": rank}
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 2, "pipeline": pipeline}))
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)["ranks"]
    assert [one["first"] for one in found] == [None, None]
    assert [one["matched"] for one in found] == [8, 8]


def test_edges_of_graphs_are_no_sequences(tmp_path: Path, capsys: Capture) -> None:
    """Each rank has some of the nodes, and the edges between them, which count from its own first node."""
    edges = np.stack([WORDS[0] % 4, WORDS[1] % 4])
    first, second = "Module.inp.Linear.forward.0", "Module.message.Message.forward.0"

    def calls(nodes: np.ndarray, own: np.ndarray) -> Calls:
        return {first: {"input.0": nodes, "output.0": nodes}, second: {"input.0": nodes, "input.1": own}}

    record(tmp_path / "g" / "step0" / "proc1", calls(VALUES, np.concatenate([edges, edges + 4], axis=1)))
    for rank, nodes in enumerate(np.split(VALUES, 2)):
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls(nodes, edges))
    found = compared(tmp_path, capsys, "")
    assert "target: 2 ranks, layout dp=2 (found)" in found["notes"]
    assert found["first"] is None
