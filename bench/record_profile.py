"""Where one recorded step spends its time: by part, by function, by kernel. ``record.py --profile`` prints it."""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from statistics import median
from typing import Any


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
    device = [event for event in watched.events() if "cuda" in str(event.device_type).lower()]
    totals: dict[str, list[float]] = {}
    for event in device:
        entry = totals.setdefault(event.name[:90], [0, 0.0])
        entry[0] += 1
        entry[1] += event.time_range.elapsed_us()
    own = {"float_sketches", "integer_sketches", "float_statistics", "integer_statistics", "crc_chunks", "xor_chunks"}
    ours = [times for name, times in totals.items() if name in own]
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
