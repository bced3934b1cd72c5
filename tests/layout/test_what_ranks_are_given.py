"""What the optimizers of ranks are given, and what ranks alone call: named where one process does otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wrong_ranks import NORM, UP, compared, layer, record

from twinprobe._cli import main

UPDATE = "Optimizer.up.weight.SGD.0.forward"


def optimizers(folder: Path, capsys: pytest.CaptureFixture[str], layout: str) -> dict[str, Any]:
    """Compare the ranks in ``t`` with the process in ``g``: what is said of their optimizers."""
    words = ["compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(folder / "out"), "--json"]
    assert main([*words, "--layout", layout]) == 0
    (found,) = (one for one in json.loads(capsys.readouterr().out)["ranks"] if one["rank"].endswith("optimizer"))
    return found  # type: ignore[no-any-return]


def test_the_rank_of_a_scaled_column_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = np.random.default_rng(3).standard_normal((32, 16), dtype=np.float32)
    record(tmp_path / "g" / "step0" / "proc1", {UP: {"parameters.weight": weight, "output.0": weight}})
    for rank, own in enumerate(np.split(weight, 4, axis=1)):
        part = own * np.float32(0.75 if rank == 2 else 1.0)
        calls = {UP: {"parameters.weight": part, "output.0": weight * np.float32(0.9)}}
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls)
    first = compared(tmp_path, capsys, "tp=4")["first"]
    assert first["op"] == UP
    assert first["sentence"].endswith("rank 2's shard differs")


def test_gradients_that_nothing_averages_are_told_by_sketches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their means are all near zero, and tell nothing."""
    parts = np.random.default_rng(5).standard_normal((2, 32, 16)).astype(np.float32)
    parts -= parts.mean(axis=(1, 2), keepdims=True)
    weight = np.ones((32, 16), np.float32)
    for folder, own in (("g/step0/proc1", parts.mean(0)), ("t/step0/rank0", parts[0]), ("t/step0/rank1", parts[1])):
        record(tmp_path / folder, {NORM: {"output.0": weight}})
        calls = {UPDATE: {"input.0": own, "output.0": weight - own, "parameters.before": weight}}
        record(tmp_path / folder, calls, name="optimizer")
    found = optimizers(tmp_path, capsys, "dp=2")
    assert "golden's is the mean of what ranks 0, 1 hold, but nothing averages them" in found["first"]["sentence"]


def test_a_rank_with_the_words_of_another_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole numbers have extremes alone: the words of a batch, and of another one, agree in these."""
    words = np.random.default_rng(5).integers(0, 16, (8, 16))
    words[:, 0], words[:, 1] = 0, 15
    table = np.random.default_rng(6).standard_normal((16, 4)).astype(np.float32)
    for folder, own in (("g/step0/proc1", words), ("t/step0/rank0", words[:4]), ("t/step0/rank1", words[:4])):
        record(tmp_path / folder, {UP: {"input.0": own, "output.0": table[own]}})
    first = compared(tmp_path, capsys, "dp=2")["first"]
    assert first["argument"] == "input.0"
    assert "differs on rank 1" in first["sentence"]


def test_gradients_that_are_one_multiple_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(7)
    weights = [generator.standard_normal((8, 8), dtype=np.float32) for _ in range(5)]
    for folder, factor in (("g/step0/proc1", 1.0), ("t/step0/rank0", 2.0), ("t/step0/rank1", 2.0)):
        record(tmp_path / folder, {NORM: {"output.0": weights[0]}})
        calls = {}
        for at, weight in enumerate(weights):
            own = weight * np.float32(factor)
            values = {"input.0": own, "output.0": weight - own, "parameters.before": weight}
            calls[f"Optimizer.layers.{at}.weight.SGD.0.forward"] = values
        record(tmp_path / folder, calls, name="optimizer")
    found = optimizers(tmp_path, capsys, "dp=2")
    assert found["first"]["sentence"].endswith(
        "the gradients of all 5 parameters are 2 times golden's, as many as dp=2"
    )


def test_gradients_that_no_rank_has_shared_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each optimizer is given what its own backward pass gave, which dump.json holds."""
    parts, weight = np.random.default_rng(5).standard_normal((2, 32, 16)), np.ones((32, 16), np.float32)
    parts = (parts - parts.mean(axis=(1, 2), keepdims=True)).astype(np.float32)
    for folder, own in (("g/step0/proc1", parts.mean(0)), ("t/step0/rank0", parts[0]), ("t/step0/rank1", parts[1])):
        calls = {NORM: {"output.0": weight}, "Module.up.Linear.parameters_grad.0": {"gradient.weight": own}}
        record(tmp_path / folder, calls)
        update = {UPDATE: {"input.0": own, "output.0": weight - own, "parameters.before": weight}}
        record(tmp_path / folder, update, name="optimizer")
        (tmp_path / folder / "optimizer.sketch").unlink()
    first = optimizers(tmp_path, capsys, "dp=2")["first"]
    said = "ranks 0, 1 have the gradients of their own backward passes: nothing has reduced them"
    assert said in first["sentence"]


