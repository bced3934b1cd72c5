"""Pipeline stages: several on one rank, and a weight that two of them share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wrong_ranks import record

from twinprobe._cli import main


def compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Compare the ranks in ``t`` with the process in ``g``: the results by name."""
    words = ["compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(folder / "out"), "--json"]
    assert main(words) == 0
    return {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_an_interleaved_schedule_is_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each rank holds two stages as a list of modules: the first and the third layer, the second and the fourth."""
    weights, words = [random(at, 16, 16) for at in range(4)], random(9, 8, 16)
    whole: dict[str, dict[str, Any]] = {}
    updates: dict[str, dict[str, Any]] = {}
    parts: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {}), ({}, {})]
    for at, weight in enumerate(weights):
        words = np.tanh(words @ weight.T)
        layer = {"parameters.weight": weight, "output.0": words}
        update = {"input.0": weight * 2, "output.0": weight * np.float32(0.9), "parameters.before": weight}
        whole[f"Module.layers.{at}.Linear.forward.0"] = layer
        updates[f"Optimizer.layers.{at}.weight.SGD.0.forward"] = update
        parts[at % 2][0][f"Module.{at // 2}.layers.0.Linear.forward.0"] = layer
        parts[at % 2][1][f"Optimizer.{at // 2}.layers.0.weight.SGD.0.forward"] = update
    record(tmp_path / "g" / "step0" / "proc1", whole)
    record(tmp_path / "g" / "step0" / "proc1", updates, name="optimizer")
    for rank, (calls, own) in enumerate(parts):
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, calls)
        record(place, own, name="optimizer")
        pipeline = {"stage": rank + 2, "stages": 4, "held": [rank, rank + 2], "micro_batches": 1}
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 2, "pipeline": pipeline}))
    found = compared(tmp_path, capsys)
    assert "target: 2 ranks, layout pp=2,vpp=2 (found)" in found["step0/whole"]["notes"]
    for result in found.values():
        assert result["first"] is None
        assert (result["target_only"], result["golden_only"]) == (0, 0)
    assert found["step0/whole"]["verdicts"]["pass"] == 8
    assert found["step0/optimizer"]["verdicts"]["pass"] == 12


@pytest.mark.parametrize("added", [True, False])
def test_a_weight_that_two_stages_share(added: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One process adds both gradients of the table up; the stages have one each, and add them up after backward."""
    table, parts, words = random(1, 32, 8), [random(2, 32, 8), random(3, 32, 8)], random(4, 16, 8)
    first, last = "Module.embedding.Embedding", "Module.head.Linear"
    gradients = f"{first}.parameters_grad.0", f"{last}.parameters_grad.0"

    def update(gradient: np.ndarray) -> dict[str, Any]:
        return {"input.0": gradient, "output.0": table - gradient / 100, "parameters.before": table}

    layer = {"parameters.weight": table, "output.0": words}
    place = tmp_path / "g" / "step0" / "proc1"
    total = parts[0] + parts[1]
    calls = {f"{first}.forward.0": layer, f"{last}.forward.0": layer}
    norm, name = "Optimizer.total_norm.SGD.0.forward", "Optimizer.{}.weight.SGD.0.forward"
    record(place, calls | {one: {"gradient.weight": total} for one in gradients})
    own = {name.format("head"): update(total)}
    record(place, {**own, norm: {"output.0": np.array(np.linalg.norm(total), np.float32)}}, name="optimizer")
    for rank, (path, layers) in enumerate((("embedding", first), ("head", last))):
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, {f"{layers}.forward.0": layer, gradients[rank]: {"gradient.weight": parts[rank]}})
        gradient = total if added else parts[rank]
        own = {name.format(path): update(gradient)}
        record(place, {**own, norm: {"output.0": np.array(np.linalg.norm(gradient), np.float32)}}, name="optimizer")
    found = compared(tmp_path, capsys)
    assert found["step0/whole"]["first"] is None
    assert "target: 2 values (gradients of a weight that stages share) added up" in found["step0/whole"]["notes"]
    result = found["step0/optimizer"]
    if added:
        assert result["first"] is None
        return
    assert result["first"]["op"] == name.format("head")
    assert any("embedding.weight on rank 0 is the same weight, but has another gradient" in one
               for one in result["notes"])  # fmt: skip
    assert "the same weight" in result["first"]["sentence"]


def test_a_weight_that_one_process_reads_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There the output layer is a function of the embedding's weight; the last stage has a module with a copy of it."""
    table, parts, words = random(1, 32, 8), [random(2, 32, 8), random(3, 32, 8)], random(4, 16, 8)
    first, last = "Module.embedding.Embedding", "Module.head.Linear"
    layer = {"parameters.weight": table, "output.0": words}
    gradient = {f"{first}.parameters_grad.0": {"gradient.weight": parts[0] + parts[1]}}
    record(tmp_path / "g" / "step0" / "proc1", {f"{first}.forward.0": layer, **gradient})
    for rank, path in enumerate((first, last)):
        gradient = {f"{path}.parameters_grad.0": {"gradient.weight": parts[rank]}}
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, {f"{path}.forward.0": layer, **gradient})
        pipeline = {"stage": rank, "stages": 2, "micro_batches": 1}
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 2, "pipeline": pipeline}))
    result = compared(tmp_path, capsys)["step0/whole"]
    assert result["first"] is None
    assert "target: 2 values (gradients of a weight that stages share) added up" in result["notes"]


