"""Which rank is wrong, by statistics and sketches: of columns, of copies beside parts, of what optimizers read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wrong_ranks import record

from twinprobe._cli import main

DOWN, NORM, TABLE = (
    "Module.mlp.down.Linear.forward.0",
    "Module.norm.LayerNorm.forward.0",
    "Module.table.Embedding.forward.0",
)
UPDATE = "Optimizer.mlp.down.weight.SGD.0.forward"


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def compared(folder: Path, capsys: pytest.CaptureFixture[str], layout: str) -> dict[str, dict[str, Any]]:
    words = ["compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(folder / "out"), "--json"]
    assert main([*words, "--layout", layout]) == 0
    return {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}


def placed(folder: Path, rank: int, world: int, values: dict[str, Any]) -> None:
    (folder / "layout.json").write_text(json.dumps({"rank": rank, "world_size": world, "values": values}))


@pytest.mark.parametrize(("fault", "ranks"), [
    ("other", 2), ("other", 4), ("zero", 2), ("zero", 4), ("half", 2), ("everywhere", 2), ("everywhere", 4),
])  # fmt: skip
def test_the_rank_of_wrong_columns_is_named(
    fault: str, ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block has elements of all ranks; golden's largest ones are on those that are right."""
    words, weight = random(1, 16, 64), random(2, 32, 64)
    record(tmp_path / "g" / "step0" / "proc1", {DOWN: {"parameters.weight": weight, "output.0": words @ weight.T}})
    wrong = weight.copy()
    columns = slice(32, 48) if ranks == 4 else slice(32, 64)
    rows = slice(16, 32) if fault == "half" else slice(None)
    changed = {"other": 0.9 * random(3, 32, 64), "zero": 0 * weight, "half": 0.5 * random(4, 32, 64)}.get(fault)
    if changed is None:
        wrong = 0.9 * random(5, 32, 64)
    else:
        wrong[rows, columns] = changed[rows, columns]
    for rank, own in enumerate(np.split(wrong, ranks, axis=1)):
        call = {"parameters.weight": own, "output.0": words @ wrong.T}
        record(tmp_path / "t" / "step0" / f"rank{rank}", {DOWN: call})
    first = compared(tmp_path, capsys, f"tp={ranks}")["step0/whole"]["first"]
    assert first["op"] == DOWN
    assert first["sentence"].endswith(f"rank {ranks // 2}'s shard differs") == (fault != "everywhere")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("fault", ["scaled", "backward"])
