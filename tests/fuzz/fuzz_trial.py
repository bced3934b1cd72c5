"""One reader fuzzed for some seconds, as a test.

TWINPROBE_FUZZ_SECONDS is the time for each reader, 30 by default; ./test --all --fuzz HOURS divides them among all.
The readers are spread over many small files, so that workers that take file after file end together.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from fuzz_readers import READERS, scratch_folder

HERE = Path(__file__).resolve().parent
HOURS = float(os.environ.get("TWINPROBE_FUZZ_HOURS", "0"))
SECONDS = HOURS * 3600 / len(READERS) or float(os.environ.get("TWINPROBE_FUZZ_SECONDS", "30"))
SEED = [] if HOURS else ["1"]  # a short run shows that nothing got worse; searching for more is for the long ones
PATIENCE = 120  # seconds for starting, warming up and the slowest input


def fuzz(name: str) -> None:
    """Give a reader changed files until its time is over; fail if anything but our own errors came out of it."""
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="twinprobe-fuzz-") as place:
        _fuzz(name, Path(place))


def _fuzz(name: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "fuzz_engine.py"), name, str(SECONDS), str(folder), *SEED],
        capture_output=True, text=True, errors="replace", timeout=SECONDS + PATIENCE, check=False,
    )  # fmt: skip
    if done.returncode:
        last = _kept(folder / "work" / READERS[name].file, name)
        pytest.fail(f"the process ended with {done.returncode} while it read {last}\n{done.stderr[-3000:]}")
    numbers = json.loads((folder / "numbers.json").read_text())
    if numbers["findings"]:
        for path in folder.glob("[0-9]*-*"):
            _kept(path, name)
        pytest.fail("\n\n".join(f"{what}: {text}" for what, text in numbers["findings"].items()))
    assert numbers.get("read", 0) + numbers.get("refused", 0), "no input was tried"
    _count(name, numbers)


def _kept(path: Path, name: str) -> Path:
    """What was found outlives the test: beside the regressions, to be looked at, repaired and kept."""
    if not path.exists():
        return path
    place = Path(tempfile.gettempdir()) / f"{name}-{os.getpid()}-{path.name}"
    return Path(shutil.copyfile(path, place))


def _count(name: str, numbers: dict[str, Any]) -> None:
    """Add a line to the file that TWINPROBE_FUZZ_LOG names, for the counts in the documentation."""
    log = os.environ.get("TWINPROBE_FUZZ_LOG")
    if log:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"reader": name, **numbers}) + "\n")
