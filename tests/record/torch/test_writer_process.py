"""Many steps in a row are written by a process of their own: the same dumps, and nothing lost whoever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support import slow
from twinprobe._record import entries, writer_process
from twinprobe._runs.run import open_run
from twinprobe.torch import PrecisionDebugger
from warm_python import run_warm

FILES = ("dump.json", "construct.json", "stack.json")


def until(condition: Any, seconds: float = 600.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Training:
    """A model with so many calls that a process is worth it, recorded step by step."""

    def __init__(self, path: Path, **options: Any) -> None:
        torch.manual_seed(0)
        entries.load_kernels_beside()  # numpy, until they are there, rounds norms of sketches otherwise
        for thread in threading.enumerate():
            if thread.name == "twinprobe-kernels":
                thread.join()
        self.path = path
        self.model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(60)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.debugger = PrecisionDebugger(dump_path=str(path), level="mix", **options)
        self.engine: Any = self.debugger.recorder.engine
        self.steps = 0

    def step(self) -> None:
        self.debugger.start(model=self.model)
        self.model(torch.full((2, 3), 0.5 + self.steps)).sum().backward()
        self.optimizer.step()
        self.debugger.stop()
        self.debugger.step()
        self.model.zero_grad()
        self.steps += 1

    def until_the_process_writes(self) -> int:
        """Its pid."""

        def writes() -> bool:
            self.step()
            self.debugger.flush()
            return bool(self.engine._leaves)

        assert until(writes)
        return int(self.engine._process.pid)

    def dumps(self) -> list[dict[str, Any]]:
        """Of every step, what its files hold."""
        self.debugger.close()
        found = []
        for step in range(self.steps):
            (folder,) = (self.path / f"step{step}").iterdir()
            assert not (folder / "dump.json.part").exists(), step
            texts = {name: (folder / name).read_text(encoding="utf-8") for name in FILES}
            stacks = json.loads(texts["stack.json"]).values()  # without the frames that tell who called step()
            inner = [[names, [frame for frame in frames if "/torch/nn/" in frame]] for names, frames in stacks]
            sketches = folder / "dump.sketch"
            held = sketches.read_bytes() if sketches.exists() else None
            updates = folder / "optimizer.json"
            texts["optimizer.json"] = updates.read_text(encoding="utf-8") if updates.exists() else ""
            found.append({**texts, "stack.json": json.dumps(inner), "dump.sketch": held})
        return found


def by_the_thread(path: Path, steps: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[dict[str, Any]]:
    with monkeypatch.context() as patch:
        patch.setattr("twinprobe._record.engine.start_writer_process", lambda _: None)
        training = Training(path, **options)
        for _ in range(steps):
            training.step()
        return training.dumps()


@pytest.mark.parametrize("mode", ["statistics", *slow("md5")])
def test_the_process_writes_what_the_thread_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    training = Training(tmp_path / "process", summary_mode=mode)
    pid = training.until_the_process_writes()
    for _ in range(3):
        training.step()
    written = training.dumps()
    assert all((dump["dump.sketch"] is not None) is (mode == "statistics") for dump in written)
    assert all(len(json.loads(dump["optimizer.json"])["data"]) > 100 for dump in written)
    assert until(lambda: not is_alive(pid)), "the process outlives the recording"
    assert written == by_the_thread(tmp_path / "thread", training.steps, monkeypatch, summary_mode=mode)


def test_a_killed_writer_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training(tmp_path / "process")
    pid = training.until_the_process_writes()
    training.step()
    training.debugger.start(model=training.model)
    training.model(torch.full((2, 3), 0.5 + training.steps)).sum().backward()
    training.optimizer.step()
    training.debugger.flush()  # half of a step is with the process
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: not is_alive(pid))
    training.debugger.stop()
    training.debugger.step()
    training.model.zero_grad()
    training.steps += 1
    training.step()
    assert "the writer process has ended" in caplog.text
    written = training.dumps()
    assert written == by_the_thread(tmp_path / "thread", training.steps, monkeypatch)


def test_a_writer_killed_in_a_step_that_was_started_again_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(training: Training, between: Callable[[], None]) -> list[dict[str, Any]]:
        for stretch in range(2):
            training.debugger.start(model=training.model)
            training.model(torch.full((2, 3), 7.0 + stretch)).sum().backward()
            training.debugger.flush()
            if stretch:
                between()
            training.debugger.stop()
        training.debugger.step()
        training.steps += 1
        return training.dumps()

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        assert until(lambda: not is_alive(pid))

    training = Training(tmp_path / "process")
    pid = training.until_the_process_writes()
    before = training.steps
    written = twice(training, kill)
    monkeypatch.setattr("twinprobe._record.engine.start_writer_process", lambda _: None)
    other = Training(tmp_path / "thread")
    for _ in range(before):
        other.step()
    expected = twice(other, lambda: None)
    assert written[-1] == expected[-1]
    assert len(json.loads(written[-1]["dump.json"])["data"]) > 600


def test_where_no_process_can_be_started_the_thread_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*_: Any, **__: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(writer_process.subprocess, "Popen", forbidden)
    training = Training(tmp_path / "dump")
    for _ in range(4):
        training.step()
    assert len(training.dumps()) == 4
    assert "a thread writes" in caplog.text


def test_what_cannot_be_packed_is_written_all_the_same(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor, limit: int, name: str) -> torch.Tensor:
            return x

    training = Training(tmp_path / "dump")
    training.until_the_process_writes()
    odd = torch.nn.Sequential(Odd())
    training.debugger.start(model=[training.model, odd])
    odd[0](training.model(torch.ones(2, 3)), limit=10**30, name="half \ud800")
    training.debugger.stop()
    training.debugger.step()
    training.steps += 1
    last = json.loads(training.dumps()[-1]["dump.json"])["data"]
    kwargs = last["Module.1.0.Odd.forward.0"]["input_kwargs"]
    assert kwargs["limit"] == {"type": "int", "value": 10**30}
    assert kwargs["name"]["value"].startswith("half ")
    assert "Module.0.0.Linear.forward.0" in last
    (folder,) = (training.path / f"step{training.steps - 1}").iterdir()
    sketches = open_run(folder).sketches
    assert sketches is not None  # of all tensors, or this would raise
    assert sum(sketches.index >= 0) > 300


SCRIPT = """
import os, resource, signal, sys, time
import torch
from twinprobe.torch import PrecisionDebugger
model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(60)])
debugger = PrecisionDebugger(dump_path={path!r}, level="mix")
engine = debugger.recorder.engine
def step(inside=""):
    debugger.start(model=model)
    model(torch.ones(2, 3)).sum().backward()
    exec(inside)
    debugger.stop()
    debugger.step()
