"""What each rank has of its own: parts of a reduction, stacked experts, stages of one name, shares of a loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wrong_ranks import NORM, UP, compared, record

from twinprobe._cli import main

LESS, PICK, SUM = "Tensor.__sub__.0.forward", "Tensor.gather.0.forward", "Distributed.all_reduce.0.forward"
LOSS = "Functional.cross_entropy.0.forward"


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("reduced", [True, False])
def test_a_loss_over_a_vocabulary_that_is_cut(
    reduced: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels count from where a rank's words begin, and what is picked adds up. Without a reduction it is a copy that
    differs."""
    labels, logits, norm = np.random.default_rng(5).integers(0, 16, (32,)), random(6, 32, 16), random(7, 32, 8)
    picked = np.take_along_axis(logits, labels[:, None], 1)

    def calls(first: int, own: np.ndarray, part: np.ndarray, wrong: float) -> dict[str, Any]:
        shifted = labels - first
        return {LESS: {"input.0": labels, "other": first, "output.0": shifted},
                PICK: {"input.0": own, "input.1": shifted[:, None], "output.0": part},
                **({SUM: {"input.0": part, "output.0": picked}} if reduced and len(own[0]) < 16 else {}),
                NORM: {"input.0": norm, "output.0": norm * np.float32(wrong)}}  # fmt: skip

    record(tmp_path / "g" / "step0" / "proc1", calls(0, logits, picked, 1.0))
    for rank, own in enumerate(np.split(logits, 2, axis=1)):
        part = picked * ((labels >= 8) == rank)[:, None]
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls(8 * rank, own, part, 1.5))
    found = compared(tmp_path, capsys, "tp=2")
    assert found["first"]["op"] == NORM  # what is picked is not read again here
    assert any(LESS in text and "rank 1's replica differs" in text for text in found["notes"]) is not reduced


@pytest.mark.parametrize(("batch", "layout"), [(True, "ep=2"), (False, "tp=2")])
def test_ranks_with_parts_of_parameters_and_of_the_batch_are_expert_parallel(
    batch: bool, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Experts that are stacked in one parameter have no names. Functions around them deal with a rank's own samples."""
    bank, samples = random(8, 4, 8, 8), random(9, 16, 8)
    around, inside = "Module.moe.Sparse.forward.0", "Module.moe.bank.Bank.forward.0"
    order = np.random.default_rng(10).permutation(16)
    parents = {NORM: None, "Tensor.argsort.0.forward": around, inside: around, around: None}

    def calls(weights: np.ndarray, own: np.ndarray, places: np.ndarray) -> dict[str, Any]:
        return {NORM: {"input.0": own, "output.0": own}, "Tensor.argsort.0.forward": {"output.0": places},
                inside: {"parameters.weight": weights}, around: {"input.0": own, "output.0": own}}  # fmt: skip

    record(tmp_path / "g" / "step0" / "proc1", calls(bank, samples, order), parents=parents)
    for rank, weights in enumerate(np.split(bank, 2)):
        own = np.split(samples, 2)[rank] if batch else samples
        places = np.arange(8)[::-1].copy() if batch else order
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls(weights, own, places), parents=parents)
    found = compared(tmp_path, capsys, "")
    assert f"target: 2 ranks, layout {layout} (found)" in found["notes"]
    assert found["first"] is None


def test_stages_in_the_middle_may_have_the_same_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each counts its own layers from zero."""
    weights = [random(at, 16, 8) for at in range(6)]
    names = ["stem", *(f"layers.{at}" for at in range(4)), "head"]
    own = [["stem", "layers.0"], ["layers.0"], ["layers.0"], ["layers.0", "head"]]

    def calls(there: list[str], values: list[np.ndarray]) -> dict[str, Any]:
        return {f"Module.{name}.Linear.forward.0": {"parameters.weight": one, "output.0": one}
                for name, one in zip(there, values, strict=True)}  # fmt: skip

    record(tmp_path / "g" / "step0" / "proc1", calls(names, weights))
    at = 0
    for rank, there in enumerate(own):
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls(there, weights[at : at + len(there)]))
        at += len(there)
    found = compared(tmp_path, capsys, "")
    assert "target: 4 ranks, layout pp=4 (found)" in found["notes"]
    assert (found["matched"], found["first"]) == (found["rows"], None)


@pytest.mark.parametrize("alike", [True, False])
def test_stages_that_are_items_of_a_list(alike: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a stage calls ``mix.0`` is ``stages.1.mix.0`` in one process, if each stage has what an item has."""
    weights = [random(at, 16, 8) for at in range(4)]
    inner = ["mix.0", "mix.1" if alike else "mix.2"]

    def calls(prefix: str, names: list[str], values: list[np.ndarray]) -> dict[str, Any]:
        return {f"Module.{prefix}{name}.Linear.forward.0": {"parameters.weight": one, "output.0": one}
                for name, one in zip(names, values, strict=True)}  # fmt: skip

    golden: dict[str, Any] = {}
    for stage in range(2):
        own = weights[2 * stage : 2 * stage + 2]
        golden |= calls(f"stages.{stage}.", ["mix.0", "mix.1"], own)
        own = [own[0], own[1] * np.float32(1 + stage)]
        record(tmp_path / "t" / "step0" / f"rank{stage}", calls("", inner, own))
    record(tmp_path / "g" / "step0" / "proc1", golden)
    found = compared(tmp_path, capsys, "pp=2")
    first = found["first"] or {"op": "", "sentence": ""}
    assert (first["op"] == "Module.stages.1.mix.1.Linear.forward.0") is alike
    assert ("rank 1 (pipeline stage 1)" in first["sentence"]) is alike