def test_functions_between_experts_are_left_out_of_both_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(5)
    weights, words = generator.standard_normal((4, 8, 8), dtype=np.float32), generator.standard_normal((16, 8))
    words = words.astype(np.float32)
    around, add = "Module.mlp.Sparse.forward.0", "Tensor.index_add.0.forward"
    names = [f"Module.mlp.experts.{number}.Linear.forward.0" for number in range(4)]
    each = np.split(words, 4)
    experts = {name: layer(weights[at], each[at]) for at, name in enumerate(names)}
    parents: dict[str, str | None] = {around: None, add: around, **dict.fromkeys(names, around)}
    record(tmp_path / "g" / "step0" / "proc1", experts | {add: {"output.0": words}, around: {"output.0": words}},
           parents=parents)  # fmt: skip
    for rank in range(2):
        own = {names[at]: experts[names[2 * rank + at]] for at in (0, 1)}
        wrong = np.split(words, 2)[rank] * np.float32(1 + rank)
        record(tmp_path / "t" / "step0" / f"rank{rank}", own | {add: {"output.0": wrong}, around: {"output.0": wrong}},
               parents={name: above for name, above in parents.items() if name in (around, add, *own)})  # fmt: skip
    found = compared(tmp_path, capsys, "ep=2")
    assert found["first"]["op"] == around
    assert found["golden_only"] == 0


def test_a_parameter_that_differs_comes_before_its_gradients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [np.random.default_rng(at).standard_normal((32, 8)).astype(np.float32) for at in range(3)]
    for folder, wrong in (("g/step0/proc1", 1.0), ("t/step0/rank0", 1.5), ("t/step0/rank1", 1.5)):
        record(tmp_path / folder, {NORM: {"output.0": weights[0]}})
        calls = {}
        for at, weight in enumerate(weights):
            before = weight * np.float32(wrong if at == 2 else 1.0)
            gradient = weight[::-1] * np.float32(wrong)  # all of them follow
            values = {"input.0": gradient, "output.0": before - gradient, "parameters.before": before}
            calls[f"Optimizer.layers.{at}.weight.SGD.0.forward"] = values
        record(tmp_path / folder, calls, name="optimizer")
    first = optimizers(tmp_path, capsys, "dp=2")["first"]
    assert (first["op"], first["argument"]) == ("Optimizer.layers.2.weight.SGD.0.forward", "parameters.before")


