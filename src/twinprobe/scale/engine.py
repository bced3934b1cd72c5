"""Where work runs: in this process, or spread over worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TypeVar

from twinprobe.errors import TwinProbeError

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(
    function: Callable[[Item], Result], items: Sequence[Item], *, workers: int | None = None
) -> Iterator[tuple[int, Result | TwinProbeError]]:
    """Apply a function to all items; yield (index, result) as they finish. An item's own error is its result.

    The function must be importable by its name. Few items are held at a time, however many there are.
    """
    workers = min(workers or cores(), len(items))
    if workers <= 1:
        for at, item in enumerate(items):
            yield at, _guarded(function, item)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from _drain(pool, function, items, 2 * workers)


def _drain(
    pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Sequence[Item], most: int
) -> Iterator[tuple[int, Result | TwinProbeError]]:
    running: dict[Future[Result | TwinProbeError], int] = {}
    waiting = iter(enumerate(items))
    try:
        while True:
            while len(running) < most and (job := next(waiting, None)) is not None:
                running[pool.submit(_guarded, function, job[1])] = job[0]
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
    finally:
        for future in running:
            future.cancel()


def _guarded(function: Callable[[Item], Result], item: Item) -> Result | TwinProbeError:
    try:
        return function(item)
    except TwinProbeError as error:
        return error
