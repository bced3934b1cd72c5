"""What each rank has of its own by right, and is no difference: parts of losses, blocks of products, shares of ties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_ranks_by_sketches import random
from test_what_ranks_are_given import optimizers
from test_wrong_ranks import record

from twinprobe._cli import main

HEAD, NORM = "Module.head.Linear.forward.0", "Module.norm.LayerNorm.forward.0"
Found = dict[str, dict[str, Any]]
Capture = pytest.CaptureFixture[str]


def compared(folder: Path, capsys: Capture, layout: str) -> Found:
    words = ["compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(folder / "out"), "--json"]
    assert main([*words, "--layout", layout]) == 0
    return {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}


@pytest.mark.parametrize(("mean", "wrong"), [(False, 1.0), (True, 1.0), (False, 1.5)])
def test_each_rank_may_make_its_part_of_a_loss(mean: bool, wrong: float, tmp_path: Path, capsys: Capture) -> None:
    """The loss of the columns, or of the words, that a rank has: the parts add up, or their mean is golden's."""
    values = np.abs(random(3, 8, 16))
    loss = "Tensor.mean.0.forward" if mean else "Tensor.sum.0.forward"

    def calls(own: np.ndarray, factor: float) -> dict[str, Any]:
        number = np.array((own.mean() if mean else own.sum()) * factor, np.float32)
        return {HEAD: {"output.0": own}, loss: {"input.0": own, "output.0": number}}

    record(tmp_path / "g/step0/proc1", calls(values, 1.0))
    for rank, own in enumerate(np.split(values, 2, axis=1)):
        record(tmp_path / f"t/step0/rank{rank}", calls(np.ascontiguousarray(own), wrong if rank else 1.0))
    found = compared(tmp_path, capsys, "tp=2")["step0/whole"]
    assert (found["first"] is None) is (wrong == 1.0)
    assert wrong > 1 or not [note for note in found["notes"] if "copies" in note or "nothing" in note]


@pytest.mark.parametrize("wrong", [False, True])
def test_blocks_that_ranks_broadcast_are_left_out(wrong: bool, tmp_path: Path, capsys: Capture) -> None:
    """Each rank adds up products of blocks, which golden's product is not; the module around them is compared."""
    given, weight = random(4, 4, 8), random(5, 8, 8)
    parents: dict[str, Any] = {"Tensor.matmul.0.forward": HEAD}
    whole = {"Tensor.matmul.0.forward": {"input.0": given, "output.0": given @ weight}}
    record(tmp_path / "g/step0/proc1", {**whole, HEAD: {"input.0": given, "output.0": given @ weight}},
           parents=parents | {HEAD: None})  # fmt: skip
    for rank in range(2):
        calls, sums = {}, np.zeros((4, 4), np.float32)
        for at, (part, rows) in enumerate(zip(np.split(given, 2, axis=1), np.split(weight, 2), strict=True)):
            block = np.ascontiguousarray(np.split(rows, 2, axis=1)[0 if wrong and at else rank])
            product = np.ascontiguousarray(part) @ block
            calls[f"Distributed.broadcast.{at}.forward"] = {"input.0": block, "output.0": block}
            calls[f"Tensor.matmul.{at}.forward"] = {"input.0": np.ascontiguousarray(part), "output.0": product}
            sums += product
        around: dict[str, Any] = dict.fromkeys(calls, HEAD)
        own = np.ascontiguousarray(np.split(given, 2, axis=1)[rank])
        calls[HEAD] = {"input.0": own, "output.0": sums}
        record(tmp_path / f"t/step0/rank{rank}", calls, parents=around | {HEAD: None})
    first = compared(tmp_path, capsys, "tp=2")["step0/whole"]["first"]
    if not wrong:
        assert first is None
    else:
        assert (first["op"], first["argument"]) == (HEAD, "output.0")
        assert first["sentence"].endswith("rank 1's shard differs")


