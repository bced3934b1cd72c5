"""Which rank, stage or micro batch is wrong, where only statistics and sketches were recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import forward, value, write_dump
from twinprobe._cli import main
from twinprobe._measure.sketch import measured
from twinprobe._runs.sketches import SketchFile
from twinprobe._runs.tensors.elements import HostTensor

UP, NORM = "Module.up.Linear.forward.0", "Module.norm.LayerNorm.forward.0"
Calls = dict[str, dict[str, Any]]


def record(
    folder: Path, calls: Calls, *, name: str = "dump", parents: dict[str, Any] | None = None, level: str = "mix"
) -> None:
    """Write the arrays of calls (``parameters.weight``, ``output.0``) as a recorder does: statistics and sketches."""
    data: dict[str, Any] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.sketch").open("wb") as stream:
        sketches = SketchFile(stream)
        for op, values in calls.items():
            entry = data[op] = {} if "parameters_grad" in op else forward([], [])
            for place, content in values.items():
                part, _, key = place.partition(".")
                if not isinstance(content, np.ndarray):
                    entry["input_kwargs"][key] = value(content)
                    continue
                dtype = content.dtype.name
                found, sketch = measured(HostTensor(dtype, content.shape, np.ascontiguousarray(content).reshape(-1)))
                leaf: dict[str, Any] = dict(zip(("Max", "Min", "Mean", "Norm"), map(float, found[:4]), strict=True))
                if dtype == "int64":  # extremes alone
                    leaf = {"Max": int(content.max()), "Min": int(content.min()), "Mean": None, "Norm": None}
                leaf |= {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": list(content.shape)}
                leaf["requires_grad"] = False
                sketches.add(sketch)
                if part == "parameters":
                    entry.setdefault("parameters", {})[key] = leaf
                elif part == "gradient":
                    entry[key] = [leaf]
                else:
                    entry["output" if part == "output" else "input_args"].append(leaf)
        sketches.finish()
    write_dump(folder, data, level=level, name=f"{name}.json", parents=parents or dict.fromkeys(calls))


def compared(folder: Path, capsys: pytest.CaptureFixture[str], layout: str, *, code: int = 0) -> dict[str, Any]:
    """Compare the ranks in ``t`` with the process in ``g``: the only result."""
    words = [
        "compare",
        "-tp",
        str(folder / "t"),
        "-gp",
        str(folder / "g"),
        "-o",
        str(folder / "out"),
        "--csv",
        "--json",
    ]
    assert main([*words, *(["--layout", layout] if layout else [])]) == code
    (found,) = json.loads(capsys.readouterr().out)["ranks"]
    return found  # type: ignore[no-any-return]


def layer(weight: np.ndarray, words: np.ndarray) -> dict[str, Any]:
    return {"parameters.weight": weight, "output.0": words @ weight.T}


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    """A weight and what is multiplied with it."""
    generator = np.random.default_rng(3)
    return tuple(generator.standard_normal(shape, dtype=np.float32) for shape in ((32, 8), (4, 8)))  # type: ignore[return-value]


def test_the_rank_of_a_smaller_shard_is_named(
    arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight, words = arrays
    record(tmp_path / "g" / "step0" / "proc1", {UP: layer(weight, words)})
    for rank, own in enumerate(np.split(weight, 4)):
        record(tmp_path / "t" / "step0" / f"rank{rank}", {UP: layer(own * (0.5 if rank == 2 else 1.0), words)})
    first = compared(tmp_path, capsys, "tp=4")["first"]
    assert first["op"] == UP
    assert first["sentence"].endswith("rank 2's shard differs")


def test_the_rank_whose_shard_others_gather_is_named(
    arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight, words = arrays
    record(tmp_path / "g" / "step0" / "proc1", {UP: layer(weight, words)})
    wrong = weight * np.repeat(np.float32([1.0, 1.5]), 16)[:, None]
    mesh = [[0, 1], [2, 3]]
    placement = {"mesh": mesh, "placements": [{"Replicate": {}}, {"Shard": {"dim": 0}}],
                 "global_shape": [32, 8], "local_shape": [16, 8]}  # fmt: skip
    for rank, own in enumerate(np.split(words, 4)):
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, {UP: layer(weight if rank < 2 else wrong, own)})
        values = {"Optimizer.up.weight.AdamW.0.forward.parameters.before": placement}
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 4, "values": values}))
    found = compared(tmp_path, capsys, "dp=4")
    assert found["first"]["op"] == UP
    assert "rank 3's shard differs, which is gathered" in found["first"]["sentence"]


def test_the_stage_and_the_micro_batch_are_named(
    arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight, words = arrays
    down = "Module.down.Linear.forward.0"
    inputs = np.repeat(words, 8, axis=0)
    whole = {UP: layer(weight, inputs), down: layer(weight + 1, inputs)}
    record(tmp_path / "g" / "step0" / "proc1", whole)
    for rank, (name, own) in enumerate(((UP, weight), (down, weight + 1))):
        calls = {}
        for micro, part in enumerate(np.split(inputs, 2)):
            made = layer(own, part)
            calls[name.replace("forward.0", f"forward.{micro}")] = made
            if rank == 1 and micro == 1:
                made["output.0"] = made["output.0"] * np.float32(1.25)
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls)
    first = compared(tmp_path, capsys, "pp=2")["first"]
    assert first["op"] == down
    assert first["sentence"].endswith(
        "micro batch 1 differs, the others agree; made by rank 1 (pipeline stage 1) alone"
    )


@pytest.mark.parametrize("odd", [0, 1])
def test_the_rank_of_another_argument_is_named(
    arrays: tuple[np.ndarray, np.ndarray], odd: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight, _ = arrays
    call = "Functional.layer_norm.0.forward"
    record(tmp_path / "g" / "step0" / "proc1", {call: {"input.eps": 1e-5, "output.0": weight}})
    for rank, own in enumerate(np.split(weight, 2)):
        scale, eps = (np.float32(0.5), 0.5) if rank == odd else (np.float32(1.0), 1e-5)
        record(tmp_path / "t" / "step0" / f"rank{rank}", {call: {"input.eps": eps, "output.0": own * scale}})
    first = compared(tmp_path, capsys, "dp=2")["first"]
    assert "eps: 0.5 against 1e-05" in first["sentence"]
    assert f"rank {odd}'s setting differs from the others" in first["sentence"]


def test_a_call_that_one_rank_makes_more_moves_no_others(
    arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight, _ = arrays
    add = [f"Tensor.__add__.{number}.forward" for number in range(4)]
    blocks = ["Module.layers.0.Block.forward.0", "Module.layers.1.Block.forward.0"]
    inside = {add[0]: blocks[0], blocks[0]: None, add[1]: blocks[1], add[2]: blocks[1], blocks[1]: None}
    calls = {name: {"output.0": weight * np.float32(number + 1)} for number, name in enumerate(inside)}
    record(tmp_path / "g" / "step0" / "proc1", calls, parents=inside)
    for rank in range(2):
        own = {name: {"output.0": np.split(arrays["output.0"], 2)[rank]} for name, arrays in calls.items()}
        around = dict(inside)
        if rank == 0:  # one more in the first block: the others have later numbers
            own = {
                add[0]: own[add[0]],
                add[1]: {"output.0": own[add[0]]["output.0"] * np.float32(3.0)},
                blocks[0]: own[blocks[0]],
                add[2]: own[add[1]],
                add[3]: own[add[2]],
                blocks[1]: own[blocks[1]],
            }
            around = {add[0]: blocks[0], add[1]: blocks[0], blocks[0]: None, add[2]: blocks[1], add[3]: blocks[1],
                      blocks[1]: None}  # fmt: skip
        record(tmp_path / "t" / "step0" / f"rank{rank}", own, parents=around)
    found = compared(tmp_path, capsys, "dp=2")
    assert f"{blocks[0]}: rank 0 calls Tensor.__add__ here, other ranks do not" in found["notes"]
    assert found["verdicts"]["error"] == 0
    assert found["verdicts"]["pass"] == len(inside)  # the others agree, whatever their numbers are


def test_a_parameter_that_one_rank_does_not_update_is_named(
    arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight, words = arrays
    update, total = "Optimizer.up.weight.SGD.0.forward", "Optimizer.total_norm.SGD.0.forward"
    for folder, own in (("g/step0/proc1", weight), *((f"t/step0/rank{at}", np.split(weight, 2)[at]) for at in (0, 1))):
        record(tmp_path / folder, {NORM: {"output.0": words}})
        calls = {total: {"output.0": np.array(np.linalg.norm(own), np.float32)}}
        if "rank0" not in folder:
            calls[update] = {"input.0": own, "output.0": own * np.float32(0.9), "parameters.before": own}
        record(tmp_path / folder, calls, name="optimizer")
    words_ = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words_, "--layout", "tp=2"]) == 0
    found = {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}["step0/optimizer"]
    assert found["first"]["op"] == update
    assert "rank 0 does not update this parameter" in found["first"]["sentence"]


def test_experts_are_known_by_what_they_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(5)
    names = [f"Module.mlp.branches.{number}.Linear.forward.0" for number in range(4)]
    weights = generator.standard_normal((4, 8, 8), dtype=np.float32)
    words = generator.standard_normal((16, 8), dtype=np.float32)
    router, each = {NORM: layer(weights[0] + 1, words)}, np.split(words, 4)
    branches = {name: layer(weights[at], each[at]) for at, name in enumerate(names)}
    record(tmp_path / "g" / "step0" / "proc1", router | branches)
    for rank in range(2):
        own = {names[at]: branches[names[2 * rank + at]] for at in (0, 1)}
        router = {NORM: layer(weights[0] + 1, np.split(words, 2)[rank])}
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, router | own)
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 2}))
    found = compared(tmp_path, capsys, "")
    assert any("layout ep=2 (found)" in note for note in found["notes"])
    assert found["first"] is None
    assert found["verdicts"] == {"pass": 10, "warning": 0, "error": 0}


def test_updates_that_one_run_alone_recorded_are_told(
    arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight, words = arrays
    record(tmp_path / "g" / "step0" / "proc1", {UP: layer(weight, words)})
    for rank, own in enumerate(np.split(weight, 2)):
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, {UP: layer(own, words)})
        record(place, {"Optimizer.up.weight.SGD.0.forward": {"input.0": own, "output.0": own}}, name="optimizer")
    notes = compared(tmp_path, capsys, "tp=2")["notes"]
    assert f"no optimizer.json in {tmp_path / 'g' / 'step0' / 'proc1'}: updates and settings were not compared" in notes


def test_what_an_optimizer_makes_of_rounding_is_not_blamed_a_step_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gradient that is zero in theory (of a bias of keys) moves its parameter by noise, further than others."""
    generator = np.random.default_rng(7)
    rounding = [0.3, 0.4, 4.0, 0.3, 0.4]  # epsilons
    weights = [generator.standard_normal((32, 8), dtype=np.float32) for _ in rounding]
    for folder, moved in (("g/step1/proc1", False), ("t/step1/rank0", True), ("t/step1/rank1", True)):
        calls = {}
        for at, (weight, far) in enumerate(zip(weights, rounding, strict=True)):
            noise = np.random.default_rng(at).standard_normal(weight.shape) * far * 2**-23 if moved else 0.0
            before = (weight * (1 + noise)).astype(np.float32)
            name = f"Optimizer.layers.{at}.bias.AdamW.0.forward"
            calls[name] = {"input.0": weight * 0.1, "output.0": before * np.float32(0.9), "parameters.before": before}
        record(tmp_path / folder, {NORM: {"output.0": weights[0]}})
        record(tmp_path / folder, calls, name="optimizer")
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "dp=2"]) == 0
    found = {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}["step1/optimizer"]
    assert found["first"] is None


