"""Context, expert and pipeline parallel ranks: how they are laid out, and whose values and gradients are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wrong_ranks import Calls, record

from twinprobe._cli import main
from warm_python import run_warm

PROGRAM = Path(__file__).with_name("pipeline_by_hand.py")
Capture = pytest.CaptureFixture[str]
Values = np.ndarray
UP, NORM, HEAD = "Module.up.Linear.forward.0", "Module.norm.LayerNorm.forward.0", "Module.head.Linear.forward.0"


def random(seed: int, *shape: int) -> Values:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def ranks(folder: Path, count: int, calls: Callable[[int], Calls], *, name: str = "dump", parents: Any = None) -> None:
    """Ranks in ``t``; a single process in ``g``, which is asked for as rank -1."""
    for rank in range(-1, count):
        place = folder / ("g/step0/proc1" if rank < 0 else f"t/step0/rank{rank}")
        record(place, calls(rank), name=name, parents=parents(rank) if parents else None)


def compared(folder: Path, capsys: Capture, layout: str = "", *, code: int = 0) -> dict[str, dict[str, Any]]:
    words = ["compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(folder / "out"), "--json"]
    assert main([*words, *(["--layout", layout] if layout else [])]) == code
    return {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}


def part(values: Values, rank: int, count: int, axis: int = 0) -> Values:
    return values if rank < 0 else np.ascontiguousarray(np.split(values, count, axis=axis)[rank])


def layout_of(found: dict[str, dict[str, Any]]) -> list[str]:
    return [note for note in found["step0/whole"]["notes"] if "(found)" in note]


def updates(name: str, gradient: Values, weight: Values) -> Calls:
    return {name: {"input.0": gradient, "parameters.before": weight, "output.0": weight - gradient}}


# How ranks are laid out.


def test_relative_positions_are_no_words(tmp_path: Path, capsys: Capture) -> None:
    words, table, values = np.random.default_rng(1).integers(0, 32, (4, 16)), random(2, 32, 8), random(3, 4, 16, 8)
    places = np.arange(16)[None] - np.arange(16)[:, None] + 16

    def calls(rank: int) -> Calls:
        own = part(places, rank, 2)
        return {"Module.bias.Embedding.forward.0": {"input.0": own, "output.0": table[own % 32]},
                "Module.words.Embedding.forward.0": {"input.0": part(words, rank, 2, 1)},
                NORM: {"input.0": part(values, rank, 2, 1), "output.0": part(values, rank, 2, 1)}}  # fmt: skip

    ranks(tmp_path, 2, calls)
    found = compared(tmp_path, capsys)
    assert layout_of(found) == ["target: 2 ranks, layout cp=2 (found)"]
    assert found["step0/whole"]["first"] is None


def test_values_of_the_batch_beside_sequences_that_are_cut(tmp_path: Path, capsys: Capture) -> None:
    """What the first module is given has no sequence: the time of each sample."""
    time, frames, table = random(1, 4, 8), random(2, 4, 16, 8), random(4, 8, 8)

    def calls(rank: int) -> Calls:
        samples = (time, frames) if rank < 0 else [np.split(one, 2)[rank // 2] for one in (time, frames)]
        own = part(samples[1], -1 if rank < 0 else rank % 2, 2, 1)
        return {"Module.time.Linear.forward.0": {"input.0": samples[0], "parameters.weight": table},
                UP: {"input.0": own, "output.0": own}, NORM: {"input.0": own, "output.0": own}}  # fmt: skip

    ranks(tmp_path, 4, calls)
    assert layout_of(compared(tmp_path, capsys)) == ["target: 4 ranks, layout cp=2,dp=2 (found)"]


def test_columns_of_all_samples_are_tensor_parallel(tmp_path: Path, capsys: Capture) -> None:
    """Sequences come first and are cut: beside parts of parameters, that looks like a part of the batch."""
    frames, weight = random(1, 8, 2, 16), random(2, 32, 16)

    def calls(rank: int) -> Calls:
        own, rows = part(frames, rank, 2), part(weight, rank, 2)
        return {NORM: {"input.0": own, "output.0": own},
                UP: {"input.0": frames, "parameters.weight": rows, "output.0": frames @ rows.T}}  # fmt: skip

    ranks(tmp_path, 2, calls)
    found = compared(tmp_path, capsys)
    assert layout_of(found) == ["target: 2 ranks, layout tp=2 (found)"]
    assert found["step0/whole"]["verdicts"]["pass"] == 5


def test_a_rank_that_leaves_a_module_out_has_the_layout_of_the_others(tmp_path: Path, capsys: Capture) -> None:
    weights, words = [random(at, 8, 8) for at in range(30)], random(40, 8, 8)

    def calls(rank: int, count: int) -> Calls:
        around = {f"Module.layers.{at}.Linear.forward.0": {"parameters.weight": weights[at]} for at in range(26)}
        if count == 4 and rank == 3:
            around.popitem()
        own = range(rank * 4 // count, (rank + 1) * 4 // count)
        inside = {f"Module.experts.{at}.Linear.forward.0": {"parameters.weight": weights[26 + number]}
                  for at, number in enumerate(own)}  # fmt: skip
        return {NORM: {"input.0": part(words, rank, count)}, **around, **inside}

    for side, count in (("t", 4), ("g", 2)):
        for rank in range(count):
            place = tmp_path / side / "step0" / f"rank{rank}"
            record(place, calls(rank, count))
            (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": count}))
    notes = compared(tmp_path, capsys, code=2)["step0/whole"]["notes"]
    assert any("target: 4 ranks, layout ep=4 (found" in note for note in notes)


# How the pieces of a value follow one another.


def test_heads_and_sequences_that_are_cut_into_as_many_parts(tmp_path: Path, capsys: Capture) -> None:
    """Scores of heads (cut by tensor parallel ranks), queries (cut as the sequence is), and all keys."""
    words, scores = np.random.default_rng(1).integers(0, 32, (4, 16)), random(2, 4, 4, 16, 16)
    weight = random(3, 16, 8)

    def calls(rank: int) -> Calls:
        cp, tp = (-1, -1) if rank < 0 else divmod(rank, 2)
        own = part(part(scores, tp, 2, 1), cp, 2, 2) * np.float32(1.5 if rank == 2 else 1.0)
        return {"Module.words.Embedding.forward.0": {"input.0": part(words, cp, 2, 1)},
                UP: {"parameters.weight": part(weight, tp, 2)},
                "Functional.softmax.0.forward": {"output.0": own}}  # fmt: skip

    ranks(tmp_path, 4, calls)
    first = compared(tmp_path, capsys, "cp=2,tp=2")["step0/whole"]["first"]
    assert first["sentence"].endswith("rank 2's shard differs")


def test_columns_of_a_table_have_something_of_every_word(tmp_path: Path, capsys: Capture) -> None:
    words, table = np.random.default_rng(1).integers(0, 32, (4, 16)), random(2, 32, 8)

    def calls(rank: int) -> Calls:
        own = part(table, rank, 2, 1)
        made = own[words] * np.float32(1.5 if rank == 1 else 1.0)
        return {"Functional.embedding.0.forward": {"input.0": words, "input.1": own, "output.0": made}}

    ranks(tmp_path, 2, calls)
    assert compared(tmp_path, capsys, "tp=2")["step0/whole"]["first"]["argument"] == "output.0"


@pytest.mark.parametrize("divided", [True, False])
def test_losses_that_are_sums_over_all_words(divided: bool, tmp_path: Path, capsys: Capture) -> None:
    """Each rank divides its sum by the words of all ranks, or by its own: golden's loss is the sum, or the mean."""
    losses, gradient, one = [1.25, 2.75], random(1, 4, 16, 8), np.array(1.0, np.float32)

    def calls(rank: int) -> Calls:
        loss = sum(losses) if rank < 0 else losses[rank]
        scale = np.float32(1.0 if divided or rank < 0 else 2.0)
        loss = loss / 2 if not divided and rank < 0 else loss
        call, back = "Tensor.div.0.forward", "Tensor.div.0.backward"
        return {call: {"output.0": np.array(loss, np.float32)}, back: {"input.0": one},
                "Module.up.Linear.backward.0": {"input.0": part(gradient, rank, 2, 1) * scale}}  # fmt: skip

    ranks(tmp_path, 2, calls)
    found = compared(tmp_path, capsys, "cp=2,dp=1")["step0/whole"]
    said = "target: gradients are added up as they are: the loss was divided before backward"
    assert (said in found["notes"]) is divided
    assert found["first"] is None


