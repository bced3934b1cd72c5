"""What recording costs: a training step alone, recorded by TwinProbe, and recorded by another tool, in one table.

    PYTHONPATH=src python bench/record.py                          # CUDA if there is one, else a small model on the CPU
    PYTHONPATH=src python bench/record.py --rival /path/to/site-packages-of-the-other-tool
    PYTHONPATH=src python bench/record.py --profile mix            # only this case, and where its time goes
    PYTHONPATH=src python bench/record.py --sketch-cost            # what sketches add, step by step in turns
    PYTHONPATH=src python bench/record.py --mindspore PYTHON [--mindspore-rival DIR] --paddle PYTHON
                                                                   # these too, by interpreters that have them

Needs torch, numpy, msgspec and (on CUDA) triton. The other tool is taken from the given folders and needs no
installation. Beside it, TwinProbe is measured twice: as it records by default, and with no more than the other tool
records, without sketches and optimizer.json ("the same").
Three numbers per case: the step itself (start() to step(), device synchronised), the time per step of several steps
in a row including all writing, and "added": the processor time that recording adds to a step on the launching thread,
which tells what a faster device would see. Wall time on CUDA; on the CPU processor time of one compute thread and of
the writer thread, but not of a writer process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

# plain: statistics without sketches.
CASES = ("L0", "L0-plain", "L1", "mix", "mix-plain", "L0-md5", "mix-md5")
THE_SAME = {"sketch": False, "optimizer": False}  # what no other tool records
BIG = {"layers": 16, "width": 2048, "inner": 5632, "heads": 16, "vocab": 32000, "batch": 2, "tokens": 2048}
SMALL = {"layers": 4, "width": 128, "inner": 352, "heads": 4, "vocab": 1000, "batch": 2, "tokens": 64}


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        cos, sin = position_embeddings
        q = rotate(self.q_proj(x).view(shape).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(shape).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, width))


class MLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width)
        self.self_attn = Attention(width, heads)
        self.post_attention_layernorm = RMSNorm(width)
        self.mlp = MLP(width, inner)

    def forward(self, x: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), position_embeddings=position_embeddings)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, size: dict[str, int]) -> None:
        super().__init__()
        self.size = size
        self.embed_tokens = nn.Embedding(size["vocab"], size["width"])
        layers = (DecoderLayer(size["width"], size["inner"], size["heads"]) for _ in range(size["layers"]))
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(size["width"])
        self.lm_head = nn.Linear(size["width"], size["vocab"], bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        head = self.size["width"] // self.size["heads"]
        steps = torch.arange(0, head, 2, device=x.device, dtype=torch.float32) / head
        angles = torch.arange(tokens.shape[1], device=x.device, dtype=torch.float32)[:, None] / (10000.0**steps)
        angles = torch.cat((angles, angles), dim=-1)
        embeddings = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        for layer in self.layers:
            x = layer(x, embeddings)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class Bench:
    """A model, its data, and one training step."""

    def __init__(self, device: str, size: dict[str, int]) -> None:
        torch.manual_seed(0)
        if device == "cpu":
            torch.set_num_threads(1)
        self.device = device
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.model = Llama(size).to(device=device, dtype=dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(0, size["vocab"], (size["batch"], size["tokens"]), device=device)

    def step(self) -> None:
        self.model(self.tokens).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def timed(self, work: Any) -> float:
        # On the host the processor time of all threads counts, writing included; other programs do not disturb it.
        clock = time.perf_counter if self.device == "cuda" else time.process_time
        self.synchronize()
        start = clock()
        work()
        self.synchronize()
        return (clock() - start) * 1000


def measure(bench: Bench, debugger: Any, steps: int, flush: Any) -> dict[str, float]:
    """Milliseconds of one recorded step, and per step of several in a row with all files written."""

    def recorded() -> None:
        debugger.start(model=bench.model)
        bench.step()
        debugger.stop()
        debugger.step()

    for _ in range(2):
        bench.timed(recorded)
        flush()
    single, launching = [], []
    for _ in range(steps):
        begin = time.thread_time()
        single.append(bench.timed(recorded))
        launching.append((time.thread_time() - begin) * 1000)
        flush()

    def in_a_row() -> None:
        for _ in range(steps):
            recorded()
        flush()

    return {"step": median(single), "row": bench.timed(in_a_row) / steps, "launching": median(launching)}


def plain(bench: Bench, steps: int) -> dict[str, float]:
    """Milliseconds of a step that nobody records, and of the launching thread's processor time in it."""
    for _ in range(3):
        bench.timed(bench.step)
    times, launching = [], []
    for _ in range(max(steps, 5)):
        begin = time.thread_time()
        times.append(bench.timed(bench.step))
        launching.append((time.thread_time() - begin) * 1000)
    return {"plain": median(times), "plain launching": median(launching)}


