"""What fuzzing found once stays repaired, every reader has its turn, and the harness itself can fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from fuzz_readers import READERS

from twinprobe.errors import TwinProbeError

HERE = Path(__file__).resolve().parent
FINDINGS = sorted((HERE / "findings").iterdir())


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.name)
def test_what_was_found_once_stays_repaired(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reader = READERS[path.name.partition("-")[0]]
    (tmp_path / reader.file).write_bytes(path.read_bytes())
    with suppress(TwinProbeError):
        reader.read(tmp_path / reader.file)


def test_every_reader_has_its_turn_once() -> None:
    texts = [path.read_text(encoding="utf-8") for path in HERE.glob("test_fuzz_*.py")]
    named = [
        name for text in texts for name in re.findall(r'"(\w+)"', text.partition("parametrize(")[2]) if name != "name"
    ]
    assert sorted(named) == sorted(READERS)


def test_the_engine_finds_what_is_wrong(tmp_path: Path) -> None:
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
os.makedirs({str(tmp_path / "work")!r})
from pathlib import Path
trial = fuzz_engine.Trial("bad", Path({str(tmp_path)!r}), Path({str(tmp_path / "work")!r}), 60)
for data in (b"a", b"f", b"f2", b"m"):
    trial.one(data)
trial.save()
trial.one(b"k")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -9, done.stderr
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["wrong"] == 3
    assert [what.split()[0] for what in numbers["findings"]] == ["KeyError", "memory"]
    assert (tmp_path / "work" / "x").read_bytes() == b"k"