def test_another_weight_of_the_last_stage_is_no_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, parts, words = random(1, 32, 8), [random(2, 32, 8), random(3, 32, 8)], random(4, 16, 8)
    first, last = "Module.embedding.Embedding", "Module.head.Linear"
    layer = {"parameters.weight": table, "output.0": words}
    gradient = {f"{first}.parameters_grad.0": {"gradient.weight": parts[0] + parts[1]}}
    record(tmp_path / "g" / "step0" / "proc1", {f"{first}.forward.0": layer, **gradient})
    for rank, (path, own) in enumerate(((first, table), (last, table + np.float32(0.5)))):
        calls = {f"{path}.forward.0": {"parameters.weight": own, "output.0": words},
                 f"{path}.parameters_grad.0": {"gradient.weight": parts[rank]}}  # fmt: skip
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, calls)
        pipeline = {"stage": rank, "stages": 2, "micro_batches": 1}
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 2, "pipeline": pipeline}))
    assert compared(tmp_path, capsys)["step0/whole"]["first"]["module"] == "embedding"


def test_gradients_that_are_equal_by_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Biases that are added to the same sum have one gradient, but are two weights."""
    gradient, words = random(2, 8), random(4, 16, 8)
    layers = {f"Module.layers.{at}.Linear": random(5 + at, 8) for at in range(2)}
    calls: dict[str, Any] = {}
    for at, (path, bias) in enumerate(layers.items()):
        own = {f"{path}.forward.0": {"parameters.bias": bias, "output.0": words},
               f"{path}.parameters_grad.0": {"gradient.bias": gradient}}  # fmt: skip
        calls |= own
        place = tmp_path / "t" / "step0" / f"rank{at}"
        record(place, {name.replace(f"layers.{at}", "layers.0"): values for name, values in own.items()})
        pipeline = {"stage": at, "stages": 2, "micro_batches": 1}
        (place / "layout.json").write_text(json.dumps({"rank": at, "world_size": 2, "pipeline": pipeline}))
    record(tmp_path / "g" / "step0" / "proc1", calls)
    result = compared(tmp_path, capsys)["step0/whole"]
    assert result["first"] is None
    assert not any("that stages share" in note for note in result["notes"])


def test_functions_of_stages_that_take_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank with two stages and two micro batches: both go through its first stage before one goes on."""
    weights, batch = [random(at, 16, 16) for at in range(4)], random(9, 8, 16)
    whole: dict[str, Any] = {}
    parents: dict[str, Any] = {}
    seen = [batch]
    for at, weight in enumerate(weights):
        seen.append(np.tanh(seen[-1] @ weight.T))
        module, call = f"Module.layers.{at}.Linear.forward.0", f"Functional.linear.{at}.forward"
        whole[call] = {"input.0": seen[at], "input.1": weight, "output.0": seen[at + 1]}
        whole[module] = {"input.0": seen[at], "parameters.weight": weight, "output.0": seen[at + 1]}
        parents |= {call: module, module: None}
    record(tmp_path / "g" / "step0" / "proc1", whole, parents=parents)
    for rank in range(2):
        calls: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for number, (chunk, micro) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            at, part = 2 * chunk + rank, slice(4 * micro, 4 * micro + 4)
            module, call = f"Module.{chunk}.layers.0.Linear.forward.{micro}", f"Functional.linear.{number}.forward"
            calls[call] = {"input.0": seen[at][part], "input.1": weights[at], "output.0": seen[at + 1][part]}
            calls[module] = {
                "input.0": seen[at][part],
                "parameters.weight": weights[at],
                "output.0": seen[at + 1][part],
            }
            own |= {call: module, module: None}
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        record(place, calls, parents=own)
        pipeline = {"stage": rank + 2, "stages": 4, "held": [rank, rank + 2], "micro_batches": 2}
        (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": 2, "pipeline": pipeline}))
    result = compared(tmp_path, capsys)["step0/whole"]
    assert result["first"] is None
    assert result["verdicts"] == {"pass": 24, "warning": 0, "error": 0}


def test_a_pipeline_is_known_that_is_imported_while_recording(tmp_path: Path) -> None:
    program = """
import sys, torch, torch.distributed as dist
from torch import nn
from twinprobe.torch import record
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.meet", rank=0, world_size=1)
model = nn.Sequential(nn.Linear(4, 4))
with record(model, sys.argv[1], level="L0") as recording:
    assert "torch.distributed.pipelining.stage" not in sys.modules
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    stage = PipelineStage(model, 0, 1, torch.device("cpu"))
    ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss).step(torch.ones(4, 4), target=torch.ones(4, 4))
    recording.step()
assert not any(type(one).__name__ == "PipelineStages" for one in sys.meta_path)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "dump")], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "dump" / "step0" / "rank0"
    assert json.loads((folder / "layout.json").read_text())["pipeline"]["micro_batches"] == 2
    calls = [name for name in json.loads((folder / "dump.json").read_text())["data"] if ".Linear.forward." in name]
    assert len(calls) == 2
