"""Many pairs at once: loading and computing on all cores, results in order, memory flat."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice

from twinprobe.errors import DamagedTensor, TwinProbeError
from twinprobe.measure.blocks import Engine
from twinprobe.measure.engine import engine_of, worth_kernels
from twinprobe.measure.pair import PairMetrics, measure_pair
from twinprobe.measure.threads import core_count
from twinprobe.runs.host_tensor import HostTensor

Loader = Callable[[], HostTensor]

# Handing a job to a thread costs more than measuring a small tensor, so a few go together.
GROUP = 8
# Groups under way per worker. Tensors are loaded inside a job: waiting jobs cost nothing, finished ones hold numbers.
LOOK_AHEAD = 4


def measure_pairs(
    jobs: Iterable[tuple[Loader, Loader]], workers: int | None = None, *, total_bytes: int | None = None
) -> Iterator[PairMetrics | TwinProbeError]:
    """Measure pairs on a pool of threads and yield a result for each job, in order.

    A job is two functions that load the target and the golden tensor; if one raises DamagedTensor, that error is the
    job's result. At most ``workers`` pairs (by default one per core) are in memory at a time. ``total_bytes``, what
    both sides of all the work come to, decides alone how it is measured: little work loads no kernels and starts no
    thread.
    """
    if workers is None:
        small = total_bytes is not None and not worth_kernels(total_bytes)
        workers = 1 if small else core_count()
    measure = partial(_measure, None if total_bytes is None else engine_of(total_bytes))
    if workers == 1:
        return (measure(*job) for job in jobs)
    return _measure_in_threads(measure, iter(jobs), workers)


def _measure_in_threads(
    measure: Callable[[Loader, Loader], PairMetrics | TwinProbeError],
    jobs: Iterator[tuple[Loader, Loader]],
    workers: int,
) -> Iterator[PairMetrics | TwinProbeError]:
    waiting: deque[Future[list[PairMetrics | TwinProbeError]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="twinprobe-pair")
    try:
        while group := list(islice(jobs, GROUP)):
            waiting.append(pool.submit(lambda group: [measure(*job) for job in group], group))
            if len(waiting) >= workers * LOOK_AHEAD:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _measure(engine: Engine | None, load_target: Loader, load_golden: Loader) -> PairMetrics | TwinProbeError:
    try:
        return measure_pair(load_target(), load_golden(), engine=engine)
    except DamagedTensor as damage:
        return damage
