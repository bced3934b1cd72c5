"""Following a command through the code does not become a longer walk than it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# As measured. They only ever go down: a change that shortens a walk lowers its numbers here.
MOST = {
    # Every folder with a page gets an index (332 functions, 39 changes before).
    # The judge asks whether a loss reads the outputs, who reads a value of one run alone, and what a module lacks.
    # Each decoding step is a result of its own: the judge asks for the model that makes them.
    # It asks what golden alone gives to a call, which modules stand in for others, which parameters noise alone has
    # moved, and whether another framework means the same by its eps and its momentum (343 functions before).
    # It asks what a normalisation hides from statistics, and which updates Adam makes of noise (351 functions before).
    "compare": {"files": 30, "functions": 353, "changes": 38},
    # One hook for all calls that end at a node, and a mode that rests between steps (249 functions before).
    "record": {"files": 25, "functions": 254, "changes": 40},
    # Two models that differ: since the judge of recordings is asked, its files are on the way (66 files before).
    # It asks for weights in another order, and the aligner has a rule more.
    # It pairs as compare does, in place of a matcher of its own (78 files, 757 functions, 158 changes before).
    # The same questions of the judge as in compare (660 functions before).
    "auto_diff": {"files": 71, "functions": 675, "changes": 170},
}


@pytest.mark.parametrize("work", MOST)
def test_a_walk_is_no_longer_than_it_was(work: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("walk.py")
    command = [sys.executable, str(script), work]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert all(counts[name] > 0 for name in MOST[work])  # the script has seen something
    longer = {name: (counts[name], most) for name, most in MOST[work].items() if counts[name] > most}
    assert not longer, f"{work} (found, allowed): {longer}"