@pytest.mark.parametrize("zigzag", [True, False])
def test_words_tell_how_sequences_are_cut(zigzag: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last sequence of rank 1 is wrong; where its words lie depends on the order of the stretches."""
    words = np.random.default_rng(5).integers(0, 1000, (8, 16))
    table = np.random.default_rng(6).standard_normal((1000, 8)).astype(np.float32)
    record(tmp_path / "g" / "step0" / "proc1", {UP: {"input.0": words, "output.0": table[words]}})
    chunks = np.split(words, 4, axis=1)
    for rank, own in enumerate([(0, 3), (1, 2)] if zigzag else [(0, 1), (2, 3)]):
        part = np.concatenate([chunks[at] for at in own], axis=1)
        wrong = np.float32([1.0] * 7 + [1.0 + rank])[:, None, None]
        record(tmp_path / "t" / "step0" / f"rank{rank}", {UP: {"input.0": part, "output.0": table[part] * wrong}})
    found = compared(tmp_path, capsys, "cp=2")
    # In zigzag order every block has words of both ranks: statistics show that rank 1 holds too much, and no more.
    assert found["first"]["sentence"].endswith("rank 1's shard differs" + ", perhaps not alone" * zigzag)
    stretch = "target: context parallel ranks have one stretch of each sequence, as their words tell"
    assert (stretch in found["notes"]) is not zigzag


def test_values_tell_how_sequences_without_words_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.random.default_rng(5).standard_normal((8, 16, 8)).astype(np.float32)
    record(tmp_path / "g" / "step0" / "proc1", {UP: {"input.0": values, "output.0": values * 2}})
    for rank, part in enumerate(np.split(values, 2, axis=1)):
        wrong = np.float32([1.0] * 7 + [1.0 + rank])[:, None, None]
        record(tmp_path / "t" / "step0" / f"rank{rank}", {UP: {"input.0": part, "output.0": part * 2 * wrong}})
    found = compared(tmp_path, capsys, "cp=2")
    assert found["first"]["sentence"].endswith("rank 1's shard differs")
    assert "target: context parallel ranks have one stretch of each sequence, as their values tell" in found["notes"]


def test_two_data_parallel_runs_need_no_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = np.random.default_rng(5).integers(0, 32, (8, 16))
    table = np.random.default_rng(6).standard_normal((32, 8)).astype(np.float32)
    for folder, ranks in (("t", 4), ("g", 2)):
        for rank, own in enumerate(np.split(words, ranks)):
            place = tmp_path / folder / "step0" / f"rank{rank}"
            record(place, {UP: {"input.0": own, "parameters.weight": table, "output.0": table[own]}})
            (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": ranks}))
    found = compared(tmp_path, capsys, "")
    assert "target: 4 ranks, layout dp=4 (found: all ranks hold the same parameters)" in found["notes"]
    assert found["first"] is None


def test_no_rank_is_named_where_all_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Normalised by its own samples alone, each rank's part is off; one of them holds more than the whole may."""
    values = np.random.default_rng(5).standard_normal((8, 64)).astype(np.float32)
    record(tmp_path / "g" / "step0" / "proc1", {NORM: {"output.0": values}})
    for rank, factor in enumerate((0.8, 1.3)):
        own = np.split(values, 2)[rank] * np.float32(factor)
        record(tmp_path / "t" / "step0" / f"rank{rank}", {NORM: {"output.0": own}})
    assert "shard" not in compared(tmp_path, capsys, "dp=2")["first"]["sentence"]


def test_a_data_parallel_layout_of_ranks_with_parts_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight, words = np.random.default_rng(5).standard_normal((32, 8), dtype=np.float32), np.ones((4, 8), np.float32)
    record(tmp_path / "g" / "step0" / "proc1", {UP: layer(weight, words)})
    for rank, own in enumerate(np.split(weight, 2)):
        record(tmp_path / "t" / "step0" / f"rank{rank}", {UP: layer(own, words)})
    found = compared(tmp_path, capsys, "dp=2", code=2)
    said = (
        "ranks of this layout hold whole parameters, but up.weight is [16, 8] on rank 0, and [32, 8] in the other run"
    )
    assert any(said in text for text in found["lost"])


@pytest.mark.parametrize(("parts", "wrong"), [((3.0, 5.0), False), ((7.0, 9.0), False), ((1.0, 2.0), True)])
def test_a_loss_is_a_mean_or_a_sum(
    parts: tuple[float, float], wrong: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Golden's is 8: what two ranks add up to (reduction sum), or their mean."""
    loss = "Functional.cross_entropy.0.forward"
    logits = np.ones((8, 4), np.float32)
    record(tmp_path / "g" / "step0" / "proc1", {loss: {"input.0": logits, "output.0": np.array(8, np.float32)}})
    for rank, value in enumerate(parts):
        calls = {loss: {"input.0": logits[:4], "output.0": np.array(value, np.float32)}}
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls)
    assert (compared(tmp_path, capsys, "dp=2")["first"] is not None) is wrong


def test_rounding_of_a_parameter_does_not_come_before_a_gradient(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = [np.random.default_rng(at).standard_normal((32, 8)).astype(np.float32) for at in range(3)]
    for folder, wrong in (("g/step0/proc1", 1.0), ("t/step0/rank0", 1.5), ("t/step0/rank1", 1.5)):
        record(tmp_path / folder, {NORM: {"output.0": weights[0]}})
        calls = {}
        for at, weight in enumerate(weights):
            before = weight.copy()
            if wrong > 1 and at == 2:
                before[0, 0] = np.nextafter(before[0, 0], np.float32(9))
            gradient = weight[::-1] * np.float32(wrong)
            values = {"input.0": gradient, "output.0": before - gradient, "parameters.before": before}
            calls[f"Optimizer.layers.{at}.weight.SGD.0.forward"] = values
        record(tmp_path / folder, calls, name="optimizer")
    first = optimizers(tmp_path, capsys, "dp=2")["first"]
    assert (first["op"], first["argument"]) == ("Optimizer.layers.0.weight.SGD.0.forward", "input.0")


@pytest.mark.parametrize("after", [True, False])
def test_sums_of_gradients_over_other_numbers_of_ranks(
    after: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program adds gradients up after backward, over two ranks or four. What it does before backward is compared."""
    generator = np.random.default_rng(21)
    weight, words, up = (generator.standard_normal(shape, dtype=np.float32) for shape in ((16, 8), (8, 8), (8, 16)))
    whole, back = up.T @ words / np.float32(8), "Module.up.Linear.backward.0"
    for side, count in (("t", 4), ("g", 2)):
        for rank, (own, grad) in enumerate(zip(np.split(words, count), np.split(up, count), strict=True)):
            gradient = grad.T @ own / np.float32(len(own))
            reduced = {"input.0": gradient, "output.0": whole * np.float32(count)}
            calls = [("Module.up.Linear.forward.0", {"parameters.weight": weight, "output.0": own @ weight.T}),
                     (back, {"output.0": grad * count}), ("Distributed.all_reduce.0.forward", reduced)]  # fmt: skip
            if not after:
                calls = [calls[0], calls[2], calls[1]]
            record(tmp_path / side / "step0" / f"rank{rank}", dict(calls))
    command = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--csv"]
    code = main([*command, "--layout", "dp=4", "dp=2", "--fail-on", "error"])
    capsys.readouterr()
    assert code == (0 if after else 1)


@pytest.mark.parametrize(("world", "layout"), [(2, "tp=2"), (4, "tp=2,cp=2")])
def test_ranks_that_cut_parameters_may_cut_sequences_too(
    world: int, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sequence parallel ranks look up their own words. Context parallel ones are others than the tensor parallel."""
    generator = np.random.default_rng(22)
    words, table = generator.integers(0, 16, (2, 8)), generator.standard_normal((16, 8), dtype=np.float32)
    weight = generator.standard_normal((16, 8), dtype=np.float32)
    for side, count in (("g", 1), ("t", world)):
        cut = min(count, 2)
        for rank in range(count):
            own = np.ascontiguousarray(np.split(words, cut, axis=1)[rank // (count // cut)])
            calls = {"Module.wte.Embedding.forward.0": {"input.0": own, "parameters.weight": table},
                     UP: {"parameters.weight": np.split(weight, cut)[rank % cut]}}  # fmt: skip
            record(tmp_path / side / "step0" / (f"rank{rank}" if side == "t" else "proc1"), calls)
    notes = compared(tmp_path, capsys, "")["notes"]
    assert f"target: {world} ranks, layout {layout} (found)" in notes


@pytest.mark.parametrize("scaled", [True, False])
def test_a_shard_that_shows_in_no_result_but_in_the_optimizer_is_named(
    scaled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """HSDP in 16 bits: the pass itself agrees. Of two copies of the shards, the one that differs is judged."""
    generator = np.random.default_rng(23)
    weight, gradient, words = (
        generator.standard_normal(shape, dtype=np.float32) for shape in ((32, 8), (32, 8), (4, 8))
    )
    record(tmp_path / "g" / "step0" / "proc1", {UP: layer(weight, words)})
    updated = {"input.0": gradient, "output.0": weight - gradient, "parameters.before": weight}
    record(tmp_path / "g" / "step0" / "proc1", {UPDATE: updated}, name="optimizer")
    placement = {"mesh": [[0, 1], [2, 3]], "placements": [{"Replicate": {}}, {"Shard": {"dim": 0}}],
                 "global_shape": [32, 8], "local_shape": [16, 8]}  # fmt: skip
    names = [f"{UPDATE}.{name}" for name in ("input.0", "output.0", "parameters.before")]
    wrong = weight * np.repeat(np.float32([1.0, 1.5]), 16)[:, None]
    for rank, own in enumerate(np.split(words, 4)):
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, {UP: layer(weight, own) | {"parameters.weight": weight if rank < 2 else wrong}})
        half = slice(16 * (rank % 2), 16 * (rank % 2) + 16)
        before = (wrong if rank > 1 and scaled else weight)[half]
        calls = {"input.0": gradient[half], "output.0": before - gradient[half], "parameters.before": before}
        record(place, {UPDATE: calls}, name="optimizer")
        file, shapes = place / "optimizer.json", dict.fromkeys(names, placement)
        document = json.loads(file.read_text())
        for leaf in (*document["data"][UPDATE]["input_args"], *document["data"][UPDATE]["output"],
                     *document["data"][UPDATE]["parameters"].values()):  # fmt: skip
            leaf["shape"] = [32, 8]  # the whole one, as a recorder writes it
        file.write_text(json.dumps(document))
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 4, "values": shapes}))
    command = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*command, "--layout", "dp=4"]) == 0
    found = {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}
    first, update = (found[f"step0/{name}"]["first"] for name in ("whole", "optimizer"))
    if not scaled:
        assert (first, update) == (None, None)
        return
    assert (first["op"], first["argument"]) == (UP, "parameters.weight")
    assert "rank 3's shard differs, which is gathered" in first["sentence"]
    assert (update["op"], update["argument"]) == (UPDATE, "parameters.before")
    assert f"{UPDATE}.parameters.before: rank 3's replica differs from the others" in found["step0/optimizer"]["notes"]


