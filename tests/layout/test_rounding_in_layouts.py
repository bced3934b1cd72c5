"""What rounding does to runs in other layouts is no difference, and what is left out of a run takes no sketch along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wrong_ranks import record

from twinprobe._cli import main
from twinprobe._compare.one import compare_paths

BIAS = "Module.attention.joined.Linear"  # not known by its name
UPDATE = "Optimizer.attention.joined.bias.AdamW.0.forward"
RATE, THIRD = np.float32(1e-2), 32


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def compared(folder: Path, capsys: pytest.CaptureFixture[str], layout: str = "tp=2") -> dict[str, dict[str, Any]]:
    words = ["compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(folder / "out"), "--json"]
    assert main([*words, "--layout", layout]) == 0
    return {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}


def of_rank(fused: np.ndarray, rank: int) -> np.ndarray:
    """Each rank has its own queries, keys and values, one behind the other."""
    return np.concatenate([part[rank * THIRD // 2 : (rank + 1) * THIRD // 2] for part in np.split(fused, 3)])


@pytest.mark.parametrize("silent", [True, False])
def test_adam_turns_the_gradient_of_key_biases_into_steps(
    silent: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bias of all keys changes no softmax: its gradient is rounding, and Adam makes a whole step of it."""
    bias, gradient, noise = random(1, 3 * THIRD), random(2, 3 * THIRD), random(3, 2, THIRD)
    keys = slice(THIRD, 2 * THIRD)
    sides = []
    for own in noise:
        seen = gradient.copy()
        if silent:
            seen[keys] = own * np.float32(1e-9)
        step = np.sign(seen)
        step[keys] = np.sign(own)
        sides.append((seen, bias - RATE * step))
    (mine, after), (golden, goal) = sides
    place = tmp_path / "g" / "step0" / "proc1"
    calls = {f"{BIAS}.forward.0": {"parameters.bias": bias, "output.0": random(5, 4, 3 * THIRD)}}
    record(place, {**calls, f"{BIAS}.parameters_grad.0": {"gradient.bias": golden}})
    record(place, {UPDATE: {"input.0": golden, "input.lr": float(RATE), "parameters.before": bias, "output.0": goal}},
           name="optimizer")  # fmt: skip
    for rank in range(2):
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        own = [of_rank(one, rank) for one in (mine, bias, after)]
        output = np.stack([of_rank(line, rank) for line in random(5, 4, 3 * THIRD)])
        calls = {f"{BIAS}.forward.0": {"parameters.bias": own[1], "output.0": output}}
        record(place, {**calls, f"{BIAS}.parameters_grad.0": {"gradient.bias": own[0]}})
        update = {"input.0": own[0], "input.lr": float(RATE), "parameters.before": own[1], "output.0": own[2]}
        record(place, {UPDATE: update}, name="optimizer")
    first = compared(tmp_path, capsys)["step0/optimizer"]["first"]
    if silent:
        assert first is None
    else:
        assert first["op"] == UPDATE


def adam(folder: Path, path: str, gradients: dict[str, np.ndarray], part: tuple[int, int] = (0, 1)) -> None:
    """One step of Adam, which goes by the signs of these gradients; a rank has one of so many parts of everything."""
    at, ranks = part
    parameters = {
        name: np.split(random(17, *one.shape), ranks)[at].astype(one.dtype) for name, one in gradients.items()
    }
    gradients = {name: np.split(one, ranks)[at] for name, one in gradients.items()}
    calls = {f"Module.{path}.Linear.forward.0": {"output.0": random(5, 4, 8)}}
    calls[f"Module.{path}.Linear.parameters_grad.0"] = {f"gradient.{name}": one for name, one in gradients.items()}
    record(folder, calls)
    updates = {}
    for name, gradient in gradients.items():
        before = parameters[name]
        values = {"input.0": gradient, "input.lr": float(RATE), "parameters.before": before}
        updates[f"Optimizer.{path}.{name}.AdamW.0.forward"] = values | {
            "output.0": (before - RATE * np.sign(gradient)).astype(gradient.dtype)
        }
    record(folder, updates, name="optimizer")