def test_the_rank_of_a_batch_is_named_though_a_block_has_samples_of_two_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight images of 27 numbers: blocks of 14, of which the eighth holds numbers of both ranks."""
    images = np.random.default_rng(4).standard_normal((8, 27), dtype=np.float32)
    weight = np.ones((4, 27), np.float32)

    def call(own: np.ndarray) -> Calls:
        return {UP: {"input.0": own, "parameters.weight": weight, "output.0": own @ weight.T}}

    record(tmp_path / "g" / "step0" / "proc1", call(images))
    for rank in range(2):  # both get the first half
        record(tmp_path / "t" / "step0" / f"rank{rank}", call(images[:4]))
    first = compared(tmp_path, capsys, "dp=2")["first"]
    assert (first["op"], first["argument"]) == (UP, "input.0")
    assert first["sentence"].endswith("rank 1's shard differs")


@pytest.mark.parametrize("wrong", [(1,), (0, 1)])
def test_a_buffer_that_one_rank_alone_has_otherwise_is_a_copy(
    wrong: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Running means that no rank has as golden does are those of the ranks' own batches, and no copies."""
    generator = np.random.default_rng(6)
    images, mean = generator.standard_normal((8, 4), dtype=np.float32), generator.standard_normal(4, dtype=np.float32)
    batch_norm = "Functional.batch_norm.0.forward"

    def call(own: np.ndarray, shift: float) -> Calls:
        return {batch_norm: {"input.0": own, "input.1": mean + np.float32(shift), "output.0": own - mean - shift}}

    record(tmp_path / "g" / "step0" / "proc1", call(images, 0.0))
    for rank, own in enumerate(np.split(images, 2)):
        record(tmp_path / "t" / "step0" / f"rank{rank}", call(own, 0.25 * (rank + 1) * (rank in wrong)))
    first = compared(tmp_path, capsys, "dp=2")["first"]
    assert first["op"] == batch_norm
    assert ("rank 1's replica differs from the others" in first["sentence"]) == (wrong == (1,))
    assert (first["argument"] == "input.1") == (wrong == (1,))


def test_all_ranks_that_gather_a_wrong_shard_are_named(
    arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two data parallel pairs of tensor parallel ranks: nobody knows which of the two held what is wrong."""
    weight, words = arrays
    record(tmp_path / "g" / "step0" / "proc1", {UP: layer(weight, words)})
    for rank in range(4):
        own = np.split(weight, 2)[rank % 2] * np.float32(1.0 if rank % 2 else 0.5)
        record(tmp_path / "t" / "step0" / f"rank{rank}", {UP: layer(own, np.split(words, 2)[rank // 2])})
    first = compared(tmp_path, capsys, "tp=2,dp=2")["first"]
    assert first["sentence"].endswith("the shards of ranks 0, 2 differ")
