"""How fast a pair of tensors is measured, against numpy.sum over the same bytes in the same run.

    python bench/kernel.py [--mib 256] [--pairs 500] [--repeat 20]

numpy.sum runs on one core, reads both tensors' bytes as float32 (float64 for float64 tensors) and gives one number;
measure_pair gives all metrics and uses all cores. Goal: at least half of numpy.sum's bandwidth. The last column says
how many cores our best round had: on a busy machine it has fewer than there are, while numpy.sum needs only one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from twinprobe._measure.engine import engine_for
from twinprobe._measure.pair import Loader, PairMetrics, measure_pair, measure_pairs
from twinprobe._measure.sketch import measured
from twinprobe._measure.statistics import statistics
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._scale.engine import cores

GOAL = 0.5
SKETCH_GOAL = 2.0
SMALL = 2 << 20


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="bandwidth of the tensor kernels against numpy.sum")
    parser.add_argument("--mib", type=int, default=256, help="size of one large tensor in MiB")
    parser.add_argument("--pairs", type=int, default=500, help="number of 2 MiB pairs")
    parser.add_argument("--repeat", type=int, default=20, help="rounds, of which the best counts")
    options = parser.parse_args(argv)
    print(f"{cores()} cores, numpy {np.__version__}; GB/s over the bytes of both sides, best of {options.repeat}")
    print(f"{'work':<34}{'numpy.sum':>10}{'ours':>10}{'ratio':>8}{'cores':>8}")
    engine_for(1 << 40)
    ratios = [large_pair(dtype, options.mib << 20, options.repeat) for dtype in LARGE]
    ratios += [many_pairs(dtype, options.pairs, options.repeat) for dtype in ("float32", "bfloat16")]
    for dtype in ("float32", "bfloat16"):
        large_statistics(dtype, options.mib << 20, options.repeat)
    small_statistics()
    slower = [large_sketch(dtype, options.mib << 20, options.repeat) for dtype in LARGE]
    others = {dtype: large_sketch(dtype, options.mib << 18, max(1, options.repeat // 4)) for dtype in OTHERS}
    small_sketch()
    print(f"sketch with statistics takes at most {max(slower):.2f} times the statistics alone, goal {SKETCH_GOAL:.2f}")
    beyond = ", ".join(f"{dtype} {ratio:.2f}" for dtype, ratio in others.items() if ratio > SKETCH_GOAL)
    print(f"of other dtypes, more than that: {beyond or 'none'}")
    reached = min(ratios) >= GOAL
    print(f"lowest ratio of a pair {min(ratios):.2f}, goal {GOAL:.2f}: {'reached' if reached else 'MISSED'}")
    return 0 if reached else 1


LARGE = ("float32", "float16", "bfloat16", "float64")
OTHERS = ("float8_e4m3fn", "complex64", "bool", "uint8", "int8", "int16", "int32", "int64")


def tensor(dtype: str, nbytes: int, seed: int) -> HostTensor:
    """Normal numbers, their even copies a thousandth off the odd ones, so that no shortcut applies."""
    size = nbytes // np.dtype(STORAGE[dtype]).itemsize
    values = np.random.default_rng(7).standard_normal(size, dtype=np.float32)
    values *= np.float32(1 + 0.001 * seed)
    if dtype in OTHERS and dtype != "complex64":
        values = np.abs(values * 20)  # codes of 8-bit floats up to 127 are numbers
    if dtype == "bool":
        data = values > 10  # about as many of both
    elif dtype == "bfloat16":
        data = (values.view(np.uint32) >> 16).astype(np.uint16)
    else:
        data = values.astype(STORAGE[dtype])
    return HostTensor(dtype, (size,), data)


def large_pair(dtype: str, nbytes: int, repeat: int) -> float:
    target, golden = tensor(dtype, nbytes, 1), tensor(dtype, nbytes, 0)
    measure_pair(target, golden)
    theirs, ours = rounds(lambda: summed(target, golden), lambda: measure_pair(target, golden), repeat)
    return report(f"{dtype}, one pair of {nbytes >> 20} MiB", 2 * nbytes, theirs, ours)


def many_pairs(dtype: str, pairs: int, repeat: int) -> float:
    """Many pairs of 2 MiB, each with memory of its own."""
    large_t, large_g = tensor(dtype, pairs * SMALL, 1), tensor(dtype, pairs * SMALL, 0)
    size = large_t.data.size // pairs

    def part(whole: HostTensor, at: int) -> HostTensor:
        return HostTensor(dtype, (size,), whole.data[at * size : (at + 1) * size])

    def jobs() -> Iterator[tuple[Loader, Loader]]:
        for at in range(pairs):
            yield lambda at=at: part(large_t, at), lambda at=at: part(large_g, at)  # type: ignore[misc]

    def each_summed() -> None:
        for at in range(pairs):
            summed(part(large_t, at), part(large_g, at))

    def each_measured() -> list[object]:
        return list(measure_pairs(jobs()))

    assert all(isinstance(result, PairMetrics) for result in each_measured())
    theirs, ours = rounds(each_summed, each_measured, repeat)
    return report(f"{dtype}, {pairs} pairs of 2 MiB", 2 * pairs * SMALL, theirs, ours)


def large_statistics(dtype: str, nbytes: int, repeat: int) -> None:
    one = tensor(dtype, nbytes, 0)
    statistics(one)
    theirs, ours = rounds(lambda: summed(one), lambda: statistics(one), repeat)
    report(f"{dtype}, statistics of {nbytes >> 20} MiB", nbytes, theirs, ours)


def small_statistics() -> None:
    one, calls = tensor("float32", 4000, 0), 20_000
    taken = timed(lambda: [statistics(one) for _ in range(calls)])
    print(f"statistics of 1,000 float32: {taken.seconds / calls * 1e6:.1f} us a call")


def large_sketch(dtype: str, nbytes: int, repeat: int) -> float:
    """Sketch and statistics in one pass; returns how much longer that takes than the statistics alone."""
    one = tensor(dtype, nbytes, 0)
    measured(one)
    statistics(one)
    theirs, ours = rounds(lambda: summed(one), lambda: measured(one), repeat)
    report(f"{dtype}, sketch of {nbytes >> 20} MiB", nbytes, theirs, ours)
    alone, both = rounds(lambda: statistics(one), lambda: measured(one), repeat)
    print(f"{'':<34}{both.processor / alone.processor:.2f} times the statistics alone, by processor time")
    return both.processor / alone.processor


def small_sketch() -> None:
    one, calls = tensor("float32", 4000, 0), 20_000
    taken = timed(lambda: [measured(one) for _ in range(calls)])
    print(f"sketch and statistics of 1,000 float32: {taken.seconds / calls * 1e6:.1f} us a call")


def summed(*tensors: HostTensor) -> None:
    for one in tensors:
        np.sum(one.data.reshape(-1).view(np.float64 if one.dtype == "float64" else np.float32))


@dataclass(frozen=True, order=True)
class Taken:
    """The time of one round: by the clock, and of the processor over all threads."""

    seconds: float
    processor: float


def rounds(theirs: Callable[[], object], ours: Callable[[], object], repeat: int) -> tuple[Taken, Taken]:
    """The best round of each, taken in turns so that both meet the same machine."""
    times = [(timed(theirs), timed(ours)) for _ in range(repeat)]
    best = [
        [min(getattr(one, field) for one in side) for field in ("seconds", "processor")]
        for side in zip(*times, strict=True)
    ]
    return Taken(*best[0]), Taken(*best[1])


def timed(work: Callable[[], object]) -> Taken:
    start, processor = time.perf_counter(), time.process_time()
    with np.errstate(all="ignore"):  # the bytes of two half-width floats may be any float32
        work()
    return Taken(time.perf_counter() - start, time.process_time() - processor)


def report(name: str, nbytes: int, theirs: Taken, ours: Taken) -> float:
    ratio, cores = theirs.seconds / ours.seconds, ours.processor / ours.seconds
    speeds = f"{nbytes / theirs.seconds / 1e9:>10.1f}{nbytes / ours.seconds / 1e9:>10.1f}"
    print(f"{name:<34}{speeds}{ratio:>8.2f}{cores:>8.1f}", flush=True)
    return ratio


if __name__ == "__main__":
    raise SystemExit(main())
