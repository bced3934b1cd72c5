"""torch.compile: compiled regions run unchanged and are recorded at their boundary."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from twinprobe.torch import record
from warm_python import run_warm


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(4, 4)
        self.body = Body()
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.front(x)))


def made(how: str, backend: str) -> nn.Module:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Net()
    if how == "whole":
        return torch.compile(model, backend=backend)
    if how == "part":
        model.body = torch.compile(model.body, backend=backend)
    if how == "in place":
        model.body.compile(backend=backend)
    return model


def train(model: nn.Module, path: Path | None, level: str) -> list[torch.Tensor]:
    seen = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def steps() -> None:
        for _ in range(2):
            out = model(torch.linspace(-1, 1, 8).reshape(2, 4))
            out.sum().backward()
            optimizer.step()
            seen.append(out.detach().clone())
            seen.extend(one.grad.clone() for one in model.parameters())
            optimizer.zero_grad()

    if path is None:
        steps()
    else:
        with record(model, path, level=level):
            steps()
    return seen


BOUNDARY = {
    "whole": "Module._orig_mod.Net.forward.1",
    "part": "Module.body.Body.forward.1",
    "in place": "Module.body.Body.forward.1",
}


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("how", BOUNDARY)
def test_a_compiled_region_runs_unchanged_and_shows_its_boundary(
    tmp_path: Path, dump_of: Any, how: str, level: str
) -> None:
    plain = train(made(how, "aot_eager"), None, level)
    model = made(how, "aot_eager")
    counted = torch._dynamo.utils.counters
    counted.clear()
    recorded = train(model, tmp_path / "dump", level)
    assert all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))
    assert sum(counted["graph_break"].values()) == 0
    data = dump_of(tmp_path / "dump").data
    boundary = data[BOUNDARY[how]]
    assert boundary["input_args"][0]["shape"] == [2, 4]
    assert boundary["output"][0]["dtype"] == "torch.float32"
    assert not any(inside in name for name in data for inside in ("tanh", "body.up", "Aten", "mm"))
    if how != "whole":
        assert "Module.front.Linear.forward.1" in data
        assert "Module.body.Body.backward.1" in data


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_code_runs_unchanged(tmp_path: Path, dump_of: Any) -> None:
    plain = train(made("part", "inductor"), None, "mix")
    recorded = train(made("part", "inductor"), tmp_path / "dump", "mix")
    assert all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))
    assert "Module.body.Body.forward.1" in dump_of(tmp_path / "dump").data


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_compiled_code_is_not_compiled_anew(tmp_path: Path, dump_of: Any, level: str) -> None:
    torch._dynamo.reset()
    compiled = 0

    def backend(graph: Any, _inputs: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    @torch.compile(backend=backend)
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) + 1

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Body()
            self.body.compile(backend=backend)
            self.other = torch.compile(Body(), backend=backend)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(self.other(self.body(x))) * 2

    model = Caller()
    before = model(torch.ones(1, 4))
    made = compiled
    assert made == 3
    with record(model, tmp_path / "dump", level=level):
        watched = model(torch.ones(1, 4))
        watched.sum().backward()
    after = model(torch.ones(1, 4))
    assert compiled == made
    assert torch.equal(before, watched)
    assert torch.equal(before, after)
    names = set(dump_of(tmp_path / "dump").data)
    if level != "L0":
        assert {"Tensor.__mul__.0.forward", "Tensor.__mul__.0.backward"} <= names
    if level != "L1":
        assert {"Module.body.Body.forward.0", "Module.other.Body.backward.0"} <= names
    assert not any("exp" in name or "tanh" in name for name in names)


def test_nothing_of_the_compiler_is_touched_after_recording(tmp_path: Path) -> None:
    import torch._dynamo.eval_frame

    before = dict(vars(torch._dynamo.eval_frame._TorchDynamoContext))
    with pytest.raises(RuntimeError, match="on purpose"), record(Net(), tmp_path / "dump", level="mix"):
        raise RuntimeError("on purpose")
    assert dict(vars(torch._dynamo.eval_frame._TorchDynamoContext)) == before


def test_an_update_is_recorded_though_something_was_compiled_before(tmp_path: Path) -> None:
    """PyTorch 2.2 calls no hooks of optimizers any more from then on."""
    torch.compile(lambda x: x + 1, backend="eager")
    step = torch.optim.SGD.step
    train(Net(), tmp_path / "dump", "L0")
    (file,) = tmp_path.rglob("optimizer.json")
    assert "Optimizer.body.up.weight.SGD.0.forward" in file.read_text()
    assert torch.optim.SGD.step is step


COLLECTIVE = """
import os, sys
import torch, torch.distributed as dist
from twinprobe.torch import record
from warm_python import run_warm
class Body(torch.nn.Linear):
    def forward(self, x):
        total = super().forward(x).sum(0)
        dist.all_reduce(total)
        return x - total
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.meet", rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), Body(4, 4))
model[1].compile(backend="eager")
with record(model, sys.argv[1], level="L1"):
    model(torch.ones(2, 4)).sum().backward()
sys.stdout.flush()
os._exit(0)
"""


def test_a_collective_that_splits_a_compiled_region_is_not_compiled_with_the_recorder(tmp_path: Path) -> None:
    """Where a graph breaks, the compiler takes up whatever is called there."""
    done = run_warm(COLLECTIVE, str(tmp_path / "dump"))
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