# Micro batches and schedules.


def stages(folder: Path, side: str, calls: list[Calls], held: list[list[int]], name: str = "dump") -> None:
    """A pipeline of two ranks, with the stages that each of them holds."""
    for rank, own in enumerate(calls):
        place = folder / side / "step0" / f"rank{rank}"
        record(place, own, name=name)
        stages = {"stage": held[rank][-1], "stages": sum(map(len, held)), "held": held[rank], "micro_batches": 4}
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 2, "pipeline": stages}))


def test_a_stale_micro_batch_that_16_bits_explain_is_named(tmp_path: Path, capsys: Capture) -> None:
    """The second stage takes the activation of the micro batch before: the batch has golden's statistics."""
    scales = np.float32([1.0, 1.01, 1.02, 1.03])
    whole = np.sign(random(1, 64, 32)) * np.repeat(np.concatenate([scales, scales, scales[::-1], scales]), 4)[:, None]
    whole = whole.astype(np.float16)
    down = "Module.down.Linear.forward.0"
    record(tmp_path / "g/step0/proc1", {UP: {"output.0": whole}, down: {"input.0": whole, "output.0": whole}})
    parts = np.split(whole, 4)
    stale = [parts[0], parts[1], parts[1], parts[3]]
    first = {UP.replace("forward.0", f"forward.{at}"): {"output.0": own} for at, own in enumerate(parts)}
    second = {down.replace("forward.0", f"forward.{at}"): {"input.0": own, "output.0": own}
              for at, own in enumerate(stale)}  # fmt: skip
    stages(tmp_path, "t", [first, second], [[0], [1]])
    weight = random(3, 8, 8)
    for folder in ("g/step0/proc1", "t/step0/rank0", "t/step0/rank1"):  # where the error is lost
        given = updates(f"Optimizer.{'down' if '1' in folder else 'up'}.weight.SGD.0.forward", weight, weight + 1)
        record(tmp_path / folder, given, name="optimizer")
    found = compared(tmp_path, capsys)["step0/whole"]["first"]
    assert (found["op"], found["argument"]) == (down, "input.0")
    said = "micro batch 2 differs, the others agree better; made by rank 1 (pipeline stage 1) alone"
    assert found["sentence"].endswith(said)