@pytest.mark.parametrize("divided", [True, False])
def test_the_first_gradient_tells_whether_the_loss_was_divided(
    divided: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No gradient of the loss is recorded of modules alone."""
    gradient, weight = random(11, 8, 16), random(12, 16, 8)
    back = "Module.up.Linear.backward.0"
    record(tmp_path / "g" / "step0" / "proc1", {UP: {"parameters.weight": weight}, back: {"input.0": gradient}})
    for rank, own in enumerate(np.split(gradient, 2)):
        part = own if divided else own * np.float32(2)
        record(tmp_path / "t" / "step0" / f"rank{rank}",
               {UP: {"parameters.weight": weight}, back: {"input.0": part}})  # fmt: skip
    found = compared(tmp_path, capsys, "dp=2")
    assert found["first"] is None
    said = "target: gradients are added up as they are: the loss was divided before backward"
    assert (said in found["notes"]) is divided


def test_gradients_have_the_shapes_of_their_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs with micro batches: what each of them gives a weight adds up, and is not laid one behind the other.

    Gradients of samples are.
    """
    weight, samples, given = random(13, 16, 8), random(14, 8, 8), random(15, 8, 16)

    def calls(x: np.ndarray, g: np.ndarray) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for at, (own, back) in enumerate(zip(np.split(x, 2), np.split(g, 2), strict=True)):
            found[f"Functional.linear.{at}.forward"] = {"input.0": own, "input.1": weight, "output.0": own @ weight.T}
            found[f"Module.up.Linear.forward.{at}"] = {"input.0": own, "parameters.weight": weight}
            found[f"Functional.linear.{at}.backward"] = {
                "input.0": back, "output.0": back @ weight, "output.1": back.T @ own}  # fmt: skip
        return found

    record(tmp_path / "g" / "step0" / "rank0", calls(samples, given))
    order = np.arange(8).reshape(2, 2, 2)  # of micro batches, then of ranks
    for rank in range(2):
        own = order[:, rank].reshape(-1)
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls(samples[own], given[own] * np.float32(2)))
    found = compared(tmp_path, capsys, "dp=2")
    assert found["first"] is None
    assert "golden: 1 value added up over micro" in found["notes"]
    assert "golden: 5 values concatenated over micro along dimension 0" in found["notes"]


@pytest.mark.parametrize("moved", [True, False])
def test_an_input_with_the_same_statistics_may_differ(
    moved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The samples of rank 0 in another order: only sketches tell. Of right inputs, the output is what differs."""
    samples, weight = random(17, 64, 16), random(18, 16, 16)
    record(tmp_path / "g" / "step0" / "proc1", {UP: {"input.0": samples, "output.0": samples @ weight}})
    for rank, own in enumerate(np.split(samples, 2)):
        given = own[::-1].copy() if moved and rank == 0 else own
        output = given @ weight if moved else own @ weight * np.float32(1.5 - rank / 2)
        record(
            tmp_path / "t" / "step0" / f"rank{rank}", {UP: {"input.0": given, "output.0": output * (1 + 0.2 * moved)}}
        )
    first = compared(tmp_path, capsys, "dp=2")["first"]
    assert first["op"] == UP
    assert first["argument"] == ("input.0" if moved else "output.0")
    assert ("it has golden's statistics, and differs on rank 0" in first["sentence"]) is moved


@pytest.mark.parametrize("reader", [LOSS, "Tensor.__add__.0.forward"])
def test_places_that_a_loss_reads_count(reader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels that count from zero on every rank are wrong. To places, a program adds where its part begins."""
    logits = random(16, 16, 16)
    entry = {"input.0": logits, "input.1": np.arange(16), "output.0": logits}
    record(tmp_path / "g" / "step0" / "proc1", {reader: entry})
    for rank, own in enumerate(np.split(logits, 2)):
        output = own * np.float32(1 + rank * (reader == LOSS))
        entry = {"input.0": own, "input.1": np.arange(8), "output.0": output}
        record(tmp_path / "t" / "step0" / f"rank{rank}", {reader: entry})
    first = compared(tmp_path, capsys, "dp=2")["first"]
    assert (first is not None) is (reader == LOSS)
    assert first is None or first["sentence"].endswith("differs on rank 1")


@pytest.mark.parametrize(("factor", "told"), [(2.0, True), (1.7, False)])
def test_gradients_of_experts_that_nobody_divides(
    factor: float, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [random(at, 8, 8) for at in range(12)]
    for folder, wrong in (("g/step0/proc1", 1.0), ("t/step0/rank0", factor), ("t/step0/rank1", factor)):
        record(tmp_path / folder, {NORM: {"output.0": weights[0]}})
        updates = {}
        for at, weight in enumerate(weights):
            own = weight[::-1] * np.float32(wrong if at < 4 else 1.0)
            updates[f"Optimizer.layers.{at}.weight.SGD.0.forward"] = {
                "input.0": own, "output.0": weight - own, "parameters.before": weight}  # fmt: skip
        record(tmp_path / folder, updates, name="optimizer")
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "dp=2"]) == 0
    found = {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}
    said = "the gradients of 4 of 12 parameters are 2 times golden's, as many as dp=2, the others agree"
    assert (said in found["step0/optimizer"]["first"]["sentence"]) is told


