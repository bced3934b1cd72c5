"""How far one has to walk to follow a command: ``python walk.py compare`` (or ``record``, ``auto_diff``).

The work is done once to load everything, then once more under ``sys.setprofile``, on every thread. Counted are the
files and named functions of TwinProbe that run, and the changes of room: calls from a function of one room (a
subpackage of twinprobe, or a module beside them) straight into a function of another.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import twinprobe

SOURCE = f"{Path(twinprobe.__file__).parent}{os.sep}"
DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"


class Walk:
    """What was seen on the way."""

    def __init__(self) -> None:
        self.functions: set[CodeType] = set()
        self.changes = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not _ours(code) or code.co_name.startswith("<"):
            return  # what has no name (a lambda, a comprehension) is read where it stands
        self.functions.add(code)
        caller = frame.f_back.f_code if frame.f_back is not None else None
        if caller is not None and _ours(caller) and _room(caller) != _room(code):
            self.changes += 1

    def counts(self) -> dict[str, int]:
        files = {code.co_filename for code in self.functions}
        return {"files": len(files), "functions": len(self.functions), "changes": self.changes}


def _ours(code: CodeType) -> bool:
    return code.co_filename.startswith(SOURCE)


def _room(code: CodeType) -> str:
    return code.co_filename.removeprefix(SOURCE).partition(os.sep)[0]


def measure(work: Callable[[Path], object]) -> dict[str, int]:
    """Do the work in a folder of its own, twice, and count what the second time took."""
    walk = Walk()
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        work(Path(folder, "first"))
        threading.setprofile(walk)
        sys.setprofile(walk)
        try:
            work(Path(folder, "second"))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return walk.counts()


def compare(folder: Path) -> None:
    """The demo's comparison, from the command to a csv and an html file."""
    from twinprobe._cli import main

    sides = [str(DEMO / side / "step0" / "rank0" / "dump.json") for side in ("target", "golden")]
    assert main(["compare", "-tp", sides[0], "-gp", sides[1], "-o", str(folder), "--format", "csv,html"]) == 0


def record(folder: Path) -> None:
    """Three layers, forward and backward, recorded at L0."""
    import torch

    import twinprobe.torch as recording  # "from ... import" would ask the module's __getattr__ on the way

    model = _three_layers("ReLU")
    with recording.record(model, folder, level="L0"):
        model(torch.ones(3, 4)).sum().backward()


def auto_diff(_folder: Path) -> None:
    """Three layers against three layers, one of which is another function."""
    import torch

    assert not twinprobe.auto_diff(_three_layers("ReLU"), _three_layers("GELU"), torch.ones(3, 4))


def _three_layers(activation: str) -> object:
    from torch import manual_seed, nn

    manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), getattr(nn, activation)(), nn.Linear(8, 2))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure({"compare": compare, "record": record, "auto_diff": auto_diff}[sys.argv[1]])))
