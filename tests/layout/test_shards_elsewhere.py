"""Shards that lie on other ranks, sums that nobody made or that hold a bias twice, norms of a rank's own gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wrong_ranks import record

from twinprobe._cli import main

UP, MUL, DOWN = "Module.mlp.up.Linear.forward.0", "Tensor.__mul__.0.forward", "Module.mlp.down.Linear.forward.0"
BLOCK, LEFT, RIGHT = (f"Module.block{path}.forward.0" for path in (".Block", ".left.Linear", ".right.Linear"))
NEXT, ADD, SUM = "Module.next.Norm.forward.0", "Tensor.__add__.0.forward", "Distributed.all_reduce.0.forward"
TOTAL = "Optimizer.total_norm.SGD.0.forward"


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def compared(folder: Path, capsys: pytest.CaptureFixture[str], *, code: int = 0) -> dict[str, dict[str, Any]]:
    words = ["compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(folder / "out"), "--json"]
    assert main([*words, "--layout", "tp=2"]) == code
    return {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}


def halves(weight: np.ndarray, order: str) -> list[np.ndarray]:
    """What two ranks hold of a weight."""
    first, second = np.split(weight, 2)
    if order == "exchanged":
        return [second, first]
    if order == "plain":
        return [first, second]
    (gate0, gate1), (up0, up1) = np.split(first, 2), np.split(second, 2)  # each rank its own gates and ups
    last = {"turned": (up1, gate1), "doubled": (gate0, up0)}.get(order, (gate1, up1))
    return [np.concatenate([gate0, up0]), np.concatenate(last)]


@pytest.mark.parametrize(("order", "words"), [
    ("exchanged", "rank 0 has the shard of rank 1, rank 1 has the shard of rank 0"),
    ("turned", "rank 1 has the halves of its shard in the other order"),
    ("doubled", "rank 1 has the shard of rank 0"),
    ("plain", ""),
    ("fused", ""),
])  # fmt: skip
def test_where_the_shards_of_a_weight_lie(
    order: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their statistics are the same; what is computed with them is not. A later difference is not theirs."""
    hidden, weight, scale = random(1, 16, 8), random(2, 64, 8), random(3, 16, 64)
    up = hidden @ weight.T
    calls = {UP: {"input.0": hidden, "parameters.weight": weight, "output.0": up},
             MUL: {"input.0": up, "input.1": scale, "output.0": up * scale}}  # fmt: skip
    record(tmp_path / "g" / "step0" / "proc1", calls)
    for rank, own in enumerate(halves(weight, order)):
        factor = np.ascontiguousarray(np.split(scale, 2, axis=1)[rank])
        mine = hidden @ own.T
        wrong = mine * factor * np.float32(1.25)
        calls = {UP: {"input.0": hidden, "parameters.weight": own, "output.0": mine},
                 MUL: {"input.0": mine, "input.1": factor, "output.0": wrong}}  # fmt: skip
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls)
    first = compared(tmp_path, capsys)["step0/whole"]["first"]
    if words:
        assert first["module"] == "mlp.up"
        assert words in first["sentence"]
    else:
        assert first["op"] == MUL


@pytest.mark.parametrize("fault", ["no_sum", "biases", "other"])
def test_a_bias_beside_a_sum(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden, weight, bias = random(4, 16, 64), random(5, 32, 64), np.abs(random(6, 32))
    parts = [hidden[:, at * 32 : at * 32 + 32] @ weight[:, at * 32 : at * 32 + 32].T for at in range(2)]
    whole = parts[0] + parts[1] + bias
    calls = {DOWN: {"input.0": hidden, "parameters.weight": weight, "parameters.bias": bias, "output.0": whole}}
    record(tmp_path / "g" / "step0" / "proc1", calls)
    for rank in range(2):
        columns = slice(rank * 32, rank * 32 + 32)
        output = {"no_sum": parts[rank] + bias, "biases": whole + bias, "other": whole + np.float32(0.5)}[fault]
        own = [np.ascontiguousarray(one[:, columns]) for one in (hidden, weight)]
        calls = {DOWN: {"input.0": own[0], "parameters.weight": own[1], "parameters.bias": bias, "output.0": output}}
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls)
    sentence = compared(tmp_path, capsys)["step0/whole"]["first"]["sentence"]
    missing = "golden's is the sum of what ranks 0, 1 hold, but nothing adds them up"
    again = "it is off by 1 times the bias: each of 2 ranks adds it before the sum"
    assert (missing in sentence, again in sentence) == (fault == "no_sum", fault == "biases")


