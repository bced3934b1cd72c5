"""Work spread over the engine that suits it: this process, worker processes, a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from twinprobe._scale.engine import PROCESS, RAY, EngineOptions, InlineEngine, Item, Result, Stream, cores
from twinprobe.errors import TwinProbeError


def open_stream(options: EngineOptions, items: int, size: int | None = None) -> Stream:
    """A stream on the engine that suits so many items; use it in a ``with`` block."""
    name = options.choose(items, size)
    if name == RAY:
        from twinprobe._scale.ray import RayEngine

        return Stream(RayEngine(options.address, options.workers))
    if name == PROCESS:
        from twinprobe._scale.process import ProcessEngine

        return Stream(ProcessEngine(max(1, min(options.workers or cores(), items)), cores()))
    return Stream(InlineEngine())


def spread(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    options: EngineOptions,
    name: Callable[[Item], str] = lambda _item: "",
) -> Iterator[tuple[int, Result | TwinProbeError]]:
    """Apply a function to all items; yield (index, result) as they finish. An item's own error is its result.

    The function must be importable by its name. Few items are under way at a time, however many there are.
    """
    if not items:
        return
    with open_stream(options, len(items)) as stream:
        places = {stream.add(function, item, name(item)): index for index, item in enumerate(items)}
        ticket: int
        result: Any
        for ticket, result in stream:
            yield places[ticket], result