steps = 0
while not engine._leaves:
    step(); debugger.flush(); steps += 1
print("writer", engine._process.pid, "steps", steps, flush=True)
{rest}
print("trained to the end", flush=True)
"""


def run(path: Path, rest: str) -> tuple[subprocess.CompletedProcess[str], int, int]:
    """A training in a process of its own; returns it, the writer's pid, and how many steps came before ``rest``."""
    script = SCRIPT.format(path=str(path), rest=rest)
    done = run_warm(script)
    found = re.search(r"writer (\d+) steps (\d+)", done.stdout)
    assert found, done.stderr
    return done, int(found[1]), int(found[2])


def test_a_killed_training_leaves_what_was_recorded_and_no_process(tmp_path: Path) -> None:
    # A forked child, which tells nobody, holds the writer's pipe open.
    leave = "(os.closerange(0, 3), signal.pause()) if child == 0 else os.kill(os.getpid(), signal.SIGKILL)"
    rest = f"step(\"debugger.flush(); child = os.fork(); print('child', child, flush=True); {leave}\")"
    done, pid, steps = run(tmp_path / "dump", rest)
    assert done.returncode == -signal.SIGKILL
    child = max(int(number) for number in re.findall(r"child (\d+)", done.stdout))
    (folder,) = (tmp_path / "dump" / f"step{steps}").iterdir()
    lines = (folder / "dump.json.part").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 300
    assert all(map(json.loads, lines))
    assert until(lambda: not is_alive(pid))
    assert is_alive(child)
    os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_nothing_is_lost_by_os_exit(tmp_path: Path) -> None:
    done, pid, steps = run(tmp_path / "dump", "step(); step(); os._exit(3)")
    assert done.returncode == 3
    for number in range(steps + 2):
        (folder,) = (tmp_path / "dump" / f"step{number}").iterdir()
        assert json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"]
    assert until(lambda: not is_alive(pid))


@pytest.mark.slow
def test_a_disk_that_is_full_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    limit = "resource.prlimit(engine._process.pid, resource.RLIMIT_FSIZE, (50_000, 50_000))"
    done, _, steps = run(tmp_path / "dump", f"{limit}\nfor _ in range(3): step()")
    assert "trained to the end" in done.stdout, done.stderr
    assert done.stderr.count("recording stops, the program continues") == 1
    assert f"recording stopped early: {steps} steps in" in done.stderr


@pytest.mark.slow
def test_the_program_sees_no_child_that_it_did_not_start(tmp_path: Path) -> None:
    done, _, _ = run(tmp_path / "dump", "step()\ntry: os.wait()\nexcept ChildProcessError: print('none')")
    assert "none\ntrained to the end" in done.stdout, done.stderr


RANKS = 8
RANK_SCRIPT = """
import os, time
import torch
import torch.distributed as dist
from pathlib import Path
from twinprobe.torch import PrecisionDebugger
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(60)])
debugger = PrecisionDebugger(dump_path=os.environ["DUMP"], level="mix")
engine = debugger.recorder.engine
def step(number):
    debugger.start(model=model)
    model(torch.full((2, 3), 1.0 + number + dist.get_rank())).sum().backward()
    debugger.stop()
    debugger.step()
def spent():
    return sum(map(int, Path(f"/proc/{engine._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
number = 0
while True:
    step(number); debugger.flush(); number += 1
    ready = torch.tensor(int(engine._leaves))
    dist.all_reduce(ready)
    if ready == dist.get_world_size():
        break
step(number); debugger.flush()
before = spent()
time.sleep(3)
idle = spent() - before
print(f"rank {dist.get_rank()} writer {engine._process.pid} idle {idle} steps {number + 1}", flush=True)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # gloo keeps its threads, and those can abort a Python that shuts down
"""


@pytest.mark.slow
def test_eight_ranks_have_eight_writers_that_cost_nothing_while_idle(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANK_SCRIPT, encoding="utf-8")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(RANKS), "train.py"]
    variables = os.environ | {"DUMP": str(tmp_path / "dump"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launch],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"rank (\d+) writer (\d+) idle (\d+) steps (\d+)", done.stdout)
    assert sorted(int(rank) for rank, *_ in found) == list(range(RANKS))
    assert len({writer for _, writer, *_ in found}) == RANKS
    assert [int(ticks) for _, _, ticks, _ in found] == [0] * RANKS  # of processor time, in three seconds
    for rank, _, _, steps in found:
        for number in range(int(steps)):
            folder = tmp_path / "dump" / f"step{number}" / f"rank{rank}"
            assert len(json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"]) > 300
            assert not list(folder.glob("*.part"))
    assert until(lambda: not any(is_alive(int(writer)) for _, writer, *_ in found))
