"""Does the other tool accept what we record? Its ``compare`` reads our dumps, and says of each pair what ours says.

    python bench compat_record        # needs torch; installs the other tool into .bench-env on first use

Two runs of examples/tiny_transformer.py, one with a planted fault, are recorded in every mode and compared by both.
Each line: the mode, whether the other tool accepted the dumps, its rows and ours, and how many of its names, and of its
statistics, differ from ours.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rivals import rival

MODES: dict[str, dict[str, str]] = {
    "L0 statistics": {"level": "L0"},
    "L1 statistics": {"level": "L1"},
    "mix statistics": {"level": "mix"},
    "L0 tensor": {"level": "L0", "task": "tensor"},
    "L1 tensor": {"level": "L1", "task": "tensor"},
    "L0 md5": {"level": "L0", "summary_mode": "md5"},
    "L1 md5": {"level": "L1", "summary_mode": "md5"},
    "mix xor": {"level": "mix", "summary_mode": "xor"},
    "debug": {"level": "debug"},
}
NUMBERS = ("NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm")


def main(argv: Sequence[str] = ()) -> None:
    argparse.ArgumentParser(prog="bench compat_record", description=__doc__.splitlines()[0]).parse_args(argv)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    command = rival("msprobe") / "bin" / "msprobe"
    print(f"{'mode':16} {'accepted':9} {'rows':>5} {'ours':>5} {'names differ':>13} {'numbers differ':>15}")
    refused = 0
    with tempfile.TemporaryDirectory() as scratch:
        for mode, options in MODES.items():
            folder = Path(scratch) / mode.replace(" ", "_")
            files = [record_run(folder / side, faulty=side == "target", **options) for side in ("target", "golden")]
            theirs, ours = compare_theirs(command, files, folder), compare_ours(files, folder)
            refused += theirs is None
            print(line(mode, theirs, ours), flush=True)
    sys.exit(1 if refused else 0)


def record_run(path: Path, *, faulty: bool, **options: str) -> Path:
    """One training step of the example; returns its dump.json or debug.json."""
    import torch
    from tiny_transformer import VOCABULARY, TinyTransformer
    from torch.nn import functional

    from twinprobe.torch import PrecisionDebugger

    torch.manual_seed(0)
    model = TinyTransformer(faulty=faulty)
    tokens = torch.randint(0, VOCABULARY, (2, 12))
    debugger = PrecisionDebugger(dump_path=path, **options)
    debugger.start(model=model)
    logits = model(tokens[:, :-1])
    if options["level"] == "debug":
        debugger.save({"logits": logits, "parts": [tokens, None, 1.5]}, "result")
    functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    debugger.stop()
    debugger.close()
    (file,) = [*path.rglob("dump.json"), *path.rglob("debug.json")]
    return file


def compare_theirs(command: Path, files: list[Path], folder: Path) -> list[dict[str, Any]] | None:
    """The other tool's rows, or None when it refuses the dumps."""
    out = folder / "theirs"
    words = [str(command), "compare", "-tp", str(files[0]), "-gp", str(files[1]), "-o", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": ""})
    results = sorted(out.glob("*compare_result*.csv"))
    if done.returncode or not results:
        print("\n".join((done.stdout + done.stderr).splitlines()[-5:]), file=sys.stderr)
        return None
    return rows_of(results[0])


def compare_ours(files: list[Path], folder: Path) -> list[dict[str, Any]]:
    """Our rows for the same dumps."""
    from twinprobe._cli import main as twinprobe

    out = folder / "ours"
    words = ["compare", "-tp", str(files[0]), "-gp", str(files[1]), "-o", str(out), "--csv", "--quiet"]
    if twinprobe(words):
        raise SystemExit("our own compare refused the dumps")
    (result,) = out.glob("*.csv")
    return rows_of(result)


def rows_of(file: Path) -> list[dict[str, Any]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        return list(csv.DictReader(lines))


def line(mode: str, theirs: list[dict[str, Any]] | None, ours: list[dict[str, Any]]) -> str:
    if theirs is None:
        return f"{mode:16} {'no':9} {'-':>5} {len(ours):5}"
    mine = {row["NPU Name"]: row for row in ours}
    names = {row["NPU Name"] for row in theirs} ^ set(mine)
    shared = [row for row in theirs if row["NPU Name"] in mine]
    unequal = [
        (row["NPU Name"], key)
        for row in shared
        for key in NUMBERS
        if key in row and not same(row[key], mine[row["NPU Name"]].get(key))
    ]
    for name, key in unequal[:3]:
        print(f"  {name} {key}", file=sys.stderr)
    return f"{mode:16} {'yes':9} {len(theirs):5} {len(ours):5} {len(names):13} {len(unequal):15}"


def same(one: Any, other: Any) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6) or (
            math.isnan(float(one)) and math.isnan(float(other))
        )
    except (TypeError, ValueError):
        return str(one) == str(other)


if __name__ == "__main__":
    main(sys.argv[1:])