@pytest.mark.parametrize("wrong", [False, True])
def test_a_rank_of_a_ring_begins_with_its_own_piece(wrong: bool, tmp_path: Path, capsys: Capture) -> None:
    """The maximum over a rank's own keys is not that over all keys, though it has the shape of a part of it."""
    scores, values, most = random(6, 8, 8), random(7, 8, 4), "Tensor.max.0.forward"
    parents: dict[str, Any] = {most: HEAD, "Distributed.batch_isend_irecv.0.forward": HEAD, HEAD: None}
    for folder, rows in (
        ("g/step0/proc1", slice(0, 8)),
        ("t/step0/rank0", slice(0, 4)),
        ("t/step0/rank1", slice(4, 8)),
    ):
        own = scores[rows, rows]
        calls = {most: {"input.0": np.ascontiguousarray(own), "output.0": own.max(1)}}
        if folder.startswith("t"):
            calls["Distributed.batch_isend_irecv.0.forward"] = {"input.0": values[rows]}
        given = values[rows] * np.float32(1.5 if wrong and folder.endswith("1") and folder.startswith("t") else 1.0)
        calls[HEAD] = {"input.0": values[rows], "output.0": given}
        record(tmp_path / folder, calls, parents=parents)
    first = compared(tmp_path, capsys, "cp=2")["step0/whole"]["first"]
    assert (first is None) is not wrong
    assert not wrong or (first["op"], first["argument"]) == (HEAD, "output.0")


@pytest.mark.parametrize("added", [True, False])
def test_a_stage_that_reads_a_tied_weight_in_a_function(added: bool, tmp_path: Path, capsys: Capture) -> None:
    """It records no gradient of its own use; what became of both stands in the optimizers' table."""
    weight, parts = random(8, 16, 8), random(9, 2, 16, 8)
    words = random(10, 4, 8)
    table, grown = "Module.wte.Embedding.forward.0", "Module.wte.Embedding.parameters_grad.0"
    first_stage = {table: {"parameters.weight": weight, "output.0": words}}
    last_stage = {NORM: {"parameters.weight": random(12, 8), "input.0": words, "output.0": words * 2}}
    for folder, calls in (("g/step0/proc1", first_stage | last_stage | {grown: {"gradient.weight": parts.sum(0)}}),
                          ("t/step0/rank0", first_stage | {grown: {"gradient.weight": parts[0]}}),
                          ("t/step0/rank1", last_stage)):  # fmt: skip
        record(tmp_path / folder, calls)
        rank = int(folder[-1]) if folder.startswith("t") else 0
        given = parts.sum(0) if added or folder.startswith("g") else parts[rank]
        step = {"input.0": given, "output.0": weight - given, "parameters.before": weight}
        record(tmp_path / folder, {"Optimizer.wte.weight.SGD.0.forward": step}, name="optimizer")
    found = compared(tmp_path, capsys, "pp=2")
    assert found["step0/whole"]["first"] is None
    assert (found["step0/optimizer"]["first"] is None) is added


def test_a_copy_in_another_order_is_named(tmp_path: Path, capsys: Capture) -> None:
    logits, loss = random(11, 16, 16), "Functional.cross_entropy.0.forward"
    turned = np.ascontiguousarray(np.roll(logits, 8, axis=0))
    for folder, own, value in (
        ("g/step0/proc1", logits, 3.0),
        ("t/step0/rank0", logits, 3.0),
        ("t/step0/rank1", turned, 3.5),
    ):
        record(tmp_path / folder, {loss: {"input.0": own, "output.0": np.array(value, np.float32)}})
    first = compared(tmp_path, capsys, "tp=2")["step0/whole"]["first"]
    assert (first["op"], first["argument"]) == (loss, "input.0")
    assert first["sentence"].endswith("it has golden's statistics, and differs on rank 1")


def test_a_multiple_is_said_of_as_many_gradients_as_it_is_of(tmp_path: Path, capsys: Capture) -> None:
    weights = [random(at, 8, 8) for at in range(10)]
    for folder, factor in (("g/step0/proc1", 1.0), ("t/step0/rank0", 2.0), ("t/step0/rank1", 2.0)):
        record(tmp_path / folder, {NORM: {"output.0": weights[0]}})
        calls = {}
        for at, weight in enumerate(weights):
            gradient = weight[::-1] * np.float32(factor * (1.5 if at == 3 and factor > 1 else 1.0))
            values = {"input.0": gradient, "output.0": weight - gradient, "parameters.before": weight}
            calls[f"Optimizer.layers.{at}.weight.SGD.0.forward"] = values
        record(tmp_path / folder, calls, name="optimizer")
    first = optimizers(tmp_path, capsys, "dp=2")["first"]
    assert "the gradients of 9 of 10 parameters are 2 times golden's, as many as dp=2" in first["sentence"]
