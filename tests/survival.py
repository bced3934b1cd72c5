"""A killed process leaves a readable dump; a full disk or a defect in the recorder never stops the training.

The checks are the same for every framework; a test file gives its training script.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np

from dump_reading import run_script


def check_kill(script: str, path: Path, task: str) -> None:
    """``script`` has the places path, task, before and inside, trains three steps and knows ``step``."""
    kill = "if step == 2: debugger.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    done = run_script(script.format(path=str(path), task=task, before="", inside=kill))
    assert done.returncode == -signal.SIGKILL, done.stderr
    for step in range(2):
        (folder,) = (path / f"step{step}").iterdir()
        assert json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"]
        assert not (folder / "dump.json.part").exists()
    (folder,) = (path / "step2").iterdir()
    lines = (folder / "dump.json.part").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0])["level"] == "mix"
    if task == "tensor":
        files = list((folder / "dump_tensor_data").glob("*.npy"))
        assert files
        assert all(np.load(file) is not None for file in files)


def check_closed_steps(script: str, path: Path, end: str, whole: int) -> None:
    """The process ends with ``end`` right behind the last of three steps; the first ``whole`` of them are whole."""
    inside = f"if step == 2: debugger.stop(); debugger.step(); {end}"
    done = run_script(script.format(path=str(path), task="statistics", before="", inside=inside))
    assert "trained to the end" not in done.stdout, done.stderr
    for step in range(whole):
        (folder,) = (path / f"step{step}").iterdir()
        assert json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"]
        assert not (folder / "dump.json.part").exists()


_FORKS = """
def fork_often(path, leave, tries):
    import time
    left = set()
    for at in range(tries):
        # Right after the writer's first job, the writer thread is likely to hold its lock.
        debugger = PrecisionDebugger(dump_path=path + str(at), level="debug")
        debugger.start()
        debugger.save(1.0, "x")
        child = os.fork()
        if child == 0:
            debugger.save(2.0, "x")
            debugger.stop()
            debugger.step()
            leave(0)
        left.add(child)
        debugger.close()
    deadline = time.monotonic() + 300
    while left and time.monotonic() < deadline:
        left = {{child for child in left if os.waitpid(child, os.WNOHANG)[0] == 0}}
        time.sleep(0.05)
    for child in left:
        os.kill(child, signal.SIGKILL)
    print(len(left), "children hang", flush=True)

fork_often({path!r}, {leave}, {tries})
"""


def check_forks(script: str, path: Path, leave: str = "os._exit", tries: int = 30) -> None:
    """Children, forked while their parent records, go on with the recorder and end with ``leave``."""
    before = _FORKS.format(path=str(path / "forks"), leave=leave, tries=tries)
    done = run_script(script.format(path=str(path / "dump"), task="statistics", before=before, inside=""))
    assert "0 children hang" in done.stdout, done.stdout + done.stderr
    assert "trained to the end" in done.stdout, done.stderr
    for at in range(tries):  # what the child saved is nowhere
        (index,) = path.glob(f"forks{at}/step*/*/debug.json")
        assert list(json.loads(index.read_text(encoding="utf-8"))["data"]) == ["x.0.debug"]


_IN_A_FORKED_PROCESS = """
import multiprocessing

def train(path):
    debugger = PrecisionDebugger(dump_path=path, level="debug")
    for number in range(3):
        debugger.start()
        debugger.save(float(number), "x")
        debugger.stop()
        debugger.step()

idle = PrecisionDebugger(dump_path={path!r} + "_parent", level="debug")
process = multiprocessing.get_context("fork").Process(target=train, args=({path!r},))
process.start()
process.join()
idle.close()
"""


def check_forked_process(script: str, path: Path) -> None:
    """multiprocessing ends a forked process with os._exit; a recorder of its own has written everything by then."""
    before = _IN_A_FORKED_PROCESS.format(path=str(path / "child"))
    done = run_script(script.format(path=str(path / "dump"), task="statistics", before=before, inside=""))
    assert "trained to the end" in done.stdout, done.stderr
    for step in range(3):
        (index,) = path.glob(f"child/step{step}/*/debug.json")
        assert json.loads(index.read_text(encoding="utf-8"))["data"]["x.0.debug"]["value"] == float(step)


def check_full_disk(script: str, path: Path) -> None:
    """Every file is limited to 20 kB."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    done = run_script(script.format(path=str(path), task="statistics", before=limit, inside=""))
    assert "trained to the end" in done.stdout, done.stderr
    assert (done.stderr + done.stdout).count("recording stops, the program continues") == 1


def check_unwritable(script: str, path: Path) -> None:
    """A file stands where the folder should be."""
    path.write_text("in the way")
    done = run_script(script.format(path=str(path / "dump"), task="statistics", before="", inside=""))
    assert "trained to the end" in done.stdout, done.stderr
    assert (done.stderr + done.stdout).count("recording stops, the program continues") == 1


def check_earlier_dump(script: str, path: Path) -> None:
    """The second run refuses to mix with the first."""
    whole = script.format(path=str(path), task="statistics", before="", inside="")
    assert run_script(whole).returncode == 0
    done = run_script(whole)
    assert done.returncode != 0
    assert "holds an earlier dump" in done.stderr