def config_of(case: str, folder: str) -> dict[str, Any]:
    level, _, summary = case.partition("-")
    plain = summary == "plain"
    mode = "statistics" if plain else summary or "statistics"
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": mode}
    common = {"task": "statistics", "dump_path": folder, "rank": [], "step": [], "level": level}
    return {**common, "statistics": section, **({"sketch": False} if plain else {})}


def check_rival(debugger: Any, folders: list[str]) -> None:
    """Refuse to measure anything but the tool in the given folders, ours under the other's name above all."""
    home = Path(str(sys.modules[debugger.__module__].__file__)).resolve()
    if not any(home.is_relative_to(Path(folder).resolve()) for folder in folders):
        raise SystemExit(f"the other tool was not taken from {folders} but from {home}")


def worker(arguments: argparse.Namespace) -> None:
    """One tool, one case, in a process of its own; prints one JSON line."""
    tool, case = arguments.worker
    if tool == "rival":  # in front: an installed package of the same name must not answer in its place
        sys.path[:0] = arguments.rival
    folder = tempfile.mkdtemp(prefix="bench_record_", dir=arguments.scratch)
    try:
        bench = Bench(arguments.device, BIG if arguments.device == "cuda" else SMALL)
        result: dict[str, Any] = plain(bench, arguments.steps)
        config = Path(folder) / "config.json"
        told = config_of(case, str(Path(folder) / "dump")) | (THE_SAME if tool == "same" else {})
        config.write_text(json.dumps(told), encoding="utf-8")
        if tool in ("ours", "same"):
            from twinprobe.torch import PrecisionDebugger

            debugger: Any = PrecisionDebugger(config_path=str(config))
            flush: Any = debugger.flush
        else:
            from msprobe.pytorch import PrecisionDebugger as Rival

            check_rival(Rival, arguments.rival)
            debugger = Rival(config_path=str(config))
            flush = bench.synchronize
        if arguments.profile:
            from record_profile import profile_step

            profile_step(bench, debugger, flush)
        result.update(measure(bench, debugger, arguments.steps, flush))
        index = next(Path(folder).rglob("dump.json"), None)
        if index is not None:
            result["entries"] = len(json.loads(index.read_text(encoding="utf-8"))["data"])
        print("RESULT " + json.dumps(result), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sketch_cost(arguments: argparse.Namespace) -> None:
    """Print what sketches add to a recorded step of L0 and mix, as a share of a step that nobody records."""
    from record_profile import sketch_cost as cost
    from twinprobe.torch import PrecisionDebugger

    for level in ("L0", "mix"):
        bench = Bench(arguments.device, BIG if arguments.device == "cuda" else SMALL)
        folder = tempfile.mkdtemp(prefix="bench_record_", dir=arguments.scratch)
        try:
            debuggers = {}
            for way, case in (("statistics", f"{level}-plain"), ("sketches", level)):
                config = Path(folder) / f"{way}.json"
                config.write_text(json.dumps(config_of(case, str(Path(folder) / way))), encoding="utf-8")
                # A process has one debugger of a class.
                debuggers[way] = type(way, (PrecisionDebugger,), {"_current": None})(config_path=str(config))
            found = cost(bench, debuggers, arguments.rounds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for name in ("step", "launching thread"):
            times = found[name]
            low, high = (100 * one / times["nothing"] for one in times["between"])
            print(
                f"{level:4} {name:17} plain {times['nothing']:7.2f} ms, statistics {times['statistics']:7.2f}, sketches"
                f" {times['sketches']:7.2f}: {times['added']:+.2f} ms, {100 * times['added'] / times['nothing']:+.1f} %"
                f" of the plain step ({low:+.1f} to {high:+.1f} %), {arguments.rounds} rounds",
                flush=True,
            )
        for name in found:
            if name.startswith("kernels"):
                print(f"{level:4} {name}: {found[name]}", flush=True)


def run_case(tool: str, case: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--worker", tool, case, "--steps", str(arguments.steps)]
    command += ["--device", arguments.device, "--scratch", arguments.scratch]
    for folder in arguments.rival:
        command += ["--rival", folder]
    if arguments.profile == case and tool == "ours":
        command += ["--profile", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout, check=False)
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return {"error": f"not done after {arguments.timeout} s; last words: {said.strip()[-300:]}"}
    if arguments.profile:
        print(done.stdout)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("RESULT "):
            return dict(json.loads(line[7:]))
    tail = (done.stderr or done.stdout).strip().splitlines()[-6:]
    return {"error": " | ".join(tail) or f"exit code {done.returncode}"}


def show(case: str, tool: str, result: dict[str, Any]) -> None:
    if "error" in result:
        print(f"{case:8} {tool:10} failed: {result['error']}", flush=True)
        return
    base, step, row = result["plain"], result["step"], result["row"]
    added = result["launching"] - result["plain launching"]
    print(
        f"{case:8} {tool:10} {base:9.1f} {step:12.1f} {step / base:7.2f}x {row:12.1f} {row / base:7.2f}x"
        f" {added:9.1f} {result.get('entries', 0):8d}",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What recording a training step costs.")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, choices=("cuda", "cpu"))
    parser.add_argument("--rival", action="append", default=[], help="folder with the other tool (may be repeated)")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rival-cases", default="L0,mix")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--scratch", default=tempfile.gettempdir(), help="where dumps go while measuring")
    parser.add_argument("--timeout", type=int, default=60, help="seconds per case")
    parser.add_argument("--profile", metavar="CASE", help="run this case only and print where its time goes")
    parser.add_argument("--sketch-cost", action="store_true", help="only measure what sketches add to a step")
    parser.add_argument("--rounds", type=int, default=40, help="with --sketch-cost: how many steps of each kind")
    parser.add_argument("--mindspore", metavar="PYTHON", help="interpreter with MindSpore: measure it as well")
    parser.add_argument("--mindspore-rival", action="append", default=[], metavar="DIR", help="the other tool for it")
    parser.add_argument("--paddle", metavar="PYTHON", help="interpreter with PaddlePaddle: measure it as well")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        worker(arguments)
        return
    if arguments.sketch_cost:
        sketch_cost(arguments)
        return
    measure_torch(arguments)
    rivals = [word for folder in arguments.mindspore_rival for word in ("--rival", folder)]
    for framework, python, more in (("mindspore", arguments.mindspore, rivals), ("paddle", arguments.paddle, [])):
        if python:
            print(flush=True)
            script = str(Path(__file__).with_name("record_frameworks.py"))
            subprocess.run([python, script, framework, *more], check=False)


def measure_torch(arguments: argparse.Namespace) -> None:
    size = BIG if arguments.device == "cuda" else SMALL
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{os.cpu_count()} cores"
    print(f"torch {torch.__version__}, {arguments.device} ({name}), {size}")
    print(
        f"{'case':8} {'tool':10} {'plain ms':>9} {'recorded ms':>12} {'':8} {'in a row ms':>12} {'':8}"
        f" {'added ms':>9} {'entries':>8}"
    )
    cases = [one for one in (arguments.profile or arguments.cases).split(",") if one]
    theirs = (
        [] if arguments.profile or not arguments.rival else [one for one in arguments.rival_cases.split(",") if one]
    )
    for case in [*cases, *(one for one in theirs if one not in cases)]:  # in turns: both meet the same machine
        results = {}
        for tool, name in (("ours", "twinprobe"), ("same", "the same"), ("rival", "rival")):
            if case in (cases if tool == "ours" else theirs):
                results[tool] = run_case(tool, case, arguments)
                show(case, name, results[tool])
        if len(results) == 3 and not any("error" in one for one in results.values()):
            added = {tool: one["step"] - one["plain"] for tool, one in results.items()}
            print(
                f"{case:8} the other tool adds {added['rival'] / added['ours']:.1f} times as much to a step,"
                f" {added['rival'] / added['same']:.1f} times for the same record",
                flush=True,
            )


if __name__ == "__main__":
    main()
