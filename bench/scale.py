"""Beyond one machine's needs: many ranks of statistics, many bytes of tensors, and what the engine itself costs.

python bench scale [--ranks 64] [--calls 2000] [--tensor-gb 1] [--workers 1 2] [--engines process]

The full size is --ranks 1024 --calls 20000 --tensor-gb 16: run it on a quiet machine. Ranks are hard links of a few
recorded files with changes of their own, so that they take little disk; results and tensors go to a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from make_dumps import statistics_run, write_run
from measure_command import own_command, table

KINDS = 4  # different dumps among the ranks; the others are links to one of them
DRIVER_LIMIT_MB = 1024
ENGINE_LIMIT = 0.10
TENSOR_LIMIT = 0.80


@dataclass(frozen=True)
class Taken:
    """What one command took: wall time, processor time of all its processes, the largest of driver and workers."""

    seconds: float
    cpu: float
    driver_mb: float
    worker_mb: float


def main(arguments: Sequence[str]) -> None:
    """Measure statistics, tensors and the engine; print the tables."""
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--tensor-gb", type=float, default=1.0, help="on both sides together; 0 leaves tensors out")
    parser.add_argument("--slice-mb", type=int, default=256)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--engines", nargs="+", default=["process"], choices=("inline", "process", "ray"))
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as text:
        folder = Path(text)
        many_ranks(folder / "statistics", options)
        shutil.rmtree(folder / "statistics")
        if options.tensor_gb:
            many_bytes(folder / "tensors", options)


def many_ranks(folder: Path, options: argparse.Namespace) -> None:
    """Statistics of many ranks: total and per core, the driver's memory, and the engine's share."""
    make_ranks(folder, options.ranks, options.calls)
    alone, alone_cpu = _one_rank(folder, options)
    rows, totals = [], {}
    for engine in options.engines:
        for workers in [1] if engine == "inline" else options.workers:
            taken = _run(_compare(folder, folder / "out", engine, workers))
            totals[engine, workers] = taken.seconds
            per_rank = taken.seconds * min(workers, _cores()) / options.ranks
            lost, lost_cpu = 1 - alone / per_rank, 1 - alone_cpu * options.ranks / taken.cpu
            rows.append([
                f"{engine}, {workers}", f"{taken.seconds:.1f} s", f"{per_rank:.3f} s", f"{taken.cpu:.1f} s",
                f"{taken.driver_mb:.0f} MB", f"{taken.worker_mb:.0f} MB", f"{lost:.1%}", f"{lost_cpu:.1%}",
                _verdict(taken.driver_mb <= DRIVER_LIMIT_MB and lost <= ENGINE_LIMIT),
            ])  # fmt: skip
            shutil.rmtree(folder / "out")
    title = (
        f"{options.ranks:,} ranks x {options.calls:,} statistics entries; "
        f"one rank in a warm process: {alone:.3f} s, {alone_cpu:.3f} s of a processor"
    )
    head = ["engine, workers", "total", "core time a rank", "processor time", "driver", "largest worker",
            "lost to the engine", "of processor time", f"<= {DRIVER_LIMIT_MB} MB, <= {ENGINE_LIMIT:.0%}"]  # fmt: skip
    table(title, head, rows)
    _scaling(totals)


def many_bytes(folder: Path, options: argparse.Namespace) -> None:
    """Tensors: bytes a second and core, against the rate of one pair of files in one process."""
    count, size = make_tensors(folder, options.tensor_gb)
    single, single_cpu = _single_file_rate(folder)
    rows, totals = [], {}
    for engine in options.engines:
        for workers in [1] if engine == "inline" else options.workers:
            taken = _run([*_compare(folder, folder / "out", engine, workers), "--slice-mb", str(options.slice_mb)])
            totals[engine, workers] = taken.seconds
            rate, rate_cpu = size / taken.seconds / min(workers, _cores()), size / taken.cpu
            rows.append([
                f"{engine}, {workers}", f"{taken.seconds:.1f} s", f"{rate / 1e9:.2f} GB/s", f"{taken.cpu:.1f} s",
                f"{taken.driver_mb:.0f} MB", f"{taken.worker_mb:.0f} MB", f"{rate / single:.0%}",
                f"{rate_cpu / single_cpu:.0%}", _verdict(rate >= TENSOR_LIMIT * single),
            ])  # fmt: skip
            shutil.rmtree(folder / "out")
    title = (
        f"{count:,} pairs of tensors, {size / 1e9:.1f} GB in all; "
        f"one pair in one process: {single / 1e9:.2f} GB/s, {single_cpu / 1e9:.2f} GB a second of a processor"
    )
    head = ["engine, workers", "total", "rate a core", "processor time", "driver", "largest worker",
            "of the single rate", "of processor time", f">= {TENSOR_LIMIT:.0%}"]  # fmt: skip
    table(title, head, rows)
    _scaling(totals)


def make_ranks(folder: Path, ranks: int, calls: int) -> None:
    """Both sides; every rank is one of a few recorded runs, and names itself in a file of its own."""
    for side in ("t", "g"):
        for kind in range(min(KINDS, ranks)):
            shift = calls // 2 + kind if side == "t" else None
            statistics_run(folder / side / f"rank{kind}", calls, shift_from=shift)
        for rank in range(KINDS, ranks):
            target = folder / side / f"rank{rank}"
            target.mkdir()
            for path in (folder / side / f"rank{rank % KINDS}").iterdir():
                if path.name != "construct.json":
                    os.link(path, target / path.name)
            (target / "construct.json").write_text(json.dumps({f"Rank.{rank}": None}))


def make_tensors(folder: Path, gigabytes: float) -> tuple[int, int]:
    """Two ranks a side with .npy tensors of 32 MiB; the golden side is a copy with changes in every file."""
    import numpy as np

    numbers = np.random.default_rng(7)
    each = 32 << 20
    count = max(2, round(gigabytes * 1e9 / each / 2))
    base = numbers.standard_normal(each // 4, dtype=np.float32)
    for side in ("t", "g"):
        for rank in range(2):
            store = folder / side / f"rank{rank}" / "dump_tensor_data"
            store.mkdir(parents=True)
            data: dict[str, object] = {}
            for at in range(rank, count, 2):
                values = base.copy()
                values[:: 1000 + at] *= 1.5 if side == "t" else 1.0
                name = f"Torch.f.{at}.forward.output.0.npy"
                np.save(store / name, values.reshape(1024, -1))
                data[f"Torch.f.{at}.forward"] = {"input_args": [], "input_kwargs": {}, "output": [_leaf(name, values)]}
            write_run(folder / side / f"rank{rank}", data, task="tensor")
    return count, 2 * count * each


def _leaf(name: str, values: object) -> dict[str, object]:
    import numpy as np

    array = np.asarray(values)
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": [1024, array.size // 1024],
        "Max": float(array.max()), "Min": float(array.min()), "Mean": float(array.mean()),
        "Norm": float(np.linalg.norm(array)), "requires_grad": False, "data_name": name,
    }  # fmt: skip


_ONE_RANK = """
import os, sys, time
from pathlib import Path
from dataclasses import replace
from twinprobe.compare.job import Request, plan, run_rank
folder, count = Path(sys.argv[1]), int(sys.argv[2])
request = Request(folder / "t", folder / "g", folder / "one", ("dataset",), "20260102030405",
                  ranks=frozenset(range(count)))