def backward(values: list[Values], order: list[int]) -> Calls:
    """Four micro batches go there, and come back in some order; gradients are numbered as they come."""
    path = "Module.head.Linear"
    there: Calls = {f"{path}.forward.{at}": {"output.0": own} for at, own in enumerate(values)}
    for turn, at in enumerate(order):
        there |= {f"{path}.backward.{at}": {"input.0": values[at]},
                  f"{path}.parameters_grad.{turn}": {"gradient.weight": values[at].T @ values[at]}}  # fmt: skip
    return there


def test_gradients_belong_to_their_micro_batches_in_any_schedule(tmp_path: Path, capsys: Capture) -> None:
    values = [random(at, 8, 8) for at in range(4)]
    stage = {f"Module.up.Linear.forward.{at}": {"output.0": own} for at, own in enumerate(values)}
    for side, order in (("t", [3, 2, 1, 0]), ("g", [0, 1, 2, 3])):
        stages(tmp_path, side, [stage, backward(values, order)], [[0], [1]])
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "pp=2", "pp=2"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["ranks"]
    assert found["first"] is None
    assert found["verdicts"] == {"pass": 16, "warning": 0, "error": 0}


def test_interleaved_stages_against_plain_ones_in_the_optimizer(tmp_path: Path, capsys: Capture) -> None:
    """Paths of a rank with two stages begin with their numbers, those of the other run's ranks do not."""
    weights = [random(at, 8, 8) for at in range(4)]

    def calls(names: list[str], held: list[int]) -> tuple[Calls, Calls]:
        own = [(name, weights[at]) for name, at in zip(names, held, strict=True)]
        given: Calls = {}
        for name, weight in own:
            given |= updates(f"Optimizer.{name}.weight.SGD.0.forward", weight[::-1].copy(), weight)
        return {f"Module.{name}.Linear.forward.0": {"parameters.weight": one} for name, one in own}, given

    for side, names, held in (("t", ["0.layers.0", "1.layers.0"], [[0, 2], [1, 3]]),
                              ("g", ["layers.0", "layers.1"], [[0, 1], [2, 3]])):  # fmt: skip
        both = [calls(names, one) for one in held]
        stages(tmp_path, side, [one[0] for one in both], held if side == "t" else [[0], [1]])
        stages(tmp_path, side, [one[1] for one in both], held if side == "t" else [[0], [1]], "optimizer")
    found = compared(tmp_path, capsys)["step0/optimizer"]
    assert found["verdicts"] == {"pass": 12, "warning": 0, "error": 0}