@pytest.mark.parametrize("own", [True, False])
def test_ranks_that_clip_by_their_own_norms(own: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gradient, weight = random(7, 32, 8), random(8, 32, 8)
    parts = np.split(gradient, 2)
    total = np.float32(np.linalg.norm(gradient))

    def update(part: np.ndarray, before: np.ndarray, norm: np.float32) -> dict[str, Any]:
        clipped = part / norm
        after = before - np.float32(0.1) * clipped
        left = np.array(np.linalg.norm(clipped), np.float32)
        values = {"input.0": clipped, "parameters.before": before, "output.0": after}
        return {"Optimizer.up.weight.SGD.0.forward": values, TOTAL: {"input.0": np.array(norm), "output.0": left}}

    layer = random(9, 4, 32)
    place = tmp_path / "g" / "step0" / "proc1"
    record(place, {"Module.up.Linear.forward.0": {"parameters.weight": weight, "output.0": layer}})
    record(place, update(gradient, weight, total), name="optimizer")
    for rank, (part, held) in enumerate(zip(parts, np.split(weight, 2), strict=True)):
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        output = np.ascontiguousarray(layer[:, rank * 16 : rank * 16 + 16])
        record(place, {"Module.up.Linear.forward.0": {"parameters.weight": held, "output.0": output}})
        norm = np.float32(np.linalg.norm(part)) if own else total
        record(place, update(part, held, norm), name="optimizer")
    first = compared(tmp_path, capsys)["step0/optimizer"]["first"]
    if not own:
        assert first is None
        return
    norms = ", ".join(f"{np.linalg.norm(part):.4g}" for part in parts)
    assert f"ranks 0, 1 clip by norms of their own ({norms})" in first["sentence"]
    assert "that clips gradients" not in first["sentence"]


def test_a_learning_rate_of_one_rank_is_told_with_the_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All it has written differs as well, and what is said of that names no rank."""
    gradient, weight, layer = random(10, 32, 8), random(11, 32, 8), random(12, 4, 32)
    calls = {"Module.up.Linear.forward.0": {"parameters.weight": weight, "output.0": layer}}
    for side, rates in (("g", (0.1,)), ("t", (0.1, 0.2))):
        for rank, rate in enumerate(rates):
            place = tmp_path / side / "step0" / (f"rank{rank}" if side == "t" else "proc1")
            after = weight - np.float32(rate) * gradient * np.float32(1 + 1e-4 * (side == "t"))
            own = {"input.0": gradient, "input.lr": rate, "parameters.before": weight, "output.0": after}
            record(place, calls)
            record(place, {"Optimizer.up.weight.SGD.0.forward": own}, name="optimizer")
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "dp=2"]) == 0
    found = {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}
    sentence = found["step0/optimizer"]["first"]["sentence"]
    assert "lr: 0.2 against 0.1" in sentence
    assert "rank 1's setting differs from the others" in sentence


def test_a_rank_that_lacks_a_module_is_no_pipeline_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden, weights = random(13, 8, 16), [random(14 + at, 16, 16) for at in range(4)]
    paths = [*(f"Module.moe.experts.{at}.Linear.forward.0" for at in range(2)), "Module.moe.shared.Linear.forward.0",
             "Module.out.Linear.forward.0"]  # fmt: skip
    calls = {
        path: {"parameters.weight": one, "output.0": hidden @ one.T} for path, one in zip(paths, weights, strict=True)
    }
    record(tmp_path / "g" / "step0" / "proc1", calls)
    for rank in range(2):
        own = {paths[0]: calls[paths[rank]], **({paths[2]: calls[paths[2]]} if rank else {}), paths[3]: calls[paths[3]]}
        record(tmp_path / "t" / "step0" / f"rank{rank}", own)
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main(words) == 2
    result = json.loads(capsys.readouterr().out)
    assert any(
        "rank 0 lacks 1 of the calls that other ranks made, Module.moe.shared" in one for one in result["failures"]
    )
    assert "target: 2 ranks, layout ep=2 (found)" in [*result["notes"], *result["ranks"][0]["notes"]]


def test_a_rank_that_is_missing_has_not_skipped_its_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a shard that nobody has, nothing is said: not that its parameter was not updated."""
    gradient, weight, layer = random(18, 32, 8), random(19, 32, 8), random(20, 4, 32)
    for side, ranks in (("g", ["proc1"]), ("t", ["rank0", "rank1"])):
        for at, name in enumerate(ranks):
            parts = [np.split(one, len(ranks))[at] for one in (gradient, weight)]
            output = np.ascontiguousarray(np.split(layer, len(ranks), axis=1)[at])
            place = tmp_path / side / "step0" / name
            record(place, {"Module.up.Linear.forward.0": {"parameters.weight": parts[1], "output.0": output}})
            values = {"input.0": parts[0], "parameters.before": parts[1], "output.0": parts[1] - parts[0]}
            record(place, {"Optimizer.up.weight.SGD.0.forward": values}, name="optimizer")
            (place / "layout.json").write_text(json.dumps({"rank": at, "world_size": len(ranks)}))
    for file in (tmp_path / "t" / "step0" / "rank1").iterdir():
        file.unlink()
    (tmp_path / "t" / "step0" / "rank1").rmdir()
    found = compared(tmp_path, capsys, code=2)
    assert [one["first"] for one in found.values()] == [None, None]
    assert not any("does not update" in note for one in found.values() for note in one["notes"])


@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize("missing", [False, True])
def test_two_layers_share_one_reduction(
    missing: bool, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Attention and an MLP side by side: each gives a part of a sum. What is wrong later is not theirs."""
    hidden, weights = random(1, 16, 64), [random(2 + at, 32, 64) for at in range(2)]
    for side, ranks in (("g", ["proc1"]), ("t", ["rank0", "rank1"])):
        parts = [[np.ascontiguousarray(one) for one in np.split(value, len(ranks), axis=1)]
                 for value in (hidden, *weights)]  # fmt: skip
        outputs = [[x @ weight.T for x, weight in zip(parts[0], own, strict=True)] for own in parts[1:]]
        total = np.sum(outputs, axis=(0, 1), dtype=np.float32)
        for at, rank in enumerate(ranks):
            own, later = [one[at] for one in outputs], np.float32(1.25 if side == "t" else 1.0)
            both, given = own[0] + own[1], own[0] + own[1] if missing else total
            calls: dict[str, Any] = {
                path: {"input.0": parts[0][at], "parameters.weight": weight[at], "output.0": output}
                for path, weight, output in zip((LEFT, RIGHT), parts[1:], own, strict=True)
            }
            if level == "mix":
                calls[ADD] = {"input.0": own[0], "input.1": own[1], "output.0": both}
                if side == "t":
                    calls[SUM] = {"input.0": random(9, 4) if missing else both, "output.0": given}
            calls |= {
                BLOCK: {"input.0": parts[0][at], "output.0": given},
                NEXT: {"input.0": given, "output.0": given * later},
            }
            parents = {name: BLOCK if name not in (BLOCK, NEXT) else None for name in calls}
            place = tmp_path / side / "step0" / rank
            record(place, calls, parents=parents)
            file = place / "dump.json"
            file.write_text(file.read_text().replace('"level": "mix"', f'"level": "{level}"'))
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "tp=2"]) == 0
    first = json.loads(capsys.readouterr().out)["ranks"][0]["first"]
    if missing:
        assert "golden's is the sum of what ranks 0, 1 hold, but nothing adds them up" in first["sentence"]
    else:
        assert first["op"] == NEXT


@pytest.mark.parametrize("shifted", [False, True])
def test_each_rank_counts_its_own_places(shifted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program counts from zero on each context parallel rank, and adds where the rank's part begins."""
    places, values = np.arange(16), random(5, 16, 8)
    for side, count in (("g", 1), ("t", 2)):
        for rank, (own, value) in enumerate(zip(np.split(places, count), np.split(values, count), strict=True)):
            begin = 0 if shifted and rank else own[0]
            table = values[begin : begin + len(own)] if shifted else value
            calls = {"Tensor.__add__.0.forward": {"input.0": np.arange(len(own)), "output.0": own - own[0] + begin},
                     "Module.position.Embedding.forward.0": {"output.0": table}}  # fmt: skip
            record(tmp_path / side / "step0" / (f"rank{rank}" if side == "t" else "proc1"), calls)
            name = tmp_path / side / "step0" / (f"rank{rank}" if side == "t" else "proc1") / "layout.json"
            name.write_text(json.dumps({"rank": rank, "world_size": count, "sizes": {"cp": count}}))
    words = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out"), "--json"]
    assert main([*words, "--layout", "cp=2"]) == 0
    first = json.loads(capsys.readouterr().out)["ranks"][0]["first"]
    assert (first is None) is not shifted
    assert first is None or "input.0" not in first["sentence"]
