"""What recording costs in MindSpore and PaddlePaddle: a training step alone and recorded, as one table of ratios.

    PYTHONPATH=src python bench/record_frameworks.py mindspore [--rival SITE_PACKAGES_OF_THE_OTHER_TOOL]
    PYTHONPATH=src python bench/record_frameworks.py paddle

Run it with an interpreter that has the framework. The other tool's statistics need a norm that MindSpore lacks on the
CPU, so it gets one in NumPy, without which it fails at its first tensor. Every case is a process of its own with one
compute thread. Times are processor time of all threads, the shortest of several, with all files written; steps alone
and recorded take turns. MindSpore launches every kernel at once and waits for it (``launch_blocking``): otherwise its
threads spin while they wait for each other, and processor time would count that.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

LAYERS, WIDTH, INNER, HEADS, VOCABULARY, BATCH, TOKENS = 4, 128, 352, 4, 1000, 2, 64
CASES = ("L0", "L1", "mix", "L0-md5", "mix-md5")
Step = Callable[[], None]


def mindspore_bench() -> tuple[Any, Step]:
    """A transformer and its training step in MindSpore."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops

    ms.runtime.launch_blocking()

    class Block(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
            self.q, self.k, self.v, self.out = (nn.Dense(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Dense(WIDTH, INNER), nn.Dense(INNER, WIDTH)

        def construct(self, x: Any) -> Any:
            h = self.norm_1(x)
            shape = (BATCH, TOKENS, HEADS, WIDTH // HEADS)
            q, k, v = (one(h).reshape(shape).permute(0, 2, 1, 3) for one in (self.q, self.k, self.v))
            scores = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / math.sqrt(WIDTH // HEADS), -1)
            x = x + self.out(ops.matmul(scores, v).permute(0, 2, 1, 3).reshape(BATCH, TOKENS, WIDTH))
            return x + self.down(ops.relu(self.up(self.norm_2(x))))

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.CellList([Block() for _ in range(LAYERS)])
            self.head = nn.Dense(WIDTH, VOCABULARY)

        def construct(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    tokens = ms.Tensor(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, TOKENS)).astype(np.int32))
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 1e-3)
    gradient = ms.value_and_grad(
        lambda: ops.cross_entropy(net(tokens).reshape(-1, VOCABULARY), tokens.reshape(-1)), None, optimizer.parameters
    )

    def step() -> None:
        loss, gradients = gradient()
        optimizer(gradients)
        loss.asnumpy()

    return net, step


def paddle_bench() -> tuple[Any, Step]:
    """The same in Paddle."""
    import numpy as np
    import paddle
    from paddle import nn
    from paddle.nn import functional

    class Block(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

        def forward(self, x: Any) -> Any:
            h = self.norm_1(x)
            shape = [BATCH, TOKENS, HEADS, WIDTH // HEADS]
            q, k, v = (one(h).reshape(shape).transpose([0, 2, 1, 3]) for one in (self.q, self.k, self.v))
            scores = functional.softmax(paddle.matmul(q, k, transpose_y=True) / math.sqrt(WIDTH // HEADS))
            x = x + self.out(paddle.matmul(scores, v).transpose([0, 2, 1, 3]).reshape([BATCH, TOKENS, WIDTH]))
            return x + self.down(functional.relu(self.up(self.norm_2(x))))

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.LayerList([Block() for _ in range(LAYERS)])
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    tokens = paddle.to_tensor(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, TOKENS)))
    net = Net()
    optimizer = paddle.optimizer.SGD(1e-3, parameters=net.parameters())

    def step() -> None:
        functional.cross_entropy(net(tokens).reshape([-1, VOCABULARY]), tokens.reshape([-1])).backward()
        optimizer.step()
        optimizer.clear_grad()

    return net, step


def give_mindspore_a_norm() -> None:
    """Stand in for mint.norm, which has no kernel on the CPU."""
    import mindspore as ms
    import numpy as np

    ms.mint.norm = lambda x, *_, **__: ms.Tensor(np.float32(np.linalg.norm(x.asnumpy().astype(np.float32))))


def debugger_of(tool: str, framework: str, config: Path) -> tuple[Any, Callable[[], None]]:
    """The tool's debugger and what waits for its files."""
    if tool == "rival":
        give_mindspore_a_norm()
        from msprobe.mindspore import PrecisionDebugger as Rival

        return Rival(config_path=str(config)), lambda: None
    if framework == "mindspore":
        from twinprobe.mindspore import PrecisionDebugger as Ours
    else:
        from twinprobe.paddle import PrecisionDebugger as Ours  # type: ignore[assignment]
    debugger = Ours(config_path=str(config))
    return debugger, debugger.flush


def timed(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1000


def worker(framework: str, tool: str, case: str, steps: int, rival: list[str]) -> None:
    """One tool, one case; prints one JSON line."""
    sys.path.extend(rival if tool == "rival" else [])
    level, _, summary = case.partition("-")
    with tempfile.TemporaryDirectory() as folder:
        section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary or "statistics"}
        content = {"task": "statistics", "dump_path": f"{folder}/dump", "rank": [], "step": [], "level": level}
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({**content, "statistics": section}), encoding="utf-8")
        debugger, flush = debugger_of(tool, framework, config)
        net, step = mindspore_bench() if framework == "mindspore" else paddle_bench()

        def recorded() -> None:
            debugger.start(net)
            step()
            debugger.stop()
            debugger.step()
            flush()

        for _ in range(3):
            step()
        recorded()
        # In turns, so that whatever else the machine does disturbs both alike.
        times = [(timed(step), timed(recorded)) for _ in range(steps)]
        plain, full = (min(column) for column in zip(*times, strict=True))
        index = next(Path(folder).rglob("dump.json"))
        entries = len(json.loads(index.read_text(encoding="utf-8"))["data"])
        print("RESULT " + json.dumps({"plain": plain, "recorded": full, "entries": entries}), flush=True)


def run_case(framework: str, tool: str, case: str, arguments: argparse.Namespace) -> str:
    command = [sys.executable, __file__, framework, "--worker", tool, case, "--steps", str(arguments.steps)]
    command += [part for folder in arguments.rival for part in ("--rival", folder)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    threads |= {"GLOG_v": "3"} if framework == "mindspore" else {}  # no warnings there; every single call in Paddle
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, **threads}
        )
    except subprocess.TimeoutExpired as late:
        return f"failed: not done after {late.timeout:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found = json.loads(line[7:])
            ratio = found["recorded"] / found["plain"]
            return f"{found['plain']:9.1f} {found['recorded']:12.1f} {ratio:7.2f}x {found['entries']:8d}"
    return "failed: " + " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What recording a training step costs.")
    parser.add_argument("framework", choices=("mindspore", "paddle"))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rival", action="append", default=[], help="folder with the other tool (MindSpore only)")
    parser.add_argument("--rival-cases", default="L0,L1,mix")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        worker(arguments.framework, *arguments.worker, arguments.steps, arguments.rival)
        return
    print(f"{arguments.framework}, {LAYERS} layers, width {WIDTH}, {BATCH} x {TOKENS} tokens, processor time")
    print(f"{'case':8} {'tool':10} {'plain ms':>9} {'recorded ms':>12} {'ratio':>8} {'entries':>8}")
    tools = {"twinprobe": arguments.cases.split(","), "rival": arguments.rival_cases.split(",")}
    for tool, cases in tools.items():
        for case in cases if tool == "twinprobe" or arguments.rival else ():
            print(f"{case:8} {tool:10} {run_case(arguments.framework, tool, case, arguments)}", flush=True)


if __name__ == "__main__":
    main()
