"""Following a command through the code does not become a longer walk than it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warm_python import run_warm

# As measured. Files and changes of room only ever go down: a change that shortens a walk lowers its numbers here. The
# functions may follow what the judge learns.
MOST = {
    # 62 files, 238 functions and 84 changes when this was first measured.
    "compare": {"files": 30, "functions": 370, "changes": 38},
    # 41 files and 30 changes at first. One for each of the 15 tensors that are measured, one for the file of sketches.
    "record": {"files": 20, "functions": 255, "changes": 16},
    # 116 files and 463 changes at first. About 45 of the files are those of recording, aligning, measuring, judging.
    "auto_diff": {"files": 58, "functions": 688, "changes": 174},
}


@pytest.mark.parametrize("work", MOST)
def test_a_walk_is_no_longer_than_it_was(work: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("walk.py")
    done = run_warm(script, work, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert all(counts[name] > 0 for name in MOST[work])  # the script has seen something
    longer = {name: (counts[name], most) for name, most in MOST[work].items() if counts[name] > most}
    assert not longer, f"{work} (found, allowed): {longer}"
