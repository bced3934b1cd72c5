"""Inference dumps: the reference's 12 layers x 3 tokens, and made runs of many layers, tokens and devices.

    python bench llm [--layers 80 --tokens 32 --devices 8 --rows 8 --hidden 256 --kind atb|torch]

The made run holds, per layer, the eight operators of a decoder with their outputs and first inputs in float16. The
default is a sixteenth of the run that the words above ask for; ``--tokens 32 --devices 8`` makes 1.3 million files.
Processor time is that of the command and all of its workers.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from measure_command import Cost, cost_of, own_command, table

ATB, TORCH = "atb", "torch"
# By the folders of a layer's operators: those of an engine, and the modules that do the same.
OPERATORS = {
    "0_RmsNormOperation": "input_layernorm",
    "1_Attention/0_LinearOperation": "self_attn.qkv_proj",
    "1_Attention/1_SelfAttentionOperation": "self_attn.core",
    "1_Attention/2_LinearOperation": "self_attn.o_proj",
    "2_RmsNormOperation": "post_attention_layernorm",
    "3_Mlp/0_LinearOperation": "mlp.up_proj",
    "3_Mlp/1_ActivationOperation": "mlp.act_fn",
    "3_Mlp/2_LinearOperation": "mlp.down_proj",
}
TYPES = {
    "input_layernorm": "RMSNorm", "post_attention_layernorm": "RMSNorm", "core": "CoreAttention", "act_fn": "SiLU",
    "self_attn": "Attention", "mlp": "MLP",
}  # fmt: skip
DEFAULTS = {"layers": 80, "tokens": 8, "devices": 2, "hidden": 256, "rows": 8, "repeat": 1, "workers": 0}
HEAD = ["run", "rows", "MB a side", "seconds", "processor s", "us/row", "MB/s", "peak MB"]


def main(words: list[str]) -> None:
    """Make the dumps, compare them with the command, print what it took."""
    parser = argparse.ArgumentParser(prog="bench llm")
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kind", choices=(ATB, TORCH), default=ATB)
    args = parser.parse_args(words)
    rows = [*_reference(args.repeat)]
    with tempfile.TemporaryDirectory(prefix="twinprobe-llm-") as folder:
        rows.append(_made(Path(folder), args))
    table("llm compare", HEAD, rows)


def _reference(times: int) -> list[list[str]]:
    dumps = Path(__file__).resolve().parents[1].parent / "shared" / "reference" / "llm" / "dumps"
    if not dumps.is_dir():
        return []
    found = []
    for golden, mine in (("t_gold", "t_mine"), ("t_gold", "atb_single")):
        with tempfile.TemporaryDirectory() as out:
            paths = ["-gp", str(dumps / golden), "-mp", str(dumps / mine), "-o", out]
            took = _took([*own_command(), "llm", "compare", *paths], max(times, 3))
            count = sum(1 for _ in next(Path(out).glob("*.csv")).open()) - 1
        size = sum(path.stat().st_size for path in (dumps / mine).rglob("*.*")) / 1e6
        found.append(_row(f"{mine} / {golden}", count, size, took))
    return found


def _took(command: list[str], times: int) -> tuple[Cost, float]:
    """What the command took, and its processor time with that of all its workers."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = cost_of(command, repeat=times)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return cost, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / times


def _row(name: str, count: int, size: float, took: tuple[Cost, float]) -> list[str]:
    cost, processor = took
    per_row, rate = f"{1e6 * processor / count:,.0f}", f"{2 * size / cost.seconds:,.0f}"
    seconds = [f"{cost.seconds:.2f}", f"{processor:.2f}"]
    return [name, f"{count:,}", f"{size:,.1f}", *seconds, per_row, rate, f"{cost.megabytes:.0f}"]


