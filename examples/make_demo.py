"""Record the two runs of examples/demo: the same transformer, once as it should be and once with a mistake in it.

    python examples/make_demo.py [FOLDER]        # needs torch; looking at the result does not

Paths in the call stacks are made relative to the project, so that the files are the same wherever they are made.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from tiny_transformer import train_one_step

HERE = Path(__file__).resolve().parent
FILES = ("dump.json", "stack.json", "construct.json")


def main(folder: Path = HERE / "demo") -> None:
    """Record both runs into ``folder``."""
    torch.set_num_threads(1)
    for side, faulty in (("golden", False), ("target", True)):
        target = folder / side / "step0" / "rank0"
        with tempfile.TemporaryDirectory() as scratch:
            train_one_step(Path(scratch) / "dump", faulty=faulty)
            (made,) = (Path(scratch) / "dump" / "step0").iterdir()
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            for name in FILES:
                shutil.copyfile(made / name, target / name)
        make_paths_neutral(target / "stack.json")


def make_paths_neutral(file: Path) -> None:
    """Keep the frames of the example and of PyTorch, with short paths; drop how the script was started."""
    places = {str(HERE): "examples", str(Path(torch.__file__).parent): "site-packages/torch"}
    stacks: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    lines = []
    for key, (names, frames) in stacks.items():
        kept = [text for frame in frames if "make_demo.py" not in frame if (text := _shorten(frame, places))]
        lines.append(f" {json.dumps(key)}: {json.dumps([names, kept])}")
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _shorten(frame: str, places: dict[str, str]) -> str | None:
    for folder, name in places.items():
        if frame.startswith(f"File {folder}"):
            return frame.replace(folder, name, 1)
    return None


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
