"""What ``find`` puts into a program: which module is the model, and what is a step."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from twinprobe._find.child import Program
from twinprobe._runs.watch import read_watch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.into(x)))


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """What runs in the child, in this process; seeds are left alone."""
    (tmp_path / "facts").mkdir()
    record = {"dump_path": str(tmp_path / "dump"), "level": "mix", "step": [11, 12]}
    plan = {"record": record, "facts": str(tmp_path / "facts"), "seed": None, "from_step": 10, "last_step": None,
            "updates": (), "swap": None}  # fmt: skip
    started = Program(plan)
    before = torch.nn.Module.__call__, torch.optim.Optimizer.__init__, torch.autograd.backward
    started.attach(torch)
    yield started
    started.close()
    assert (torch.nn.Module.__call__, torch.optim.Optimizer.__init__, torch.autograd.backward) == before


def facts(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "facts").glob("*.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def calls(folder: Path, step: int) -> list[str]:
    (path,) = (folder / "dump" / f"step{step}").glob("*/dump.json")
    return list(json.loads(path.read_text(encoding="utf-8"))["data"])


def test_a_step_is_one_of_the_optimizer_with_all_that_it_accumulates(tmp_path: Path, program: Program) -> None:
    net, teacher = Net(), Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.no_grad():
        net(torch.ones(2, 4))  # an evaluation before the training
    for _ in range(4):
        for _ in range(2):
            with torch.no_grad():
                aim = teacher(torch.ones(2, 4))
            torch.nn.functional.mse_loss(net(torch.ones(2, 4)), aim).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            net(torch.ones(2, 4))  # an evaluation in between
    program.close()
    told = facts(tmp_path)
    assert (told["model"], told["step"], told["optimizer"], told["steps"]) == ("Net", "optimizer", "SGD", 4)
    assert sorted(one.name for one in (tmp_path / "dump").iterdir()) == ["step11", "step12"]
    forwards = [name for name in calls(tmp_path, 11) if name.startswith("Module.into.Linear.forward.")]
    assert len(forwards) == 2
    (update,) = (tmp_path / "dump/step11").glob("*/optimizer.json")
    entries = json.loads(update.read_text(encoding="utf-8"))["data"]
    assert entries["Optimizer.into.weight.SGD.0.forward"]["output"]


def test_without_an_optimizer_a_step_is_one_call_unless_gradients_accumulate(tmp_path: Path, program: Program) -> None:
    net = Net()
    for _ in range(3):
        for _ in range(2):
            net(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(0.1 * parameter.grad)
    program.close()
    told = facts(tmp_path)
    assert (told["step"], told["steps"]) == ("forward", 3)
    assert "Module.into.Linear.forward.1" in calls(tmp_path, 11)


def test_an_optimizer_that_calls_the_model_itself(tmp_path: Path, program: Program) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scale = 1.0

    def closure() -> torch.Tensor:
        loss = net(torch.full((2, 4), scale)).sum()
        loss.backward()
        return loss

    for scale in (1.0, 2.0, 3.0):  # noqa: B007  the closure reads it
        optimizer.step(closure)
    program.close()
    assert facts(tmp_path)["steps"] == 3
    (path,) = (tmp_path / "dump/step11").glob("*/dump.json")
    entry = json.loads(path.read_text(encoding="utf-8"))["data"]["Module.into.Linear.forward.0"]
    assert entry["input_args"][0]["Max"] == 2.0


def test_parts_of_a_model_that_are_called_one_by_one_make_one_model(tmp_path: Path, program: Program) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net.out(net.into(torch.ones(2, 4))).sum().backward()
        optimizer.step()
    program.close()
    assert (facts(tmp_path)["model"], facts(tmp_path)["root"]) == ("Net", "Linear")
    assert "Module.out.Linear.forward.0" in calls(tmp_path, 12)


def test_a_model_that_is_trained_takes_the_place_of_one_that_was_only_used(tmp_path: Path, program: Program) -> None:
    encoder, head = Net(), torch.nn.Sequential(torch.nn.Linear(2, 2))
    with torch.no_grad():
        features = encoder(torch.ones(2, 4))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(3):
        head(features).sum().backward()
        optimizer.step()
    program.close()
    assert (facts(tmp_path)["model"], facts(tmp_path)["steps"]) == ("Sequential", 4)


def test_copies_of_the_model_are_not_the_model(tmp_path: Path, program: Program) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if step == 0:
            twin, restored = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
        assert torch.equal(twin(torch.ones(2, 4)), restored(torch.ones(2, 4)))
    program.close()
    assert facts(tmp_path)["steps"] == 3


@pytest.mark.parametrize("trains", [True, False])
def test_a_watch_ends_with_its_last_step(tmp_path: Path, trains: bool) -> None:
    (tmp_path / "facts").mkdir()
    record = {"dump_path": str(tmp_path / "dump"), "level": "watch"}
    plan = {"record": record, "facts": str(tmp_path / "facts"), "seed": None, "from_step": 5, "last_step": 7,
            "updates": (), "swap": None}  # fmt: skip
    program = Program(plan)
    net = Net()
    program.attach(torch)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1) if trains else None

    def train() -> None:
        for _ in range(9):
            loss = net(torch.ones(2, 4)).sum()
            if optimizer is not None:
                loss.backward()
                optimizer.step()

    with pytest.raises(SystemExit):
        train()
    assert (facts(tmp_path)["steps"], facts(tmp_path)["stopped"]) == (3, True)
    assert read_watch(tmp_path / "dump/rank0/watch.arrows").steps.tolist() == [5, 6, 7]


def test_several_optimizers_of_one_model_make_one_step(tmp_path: Path, program: Program) -> None:
    """Matrices with an optimizer of their own: both updates are in the recorded step, whichever comes last."""
    net = Net()
    matrices = [one for one in net.parameters() if one.dim() > 1]
    optimizers = [torch.optim.SGD(matrices, lr=0.1)]
    optimizers.append(torch.optim.AdamW([one for one in net.parameters() if one.dim() < 2], lr=0.2))
    other = torch.nn.Linear(2, 2)
    beside = torch.optim.SGD(other.parameters(), lr=0.3)
    for _ in range(3):
        net(torch.ones(2, 4)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            net(torch.ones(2, 4))
        other(torch.ones(1, 2)).sum().backward()
        beside.step()
    program.close()
    assert (facts(tmp_path)["steps"], facts(tmp_path)["others"]) == (3, 1)
    for step in (11, 12):
        (file,) = (tmp_path / "dump" / f"step{step}").glob("*/optimizer.json")
        assert {name.split(".")[-3] for name in json.loads(file.read_text())["data"]} == {"SGD", "AdamW"}
