"""Beyond one machine's needs: many ranks of statistics, many bytes of tensors, and what the engine itself costs.

python bench scale             1,024 ranks x 20,000 entries and 64 GB of tensors: half an hour on two quiet cores
python bench scale --small     16 ranks x 2,000 entries and half a GB: a minute, to see that it works

Ranks are hard links of a few recorded files with changes of their own, so that they take little disk. Of the tensors
at most half of the free disk (and a third of the free memory) is written, the rest are links. Everything is written to
a temporary folder that is removed at the end. Every process has one thread, so that a worker is a core. Processor time
is taken beside wall time: on a busy machine only the former means something.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measure_command import own_command, table
from scale_tools.inputs import Tensors, fitting_gb, forget, make_ranks, make_tensors, read_all, tensor_files
from scale_tools.plain import plain_pairs, plain_ranks
from scale_tools.watch import Taken, cores, run

DRIVER_LIMIT_MB = 1024
ENGINE_LIMIT = 0.10
TENSOR_LIMIT = 0.80
FEW = 16  # ranks, to see what the driver needs whatever their number


@dataclass
class Figures:
    """What a job of another size is reckoned from; the letters are those of docs/scale.md."""

    c: float = 0.0
    l: float = 0.0  # noqa: E741 - as the page calls it
    m: float = 0.0
    base: float = 0.0
    w: float = 0.0
    d: float = 0.0
    r: float = 0.0
    lines: list[str] = field(default_factory=list)


def main(arguments: Sequence[str]) -> None:
    """Measure statistics, tensors and the engine; print the tables and what follows from them."""
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--small", action="store_true", help="16 ranks x 2,000 entries, 0.5 GB of tensors")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--calls", type=int)
    parser.add_argument("--tensor-gb", type=float, help="on both sides together; 0 leaves tensors out")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--engines", nargs="+", default=["process"], choices=("inline", "process", "ray"))
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    options = parser.parse_args(arguments)
    for name, full, small in (("ranks", 1024, 16), ("calls", 20_000, 2_000), ("tensor_gb", 64.0, 0.5)):
        if getattr(options, name) is None:
            setattr(options, name, small if options.small else full)
    figures = Figures()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="twinprobe-bench-", dir=options.folder) as text:
        many_ranks(Path(text, "statistics"), options, figures)
        shutil.rmtree(Path(text, "statistics"))
        if options.tensor_gb:
            many_bytes(Path(text, "tensors"), options, figures)
    for line in figures.lines:
        print(line)
    if options.tensor_gb:
        ten_thousand(figures, options.calls)
    print(f"\n{cores()} cores; the benchmark took {(time.perf_counter() - began) / 60:.0f} minutes")


def many_ranks(folder: Path, options: argparse.Namespace, figures: Figures) -> None:
    """Statistics of many ranks: total and per core, the driver's memory, and the engine's share."""
    ranks = options.ranks
    make_ranks(folder, ranks, options.calls)
    rows, totals = [], {}
    for engine, workers in _kinds(options):
        few = run([*_compare(folder, engine, workers), "--rank", f"0-{min(FEW, ranks) - 1}"])
        shutil.rmtree(folder / "out")
        before = plain_ranks(folder, ranks, workers)
        taken = run(_compare(folder, engine, workers))
        plain = before.mean(plain_ranks(folder, ranks, workers))
        totals[engine, workers] = taken
        lost, lost_cpu = 1 - plain.seconds * ranks / workers / taken.seconds, 1 - plain.cpu * ranks / taken.cpu
        holds = taken.driver_mb <= DRIVER_LIMIT_MB and max(lost, lost_cpu) <= ENGINE_LIMIT
        rows.append([
            f"{engine}, {workers}", f"{taken.seconds:.1f} s", f"{taken.seconds * workers / ranks:.3f} s",
            f"{taken.cpu:.1f} s", f"{plain.seconds:.3f} s", f"{plain.cpu:.3f} s", f"{taken.driver_mb:.0f} MB",
            f"{taken.worker_mb:.0f} MB", f"{lost:.1%}", f"{lost_cpu:.1%}", _verdict(holds),
        ])  # fmt: skip
        figures.c, figures.l, figures.base = plain.cpu, lost_cpu, few.driver_mb
        figures.m, figures.w = taken.driver_mb, taken.worker_mb
        parts = list((folder / "out").rglob("*.parquet"))
        figures.d = sum(path.stat().st_size for path in parts) / 1e6 / ranks
        shutil.rmtree(folder / "out")
    head = ["engine, workers", "total", "core time a rank", "processor time", "plain: a rank", "plain: processor",
            "driver", "largest worker", "lost, wall", "lost, processor",
            f"<= {DRIVER_LIMIT_MB} MB, <= {ENGINE_LIMIT:.0%}"]  # fmt: skip
    table(f"{ranks:,} ranks x {options.calls:,} statistics entries", head, rows)
    figures.lines += [f"the dataset takes {figures.d:.2f} MB a rank; the driver took {figures.base:.0f} MB for "
                      f"{min(FEW, ranks)} ranks and {figures.m:.0f} MB for {ranks:,}"]  # fmt: skip
    _scaling("statistics", totals, figures)


def many_bytes(folder: Path, options: argparse.Namespace, figures: Figures) -> None:
    """Tensors: bytes a second and core, against the rate of one pair of files in one process."""
    folder.mkdir()
    made = make_tensors(folder, options.tensor_gb, fitting_gb(folder, options.tensor_gb))
    files = tensor_files(folder, made)
    read_all(files)
    alone = plain_pairs(folder, 1)
    rows, totals = [], {}
    for engine, workers in _kinds(options):
        plain = plain_pairs(folder, workers)
        command = _compare(folder, engine, workers)
        taken = run(command)
        totals[engine, workers] = taken
        rows.append(_tensor_row(f"{engine}, {workers}, from memory", made.named, taken, workers, alone.seconds,
                                plain.seconds, alone.cpu))  # fmt: skip
        figures.r = made.named / taken.seconds / workers / 1e9
        shutil.rmtree(folder / "out")
    rows.append(_from_disk(folder, made, files, command, max(options.workers)))
    title = (
        f"{made.pairs:,} pairs of tensors of 32 MiB, {made.named / 1e9:.1f} GB by name in {made.ranks} ranks, "
        f"{made.on_disk / 1e9:.1f} GB on disk; one pair in one process: {1e-9 / alone.seconds:.2f} GB/s, "
        f"{1e-9 / alone.cpu:.2f} GB a second of a processor"
    )
    head = ["engine, workers", "total", "rate a core", "processor time", "driver", "largest worker",
            "of one alone", "of as many plain", "of processor time", f">= {TENSOR_LIMIT:.0%}"]  # fmt: skip
    table(title, head, rows)
    _scaling("tensors", totals, figures)


def _tensor_row(
    name: str, size: int, taken: Taken, workers: int, alone: float, plain: float, cpu: float
) -> list[str]:  # fmt: skip
    rate = size / taken.seconds / workers
    return [
        name, f"{taken.seconds:.1f} s", f"{rate / 1e9:.2f} GB/s", f"{taken.cpu:.1f} s", f"{taken.driver_mb:.0f} MB",
        f"{taken.worker_mb:.0f} MB", f"{rate * alone:.0%}", f"{rate * plain:.0%}", f"{size / taken.cpu * cpu:.0%}",
        _verdict(rate * plain >= TENSOR_LIMIT),
    ]  # fmt: skip


def _from_disk(folder: Path, made: Tensors, files: list[Path], command: list[str], workers: int) -> list[str]:
    """The ranks that share no file, read from the disk; held against what the disk gives to a plain reader."""
    forget(files)
    some = files[:: max(1, len(files) // 64)]
    began = time.perf_counter()
    disk = read_all(some) / (time.perf_counter() - began)
    forget(files)
    taken = run([*command, "--rank", f"0-{made.apart - 1}"])
    shutil.rmtree(folder / "out")
    rate = made.on_disk / taken.seconds
    return [
        f"{workers} workers, from disk", f"{taken.seconds:.1f} s", f"{rate / workers / 1e9:.2f} GB/s",
        f"{taken.cpu:.1f} s", f"{taken.driver_mb:.0f} MB", f"{taken.worker_mb:.0f} MB",
        f"the disk gives {disk / 1e9:.2f} GB/s", f"{rate / disk:.0%} of it", "", "",
    ]  # fmt: skip


def ten_thousand(figures: Figures, calls: int) -> None:
    """What 10,000 ranks would need, by the arithmetic of docs/scale.md."""
    n, t = 512, 200
    c = figures.c * 20_000 / calls
    share = min(max(figures.l, 0.0), 0.9)
    print(f"\n10,000 ranks x 20,000 entries and {t} TB of tensors on {n} cores would need:")
    print(f"  statistics: 10,000 * {c:.2f} s / (1 - {share:.1%}) / {n} = {10_000 * c / (1 - share) / n:.0f} s")
    print(f"  tensors: {t},000 GB / ({figures.r:.2f} GB/s * {n}) = {t * 1000 / figures.r / n:.0f} s, if the storage "
          f"gives {figures.r * n:,.0f} GB/s")  # fmt: skip
    grown = figures.base + max(figures.m - figures.base, 0.0) * 10_000 / 1024
    print(f"  memory: {figures.w:.0f} MB a core, the driver about {grown:,.0f} MB")
    print(f"  the dataset: 10,000 * {figures.d * 20_000 / calls:.1f} MB = {figures.d * 20_000 / calls * 10:,.0f} GB")


def _kinds(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Engines with their workers; more workers than cores would say nothing."""
    counts = [count for count in options.workers if count <= cores()]
    return [pair for engine in options.engines for pair in ([(engine, 1)] if engine == "inline" else
                                                            [(engine, count) for count in counts])]  # fmt: skip


def _compare(folder: Path, engine: str, workers: int) -> list[str]:
    out = folder / "out"
    command = [*own_command(), "compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(out)]
    command += ["--format", "dataset", "--engine", engine, "--quiet"]
    return command if engine == "inline" else [*command, "--workers", str(workers)]


def _scaling(what: str, totals: dict[tuple[str, int], Taken], figures: Figures) -> None:
    for (engine, workers), taken in totals.items():
        one = totals.get((engine, 1))
        if workers > 1 and one is not None:
            figures.lines.append(f"{what}, {engine}: {workers} workers are {one.seconds / taken.seconds:.2f} times as "
                                 f"fast as one, with {taken.cpu / one.cpu:.2f} times the processor time")  # fmt: skip


def _verdict(holds: bool) -> str:
    return "yes" if holds else "NO"


if __name__ == "__main__":
    main(sys.argv[1:])