def test_what_groups_of_another_size_gather_is_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FSDP gathers parameters piece by piece: of four ranks the pieces follow each other otherwise than of two."""
    generator = np.random.default_rng(24)
    weight, bias, words = (generator.standard_normal(shape, dtype=np.float32) for shape in ((16, 8), (16, 8), (8, 8)))
    for side, count in (("t", 4), ("g", 2)):
        pieces = [np.concatenate(both) for both in zip(np.split(weight, count), np.split(bias, count), strict=True)]
        for rank, own in enumerate(np.split(words, count)):
            gathered = {"input.0": pieces[rank], "output.0": np.concatenate(pieces)}
            module = {"parameters.weight": weight, "parameters.bias": bias, "output.0": own @ weight.T}
            calls = {"Distributed.all_gather_into_tensor.0.forward": gathered, "Module.up.Linear.forward.0": module}
            record(tmp_path / side / "step0" / f"rank{rank}", calls)
    command = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--csv"]
    assert main([*command, "--layout", "dp=4", "dp=2", "--fail-on", "warning"]) == 0, capsys.readouterr().out


def test_copies_of_a_gradient_that_ranks_do_not_share_are_named_within_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part of the model that no wrapper reduces: however near golden's gradient they are, ranks drift apart."""
    weight = np.random.default_rng(5).standard_normal((32, 16)).astype(np.float16)
    for folder, factor in (("g/step0/proc1", 1.0), ("t/step0/rank0", 1.002), ("t/step0/rank1", 0.997)):
        record(tmp_path / folder, {NORM: {"output.0": weight}})
        own = weight * np.float16(factor)
        calls = {UPDATE: {"input.0": own, "output.0": weight, "parameters.before": weight}}
        record(tmp_path / folder, calls, name="optimizer")
    first = optimizers(tmp_path, capsys, "dp=2")["first"]
    assert first["op"] == UPDATE
    assert "ranks are given other gradients of one parameter" in first["sentence"]