jobs, _ = plan(request)
times = []
for job in jobs:
    job = replace(job, formats=(), dataset=folder / "one" / "compare_dataset_20260102030405")
    began, cpu = time.perf_counter(), time.process_time()
    run_rank(job)
    times += [time.perf_counter() - began, time.process_time() - cpu]
print(*times)
"""


def _one_rank(folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Seconds, and seconds of a processor, of one rank in a process of its own with one thread, once it is warm."""
    import subprocess

    environment = os.environ | {"POLARS_MAX_THREADS": "1", "TWINPROBE_THREADS": "1"}
    command = [sys.executable, "-c", _ONE_RANK, str(folder), str(min(8, options.ranks))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    shutil.rmtree(folder / "one")
    numbers = [float(word) for word in done.stdout.split()]
    return statistics.median(numbers[2::2]), statistics.median(numbers[3::2])


_ONE_PAIR = """
import sys, time
from pathlib import Path
from twinprobe.measure.engine import announce
from twinprobe.measure.pair import measure_pair
from twinprobe.runs.tensor_files import open_tensor
paths = [Path(word) for word in sys.argv[1:]]
announce(1 << 40)
for _ in range(3):
    measure_pair(*(open_tensor(path) for path in paths))
began, cpu = time.perf_counter(), time.process_time()
for _ in range(5):
    measure_pair(*(open_tensor(path) for path in paths))
size = 5 * sum(path.stat().st_size for path in paths)
print(size / (time.perf_counter() - began), size / (time.process_time() - cpu))
"""


def _single_file_rate(folder: Path) -> tuple[float, float]:
    """Bytes a second, and bytes a second of a processor, of one pair of files."""
    import subprocess

    name = "rank0/dump_tensor_data/Torch.f.0.forward.output.0.npy"
    command = [sys.executable, "-c", _ONE_PAIR, str(folder / "t" / name), str(folder / "g" / name)]
    environment = os.environ | {"TWINPROBE_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    rate, rate_cpu = done.stdout.split()
    return float(rate), float(rate_cpu)


def _compare(folder: Path, out: Path, engine: str, workers: int) -> list[str]:
    command = [*own_command(), "compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(out)]
    command += ["--format", "dataset", "--engine", engine, "--quiet"]
    return command if engine == "inline" else [*command, "--workers", str(workers)]


def _run(command: Sequence[str]) -> Taken:
    """Run a command and watch the memory of its processes; a failure ends the benchmark."""
    import psutil

    began = time.perf_counter()
    child = psutil.Popen(list(command))
    peaks = {"driver": 0.0, "worker": 0.0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            try:
                peaks["driver"] = max(peaks["driver"], _peak_mb(child.pid))
                for process in child.children(recursive=True):
                    peaks["worker"] = max(peaks["worker"], _peak_mb(process.pid))
            except (psutil.Error, OSError):
                continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before = os.times()
    code = child.wait()
    seconds = time.perf_counter() - began
    after = os.times()
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


def _scaling(totals: dict[tuple[str, int], float]) -> None:
    for (engine, workers), seconds in totals.items():
        if workers > 1 and (engine, 1) in totals:
            print(f"{engine}: {workers} workers are {totals[engine, 1] / seconds:.2f} times as fast as one")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _verdict(holds: bool) -> str:
    return "yes" if holds else "NO"


if __name__ == "__main__":
    main(sys.argv[1:])
