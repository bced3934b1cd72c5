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


def check_full_disk(script: str, path: Path) -> None:
    """Every file is limited to 20 kB."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    done = run_script(script.format(path=str(path), task="statistics", before=limit, inside=""))
    assert "trained to the end" in done.stdout, done.stderr
    assert (done.stderr + done.stdout).count("recording stops, the program goes on") == 1


def check_unwritable(script: str, path: Path) -> None:
    """A file stands where the folder should be."""
    path.write_text("in the way")
    done = run_script(script.format(path=str(path / "dump"), task="statistics", before="", inside=""))
    assert "trained to the end" in done.stdout, done.stderr
    assert (done.stderr + done.stdout).count("recording stops, the program goes on") == 1


def check_earlier_dump(script: str, path: Path) -> None:
    """The second run refuses to mix with the first."""
    whole = script.format(path=str(path), task="statistics", before="", inside="")
    assert run_script(whole).returncode == 0
    done = run_script(whole)
    assert done.returncode != 0
    assert "holds an earlier dump" in done.stderr
