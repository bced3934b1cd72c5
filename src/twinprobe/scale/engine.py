"""Where work runs: in this process, in worker processes, or on a Ray cluster. Commands know only this file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from twinprobe.errors import BadInput, TwinProbeError
from twinprobe.scale.stream import Engine, Stream

Item = TypeVar("Item")
Result = TypeVar("Result")

AUTO, INLINE, PROCESS, RAY = "auto", "inline", "process", "ray"
ENGINES = (AUTO, INLINE, PROCESS, RAY)
# Below this many bytes of input, starting worker processes costs more than they save.
SMALL_WORK = 8 << 20
SLICE_BYTES = 1 << 30
# With many ranks for each worker none has to be shared, and cutting costs: only the very large ones are cut then.
MANY_TO_A_WORKER, LARGER_SLICES = 4, 8


@dataclass(frozen=True)
class EngineOptions:
    """Which engine the user wants, how wide, and from which size on one rank's tensors are cut into slices."""

    engine: str = AUTO
    workers: int | None = None
    address: str | None = None
    slice_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise BadInput(f"there is no engine {self.engine!r}", hint=f"known engines: {', '.join(ENGINES)}")
        if self.workers is not None and self.workers < 1:
            raise BadInput(f"{self.workers} workers cannot work", hint="give --workers 1 or more")
        if self.address is not None and self.engine not in (AUTO, RAY):
            raise BadInput(f"a Ray address does not go with the engine {self.engine!r}", hint="use --engine ray")
        if self.slice_bytes is not None and self.slice_bytes < 1:
            raise BadInput("a slice holds at least one byte")

    @property
    def wanted(self) -> bool:
        """Whether the user asked for other processes, so that even one rank is spread over them."""
        return self.engine in (PROCESS, RAY) or self.address is not None

    def slice_of(self, ranks: int) -> int:
        """The bytes of a slice, where so many ranks are to be done."""
        if self.slice_bytes is not None:
            return self.slice_bytes
        local = self.engine != RAY and self.address is None
        many = local and ranks >= MANY_TO_A_WORKER * (self.workers or cores())
        return SLICE_BYTES * LARGER_SLICES if many else SLICE_BYTES

    def choose(self, items: int, size: int | None = None) -> str:
        """The engine for so many items of so many bytes in all (None: not known)."""
        if self.engine != AUTO:
            return self.engine
        if self.address is not None:
            return RAY
        small = size is not None and size < SMALL_WORK and self.workers is None
        return INLINE if small or min(items, self.workers or cores()) <= 1 else PROCESS


def cores() -> int:
    """How many processors this process may use; workers that share a machine are told in TWINPROBE_THREADS."""
    told = os.environ.get("TWINPROBE_THREADS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def open_stream(options: EngineOptions, items: int, size: int | None = None) -> Stream:
    """A stream on the engine that suits so many items; use it in a ``with`` block."""
    return Stream(_engine(options, options.choose(items, size), items))


def _engine(options: EngineOptions, name: str, items: int) -> Engine:
    if name == RAY:
        from twinprobe.scale.ray import RayEngine

        return RayEngine(options.address, options.workers)
    if name == PROCESS:
        from twinprobe.scale.process import ProcessEngine

        return ProcessEngine(max(1, min(options.workers or cores(), items)), cores())
    from twinprobe.scale.inline import InlineEngine

    return InlineEngine()


def spread(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    workers: int | None = None,
    options: EngineOptions | None = None,
    size: int | None = None,
    name: Callable[[Item], str] | None = None,
) -> Iterator[tuple[int, Result | TwinProbeError]]:
    """Apply a function to all items; yield (index, result) as they finish. An item's own error is its result.

    The function must be importable by its name. Few items are under way at a time, however many there are.
    """
    if not items:
        return
    options = options or EngineOptions(workers=workers)
    with open_stream(options, len(items), size) as stream:
        places = {stream.add(function, item, name(item) if name else ""): at for at, item in enumerate(items)}
        ticket: int
        result: Any
        for ticket, result in stream:
            yield places[ticket], result
