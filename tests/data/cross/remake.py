"""Record the small transformer of tests/models, run by the interpreter of one framework:

    PYTHONPATH=src:tests python tests/data/cross/remake.py torch|mindspore|paddle

writes tests/data/cross/<framework> and, with a fault in one layer, tests/data/cross/<framework>_fault.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Where the second layer gets a wrong activation: nothing before its last projection may differ.
FAULTS = {"torch": "layers.1.mlp", "mindspore": "layers.1.feed_forward", "paddle": "blocks.1.ffn"}


def plant_fault(framework: str, net: Any) -> None:
    """Spoil one layer."""
    layer: Any = net
    for part in FAULTS[framework].split("."):
        layer = layer[int(part)] if part.isdecimal() else getattr(layer, part)
    layer.faulty = True


def record(framework: str, target: Path, *, fault: bool = False, **options: Any) -> None:
    """Record one training step into ``target``/step0/rank0."""
    model = importlib.import_module(f"models.small_transformer_{framework}")
    recorder = importlib.import_module(f"twinprobe.{framework}")
    net = model.model()
    if fault:
        plant_fault(framework, net)
    with tempfile.TemporaryDirectory() as folder:
        with recorder.record(net, Path(folder) / "dump", **{"level": "L0", **options}):
            model.train_step(net)
        (found,) = (Path(folder) / "dump" / "step0").iterdir()
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(found, target / "step0" / "rank0")
    index = target / "step0" / "rank0" / "dump.json"
    document = json.loads(index.read_text(encoding="utf-8"))
    document["dump_data_dir"] = None
    index.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")
    (target / "step0" / "rank0" / "stack.json").unlink()  # holds paths of the machine it was made on


def record_updates() -> None:
    """What the optimizers of the others are compared with."""
    with tempfile.TemporaryDirectory() as folder:
        importlib.import_module("update_programs").train("torch", Path(folder) / "dump")
        (found,) = (Path(folder) / "dump" / "step0").iterdir()
        (found / "stack.json").unlink()
        (found / "dump.sketch").unlink()
        shutil.rmtree(HERE / "updates_torch", ignore_errors=True)
        shutil.copytree(found, HERE / "updates_torch" / "step0" / "rank0")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name == "torch":  # what the watched runs of the others are compared with
            sys.path.insert(0, str(HERE.parents[1] / "record" / "frameworks"))
            shutil.rmtree(HERE / "watch_torch", ignore_errors=True)
            importlib.import_module("watch_programs").train("torch", HERE / "watch_torch")
            record_updates()
        record(name, HERE / name)
        record(name, HERE / f"{name}_fault", fault=True)