def gan(folder: Path, own: np.ndarray, rate: float, wrong: float) -> None:
    """A critic that steps before the generator's second pass; the generator's gradients follow from that."""
    weight, critic, maker = np.ones((8, 8), np.float32), "Module.critic.Linear", "Module.maker.Linear"
    read = np.float32(wrong)
    record(folder, {
        f"{maker}.forward.0": {"parameters.weight": weight, "output.0": own},
        f"{critic}.forward.0": {"input.0": own, "parameters.weight": weight, "output.0": own},
        f"{critic}.backward.0": {"input.0": own, "output.0": own},
        f"{critic}.forward.1": {"input.0": own, "parameters.weight": weight * read, "output.0": own * read},
        f"{critic}.backward.1": {"input.0": own * read, "output.0": own * read},
    })  # fmt: skip
    gradient = np.arange(64, dtype=np.float32).reshape(8, 8)
    record(folder, {
        f"Optimizer.{name}.{at}.SGD.0.forward": {"input.0": gradient * np.float32(factor), "output.0": weight,
                                                 "parameters.before": weight}
        for name, factor in (("critic", rate), ("maker", wrong**3)) for at in range(3)
    }, name="optimizer")  # fmt: skip


def test_what_an_optimizer_was_given_within_the_step_comes_before_the_parameters_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The critic's gradients were added up, not averaged. Those of the generator differ for that, by no one factor."""
    samples = np.random.default_rng(5).standard_normal((8, 8), dtype=np.float32)
    gan(tmp_path / "g" / "step0" / "proc1", samples, 1.0, 1.0)
    for rank, own in enumerate(np.split(samples, 2)):
        gan(tmp_path / "t" / "step0" / f"rank{rank}", own, 2.0, 1.3)
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "dp=2"]) == 0
    for found in json.loads(capsys.readouterr().out)["ranks"]:
        assert found["first"]["op"] == "Optimizer.critic.0.SGD.0.forward"
        assert "the gradients of 3 of 6 parameters are 2 times golden's, as many as dp=2" in found["first"]["sentence"]