def test_the_rank_of_a_gradient_that_changed_after_backward_is_named(
    axis: int, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not where backward itself gave another gradient."""
    words, weight, gradient = random(1, 16, 64), random(2, 32, 64), random(3, 32, 64)
    backward = "Module.mlp.down.Linear.parameters_grad.0"
    for folder, part in (("g/step0/proc1", None), ("t/step0/rank0", 0), ("t/step0/rank1", 1)):
        own = gradient if part is None else np.split(gradient, 2, axis=axis)[part]
        held = weight if part is None else np.split(weight, 2, axis=axis)[part]
        made = own * np.float32(2.0 if fault == "backward" and part is not None else 1.0)
        given = own * np.float32(3.0) if fault == "scaled" and part == 1 else made
        calls: dict[str, Any] = {DOWN: {"output.0": words @ weight.T}, backward: {"gradient.weight": made}}
        record(tmp_path / folder, calls)
        step = {"input.0": given, "parameters.before": held, "output.0": held - np.float32(0.1) * given}
        record(tmp_path / folder, {UPDATE: step}, name="optimizer")
    first = compared(tmp_path, capsys, "tp=2")["step0/optimizer"]["first"]
    assert (first["op"], first["argument"]) == (UPDATE, "input.0")
    said = "on rank 1 it is not the gradient of the backward pass: 3 times that; on the others it is"
    assert (said in first["sentence"]) == (fault == "scaled")
    assert ("rank" in first["sentence"]) == (fault == "scaled")


@pytest.mark.parametrize("sign", [1.5, -1.0])
def test_the_rank_of_a_shard_that_two_dimensions_of_a_mesh_cut_is_named(
    sign: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FSDP over tensor parallel ranks: two of them gather the same; one of them holds the rows that differ."""
    weight, words = random(2, 64, 8), random(1, 8, 8)
    record(tmp_path / "g" / "step0" / "proc1", {DOWN: {"parameters.weight": weight, "output.0": words @ weight.T}})
    wrong = weight.copy()
    wrong[48:] = wrong[48:] * np.float32(sign) + np.float32(0.3)
    placement = {"mesh": [[0, 1], [2, 3]], "placements": [{"Shard": {"dim": 0}}, {"Shard": {"dim": 0}}],
                 "split_factors": [2, None], "global_shape": [64, 8], "local_shape": [16, 8]}  # fmt: skip
    for rank in range(4):
        own, part = np.split(wrong, 2)[rank % 2], np.split(words, 2)[rank // 2]
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, {DOWN: {"parameters.weight": own, "output.0": part @ own.T}})
        placed(place, rank, 4, {f"{UPDATE}.parameters.before": placement})
    first = compared(tmp_path, capsys, "tp=2,dp=2")["step0/whole"]["first"]
    assert first["sentence"].endswith("rank 3's shard differs")


def test_a_gathered_shard_of_other_signs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The norms of all blocks are golden's; their sums are not."""
    weight, words = random(2, 32, 8), random(1, 4, 8)
    record(tmp_path / "g" / "step0" / "proc1", {DOWN: {"parameters.weight": weight, "output.0": words @ weight.T}})
    wrong = weight * np.repeat(np.float32([1.0, -1.0]), 16)[:, None]
    placement = {"mesh": [0, 1], "placements": [{"Shard": {"dim": 0}}], "global_shape": [32, 8], "local_shape": [16, 8]}
    for rank, own in enumerate(np.split(words, 2)):
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, {DOWN: {"parameters.weight": wrong, "output.0": own @ wrong.T}})
        placed(place, rank, 2, {f"{UPDATE}.parameters.before": placement})
    first = compared(tmp_path, capsys, "dp=2")["step0/whole"]["first"]
    assert "rank 1's shard differs, which is gathered" in first["sentence"]


@pytest.mark.parametrize("fault", [False, True])
def test_a_table_that_is_given_a_ranks_own_rows_is_not_blamed(
    fault: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is looked up is masked and added up outside of the table; a later fault is named where it is."""
    table, words = random(1, 32, 8), np.random.default_rng(2).integers(0, 32, (4, 8))
    hidden = table[words]
    scale = np.full(8, 1.25 if fault else 1.0, np.float32)

    def calls(own: np.ndarray, given: np.ndarray, factor: np.ndarray) -> dict[str, Any]:
        return {TABLE: {"input.0": given, "parameters.weight": own, "output.0": own[given]},
                NORM: {"input.0": hidden, "parameters.weight": factor, "output.0": hidden * factor}}  # fmt: skip

    record(tmp_path / "g" / "step0" / "proc1", calls(table, words, np.ones(8, np.float32)))
    for rank, own in enumerate(np.split(table, 2)):
        given = words - 16 * rank
        given = np.where((given >= 0) & (given < 16), given, 0)
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls(own, given, scale))
    first = compared(tmp_path, capsys, "tp=2")["step0/whole"]["first"]
    assert (first["op"] if first else None) == (NORM if fault else None)


def test_parts_of_a_sum_that_are_scattered_over_the_sequence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At L0 no collective is recorded: the module around gives each rank a part of the sequence."""
    words, weight, block = random(1, 16, 64), random(2, 32, 64), "Module.mlp.Mlp.forward.0"
    whole = words @ weight.T
    calls = {DOWN: {"parameters.weight": weight, "output.0": whole}, block: {"output.0": whole},
             NORM: {"input.0": whole, "output.0": whole}}  # fmt: skip
    parents = {DOWN: block, block: None, NORM: None}
    record(tmp_path / "g" / "step0" / "proc1", calls, parents=parents)
    for rank in range(2):
        own = np.split(weight, 2, axis=1)[rank]
        part, mine = np.split(words, 2, axis=1)[rank] @ own.T, np.split(whole, 2)[rank]
        calls = {DOWN: {"parameters.weight": own, "output.0": part}, block: {"output.0": mine},
                 NORM: {"input.0": mine, "output.0": mine * np.float32(1.5)}}  # fmt: skip
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls, parents=parents)
    for dump in tmp_path.glob("*/step0/*/dump.json"):
        dump.write_text(dump.read_text().replace('"mix"', '"L0"'))
    found = compared(tmp_path, capsys, "tp=2")["step0/whole"]
    assert found["first"]["op"] == NORM
    assert not any("nothing adds them up" in note for note in found["notes"])


