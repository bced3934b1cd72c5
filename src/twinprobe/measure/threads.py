"""Threads for one large tensor: numpy and the kernels let go of the interpreter lock, so threads are enough."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from twinprobe.measure.blocks import BLOCK
from twinprobe.scale.engine import cores

Result = TypeVar("Result")

# Elements of one task: enough that handing it to a thread costs nothing, and whole blocks.
STRIP = 32 * BLOCK


def core_count() -> int:
    """The cores that this process may use."""
    return cores()


def over_strips(work: Callable[[int, int], Result], size: int) -> Iterable[Result]:
    """``work(start, stop)`` for each strip of ``size`` elements, in order, on all cores if there are several strips."""
    spans = [(start, min(start + STRIP, size)) for start in range(0, size, STRIP)]
    if len(spans) == 1 or core_count() == 1:
        return [work(*span) for span in spans]
    return _pool().map(work, *zip(*spans, strict=True))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(core_count(), thread_name_prefix="twinprobe-strip")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork; a child that waited for them would wait for ever.
    os.register_at_fork(after_in_child=_pool.cache_clear)