def _made(folder: Path, args: argparse.Namespace) -> list[str]:
    began = time.perf_counter()
    extent = Extent(args.layers, args.tokens, args.devices, args.rows, args.hidden, args.kind)
    size = sum(make_dump(folder / side, extent, seed) for seed, side in enumerate(("a", "b")))
    print(f"made two dumps of {size / 2e6:,.0f} MB in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    out = folder / "out"
    command = [*own_command(), "llm", "compare", "-gp", str(folder / "a"), "-mp", str(folder / "b"), "-o", str(out)]
    command += ["--format", "parquet", "--quiet", *(["--workers", str(args.workers)] if args.workers else [])]
    took = _took(command, args.repeat)
    import polars as pl

    count = pl.scan_parquet(next(out.glob("*.parquet"))).select(pl.len()).collect().item()
    shutil.rmtree(folder / "a")
    name = f"{args.kind}: {args.layers} layers x {args.tokens} tokens x {args.devices} devices"
    return _row(name, count, size / 2e6, took)


@dataclass(frozen=True)
class Extent:
    """How much is made. Every operator has its first input and its output, in float16."""

    layers: int
    tokens: int
    devices: int
    rows: int
    hidden: int
    kind: str = ATB


def make_dump(root: Path, extent: Extent, seed: int) -> int:
    """Write one dump; returns its bytes. Tensors repeat: what is measured is reading and comparing them."""
    content = _atb_content(extent, seed) if extent.kind == ATB else _torch_content(extent, seed)
    make, folders = (_make_atb, _atb_folders) if extent.kind == ATB else (_make_torch, _torch_folders)
    with ProcessPoolExecutor() as pool:
        return sum(pool.map(make, folders(root, extent), repeat(content), repeat(extent))) * len(content)


def _values(extent: Extent, seed: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    shape = extent.rows, extent.hidden
    return (rng.standard_normal(shape) + seed * 1e-4 * rng.standard_normal(shape)).astype(np.float16)


def _atb_content(extent: Extent, seed: int) -> bytes:
    payload = _values(extent, seed).tobytes()
    head = f"format=2\ndtype=1\ndims={extent.rows},{extent.hidden}\n$Object.data=0,{len(payload)}\n$End=1\n"
    return head.encode() + payload


def _atb_folders(root: Path, extent: Extent) -> list[Path]:
    dump = root / "ait_dump"
    for device in range(extent.devices):
        _write_topology(dump / "model" / str(100 + device), extent.layers)
    return [dump / "tensors" / f"{device}_{100 + device}" for device in range(extent.devices)]


def _make_atb(folder: Path, content: bytes, extent: Extent) -> int:
    """The files of one device; how many there are."""
    count = 0
    for token in range(extent.tokens):
        for layer in range(extent.layers):
            for operator in OPERATORS:
                top = f"{folder}/{token}/{layer}_Layer/{operator}"
                _write(f"{top}/before", "intensor0.bin", content)
                _write(f"{top}/after", "outtensor0.bin", content)
                count += 2
    return count


def _torch_content(extent: Extent, seed: int) -> bytes:
    import torch

    saved = io.BytesIO()
    torch.save(torch.from_numpy(_values(extent, seed)), saved)
    return saved.getvalue()


def _torch_folders(root: Path, extent: Extent) -> list[Path]:
    folders = [root / f"{100 + device}_npu{device}" for device in range(extent.devices)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "model_tree.json").write_text(json.dumps(_tree(extent.layers)))
    return folders


def _make_torch(folder: Path, content: bytes, extent: Extent) -> int:
    count = 0
    for token in range(extent.tokens):
        for layer in range(extent.layers):
            for module in OPERATORS.values():
                top = f"{folder}/{token}/root.model.layers.{layer}.{module}"
                _write(top, "input_0.pth", content)
                _write(top, "output.pth", content)
                count += 2
    return count


def _write(folder: str, file: str, content: bytes) -> None:
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103  by the hundred thousand
    with open(f"{folder}/{file}", "wb", buffering=0) as stream:  # noqa: PTH123
        stream.write(content)


def _tree(layers: int) -> dict[str, object]:
    def node(name: str, kind: str, children: list[dict[str, object]]) -> dict[str, object]:
        return {"name": name, "type": kind, "children": children}

    def layer(name: str) -> dict[str, object]:
        tops: dict[str, list[dict[str, object]]] = {}
        for module in OPERATORS.values():
            first, _, inner = module.partition(".")
            below = tops.setdefault(first, [])
            if inner:
                below.append(node(f"{name}.{module}", TYPES.get(inner, "Linear"), []))
        return node(name, "Layer", [node(f"{name}.{top}", TYPES[top], below) for top, below in tops.items()])

    stack = [layer(f"root.model.layers.{at}") for at in range(layers)]
    model = node("root.model", "Model", [node("root.model.layers", "ModuleList", stack)])
    return node("root", "CausalLM", [model])


def _write_topology(folder: Path, layers: int) -> None:
    def node(kind: str, name: str, children: list[dict[str, object]]) -> dict[str, object]:
        return {"opName": name, "opType": kind, "param": {}, "inTensors": [], "outTensors": [], "nodes": children}

    def layer(at: int) -> dict[str, object]:
        tops: dict[str, list[dict[str, object]]] = {}
        for operator in OPERATORS:
            first, _, inner = operator.partition("/")
            below = tops.setdefault(first, [])
            if inner:
                below.append(node(inner.partition("_")[2], operator, []))
        return node("Layer", f"Layer_{at}", [node(top.partition("_")[2], top, below) for top, below in tops.items()])

    folder.mkdir(parents=True, exist_ok=True)
    document = {"modelName": "Made", "nodes": [layer(at) for at in range(layers)]}
    (folder / "Made.json").write_text(json.dumps(document))
