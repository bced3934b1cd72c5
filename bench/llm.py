"""Inference dumps: the reference's 12 layers x 3 tokens, and made runs of many layers, tokens and devices.

    python bench llm [--layers 80 --tokens 32 --devices 8 --rows 8 --hidden 256 --kind atb|torch] [--linked]

The made run holds, per layer, the eight operators of a decoder with their outputs and first inputs in float16. The
default is a sixteenth of 80 layers x 32 tokens x 8 devices, which have 655,360 files in 1.1 million folders.

In the same run, as many processes as there are cores list, open, read and close the same files, and do so again with
numpy.sum over their bytes as float32: what is left to gain. Shares are theirs over ours, of processor time (the command
and all of its workers, start included) and by the clock. numpy.sum alone is taken over bytes in memory, on one core.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from llm_tools.limits import Limits, limits
from llm_tools.made import ATB, TORCH, Extent, make_dump
from measure_command import Cost, cost_of, own_command, table

DEFAULTS = {"layers": 80, "tokens": 8, "devices": 2, "hidden": 256, "rows": 8, "repeat": 1, "workers": 0}
HEAD = ["run", "rows", "MB a side", "seconds", "processor s", "us/row", "MB/s a core", "peak MB"]
SHARES = ["files only", "with numpy.sum", "processor", "clock", "numpy.sum in memory", "share"]


def main(words: list[str]) -> None:
    """Make the dumps, compare them with the command, print what it took."""
    parser = argparse.ArgumentParser(prog="bench llm")
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kind", choices=(ATB, TORCH), default=ATB)
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float16")
    parser.add_argument("--linked", action="store_true", help="later tokens are hard links to the first one's files")
    args = parser.parse_args(words)
    rows = _reference(args.repeat)
    with tempfile.TemporaryDirectory(prefix="twinprobe-llm-") as folder:
        made, shares = _made(Path(folder), args)
    table("llm compare", HEAD, [*rows, made])
    table("the same files, listed, opened, read and closed: processor s (clock s), our share", SHARES, [shares])


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
    per_row, rate = f"{1e6 * processor / count:,.0f}", f"{2 * size / processor:,.0f}"
    seconds = [f"{cost.seconds:.2f}", f"{processor:.2f}"]
    return [name, f"{count:,}", f"{size:,.1f}", *seconds, per_row, rate, f"{cost.megabytes:.0f}"]


def _made(folder: Path, args: argparse.Namespace) -> tuple[list[str], list[str]]:
    began = time.perf_counter()
    numbers = args.layers, args.tokens, args.devices, args.rows, args.hidden
    extent = Extent(*numbers, args.kind, args.dtype, args.linked)
    size = sum(make_dump(folder / side, extent, seed) for seed, side in enumerate(("a", "b")))
    print(f"made two dumps of {size / 2e6:,.0f} MB in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    out = folder / "out"
    command = [*own_command(), "llm", "compare", "-gp", str(folder / "a"), "-mp", str(folder / "b"), "-o", str(out)]
    command += ["--format", "parquet", "--quiet", *(["--workers", str(args.workers)] if args.workers else [])]
    took = _took(command, args.repeat)
    import polars as pl

    count = pl.scan_parquet(next(out.glob("*.parquet"))).select(pl.len()).collect().item()
    least = limits([folder / "a", folder / "b"], args.workers or len(os.sched_getaffinity(0)))
    for side in ("a", "b"):
        shutil.rmtree(folder / side)
    name = f"{args.kind}, {args.dtype}: {args.layers} layers x {args.tokens} tokens x {args.devices} devices"
    return _row(name, count, size / 2e6, took), _shares(least, took, size)


def _shares(least: Limits, took: tuple[Cost, float], size: float) -> list[str]:
    cost, processor = took
    files, summed = (f"{one.processor:.2f} ({one.seconds:.2f})" for one in (least.read, least.summed))
    by_processor = [f"{one.processor / processor:.0%}" for one in (least.read, least.summed)]
    by_clock = [f"{one.seconds / cost.seconds:.0%}" for one in (least.read, least.summed)]
    rate, share = f"{least.sum_rate / 1e9:.1f} GB/s", f"{size / processor / least.sum_rate:.0%}"
    return [files, summed, " / ".join(by_processor), " / ".join(by_clock), rate, share]
