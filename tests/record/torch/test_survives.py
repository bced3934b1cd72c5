"""A killed process leaves a readable dump; a full disk or a defect in the recorder never stops the training."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Residual, batch

import survival
from dump_reading import run_script
from support import slow
from twinprobe._runs.run import open_run
from twinprobe.errors import BadInput
from twinprobe.torch import PrecisionDebugger, record

SCRIPT = """
import os, signal, sys
import torch
sys.path.insert(0, {tests!r})
from networks import Residual, batch
from twinprobe.torch import PrecisionDebugger
{before}
torch.manual_seed(0)
model = Residual()
debugger = PrecisionDebugger(dump_path={path!r}, level="mix", task={task!r})
for step in range(3):
    debugger.start(model=model)
    model(batch()).sum().backward()
    {inside}
    debugger.stop()
    debugger.step()
print("trained to the end", flush=True)
"""


def run(
    path: Path, *, task: str = "statistics", before: str = "", inside: str = ""
) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(tests=str(Path(__file__).parent), path=str(path), task=task, before=before, inside=inside)
    return run_script(script)


@pytest.mark.parametrize("task", [*slow("statistics"), "tensor"])
def test_a_killed_process_leaves_a_readable_dump(tmp_path: Path, task: str) -> None:
    kill = "if step == 2: debugger.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    done = run(tmp_path / "dump", task=task, inside=kill)
    assert done.returncode == -signal.SIGKILL
    for step in range(2):
        (folder,) = (tmp_path / "dump" / f"step{step}").iterdir()
        assert json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"]
        assert not (folder / "dump.json.part").exists()
    (folder,) = (tmp_path / "dump" / "step2").iterdir()
    lines = (folder / "dump.json.part").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0])["level"] == "mix"
    left = open_run(folder)
    assert left.sketches is not None
    assert (left.sketches.index >= 0).sum() > 20
    if task == "tensor":
        files = list((folder / "dump_tensor_data").glob("*.pt"))
        assert files
        assert all(torch.load(file) is not None for file in files)


@pytest.fixture
def script() -> str:
    """The training as survival's checks take it: their own words go into its other places."""
    return SCRIPT.replace("{tests!r}", repr(str(Path(__file__).parent)))


def test_steps_that_were_closed_outlive_an_exit_without_cleaning(script: str, tmp_path: Path) -> None:
    survival.check_closed_steps(script, tmp_path / "dump", "os._exit(0)", whole=3)


def test_a_killed_process_loses_no_closed_step_but_the_last(script: str, tmp_path: Path) -> None:
    survival.check_closed_steps(script, tmp_path / "dump", "os.kill(os.getpid(), signal.SIGKILL)", whole=2)


def test_a_forked_child_never_waits_for_its_parents_writer(script: str, tmp_path: Path) -> None:
    survival.check_forks(script, tmp_path)


@pytest.mark.slow  # each child ends as an interpreter does
def test_a_forked_child_may_exit_as_usual(script: str, tmp_path: Path) -> None:
    survival.check_forks(script, tmp_path, leave="sys.exit", tries=8)


def test_a_forked_process_with_a_recorder_of_its_own_writes_everything(script: str, tmp_path: Path) -> None:
    survival.check_forked_process(script, tmp_path)


def test_the_loop_of_the_guide_leaves_no_empty_step(tmp_path: Path) -> None:
    model = Residual()
    for level in ("L1", "mix"):
        with record(model, tmp_path / level, level=level) as recording:
            for _ in range(2):
                model(batch())
                recording.step()
        assert sorted(one.name for one in (tmp_path / level).iterdir()) == ["step0", "step1"]


def test_where_no_thread_can_be_started_everything_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")  # as Python says at a limit of the system, and while it ends

    model = Residual()
    monkeypatch.setattr(threading.Thread, "start", refused)
    with record(model, tmp_path / "dump", level="L1", task="tensor") as recording:
        for _ in range(2):
            model(batch()).sum().backward()
            recording.step()
    indexes = sorted((tmp_path / "dump").glob("step*/*/dump.json"))
    assert [len(json.loads(one.read_text(encoding="utf-8"))["data"]) > 10 for one in indexes] == [True, True]


def test_a_full_disk_stops_recording_and_not_the_training(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    done = run(tmp_path / "dump", before=limit)
    assert "trained to the end" in done.stdout, done.stderr
    assert done.stderr.count("recording stops, the program continues") == 1


@pytest.mark.slow  # the one above has a process of its own as well
def test_a_disk_that_is_full_for_tensors_stops_recording_and_not_the_training(tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))"
    done = run(tmp_path / "dump", task="tensor", before=full)
    assert "trained to the end" in done.stdout, done.stderr
    assert done.stderr.count("recording stops, the program continues") == 1
    assert not [one for one in (tmp_path / "dump").rglob("*.pt") if one.name.startswith(".")]


