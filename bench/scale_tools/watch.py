"""A command with all its processes: wall time, processor time, and the largest of driver and workers."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_EVERY = 0.5


@dataclass(frozen=True)
class Taken:
    """What one command took."""

    seconds: float
    cpu: float
    driver_mb: float
    worker_mb: float


def cores() -> int:
    """How many processors there are for us."""
    return len(os.sched_getaffinity(0))


def one_thread() -> dict[str, str]:
    """The environment of all that is measured: a process is a core, so that two of them may be twice as fast."""
    return os.environ | {"POLARS_MAX_THREADS": "1", "TWINPROBE_THREADS": "1"}


def run(command: Sequence[str]) -> Taken:
    """Run a command and watch the memory of its processes; a failure ends the benchmark."""
    import psutil

    peaks = {"driver": 0.0, "worker": 0.0}
    ended = threading.Event()
    before, began = os.times(), time.perf_counter()
    child = psutil.Popen(list(command), env=one_thread())

    def watch() -> None:
        while not ended.wait(_LOOK_EVERY):
            try:
                peaks["driver"] = max(peaks["driver"], _peak_mb(child.pid))
                for process in child.children():
                    peaks["worker"] = max(peaks["worker"], _peak_mb(process.pid))
            except (psutil.Error, OSError):
                continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    code = child.wait()
    seconds, after = time.perf_counter() - began, os.times()
    ended.set()
    watcher.join()
    if code:
        sys.exit(f"{' '.join(command)} failed")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Taken(seconds, cpu, peaks["driver"], peaks["worker"])


def _peak_mb(pid: int) -> float:
    """The most memory that a process has had so far, as the kernel keeps it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM")), 0.0)
