"""Parallel layouts: 64 ranks of TP8 x PP8 against one process, and trainings against their single twins.

python bench layouts [--layers 16] [--width 1024] [--trainings] [--faults]

The first table has the time of a plain tensor compare of the same bytes beside it: the limit is 1.5 times as long. With
--trainings each layout of tests/layout is trained on gloo and compared with its twin in one process, with --faults each
fault is planted in such a training: is the module named, and the rank or the collective?
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from measure_command import cost_of, own_command, table

TESTS = Path(__file__).resolve().parents[1] / "tests" / "layout"
TP, PP, BATCH = 8, 8, 64


def main(arguments: Sequence[str]) -> None:
    """Make the dumps, compare them both ways, print the tables."""
    parser = argparse.ArgumentParser(prog="bench layouts", description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--trainings", action="store_true")
    parser.add_argument("--faults", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        if options.trainings:
            trainings(folder)
        if options.faults:
            faults(folder)
        if options.trainings or options.faults:
            return
        size = make(folder, options.layers, options.width)
        common = ["--format", "csv", "--quiet"]
        single = [*own_command(), "compare", "-tp", str(folder / "twin"), "-gp", str(folder / "single")]
        ranks = [*own_command(), "compare", "-tp", str(folder / "ranks"), "-gp", str(folder / "single")]
        plain = cost_of([*single, "-o", str(folder / "a"), *common])
        whole = cost_of([*ranks, "-o", str(folder / "b"), *common, "--layout", f"tp={TP},pp={PP}"])
        rows = [
            ["one process", f"{plain.seconds:.2f} s", f"{plain.processor:.2f} s", f"{plain.megabytes:.0f} MB", "1.00"],
            [f"{TP * PP} ranks", f"{whole.seconds:.2f} s", f"{whole.processor:.2f} s", f"{whole.megabytes:.0f} MB",
             f"{whole.processor / plain.processor:.2f}"],
        ]  # fmt: skip
        titles = ["target", "time", "processor time", "memory", "times (processor)"]
        table(f"tensor compare, {size / 1e6:.0f} MB a side", titles, rows)


def make(folder: Path, layers: int, width: int) -> int:
    """The same layers in one process (twice) and cut over the ranks: outputs by columns, layers by stages."""
    generator = np.random.default_rng(5)
    size = 0
    for layer in range(layers):
        whole = generator.standard_normal((BATCH, 4 * width), dtype=np.float32)
        weight = generator.standard_normal((4 * width, width), dtype=np.float32)
        size += whole.nbytes + weight.nbytes
        for side in ("single", "twin"):
            _call(folder / side / "step0" / "proc1", layer, whole, weight)
        share = layers // PP
        for tp in range(TP):
            place = folder / "ranks" / "step0" / f"rank{layer // share * TP + tp}"
            _call(place, layer % share, np.split(whole, TP, 1)[tp], np.split(weight, TP, 0)[tp])
    for place in (*folder.glob("*/step0/proc1"), *folder.glob("ranks/step0/rank*")):
        data = json.loads((place / "calls").read_text())
        header = {"task": "tensor", "level": "L0", "framework": "pytorch", "dump_data_dir": None, "data": data}
        (place / "dump.json").write_text(json.dumps(header))
    return size


def _call(place: Path, layer: int, output: Any, weight: Any) -> None:
    store = place / "dump_tensor_data"
    store.mkdir(parents=True, exist_ok=True)
    calls = json.loads((place / "calls").read_text()) if (place / "calls").is_file() else {}
    name = f"Module.layers.{layer}.up.Linear.forward.0"
    entry: dict[str, Any] = {"input_args": [], "input_kwargs": {}}
    leaves = {}
    for part, array in (("parameters.weight", weight), ("output.0", output)):
        file = f"{name}.{part}.npy"
        np.save(store / file, np.ascontiguousarray(array))
        leaves[part] = {
            "type": "torch.Tensor", "dtype": "torch.float32", "shape": list(array.shape), "Max": float(array.max()),
            "Min": float(array.min()), "Mean": float(array.mean()), "Norm": float(np.linalg.norm(array)),
            "requires_grad": False, "data_name": file,
        }  # fmt: skip
    calls[name] = entry | {"parameters": {"weight": leaves["parameters.weight"]}, "output": [leaves["output.0"]]}
    (place / "calls").write_text(json.dumps(calls))


def trainings(folder: Path) -> None:
    """Every layout of the tests against its twin: how many rows pass, and whether anything is blamed."""
    rows = []
    for kind, twin in _tests().TWINS.items():
        for dtype in ["float32", "bfloat16"][: 1 if "mixed" in kind else 2]:
            results = _compared(folder, kind, twin, dtype=dtype).values()
            passed, errors = (sum(one["verdicts"][word] for one in results) for word in ("pass", "error"))
            blamed = sum(one["first"] is not None for one in results)
            rows.append([kind, twin, dtype, f"{passed:,}", f"{errors:,}", str(blamed)])
    titles = ["layout", "twin", "dtype", "rows that pass", "errors", "results that blame"]
    table("trainings against one process", titles, rows)


def faults(folder: Path) -> None:
    """Every planted fault of the tests: whether the module is named, and the rank or the collective if it can be."""
    tests, rows, named, clues = _tests(), [], 0, []
    for kind, fault, result, guilty, clue in tests.FAULTS:
        found = _compared(folder, kind, tests.TWINS[kind], fault)[result]
        module, words = tests.what_is_named(found, guilty, clue)
        named += bool(module)
        clues += [bool(words)] if clue else []
        said = words.rpartition(": ")[2] if clue else "all ranks alike, or not told by statistics"
        rows.append([kind, fault, module or "not named", said or "not named"])
    table("planted faults", ["layout", "fault", "module", "rank or collective"], rows)
    print(
        f"module named: {named} of {len(rows)}; rank or collective, where it can be known: {sum(clues)} of {len(clues)}"
    )


def _tests() -> Any:
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    import test_parallel_layouts

    return test_parallel_layouts


def _compared(folder: Path, kind: str, twin: str, fault: str = "none", dtype: str = "float32") -> dict[str, Any]:
    """Train both, the twin only once, and compare them: the results by name."""
    sides = []
    for name, count, planted in ((kind, _tests().RANKS.get(kind, 2), fault), (twin, 1, "none")):
        dump = folder / f"{name}.{count}.{planted.replace(':', '-')}.{dtype}"
        if not dump.exists():
            words = [str(dump), name, str(count), "mix", "statistics", dtype, planted]
            subprocess.run(
                [sys.executable, str(TESTS / "parallel_training.py"), *words], check=True, capture_output=True
            )
        sides.append(str(dump))
    command = [*own_command(), "compare", "-tp", sides[0], "-gp", sides[1], "-o", str(folder / "out"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {one["rank"]: one for one in json.loads(done.stdout)["ranks"]}


if __name__ == "__main__":
    main(sys.argv[1:])