@pytest.mark.parametrize("path", ["attention.query_key_value", "attention.other"])
def test_a_fused_bias_is_known_by_its_name(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each head has its own queries, keys and values one behind the other: no block of a sketch has keys alone."""
    gradient, weight = random(20, 4, 3, 8), random(21, 96, 8)
    for side, ranks, seed in (("g", ["proc1"], 22), ("t", ["rank0", "rank1"], 23)):
        own = gradient.copy()
        own[:, 1] = random(seed, 4, 8) * np.float32(1e-9)
        for rank, name in enumerate(ranks):
            gradients = {"weight": weight, "bias": own.reshape(-1)}
            adam(tmp_path / side / "step0" / name, path, gradients, (rank, len(ranks)))
    first = compared(tmp_path, capsys)["step0/optimizer"]["first"]
    assert (first is None) == (path == "attention.query_key_value")


@pytest.mark.parametrize("size", [1e-3, 1e-1])
def test_a_gradient_beyond_the_last_digit_of_its_module(
    size: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of the keys' bias is rounding; one that is merely small is not."""
    weight = random(24, 32, 8).astype(np.float16)
    for side, ranks, seed in (("g", ["proc1"], 25), ("t", ["rank0", "rank1"], 26)):
        own = (random(seed, 32) * np.float32(size)).astype(np.float16)
        for rank, name in enumerate(ranks):
            gradients = {"weight": weight, "bias": own}
            adam(tmp_path / side / "step0" / name, "attention.k", gradients, (rank, len(ranks)))
    first = compared(tmp_path, capsys)["step0/optimizer"]["first"]
    assert (first is None) == (size == 1e-3)


@pytest.mark.parametrize("step", [1, 0])
def test_an_element_that_an_optimizer_moved(step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a weight that is cut, statistics alone are known, and they hardly see one element that has moved a little.

    After a step of training that is noise; before the first one nothing has moved a parameter.
    """
    words, weight = random(6, 16, 32), random(7, 64, 32)
    weight[5] = words[3]  # the largest output is of this row
    weight[5, 7] = 0.0
    moved = weight.copy()
    moved[5, 7] = 3e-4
    for side, own in (("g", weight), ("t", moved)):
        for rank in range(2 if side == "t" else 1):
            rows = slice(rank * 32, rank * 32 + 32) if side == "t" else slice(0, 64)
            output = words @ own[rows].T
            calls = {"Functional.linear.0.forward": {"input.0": words, "input.1": own[rows], "output.0": output},
                     "Module.up.Linear.forward.0": {"parameters.weight": own[rows], "output.0": output}}  # fmt: skip
            parents = {"Functional.linear.0.forward": "Module.up.Linear.forward.0", "Module.up.Linear.forward.0": None}
            name = f"rank{rank}" if side == "t" else "proc1"
            record(tmp_path / side / f"step{step}" / name, calls, parents=parents)
    result = compared(tmp_path, capsys)[f"step{step}/whole"]
    assert (result["first"] is None) == (step == 1)


def test_the_words_of_micro_batches_on_tensor_parallel_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All words have the same extremes: they are those of two micro batches, and the same on both ranks."""
    words = np.random.default_rng(8).integers(1, 36, (8, 10))
    words[::2, 0], words[1::2, 0] = 0, 36
    hidden, norm = random(9, 8, 10, 16), random(10, 8, 10, 16)
    path = "Module.embedding.Embedding.forward.{}", "Module.norm.LayerNorm.forward.{}"
    calls = {
        path[0].format(0): {"input.0": words, "output.0": hidden},
        path[1].format(0): {"input.0": hidden, "output.0": norm},
    }
    record(tmp_path / "g" / "step0" / "proc1", calls)
    for rank in range(2):
        calls = {}
        for micro in range(2):
            part = slice(micro * 4, micro * 4 + 4)
            calls[path[0].format(micro)] = {"input.0": words[part], "output.0": hidden[part]}
            calls[path[1].format(micro)] = {"input.0": hidden[part], "output.0": norm[part] * np.float32(1.5)}
        record(tmp_path / "t" / "step0" / f"rank{rank}", calls)
    assert compared(tmp_path, capsys)["step0/whole"]["first"]["module"] == "norm"


@pytest.mark.parametrize("order", ["same", "other"])
def test_sketches_of_a_run_without_its_optimizer(
    order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls inside an optimizer are left out; the sketches of all others tell values in another order."""
    hidden = random(12, 8, 16)
    norm, add = "Module.norm.LayerNorm.forward.0", "Tensor.add_.0.forward"
    parents = {add: "optimizer", norm: None}
    step = {add: {"input.0": random(13, 4), "output.0": random(14, 4)}}
    record(tmp_path / "g" / "step0" / "proc1", {**step, norm: {"output.0": hidden}}, parents=parents)
    for rank in range(2):
        own = hidden if order == "same" else np.ascontiguousarray(hidden[::-1])
        record(tmp_path / "t" / "step0" / f"rank{rank}", {**step, norm: {"output.0": own}}, parents=parents)
    first = compared(tmp_path, capsys)["step0/whole"]["first"]
    if order == "same":
        assert first is None
    else:
        assert first["module"] == "norm"
        assert first["relative_error"] > 0.5


@pytest.mark.parametrize("fault", [False, True])
def test_an_update_that_is_wrong_for_one_parameter_alone(fault: bool, tmp_path: Path) -> None:
    """Whole steps of noise need a gradient that is noise, in a part at least: here the keys of a fused bias."""
    for side, seed in (("g", 30), ("t", 31)):
        updates: dict[str, dict[str, Any]] = {}
        for at in range(8):
            before, gradient = random(40 + at, 96), random(50 + at, 96)
            gradient += random(seed + 60 + at, 96) * np.float32(1e-8)
            if at == 3 and not fault:
                gradient[32:64] = random(seed, 32) * np.float32(1e-9)
            step = np.sign(gradient)
            if at == 3 and fault and side == "t":
                step[32:64] *= -1
            values = {"input.0": gradient, "input.lr": float(RATE), "parameters.before": before}
            updates[f"Optimizer.layer.{at}.bias.AdamW.0.forward"] = values | {"output.0": before - RATE * step}
        record(tmp_path / side, updates, name="optimizer")
    first = compare_paths(*(tmp_path / side / "optimizer.json" for side in "tg")).summary.first
    assert (first and first.op) == ("Optimizer.layer.3.bias.AdamW.0.forward" if fault else None)
