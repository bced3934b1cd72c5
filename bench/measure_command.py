"""Run a command as a user would and take its time and memory."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    """What one run of a command took."""

    seconds: float
    megabytes: float
    processor: float = 0.0
    """Seconds of all its processes: other work on the machine changes them little."""


def cost_of(command: Sequence[str], *, repeat: int = 3, environment: dict[str, str] | None = None) -> Cost:
    """The median time and the peak memory (of the largest process) over some runs; the first failure is shown."""
    costs = [_once(command, environment) for _ in range(repeat)]
    seconds, processor = (statistics.median(getattr(cost, name) for cost in costs) for name in ("seconds", "processor"))
    return Cost(seconds, max(cost.megabytes for cost in costs), processor)


# A small process between us and the command: a child's peak memory counts what it was forked from.
_LAUNCHER = """
import os, resource, subprocess, sys, time
began = time.perf_counter()
with open(sys.argv[1], "wb") as log:
    code = subprocess.call(sys.argv[2:], stdout=log, stderr=log)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, time.perf_counter() - began, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime)
"""


def _once(command: Sequence[str], environment: dict[str, str] | None) -> Cost:
    with tempfile.NamedTemporaryFile() as log:
        launcher = [sys.executable, "-S", "-E", "-c", _LAUNCHER, log.name, *command]
        done = subprocess.run(launcher, capture_output=True, text=True, check=True, env=environment)
        code, seconds, megabytes, processor = done.stdout.split()
        if int(code):
            sys.exit(f"{' '.join(command)} failed:\n{log.read().decode(errors='replace')[-3000:]}")
    return Cost(float(seconds), float(megabytes), float(processor))


def own_command() -> list[str]:
    """TwinProbe of the environment that runs the benchmark."""
    return [str(Path(sys.executable).parent / "twinprobe")]


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that reads well in a terminal and in markdown."""
    widths = [max(len(str(row[at])) for row in [head, *rows]) for at in range(len(head))]
    print(f"\n{title}\n")
    for row in [head, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