@pytest.mark.slow
@pytest.mark.parametrize("doubled", [-1, 1])
def test_a_gradient_behind_a_scale_of_the_loss_is_not_excused(doubled: int, tmp_path: Path, capsys: Capture) -> None:
    """Each micro batch divides its loss by four, as it should; what the first stage gets back is doubled for one."""
    for side, count in (("t", 2), ("g", 1)):
        done = run_warm(PROGRAM, str(tmp_path / side), str(count), str(doubled))
        assert done.returncode == 0, done.stderr
    first = compared(tmp_path, capsys)["step0/whole"]["first"]
    if doubled < 0:
        assert first is None
        return
    assert first["op"].startswith("Module.layers.1.")
    assert ".backward." in first["op"]
    assert "micro batch 1 differs, the others agree; made by rank 0 (pipeline stage 0) alone" in first["sentence"]


def test_the_micro_batch_whose_loss_is_scaled_otherwise_is_named(tmp_path: Path, capsys: Capture) -> None:
    call = "Functional.cross_entropy.{}"
    logits = random(1, 16, 8)

    def loss(at: int, part: Values, scale: float) -> Calls:
        there = {"input.0": part, "output.0": np.array(1.0, np.float32)}
        back = {"input.0": np.array(scale, np.float32), "output.0": part * np.float32(scale)}
        return {f"{call.format(at)}.forward": there, f"{call.format(at)}.backward": back}

    record(tmp_path / "g/step0/proc1", {HEAD: {"output.0": logits}, **loss(0, logits, 1.0)})
    last: Calls = {}
    for at, part in enumerate(np.split(logits, 4)):
        last |= {
            HEAD.replace("forward.0", f"forward.{at}"): {"output.0": part},
            **loss(at, part, 1.0 if at == 2 else 0.25),
        }
    first = {UP.replace("forward.0", f"forward.{at}"): {"output.0": logits[:4]} for at in range(4)}
    stages(tmp_path, "t", [first, last], [[0], [1]])
    found = compared(tmp_path, capsys)["step0/whole"]["first"]
    assert found["op"] == "Functional.cross_entropy.0.backward"
    assert "micro batch 2 differs, the others agree" in found["sentence"]


# Whose values and gradients are wrong.


def test_experts_that_two_ranks_have_exchanged(tmp_path: Path, capsys: Capture) -> None:
    """Experts are stacked in one parameter, of which each rank has some."""
    stacked, samples = random(1, 8, 4, 8), random(2, 8, 8)

    def calls(rank: int) -> Calls:
        own, there = part(samples, rank, 2), part(stacked, 1 - rank if rank >= 0 else -1, 2)
        made = own * np.float32(1.0 if rank < 0 else 1.5)
        return {"Module.moe.Switch.forward.0": {"input.0": own, "parameters.w_in": there, "output.0": made}}

    ranks(tmp_path, 2, calls)
    first = compared(tmp_path, capsys, "ep=2")["step0/whole"]["first"]
    assert first["sentence"].endswith("rank 0 has the shard of rank 1, rank 1 has the shard of rank 0")


def test_gradients_that_all_ranks_of_two_dimensions_should_divide(tmp_path: Path, capsys: Capture) -> None:
    weights = [random(at, 8, 8) for at in range(12)]

    def given(rank: int) -> Calls:
        calls: Calls = {}
        for at, weight in enumerate(weights):
            own = weight[::-1] * np.float32(4.0 if at < 4 and rank >= 0 else 1.0)
            calls |= updates(f"Optimizer.layers.{at}.weight.SGD.0.forward", own, weight)
        return calls

    ranks(tmp_path, 4, lambda rank: {NORM: {"output.0": weights[0]}})
    ranks(tmp_path, 4, given, name="optimizer")
    sentence = compared(tmp_path, capsys, "dp=2,cp=2")["step0/optimizer"]["first"]["sentence"]
    assert "4 of 12 parameters are 4 times golden's, as many as dp=2 x cp=2, the others agree" in sentence


def test_a_mask_that_ranks_share_is_compared_by_its_sketch(tmp_path: Path, capsys: Capture) -> None:
    values, whole = random(1, 8, 16), np.tril(np.ones((16, 16), np.int64))

    def calls(rank: int) -> Calls:
        mask = whole if rank < 0 else np.tril(np.ones((16, 16), np.int64), 1)
        own = part(values, rank, 2) * np.float32(1.0 if rank < 0 else 1.5)
        return {"Functional.attention.0.forward": {"input.0": part(values, rank, 2), "input.1": mask, "output.0": own}}

    ranks(tmp_path, 2, calls)
    assert compared(tmp_path, capsys, "dp=2")["step0/whole"]["first"]["argument"] == "input.1"


