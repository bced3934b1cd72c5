"""What fuzzing found once stays repaired, every reader has its turn, and the harness itself can fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from fuzz_readers import READERS, scratch_folder

from twinprobe.errors import TwinProbeError
from warm_python import run_warm

HERE = Path(__file__).resolve().parent
FINDINGS = sorted((HERE / "findings").iterdir())


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.name)
def test_what_was_found_once_stays_repaired(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reader = READERS[path.name.partition("-")[0]]
    (tmp_path / reader.file).write_bytes(path.read_bytes())
    with suppress(TwinProbeError):
        reader.read(tmp_path / reader.file)


@pytest.mark.parametrize("name", READERS)
def test_the_same_changed_files_are_read_or_refused(name: str) -> None:
    """A few inputs of each reader, the same on every machine: shows that nothing got worse."""
    fuzz(name, "15", seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_only_our_own_errors_leave_a_reader(name: str) -> None:
    """Searches for new inputs: TWINPROBE_FUZZ_SECONDS for each reader, or ./test --fuzz HOURS for all together."""
    hours = float(os.environ.get("TWINPROBE_FUZZ_HOURS", "0"))
    seconds = hours * 3600 / len(READERS) or float(os.environ.get("TWINPROBE_FUZZ_SECONDS", "30"))
    fuzz(name, f"{seconds}s", seed=int(os.environ.get("TWINPROBE_SEED", "1")))


def fuzz(name: str, amount: str, seed: int) -> None:
    """Give a reader changed files; fail if anything but our own errors came out of it."""
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="twinprobe-fuzz-") as place:
        folder = Path(place)
        engine, words = HERE / "fuzz_engine.py", [name, amount, place, str(seed)]
        if amount.endswith("s"):  # with what guides it, which looks on while everything is imported
            done = subprocess.run(
                [sys.executable, str(engine), *words], capture_output=True, text=True, errors="replace", check=False
            )
        else:
            done = run_warm(engine, *words)
        if done.returncode:
            last = kept(folder / "work" / READERS[name].file, name)
            pytest.fail(f"the process ended with {done.returncode} while it read {last}\n{done.stderr[-3000:]}")
        numbers = json.loads((folder / "numbers.json").read_text())
        if numbers["findings"]:
            for path in folder.glob("[0-9]*-*"):
                kept(path, name)
            pytest.fail("\n\n".join(f"{what}: {text}" for what, text in numbers["findings"].items()))
    assert numbers.get("read", 0) + numbers.get("refused", 0), "no input was tried"
    log = os.environ.get("TWINPROBE_FUZZ_LOG")  # for the counts in docs/fuzzing.md
    if log:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"reader": name, **numbers}) + "\n")


def kept(path: Path, name: str) -> Path:
    """What was found outlives the test, to be looked at, repaired and kept in findings/."""
    if not path.exists():
        return path
    place = Path(tempfile.gettempdir()) / f"{name}-{os.getpid()}-{path.name}"
    return Path(shutil.copyfile(path, place))


def test_the_engine_finds_what_is_wrong(tmp_path: Path) -> None:
    """A reader that fails, takes memory or hangs is noticed: the harness itself can fail."""
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
    if data[:1] == b"h":
        while True:
            pass
fuzz_readers.READERS["bad"] = fuzz_readers.Reader("x", lambda: [b"a"], fuzz_mutations.change_bytes, bad)
os.makedirs({str(tmp_path / "work")!r})
from pathlib import Path
trial = fuzz_engine.Trial("bad", Path({str(tmp_path)!r}), Path({str(tmp_path / "work")!r}))
for data in (b"a", b"f", b"f2", b"m"):
    trial.one(data)
trial.save()
fuzz_engine.SLOW = 0.2
trial.one(b"h")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == -signal.SIGPROF, done.stderr
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["wrong"] == 3
    assert [what.split()[0] for what in numbers["findings"]] == ["KeyError", "memory"]
    assert (tmp_path / "work" / "x").read_bytes() == b"h"
