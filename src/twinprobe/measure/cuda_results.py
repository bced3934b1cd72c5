"""Partial results of the device, copied once and put together on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from twinprobe.measure.cuda import Page
from twinprobe.measure.gf2 import combine_blocks

_CRC_BLOCK_BITS = 32 * 32768


class Measured(NamedTuple):
    """What the device found in one tensor; ``max`` and ``min`` skip NaN, ``total`` and ``squares`` do not."""

    max: float | int
    min: float | int
    total: float
    squares: float
    nan: int
    inf: int


class Copies:
    """Host copies under way. ``mark`` ends the list; ``results`` waits for the device, on whatever thread calls it."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._parts: list[tuple[Page, Any]] = []
        self._event: Any = None
        self._after: list[Callable[[], None]] = []

    def add(self, page: Page) -> None:
        """Start copying one page of slots."""
        if not page.receivers:
            return
        host = slots = page.buffer[: page.used]
        if self._device.type == "cuda":
            host = self._torch.empty(slots.shape, dtype=slots.dtype, pin_memory=True)
            host.copy_(slots, non_blocking=True)
        self._parts.append((page, host))

    def give_back(self, job: Callable[[], None]) -> None:
        """Called when the device is done."""
        self._after.append(job)

    def mark(self) -> None:
        """All copies have been queued on the current stream."""
        if self._device.type == "cuda":
            self._event = self._torch.cuda.Event()
            self._event.record(self._torch.cuda.current_stream(self._device))

    def results(self) -> list[tuple[str, list[Any], list[Any]]]:
        """For each page its kind, its receivers and their results: Measured, or the bare number for checksums."""
        if self._event is not None:
            self._event.synchronize()
        for job in self._after:
            job()
        return [(page.kind, page.receivers, _reduce(page, host.numpy())) for page, host in self._parts]


def _reduce(page: Page, slots: Any) -> list[Any]:
    starts = page.starts
    if page.kind == "crc":
        counts = np.diff(np.array([*starts, page.used]))
        return [int(value) for value in combine_blocks(slots, counts, _CRC_BLOCK_BITS)]
    if page.kind == "xor":
        return [int(value) for value in np.bitwise_xor.reduceat(slots, starts).view(np.uint64)]
    with np.errstate(all="ignore"):
        sums = np.add.reduceat(slots[:, 2:], starts, axis=0).tolist()
    extremes = np.ascontiguousarray(slots[:, :2])
    if page.kind == "integers":
        extremes = extremes.view(np.int64)
    high = np.maximum.reduceat(extremes[:, 0], starts).tolist()
    low = np.minimum.reduceat(extremes[:, 1], starts).tolist()
    return [
        Measured(top, bottom, total, squares, _whole(nan), _whole(inf))
        for top, bottom, (total, squares, nan, inf) in zip(high, low, sums, strict=True)
    ]


def _whole(count: float) -> int:
    return int(count) if 0 <= count < 1e18 else 0  # slots of a dropped line hold anything
