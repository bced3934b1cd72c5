"""Inference dumps: the reference's 12 layers x 3 tokens, and a made run of many layers, tokens and devices.

    python bench llm [--layers 80 --tokens 32 --devices 8 --hidden 256]

The made run holds, per layer, the eight operators of a decoder with their outputs and first inputs in float16.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from measure_command import Cost, cost_of, own_command, table

OPERATORS = (
    "0_RmsNormOperation", "1_Attention/0_LinearOperation", "1_Attention/1_SelfAttentionOperation",
    "1_Attention/2_LinearOperation", "2_RmsNormOperation", "3_Mlp/0_LinearOperation", "3_Mlp/1_ActivationOperation",
    "3_Mlp/2_LinearOperation",
)  # fmt: skip


def main(words: list[str]) -> None:
    """Make the dumps, compare them with the command, print what it took."""
    parser = argparse.ArgumentParser(prog="bench llm")
    for name, default in (("layers", 80), ("tokens", 8), ("devices", 2), ("hidden", 256), ("rows", 8), ("repeat", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(words)
    rows = [*_reference(args.repeat)]
    with tempfile.TemporaryDirectory(prefix="twinprobe-llm-") as folder:
        rows.append(_made(Path(folder), args))
    table("llm compare", ["run", "rows", "MB a side", "seconds", "rows/s", "peak MB"], rows)


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
    rate = f"{count / cost.seconds:,.0f}"
    return [name, f"{count:,}", f"{size:,.1f}", f"{cost.seconds:.2f}", rate, f"{cost.megabytes:.0f}"]


def _made(folder: Path, args: argparse.Namespace) -> list[str]:
    began = time.perf_counter()
    size = sum(_make(folder / side, args, seed) for seed, side in enumerate(("a", "b")))
    print(f"made two dumps of {size / 2e6:,.0f} MB in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    out = folder / "out"
    command = [*own_command(), "llm", "compare", "-gp", str(folder / "a"), "-mp", str(folder / "b"), "-o", str(out)]
    cost = cost_of([*command, "--format", "parquet", "--quiet"], repeat=args.repeat)
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
    total = 0
    for device in range(args.devices):
        _topology(dump / "model" / str(100 + device), args.layers)
        for token in range(args.tokens):
            top = dump / "tensors" / f"{device}_{100 + device}" / str(token)
            for layer in range(args.layers):
                for operator in OPERATORS:
                    for file in ("before/intensor0.bin", "after/outtensor0.bin"):
                        path = top / f"{layer}_Layer" / operator / file
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(content)
                        total += len(content)
    return total


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