def ring(rank: int, values: Values, exchanged: int) -> tuple[Calls, dict[str, Any]]:
    """A module that adds a piece of each rank, after exchanges; golden adds once."""
    around, inside = "Module.attn.Ring.forward.0", "Module.attn.o.Linear.forward.0"
    own = part(values, rank, 4, 1)
    wrong = own * np.float32(1.5 if rank == 2 else 1.0)
    calls: Calls = {"Tensor.mul.0.forward": {"output.0": own}}
    if rank >= 0:
        calls["Distributed.batch_isend_irecv.0.forward"] = {"output.0": own}
        calls |= {f"Tensor.exp.{at}.forward": {"output.0": own} for at in range(exchanged)}
    calls["Tensor.add.0.forward"] = {"input.0": own, "output.0": wrong}
    calls |= {inside: {"input.0": wrong, "output.0": wrong}, around: {"input.0": own, "output.0": wrong}}
    return calls, {**dict.fromkeys([*list(calls)[:-1]], around), around: None}


def test_functions_of_a_ring_that_were_left_out_are_not_missing(tmp_path: Path, capsys: Capture) -> None:
    values = random(1, 4, 32, 8)
    made = {rank: ring(rank, values, 3 if rank == 2 else 4) for rank in range(-1, 4)}
    ranks(tmp_path, 4, lambda rank: made[rank][0], parents=lambda rank: made[rank][1])
    found = compared(tmp_path, capsys, "cp=4")["step0/whole"]
    assert found["first"]["op"] == "Module.attn.Ring.forward.0"
    assert "only" not in found["first"]["sentence"]
    assert found["first"]["sentence"].endswith("rank 2's shard differs")
    said = "target: Module.attn.Ring.forward.0: rank 2 makes 5 calls on pieces of other ranks, the others 6"
    assert said in found["notes"]


def test_types_of_ranks_are_compared_without_what_was_left_out(tmp_path: Path, capsys: Capture) -> None:
    """A ring in which one rank leaves out a step: its later calls have other numbers, and the type of others."""
    values = random(1, 4, 32, 8)

    def calls(rank: int) -> tuple[Calls, dict[str, Any]]:
        around, own = "Module.attn.Ring.forward.0", part(values, rank, 4, 1)
        steps = 1 if rank < 0 else 3 if rank == 2 else 4
        found: Calls = {"Tensor.exp.0.forward": {"output.0": own}}
        if rank >= 0:
            found["Distributed.batch_isend_irecv.0.forward"] = {"output.0": own}
        found |= {f"Tensor.exp.{at}.forward": {"output.0": own} for at in range(1, steps)}
        inside = list(found)
        found |= {around: {"output.0": own}, f"Tensor.exp.{steps}.forward": {"output.0": own.astype(np.float16)}}
        return found, {**dict.fromkeys(inside, around), around: None, f"Tensor.exp.{steps}.forward": None}

    ranks(tmp_path, 4, lambda rank: calls(rank)[0], parents=lambda rank: calls(rank)[1])
    notes = compared(tmp_path, capsys, "cp=4")["step0/whole"]["notes"]
    assert not [note for note in notes if "compute in different types" in note]


def test_what_one_rank_calls_is_named_if_only_gradients_show_it(tmp_path: Path, capsys: Capture) -> None:
    """Rank 1 multiplies once more in a layer; in the pass that is within the noise, but not for the optimizer."""
    values, weight = random(1, 8, 16), random(2, 16, 16)
    around, call = "Module.layers.1.core.Heads.forward.0", "Tensor.mul.0.forward"

    def calls(rank: int) -> Calls:
        own = part(values, rank, 2)
        return {**({call: {"output.0": own[:1]}} if rank == 1 else {}), around: {"input.0": own, "output.0": own}}

    ranks(tmp_path, 2, lambda rank: updates("Optimizer.layers.1.up.weight.SGD.0.forward",
                                            weight if rank < 0 else weight[::-1] * np.float32(1.25), weight + 1)
          | updates("Optimizer.layers.0.up.weight.SGD.0.forward", weight, weight + 1), name="optimizer")  # fmt: skip
    ranks(tmp_path, 2, calls, parents=lambda rank: {call: around, around: None} if rank == 1 else {around: None})
    first = compared(tmp_path, capsys, "dp=2")["step0/whole"]["first"]
    assert first["op"] == around
    assert first["sentence"].startswith("rank 1 calls Tensor.mul here, other ranks do not")