@pytest.mark.parametrize("held", [True, False])
def test_a_parameter_that_no_call_has_is_named_by_the_optimizer(
    held: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token that a model joins to its input comes from outside of all calls. Without it, that input is named."""
    token, add = random(19, 16), "Tensor.__add__.0.forward"
    for step in range(2):
        for folder, factor in (("g/step{}/proc1", 1.0), ("t/step{}/rank0", 1.0), ("t/step{}/rank1", 1.5)):
            place, own = tmp_path / folder.format(step), token * np.float32(factor)
            record(place, {add: {"input.0": own, "output.0": own}})
            before = own if held else token
            values = {"input.0": token, "parameters.before": before, "output.0": before - token}
            record(place, {"Optimizer.token.SGD.0.forward": values}, name="optimizer")
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "tp=2"]) == 0
    sentence = json.loads(capsys.readouterr().out)["findings"][0]
    assert f"step 0 differs: {'Optimizer.token.SGD.0.forward: parameters.before' if held else add}" in sentence
    assert sentence.endswith("rank 1's replica differs from the others")


def test_a_setting_beside_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What an update was given is asked for tensors that differ; a learning rate is none."""
    weight = random(20, 16, 8)
    for folder, rate in (("g/step0/proc1", 0.1), ("t/step0/rank0", 0.1), ("t/step0/rank1", 0.2)):
        record(tmp_path / folder, {NORM: {"output.0": weight}})
        values = {"input.0": weight, "lr": rate, "parameters.before": weight, "output.0": weight * np.float32(1 - rate)}
        record(tmp_path / folder, {"Optimizer.up.weight.SGD.0.forward": values}, name="optimizer")
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "dp=2"]) == 0
    found = {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}
    assert found["step0/optimizer"]["first"]["op"] == "Optimizer.up.weight.SGD.0.forward"


@pytest.mark.parametrize("wrong", [False, True])
def test_offsets_count_from_where_the_part_of_a_rank_begins(
    wrong: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bags and packed sequences begin at offsets into what a rank was given."""
    bags, offsets, items = "Functional.embedding_bag.0.forward", np.arange(0, 64, 4), random(11, 16, 8)

    def calls(own: np.ndarray, part: np.ndarray, factor: float) -> dict[str, Any]:
        return {bags: {"input.0": own, "output.0": part}, NORM: {"output.0": part * np.float32(factor)}}

    record(tmp_path / "g" / "step0" / "proc1", calls(offsets, items, 1.0))
    for rank, part in enumerate(np.split(items, 4)):
        own = offsets[:4].copy()
        own[1:] += 1 if wrong and rank == 3 else 0
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls(own, part, 1.5 if rank == 3 else 1.0))
    found = compared(tmp_path, capsys, "dp=4")
    if wrong:
        assert (found["first"]["op"], found["first"]["argument"]) == (bags, "input.0")
    else:
        assert found["first"]["op"] == NORM


def test_samples_in_another_order_than_their_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the model is given comes before the loss, where the difference is first seen."""
    samples = random(19, 64, 16)
    record(tmp_path / "g" / "step0" / "proc1", {UP: {"input.0": samples}, NORM: {"output.0": samples}})
    for rank, own in enumerate(np.split(samples, 2)):
        given, wrong = own[::-1].copy() if rank else own, own * np.float32(1 + rank / 2)
        record(tmp_path / "t" / "step0" / f"rank{rank}", {UP: {"input.0": given}, NORM: {"output.0": wrong}})
    first = compared(tmp_path, capsys, "dp=2")["first"]
    assert (first["op"], first["argument"]) == (UP, "input.0")
    assert "differs on rank 1" in first["sentence"]
