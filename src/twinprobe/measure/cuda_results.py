"""Partial results of the device, copied once and put together on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from twinprobe.measure.cuda import Measured
from twinprobe.measure.gf2 import combine_blocks

_CRC_BLOCK_BITS = 32 * 32768


class Copies:
    """Host copies under way. ``mark`` ends the list; ``results`` waits for the device, on whatever thread calls it."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._parts: list[tuple[str, Any, list[int], list[int], list[int]]] = []
        self._event: Any = None
        self._kept: list[Any] = []

    def add(self, kind: str, slots: Any, starts: list[int], counts: list[int], jobs: list[int]) -> None:
        """Start copying one page of slots."""
        if self._device.type == "cuda":
            host = self._torch.empty(slots.shape, dtype=slots.dtype, pin_memory=True)
            host.copy_(slots, non_blocking=True)
            self._kept.append(slots)
        else:
            host = slots
        self._parts.append((kind, host, starts, counts, jobs))

    def mark(self) -> None:
        """All copies have been queued on the current stream."""
        if self._device.type == "cuda":
            self._event = self._torch.cuda.Event()
            self._event.record(self._torch.cuda.current_stream(self._device))

    def results(self) -> dict[int, Any]:
        """Job number to result."""
        if self._event is not None:
            self._event.synchronize()
        self._kept.clear()
        found: dict[int, Any] = {}
        for kind, host, starts, counts, jobs in self._parts:
            if jobs:
                found.update(zip(jobs, _reduce(kind, host.numpy(), starts, counts), strict=True))
        return found


def _reduce(kind: str, slots: Any, starts: list[int], counts: list[int]) -> list[Any]:
    if kind == "crc":
        return [int(value) for value in combine_blocks(slots, np.asarray(counts), _CRC_BLOCK_BITS)]
    if kind == "xor":
        return [int(value) for value in np.bitwise_xor.reduceat(slots, starts).view(np.uint64)]
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.add.reduceat(slots[:, 2:], starts, axis=0).tolist()
    extremes = np.ascontiguousarray(slots[:, :2])
    if kind == "integers":
        extremes = extremes.view(np.int64)
    high = np.maximum.reduceat(extremes[:, 0], starts).tolist()
    low = np.minimum.reduceat(extremes[:, 1], starts).tolist()
    return [
        Measured(top, bottom, total, squares, int(nan), int(inf))
        for top, bottom, (total, squares, nan, inf) in zip(high, low, sums, strict=True)
    ]
