"""Two large dumps are read side by side, in two processes; what a user sees is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# A fresh interpreter: only there may a process fork, and only where there are two cores to use.
_READ = """
import sys
from pathlib import Path
from twinprobe._compare import one as both
from twinprobe.errors import BadInput
both.can_fork = (lambda: True) if sys.argv[1] == "beside" else (lambda: False)
both._LARGE = 0
try:
    runs = both.open_both(Path(sys.argv[2]), Path(sys.argv[3]))
    print([(str(run.path), run.task, run.level, run.framework, run.ops, run.notes) for run in runs])
    print([run.table.hash_rows().to_list() for run in runs])
except BadInput as error:
    print("refused:", error)
"""


def _run(place: Path, names: list[str], value: float) -> Path:
    def leaf(at: int) -> dict[str, object]:
        return {
            "type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, at + 1], "Max": value, "Min": -value,
            "Mean": "NaN" if at == 2 else 0.5, "Norm": value * 2, "requires_grad": at % 2 == 0,
        }  # fmt: skip

    data = {
        name: {
            "input_args": [leaf(at), None],
            "input_kwargs": {"dim": {"type": "int", "value": -1}},
            "output": [leaf(at)],
        }
        for at, name in enumerate(names)
    }
    place.mkdir(parents=True)
    (place / "dump.json").write_text(
        json.dumps({"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data})
    )
    return place / "dump.json"


def _read(how: str, target: Path, golden: Path) -> str:
    command = [sys.executable, "-c", _READ, how, str(target), str(golden)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout


NAMES = [f"Torch.add.{at}.forward" for at in range(5)]


def test_a_run_read_beside_is_the_same_run(tmp_path: Path) -> None:
    target, golden = _run(tmp_path / "a", NAMES, 1.5), _run(tmp_path / "b", [*NAMES, "No direction"], 2.0)
    beside = _read("beside", target, golden)
    assert beside == _read("inline", target, golden)
    assert "1 entries have no direction" in beside


@pytest.mark.parametrize("broken", ["a", "b"])
def test_a_run_that_cannot_be_read_is_refused_in_the_same_words(tmp_path: Path, broken: str) -> None:
    paths = [_run(tmp_path / name, NAMES, 1.5) for name in ("a", "b")]
    (tmp_path / broken / "dump.json").write_text("[1, 2]")
    told = _read("beside", *paths)
    assert told.startswith("refused:")
    assert str(tmp_path / broken) in told
    assert told == _read("inline", *paths)