def test_one_wrong_copy_of_four_is_named_in_the_optimizer_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies along two axes, of which one rank's differs along both."""
    scale, words = np.ones(8, np.float32), random(1, 8, 8)
    update = "Optimizer.norm.weight.SGD.0.forward"
    for folder, rank in (("g/step0/proc1", -1), *((f"t/step0/rank{at}", at) for at in range(4))):
        own = scale * np.float32(1.25 if rank == 3 else 1.0)
        part = words if rank < 0 else np.split(words, 2)[rank // 2]
        weight = random(2, 16, 8) if rank < 0 else np.split(random(2, 16, 8), 2)[rank % 2]
        calls = {DOWN: {"input.0": part, "parameters.weight": weight, "output.0": part @ weight.T},
                 NORM: {"input.0": part, "parameters.weight": own, "output.0": part * own}}  # fmt: skip
        record(tmp_path / folder, calls)
        step = {"input.0": scale, "parameters.before": own, "output.0": own * np.float32(0.5)}
        record(tmp_path / folder, {update: step}, name="optimizer")
    found = compared(tmp_path, capsys, "tp=2,dp=2")
    assert "rank 3's replica differs from the others" in found["step0/whole"]["first"]["sentence"]
    assert "rank 3's replica differs from the others" in found["step0/optimizer"]["first"]["sentence"]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("wrong", [(0,), (0, 1)])
def test_a_shard_of_other_numbers_with_the_same_statistics(
    wrong: tuple[int, ...], replicas: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where all ranks have golden's numbers in another order, the parameter may be a fused one."""
    words, weight = random(1, 16, 8), random(2, 64, 8)
    up = "Module.mlp.up.Linear.forward.0"
    record(tmp_path / "g" / "step0" / "proc1", {up: {"input.0": words, "parameters.weight": weight,
                                                     "output.0": words @ weight.T}})  # fmt: skip
    for rank in range(2 * replicas):
        own, part = np.split(weight, 2)[rank % 2], np.split(words, replicas)[rank // 2]
        held = own[::-1] if rank % 2 in wrong else own
        calls = {"input.0": part, "parameters.weight": held, "output.0": part @ own.T * np.float32(1.5)}
        record(tmp_path / "t" / "step0" / f"rank{rank}", {up: calls})
    first = compared(tmp_path, capsys, f"tp=2,dp={replicas}")["step0/whole"]["first"]
    said = "rank 0 has other numbers there" if replicas == 1 else "ranks 0, 2 have other numbers there"
    assert (said in first["sentence"]) == (wrong == (0,))


@pytest.mark.parametrize("cut", ["stretches", "halves"])
def test_a_gate_and_up_projection_in_stretches(cut: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, weight, block = random(1, 16, 8), random(2, 64, 8), "Module.mlp.Mlp.forward.0"
    up = "Module.mlp.gate_up.Linear.forward.0"
    parents = {up: block, DOWN: block, block: None}

    def calls(own: np.ndarray, factor: float) -> dict[str, Any]:
        both = words @ own.T
        gate, other = np.split(both, 2, axis=1)
        product = gate * other * np.float32(factor)
        return {up: {"input.0": words, "parameters.weight": own, "output.0": both},
                DOWN: {"input.0": product, "output.0": words * np.float32(factor)},
                block: {"output.0": words * np.float32(factor)}}  # fmt: skip

    record(tmp_path / "g" / "step0" / "proc1", calls(weight, 1.0), parents=parents)
    parts = np.split(weight, 4)
    own = {"stretches": [(0, 1), (2, 3)], "halves": [(0, 2), (1, 3)]}[cut]
    for rank, (one, two) in enumerate(own):
        held = np.concatenate([parts[one], parts[two]])
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls(held, 1.5), parents=parents)
    first = compared(tmp_path, capsys, "tp=2")["step0/whole"]["first"]
    said = "each rank has one stretch of mlp.gate_up.weight, so that rank 0 has the first half"
    assert (said in first["sentence"]) == (cut == "stretches")


@pytest.mark.parametrize("odd", [(1,), (0, 1)])
def test_a_fused_shard_whose_rows_have_moved(
    odd: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each rank has its own queries, keys and values: where others hold golden's rows in order, these count."""
    words, weight = random(1, 16, 8), random(2, 128, 8)
    up = "Module.mlp.up.Linear.forward.0"
    record(tmp_path / "g" / "step0" / "proc1", {up: {"input.0": words, "parameters.weight": weight,
                                                     "output.0": words @ weight.T}})  # fmt: skip
    parts = np.split(weight, [64, 96])
    for rank in range(2):
        own = np.concatenate([np.split(part, 2)[rank] for part in parts])
        held = np.roll(own, 8, axis=0) if rank in odd else own
        calls = {"input.0": words, "parameters.weight": held, "output.0": words @ own.T * np.float32(1.5)}
        record(tmp_path / "t" / "step0" / f"rank{rank}", {up: calls})
    sentence = compared(tmp_path, capsys, "tp=2")["step0/whole"]["first"]["sentence"]
    assert ("rank 1 has other numbers there" in sentence) == (odd == (1,))


@pytest.mark.parametrize("fault", ["copy", "shard", "noise"])
def test_ranks_tell_how_far_noise_goes(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What 16 bits explain is a difference where one rank alone has it."""
    words, weight = random(1, 64, 32).astype(np.float16), random(2, 64, 32).astype(np.float16)
    whole = (words @ weight.T).astype(np.float16)
    scale = {"copy": (1.0, 1.0), "shard": (1.0, 1.002), "noise": (1.0005, 1.0015)}[fault]
    update = "Optimizer.up.weight.SGD.0.forward"
    up = "Module.up.Linear.forward.0"
    for folder, rank in (("g/step0/proc1", -1), ("t/step0/rank0", 0), ("t/step0/rank1", 1)):
        part = whole if rank < 0 else (np.split(whole, 2)[rank] * np.float32(scale[rank])).astype(np.float16)
        mine = words if rank < 0 else np.split(words, 2)[rank]
        held = (weight * np.float32(1.003 if rank == 1 and fault == "copy" else 1.0)).astype(np.float16)
        record(tmp_path / folder, {up: {"input.0": mine, "input.1": held, "output.0": part}})
        gradient = weight * np.float16(1.0 if rank < 0 else 1.25)
        values = {"input.0": gradient, "parameters.before": weight, "output.0": weight - gradient}
        record(tmp_path / folder, {update: values}, name="optimizer")
    first = compared(tmp_path, capsys, "dp=2")["step0/whole"]["first"]
    said = {"copy": (up, "rank 1's replica differs"), "shard": (up, "rank 1's shard differs")}.get(fault)
    assert (first is None) if said is None else (first["op"] == said[0] and said[1] in first["sentence"])


def test_a_rank_with_other_words_does_not_hide_the_order_of_the_sequence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ranks with one stretch each, of which one has been given other words: the other one is not blamed."""
    words = np.random.default_rng(5).integers(0, 1000, (8, 32))
    words[:, 0], words[:, -1] = 0, 999
    table = random(6, 1000, 4)
    up = "Module.embedding.Embedding.forward.0"
    for folder, rank in (("g/step0/proc1", -1), ("t/step0/rank0", 0), ("t/step0/rank1", 1)):
        own = words if rank < 0 else np.split(words, 2, axis=1)[rank]
        own, scale = (own[::-1], np.float32(1.5)) if rank == 1 else (own, np.float32(1.0))
        record(tmp_path / folder, {up: {"input.0": np.ascontiguousarray(own), "output.0": table[own] * scale}})
    first = compared(tmp_path, capsys, "cp=2")["step0/whole"]["first"]
    assert first["sentence"].endswith("differs on rank 1")
