"""Inference dumps: the reference's 12 layers x 3 tokens, and a made run of many layers, tokens and devices.

    python bench llm [--layers 80 --tokens 32 --devices 8 --rows 8 --hidden 256]

The made run holds, per layer, the eight operators of a decoder with their outputs and first inputs in float16. The
default is a sixteenth of the run that the words above ask for; ``--tokens 32 --devices 8`` makes 1.3 million files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np

from measure_command import Cost, cost_of, own_command, table

OPERATORS = (
    "0_RmsNormOperation", "1_Attention/0_LinearOperation", "1_Attention/1_SelfAttentionOperation",
    "1_Attention/2_LinearOperation", "2_RmsNormOperation", "3_Mlp/0_LinearOperation", "3_Mlp/1_ActivationOperation",
    "3_Mlp/2_LinearOperation",
)  # fmt: skip
DEFAULTS = {"layers": 80, "tokens": 8, "devices": 2, "hidden": 256, "rows": 8, "repeat": 1, "workers": 0}


def main(words: list[str]) -> None:
    """Make the dumps, compare them with the command, print what it took."""
    parser = argparse.ArgumentParser(prog="bench llm")
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(words)
    rows = [*_reference(args.repeat)]
    with tempfile.TemporaryDirectory(prefix="twinprobe-llm-") as folder:
        rows.append(_made(Path(folder), args))
    table("llm compare", ["run", "rows", "MB a side", "seconds", "rows/s", "MB/s", "peak MB"], rows)


def _reference(repeat: int) -> list[list[str]]:
    dumps = Path(__file__).resolve().parents[1].parent / "shared" / "reference" / "llm" / "dumps"
    if not dumps.is_dir():
        return []
    found = []
    for golden, mine in (("t_gold", "t_mine"), ("t_gold", "atb_single")):
        with tempfile.TemporaryDirectory() as out:
            paths = ["-gp", str(dumps / golden), "-mp", str(dumps / mine), "-o", out]
            cost = cost_of([*own_command(), "llm", "compare", *paths], repeat=max(repeat, 3))
            count = sum(1 for _ in next(Path(out).glob("*.csv")).open()) - 1
        size = sum(path.stat().st_size for path in (dumps / mine).rglob("*.*")) / 1e6
        found.append(_row(f"{mine} / {golden}", count, size, cost))
    return found


def _row(name: str, count: int, size: float, cost: Cost) -> list[str]:
    rates = [f"{count / cost.seconds:,.0f}", f"{2 * size / cost.seconds:,.0f}"]
    return [name, f"{count:,}", f"{size:,.1f}", f"{cost.seconds:.2f}", *rates, f"{cost.megabytes:.0f}"]


def _made(folder: Path, args: argparse.Namespace) -> list[str]:
    began = time.perf_counter()
    size = sum(_make(folder / side, args, seed) for seed, side in enumerate(("a", "b")))
    print(f"made two dumps of {size / 2e6:,.0f} MB in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    out = folder / "out"
    command = [*own_command(), "llm", "compare", "-gp", str(folder / "a"), "-mp", str(folder / "b"), "-o", str(out)]
    command += ["--format", "parquet", "--quiet", *(["--workers", str(args.workers)] if args.workers else [])]
    cost = cost_of(command, repeat=args.repeat)
    import polars as pl

    count = pl.scan_parquet(next(out.glob("*.parquet"))).select(pl.len()).collect().item()
    shutil.rmtree(folder / "a")
    name = f"{args.layers} layers x {args.tokens} tokens x {args.devices} devices"
    return _row(name, count, size / 2e6, cost)


def _make(root: Path, args: argparse.Namespace, seed: int) -> int:
    """Write one ATB dump; returns its bytes. Tensors repeat: what is measured is reading and comparing them."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((args.rows, args.hidden)) + seed * 1e-4 * rng.standard_normal((args.rows, args.hidden))
    payload = values.astype(np.float16).tobytes()
    head = f"format=2\ndtype=1\ndims={args.rows},{args.hidden}\n$Object.data=0,{len(payload)}\n$End=1\n".encode()
    content = head + payload
    dump = root / "ait_dump"
    for device in range(args.devices):
        _topology(dump / "model" / str(100 + device), args.layers)
    folders = [dump / "tensors" / f"{device}_{100 + device}" for device in range(args.devices)]
    with ProcessPoolExecutor() as pool:
        done = pool.map(_make_device, folders, repeat(content), repeat(args.tokens), repeat(args.layers))
        return sum(done) * len(content)


def _make_device(folder: Path, content: bytes, tokens: int, layers: int) -> int:
    """The files of one device; how many there are."""
    count = 0
    for token in range(tokens):
        for layer in range(layers):
            for operator in OPERATORS:
                top = f"{folder}/{token}/{layer}_Layer/{operator}"
                for when, file in (("before", "intensor0.bin"), ("after", "outtensor0.bin")):
                    os.makedirs(f"{top}/{when}")  # noqa: PTH103  by the hundred thousand
                    with open(f"{top}/{when}/{file}", "wb", buffering=0) as stream:  # noqa: PTH123
                        stream.write(content)
                    count += 1
    return count


def _topology(folder: Path, layers: int) -> None:
    def node(kind: str, name: str, children: list[dict[str, object]]) -> dict[str, object]:
        return {"opName": name, "opType": kind, "param": {}, "inTensors": [], "outTensors": [], "nodes": children}

    def layer(at: int) -> dict[str, object]:
        composites: dict[str, list[dict[str, object]]] = {}
        tops: list[dict[str, object]] = []
        for operator in OPERATORS:
            first, _, inner = operator.partition("/")
            if not inner:
                tops.append(node(first.partition("_")[2], operator, []))
                continue
            if first not in composites:
                composites[first] = []
                tops.append(node(first.partition("_")[2], first, composites[first]))
            composites[first].append(node(inner.partition("_")[2], operator, []))
        return node("Layer", f"Layer_{at}", tops)

    folder.mkdir(parents=True, exist_ok=True)
    document = {"modelName": "Made", "nodes": [layer(at) for at in range(layers)]}
    (folder / "Made.json").write_text(json.dumps(document))