def test_the_rank_of_a_gradient_is_named_though_all_are_means_of_their_own_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each rank's gradient is as many times golden's as there are ranks."""
    back = np.random.default_rng(5).standard_normal((64, 8), dtype=np.float32)
    name = "Module.up.Linear.backward.0"
    record(tmp_path / "g" / "step0" / "proc1", {UP: {"output.0": back}, name: {"input.0": back, "output.0": back}})
    for rank, own in enumerate(np.split(back, 2)):
        wrong = own * np.float32(2 + rank)
        calls = {UP: {"output.0": own}, name: {"input.0": wrong, "output.0": wrong}}
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls)
    first = compared(tmp_path, capsys, "dp=2")["first"]
    assert first["op"] == name
    assert first["sentence"].endswith("rank 1's shard differs")


def test_modules_that_are_called_twice_and_come_back_once_are_no_micro_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first call of a generator is for its critic alone."""
    noise, name = np.random.default_rng(5).standard_normal((8, 8), dtype=np.float32), "Module.maker.Linear"

    def calls(own: np.ndarray) -> dict[str, Any]:
        again = {"input.0": own[::-1].copy(), "output.0": own}
        return {f"{name}.forward.0": {"input.0": own, "output.0": own}, f"{name}.forward.1": again,
                f"{name}.backward.1": {"input.0": own, "output.0": own}}  # fmt: skip

    record(tmp_path / "g" / "step0" / "proc1", calls(noise))
    for rank, own in enumerate(np.split(noise, 2)):
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls(own))
    notes = compared(tmp_path, capsys, "dp=2")["notes"]
    assert not any("micro" in note for note in notes)


def test_a_buffer_that_each_rank_keeps_for_itself_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No recorded call made it, so ranks share it; golden's is a mean over the batch."""
    generator = np.random.default_rng(8)
    rows, parts = generator.standard_normal((8, 16), np.float32), generator.standard_normal((2, 16), np.float32)
    centre = "Tensor.__sub__.0.forward"
    sides = ("g/step0/proc1", "t/step0/rank0", "t/step0/rank1")
    for folder, own, kept in zip(sides, (rows, rows[:4], rows[4:]), (parts.mean(0), *parts), strict=True):
        calls = {UP: {"input.0": own, "output.0": own * np.float32(2)}}
        calls[centre] = {"input.0": own * np.float32(2), "input.1": kept, "output.0": own * np.float32(2) - kept}
        record(tmp_path / folder, calls)
    first = compared(tmp_path, capsys, "dp=2")["first"]
    assert (first["op"], first["argument"]) == (centre, "input.1")
    assert "golden's is the mean of what ranks 0, 1 hold, but nothing averages them" in first["sentence"]
