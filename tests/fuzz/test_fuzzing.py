"""Every reader of foreign files, given changed real ones for some seconds: only our own errors leave it.

TWINPROBE_FUZZ_SECONDS is the time for each reader, 6 by default; ./test --all --fuzz HOURS divides the hours among all.
What was found once lies in findings/, named by its reader, and is tried first.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fuzz_readers import READERS, scratch_folder

from twinprobe.errors import TwinProbeError

HERE = Path(__file__).resolve().parent
HOURS = float(os.environ.get("TWINPROBE_FUZZ_HOURS", "0"))
SECONDS = HOURS * 3600 / len(READERS) or float(os.environ.get("TWINPROBE_FUZZ_SECONDS", "6"))
SEED = [] if HOURS else ["1"]  # a short run shows that nothing got worse; searching for more is for the long ones
PATIENCE = 120  # seconds for starting, warming up and the slowest input
FINDINGS = sorted((HERE / "findings").iterdir())


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="twinprobe-fuzz-") as place:
        yield Path(place, "trial")


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.name)
def test_what_was_found_once_stays_repaired(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reader = READERS[path.name.partition("-")[0]]
    (tmp_path / reader.file).write_bytes(path.read_bytes())
    with suppress(TwinProbeError):
        reader.read(tmp_path / reader.file)


@pytest.mark.parametrize("name", READERS)
def test_only_our_own_errors_leave_a_reader(name: str, folder: Path) -> None:
    folder.mkdir()
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


def test_the_engine_finds_what_is_wrong(folder: Path) -> None:
    """A reader that fails, takes memory or kills its process is noticed: the harness itself can fail."""
    program = f"""
import sys, os
sys.path[:0] = [{str(HERE)!r}]
import fuzz_engine, fuzz_readers, fuzz_mutations
def bad(path):
    data = path.read_bytes()
    if data[:1] == b"f":
        raise KeyError("foreign")
    if data[:1] == b"m":
        return (bytearray(b"x") * (200 << 20)).count(1)
    if data[:1] == b"k":
        os.kill(os.getpid(), 9)
fuzz_readers.READERS["bad"] = fuzz_readers.Reader("x", lambda: [b"a"], fuzz_mutations.change_bytes, bad)
os.makedirs({str(folder / "work")!r})
from pathlib import Path
trial = fuzz_engine.Trial("bad", Path({str(folder)!r}), Path({str(folder / "work")!r}), 60)
for data in (b"a", b"f", b"f2", b"m"):
    trial.one(data)
trial.save()
trial.one(b"k")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -9, done.stderr
    numbers = json.loads((folder / "numbers.json").read_text())
    assert numbers["wrong"] == 3
    assert [what.split()[0] for what in numbers["findings"]] == ["KeyError", "memory"]
    assert (folder / "work" / "x").read_bytes() == b"k"
