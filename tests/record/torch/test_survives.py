"""A killed process leaves a readable dump; a full disk or a defect in the recorder never stops the training."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Residual, batch

from support import slow
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
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)


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
    if task == "tensor":
        files = list((folder / "dump_tensor_data").glob("*.pt"))
        assert files
        assert all(torch.load(file) is not None for file in files)


def test_a_full_disk_stops_recording_and_not_the_training(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    done = run(tmp_path / "dump", before=limit)
    assert "trained to the end" in done.stdout, done.stderr
    assert done.stderr.count("recording stops, the program goes on") == 1


def test_a_disk_that_is_full_for_tensors_stops_recording_and_not_the_training(tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))"
    done = run(tmp_path / "dump", task="tensor", before=full)
    assert "trained to the end" in done.stdout, done.stderr
    assert done.stderr.count("recording stops, the program goes on") == 1
    assert not [one for one in (tmp_path / "dump").rglob("*.pt") if one.name.startswith(".")]


def test_an_unwritable_place_stops_recording_and_not_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run(tmp_path / "file" / "dump")
    assert "trained to the end" in done.stdout, done.stderr
    assert done.stderr.count("recording stops, the program goes on") == 1


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
    assert "Tensor.__mul__.1.forward" in json.loads(index.read_text(encoding="utf-8"))["data"]


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