def test_an_unwritable_place_stops_recording_and_not_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run(tmp_path / "file" / "dump")
    assert "trained to the end" in done.stdout, done.stderr
    assert done.stderr.count("recording stops, the program continues") == 1


def test_an_earlier_dump_is_not_overwritten(tmp_path: Path) -> None:
    assert run(tmp_path / "dump").returncode == 0
    done = run(tmp_path / "dump")
    assert done.returncode != 0
    assert "holds an earlier dump" in done.stderr


def test_an_earlier_dump_is_refused_again_when_tried_again(tmp_path: Path) -> None:
    old = tmp_path / "dump" / "step3" / "proc1999999999" / "dump.json.part"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="L1")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"proc1999999999: holds an earlier dump.*give another dump_path"):
            debugger.start()
    assert torch._C._len_torch_function_stack() == 0
    assert [one.name for one in (tmp_path / "dump").iterdir()] == ["step3"]


class Awkward:
    """An argument whose attributes cannot be read."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("do not look at me")


class TakesAnything(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, Awkward()) + self.inner(x, Awkward())


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor, ignored: Any) -> torch.Tensor:
        return x * 2


def test_an_error_in_the_recorder_is_logged_once_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with record(TakesAnything(), tmp_path / "dump", level="mix") as recording:
        output = recording._model(torch.ones(3))
    assert output.tolist() == [4.0, 4.0, 4.0]
    (log,) = (tmp_path / "dump").glob("step0/*/dump_error_info.log")
    assert log.read_text(encoding="utf-8").count("RuntimeError: do not look at me") == 1
    (index,) = (tmp_path / "dump").glob("step0/*/dump.json")
    data = json.loads(index.read_text(encoding="utf-8"))["data"]
    assert "Tensor.__mul__.1.forward" in data
    seen, awkward = data["Module.inner.Inner.forward.1"]["input_args"]
    assert seen["Max"] == 1.0
    assert awkward["remark"] == "not recorded (RuntimeError; see dump_error_info.log)"


def test_the_end_says_where_the_dump_is_and_how_large(tmp_path: Path) -> None:
    done = run(tmp_path / "dump")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert any("step 0:" in line and "entries in" in line for line in lines)
    assert re.fullmatch(
        rf"twinprobe: recorded \d+ entries, [\d.]+ [kM]B, in {re.escape(str(tmp_path / 'dump'))}", lines[-1]
    )


def test_the_order_of_verbs_is_checked(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="L1")
    with pytest.raises(BadInput, match="not started"):
        debugger.stop()
    debugger.start()
    with pytest.raises(BadInput, match="already started"):
        debugger.start()
    debugger.stop()


@pytest.mark.parametrize("model", [None, "a string", [Residual(), 3]])
def test_a_model_must_be_a_module(tmp_path: Path, model: Any) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path, level="mix")
    with pytest.raises(BadInput, match="odel"):
        debugger.start(model=model)


def test_a_forked_child_records_nothing(tmp_path: Path) -> None:
    model = Residual()
    with record(model, tmp_path / "dump", level="L1"):
        child = os.fork()
        if child == 0:
            model(batch())
            os._exit(0)
        os.waitpid(child, 0)
        torch.ones(2) + 1
    (index,) = (tmp_path / "dump").glob("step0/*/dump.json")
    assert list(json.loads(index.read_text(encoding="utf-8"))["data"]) == ["Tensor.__add__.0.forward"]


DEFECTS = [
    "engine.Engine.emit", "engine.Engine.link", "engine.Engine.stack", "engine.Engine.count",
    "engine.Engine._open_step", "engine.Engine._hand_over", "calls.NameFilter.entering", "entries.Capturer.mapping",
    "recorder.ParameterGradients._arrived", "entries.Renderer.entry", "calls.StackTable.place",
    "torch.autograd.Graph.edges", "torch.autograd.Graph.install", "torch.autograd.Graph.note_pass",
    "torch.autograd.Graph.end", "torch.autograd.Crossing.arrive",
    "torch.autograd.Crossing.finish", "torch.function_mode.arguments_as_written", "torch.function_mode.caller_of",
    "calls.ApiCall.before", "calls.ApiCall.after", "calls.ApiCall.emit",
    "torch.autograd.GraphIndex.walk", "torch.autograd.LeafEdges.edge", "calls.ModuleWatch.watch_models",
    "torch.hooks.ModuleHooks._enter", "calls.ModuleWatch._leave", "torch.hooks.ModuleHooks.detach",
    "torch.values.ApiTable._find", "torch.function_mode.spelled_as", "torch.recorder.OptimizerScope.attach",
    "torch.recorder.TorchRecorder.loose_parent", "recorder.ParameterGradients.attach",
    "torch.recorder.PassGradients.flush",
    "torch.tensors.TensorRegistry.note", "torch.tensors.TensorRegistry._measure", "torch.tensors.TensorRegistry.settle",
    "torch.tensors.TensorRegistry.forget", "torch.tensors.TensorRegistry.collect", "torch.tensors.host_measures",
    "torch.tensors.effect_of", "torch.tensors.writes_by_keyword", "writer.DumpFolder.add",
    "writer.DumpFolder.close", "writer.DumpFolder.open",
]  # fmt: skip


def _train(model: torch.nn.Module, recording: Any = None) -> bytes:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes"):  # the program's own error, which it knows
            torch.nn.functional.linear(batch(), torch.ones(1, 1))
        loss = torch.nn.functional.mse_loss(model(batch()), torch.zeros(()).expand_as(model(batch())))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if recording is not None:
            recording.step()
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]).numpy().tobytes()


def break_recorder(monkeypatch: pytest.MonkeyPatch, defect: str) -> list[str]:
    """Make a function of the recorder fail; returns a list that grows with each time it is called."""
    called: list[str] = []

    def broken(*_: Any, **__: Any) -> Any:
        called.append(defect)
        raise KeyError("a defect of the recorder")

    monkeypatch.setattr(f"twinprobe._record.{defect}", broken)
    return called


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_anywhere_in_the_recorder_is_a_warning_and_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, defect: str
) -> None:
    torch.manual_seed(0)
    plain, watched = Residual(), Residual()
    watched.load_state_dict(plain.state_dict())
    expected = _train(plain)
    called = break_recorder(monkeypatch, defect)
    chosen = {"list": ["."]} if "NameFilter" in defect else {}  # without a choice, nobody asks the filter
    with record(watched, tmp_path / "dump", level="mix", **chosen) as recording:
        result = _train(watched, recording)
    assert result == expected
    assert torch._C._len_torch_function_stack() == 0
    assert called, "this part of the recorder was not used"
    assert "a defect of the recorder" in caplog.text


@pytest.mark.parametrize(
    ("defect", "name", "path"),
    [
        ("torch.function_mode.ApiCall.before", "Tensor.__mul__.0.forward", ["remark", "value"]),
        ("torch.hooks.ModuleHooks._enter", "Module.0.Linear.forward.0", ["remark", "value"]),
        ("torch.autograd.Graph.install", "Module.0.Linear.backward.0", ["remark", "value"]),
        ("torch.tensors.TensorRegistry._measure", "Module.0.Linear.forward.0", ["output", 0, "remark"]),
    ],
)
def test_what_the_recorder_failed_at_is_marked_in_the_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defect: str, name: str, path: list[Any]
) -> None:
    break_recorder(monkeypatch, defect)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with record(model, tmp_path / "dump", level="mix"):
        (model(torch.ones(1, 2)) * 2).sum().backward()
    (index,) = (tmp_path / "dump").glob("step0/*/dump.json")
    place = json.loads(index.read_text(encoding="utf-8"))["data"][name]
    for key in path:
        place = place[key]
    assert place == "not recorded (KeyError; see dump_error_info.log)"
    (log,) = (tmp_path / "dump").glob("step0/*/dump_error_info.log")
    assert "a defect of the recorder" in log.read_text(encoding="utf-8")


def test_a_tensor_whose_memory_was_freed_is_recorded_without_values(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Identity())
    freed, view = torch.ones(4), torch.ones(8)[4:]
    for one in (freed, view):
        one.untyped_storage().resize_(0)  # as sharded parameters are between their uses
    with record(model, tmp_path / "dump", level="L0", task="tensor"):
        model(freed)
        model(view)
        model(torch._efficientzerotensor((3,)))
    (index,) = (tmp_path / "dump").glob("step0/*/dump.json")
    data = json.loads(index.read_text(encoding="utf-8"))["data"]
    for call in range(2):
        leaf = data[f"Module.0.Identity.forward.{call}"]["input_args"][0]
        assert (leaf["shape"], leaf["Max"], leaf["remark"]) == ([4], None, "its memory was freed")
        assert "data_name" not in leaf
    assert data["Module.0.Identity.forward.2"]["input_args"][0]["Norm"] == 0.0
