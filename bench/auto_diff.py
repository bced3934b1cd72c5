"""auto_diff on a chain of linear layers in Paddle and PyTorch: ours beside PaDiff 0.2.0, and over the two plain runs.

python bench auto_diff [--with-rivals] [--quick]

Both tools run in one environment with the same frameworks, each in processes of its own (PaDiff wraps the functions of
both frameworks when it is imported), in turns, since the machine's speed changes, and on one core. Times are processor
time of one compute thread, which other programs do not disturb: the first call, and the shortest of several after it.
The plain runs (forward, mean, backward of both models, one after the other) are taken in our process, before and after
our calls.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure_command import table
from rivals import rival

_ROUNDS = 3
SOURCE = Path(__file__).resolve().parents[1] / "src"


@dataclass(frozen=True)
class Chain:
    """Linear layers in a row."""

    layers: int
    width: int
    batch: int
    goal: str
    with_rival: bool = True


CASES = {
    "200 layers, 64 wide, batch 64": Chain(200, 64, 64, ">= 10x PaDiff"),
    "50 layers, 64 wide, batch 64": Chain(50, 64, 64, ""),
    "24 layers, 512 wide, batch 512": Chain(24, 512, 512, "<= 3x plain", with_rival=False),
}


def main(arguments: Sequence[str]) -> None:
    """Run both tools on every chain and print the table."""
    parser = argparse.ArgumentParser(prog="bench auto_diff", description=__doc__)
    parser.add_argument("--with-rivals", action="store_true", help="measure PaDiff too")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--profile", metavar="CASE", help="show where our time goes in this case")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        tool, name, repeat = options.worker
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print("RESULT " + json.dumps(worker(tool, CASES[name], int(repeat), profile=bool(options.profile))))
        return
    rounds, repeat = (1, 2) if options.quick or options.profile else (_ROUNDS, 8)
    rows = []
    for name, chain in CASES.items():
        if options.profile in (None, name):
            ours: list[dict[str, float]] = []
            theirs: list[dict[str, float]] = []
            for _ in range(rounds):
                ours.append(_run("ours", name, repeat, profile=options.profile is not None))
                if options.with_rivals and chain.with_rival:
                    theirs.append(_run("padiff", name, repeat))
            rows.append(_row(name, chain, _shortest(ours), _shortest(theirs) if theirs else None))
    head = ["model", "two plain runs", "ours", "over plain", "ours, first", "PaDiff 0.2.0", "ratio", "goal"]
    table("auto_diff", head, rows)


def _run(tool: str, name: str, repeat: int, *, profile: bool = False) -> dict[str, float]:
    python = rival("padiff") / "bin/python"
    command = [str(python), __file__, "--worker", tool, name, str(repeat), *(["--profile", name] if profile else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    with tempfile.TemporaryDirectory() as folder:  # PaDiff writes its logs where it is started
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    if profile:
        print(done.stdout)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line[7:]))
    sys.exit(f"{tool} failed on {name}:\n{(done.stderr or done.stdout)[-3000:]}")


def _shortest(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {part: min(one[part] for one in rounds) for part in rounds[0]}


def _row(name: str, chain: Chain, ours: dict[str, float], theirs: dict[str, float] | None) -> list[str]:
    return [
        name,
        f"{ours['plain'] * 1000:.0f} ms",
        f"{ours['compared'] * 1000:.0f} ms",
        f"{ours['compared'] / ours['plain']:.1f}x",
        f"{ours['first'] * 1000:.0f} ms",
        f"{theirs['compared'] * 1000:.0f} ms" if theirs else "-",
        f"{theirs['compared'] / ours['compared']:.1f}x" if theirs else "-",
        chain.goal,
    ]


def worker(tool: str, chain: Chain, repeat: int, *, profile: bool = False) -> dict[str, float]:
    """One tool on one chain, in the environment that has both frameworks."""
    if tool == "padiff":
        from padiff import auto_diff
    else:
        from twinprobe._live.auto_diff import auto_diff
    layer, module, given = _models(chain)

    def compared() -> None:
        bounds = {"atol": 1e-3, "rtol": 1e-3, "compare_mode": "strict"}
        if tool == "padiff":
            same = auto_diff(layer, module, given, options=bounds)
        else:
            same = auto_diff(module, layer, given[::-1], **bounds)
        if not same:
            raise SystemExit("the two models were found to differ")

    (first,) = _times(compared, 1)
    plain = _times(lambda: _plain(layer, module, given), repeat) if tool == "ours" else []
    later = _times(compared, repeat)
    plain += _times(lambda: _plain(layer, module, given), repeat) if tool == "ours" else []
    found = {"first": first, "compared": min(later), "plain": min(plain, default=0.0)}
    if profile:
        _profile(compared)
    return found


def _models(chain: Chain) -> tuple[Any, Any, tuple[dict[str, Any], dict[str, Any]]]:
    import numpy as np
    import paddle
    import torch

    class Layer(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = paddle.nn.Sequential(*(paddle.nn.Linear(chain.width, chain.width) for _ in range(chain.layers)))

        def forward(self, x: Any) -> Any:
            return self.body(x)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(*(torch.nn.Linear(chain.width, chain.width) for _ in range(chain.layers)))

        def forward(self, x: Any) -> Any:
            return self.body(x)

    x = np.random.default_rng(0).standard_normal((chain.batch, chain.width)).astype(np.float32)
    return Layer(), Module(), ({"x": paddle.to_tensor(x)}, {"x": torch.as_tensor(x)})


def _plain(layer: Any, module: Any, given: tuple[dict[str, Any], dict[str, Any]]) -> None:
    module(**given[1]).mean().backward()
    layer(**given[0]).mean().backward()
    module.zero_grad()
    layer.clear_gradients()


def _times(work: Callable[[], None], repeat: int) -> list[float]:
    times = []
    for _ in range(repeat):
        with contextlib.redirect_stdout(io.StringIO()):
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
    return times


def _profile(work: Callable[[], None]) -> None:
    import cProfile
    import pstats

    profiler = cProfile.Profile(time.process_time)
    with contextlib.redirect_stdout(io.StringIO()):
        profiler.runcall(work)
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main(sys.argv[1:])
