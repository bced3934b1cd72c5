"""Where one recorded step spends its time: by part, by function, by kernel. ``record.py --profile`` prints it.

``record.py --sketch-cost`` prints what sketches add to a step: plain steps, steps with statistics and steps with
sketches too take turns in one process, so that all of them meet the same machine.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from statistics import median
from typing import Any

import numpy as np

OWN_KERNELS = {
    "float_sketches", "integer_sketches", "float_statistics", "integer_statistics", "crc_chunks", "xor_chunks",
}  # fmt: skip


def profile_step(bench: Any, debugger: Any, flush: Any) -> None:
    """Where one recorded step spends its time: by part, by Python function, and by kernel."""

    def recorded() -> None:
        debugger.start(model=bench.model)
        bench.step()
        debugger.stop()
        debugger.step()

    for _ in range(3):
        recorded()
        flush()
    print_parts(bench, None, flush)
    print_parts(bench, debugger, flush)
    profile = cProfile.Profile()
    bench.synchronize()
    profile.enable()
    recorded()
    profile.disable()
    flush()
    for order in ("tottime", "cumulative"):
        pstats.Stats(profile).sort_stats(order).print_stats(40)
    if bench.device == "cuda":
        print_kernels(bench, recorded)
        flush()


def print_parts(bench: Any, debugger: Any, flush: Any) -> None:
    """Milliseconds of each part of a step as the launching thread sees it, and of the last wait for the device.

    The median of seven steps. Wall time on CUDA, processor time of this thread on the host.
    """
    clock = time.perf_counter if bench.device == "cuda" else time.thread_time
    found: dict[str, list[float]] = {}

    def part(name: str, work: Any) -> Any:
        begin = clock()
        result = work()
        found.setdefault(name, []).append((clock() - begin) * 1000)
        return result

    for _ in range(7):
        bench.synchronize()
        begin = clock()
        if debugger is not None:
            part("start", lambda: debugger.start(model=bench.model))
        loss = part("forward", lambda: bench.model(bench.tokens))
        part("backward", loss.backward)
        part("optimizer", lambda: (bench.optimizer.step(), bench.optimizer.zero_grad()))
        if debugger is not None:
            part("stop", debugger.stop)
            part("step", debugger.step)
        part("wait for the device", bench.synchronize)
        found.setdefault("whole", []).append((clock() - begin) * 1000)
        del loss
        if debugger is not None:
            part("(writing, afterwards)", flush)
    print("PARTS", "plain   " if debugger is None else "recorded", end=" ")
    print("  ".join(f"{name} {median(times):.1f}" for name, times in found.items()), flush=True)


def print_kernels(bench: Any, recorded: Any) -> None:
    """Device time by kernel, the recorder's own kernels and copies counted, from torch.profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watched:
        recorded()
        bench.synchronize()
    totals = device_times(watched)
    ours = [times for name, times in totals.items() if name in OWN_KERNELS]
    everything = sum(times[1] for times in totals.values())
    launches = sum(times[0] for times in ours)
    print(
        f"KERNELS all {everything / 1000:.1f} ms, {sum(times[0] for times in totals.values()):.0f} launches and copies"
    )
    print(f"KERNELS recorder's own {sum(times[1] for times in ours) / 1000:.1f} ms, {launches:.0f} launches")
    for name, (count, spent) in sorted(totals.items(), key=lambda item: -item[1][1])[:25]:
        print(f"  {spent / 1000:9.2f} ms {count:6.0f} x  {name}")
    rows = watched.key_averages()
    print("  calls of the driver and of operators, by time on the launching threads:")
    for row in sorted(rows, key=lambda one: -one.self_cpu_time_total)[:20]:
        print(f"  {row.self_cpu_time_total / 1000:9.2f} ms {row.count:6d} x  {row.key[:90]}")
    sys.stdout.flush()


def device_times(watched: Any) -> dict[str, list[float]]:
    """Of each kernel and copy how often it ran, and for how many microseconds in all."""
    totals: dict[str, list[float]] = {}
    for event in watched.events():
        if "cuda" in str(event.device_type).lower():
            entry = totals.setdefault(event.name[:90], [0, 0.0])
            entry[0] += 1
            entry[1] += event.time_range.elapsed_us()
    return totals


def sketch_cost(bench: Any, debuggers: dict[str, Any], rounds: int) -> dict[str, Any]:
    """What sketches add to a recorded step, in milliseconds: the median over rounds, and between which numbers it lies
    in 95 of 100 samples of the rounds. On a device also the time of the recorder's own kernels in one step.
    """

    def recorded(debugger: Any) -> None:
        if debugger is not None:
            debugger.start(model=bench.model)
        bench.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()

    ways = {"nothing": None, **debuggers}
    wall: dict[str, list[float]] = {way: [] for way in ways}
    launching: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(-3, rounds):
        order = list(ways) if number % 2 else list(reversed(ways))  # what comes second must not always be the same
        for way in order:
            begin = time.thread_time()
            taken = bench.timed(lambda way=way: recorded(ways[way]))
            if number >= 0:
                wall[way].append(taken)
                launching[way].append((time.thread_time() - begin) * 1000)
            if ways[way] is not None:
                ways[way].flush()  # nothing is written while the next step runs
    result: dict[str, Any] = {"rounds": rounds}
    for name, times in (("step", wall), ("launching thread", launching)):
        more = np.array(times["sketches"]) - np.array(times["statistics"])
        samples = np.median(np.random.default_rng(0).choice(more, (2000, len(more))), axis=1)
        result[name] = {
            **{way: float(np.median(part)) for way, part in times.items()},
            "added": float(np.median(more)), "between": np.quantile(samples, (0.025, 0.975)).tolist(),
        }  # fmt: skip
    if bench.device == "cuda":
        from torch.profiler import ProfilerActivity, profile

        kernels: dict[str, dict[str, list[float]]] = {}
        for way, debugger in debuggers.items():
            with profile(activities=[ProfilerActivity.CUDA]) as watched:
                recorded(debugger)
                bench.synchronize()
            debugger.flush()
            totals = kernels[way] = device_times(watched)
            ours = [totals[name] for name in OWN_KERNELS & totals.keys()]
            result[f"kernels, {way}"] = {
                "own ms": sum(spent for _, spent in ours) / 1000, "launches": int(sum(count for count, _ in ours)),
                "all ms": sum(spent for _, spent in totals.values()) / 1000,
            }  # fmt: skip
        more = {
            name: (spent - kernels["statistics"].get(name, [0, 0.0])[1]) / 1000
            for name, (_, spent) in kernels["sketches"].items()
        }
        result["kernels, added ms"] = dict(sorted(more.items(), key=lambda item: -item[1])[:4])
    return result
