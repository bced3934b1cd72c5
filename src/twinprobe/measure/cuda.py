"""Statistics and checksums of many device tensors, without a synchronisation before the results are wanted.

Tensors are put into a table; ``launch`` measures all of them with one kernel per element type; ``collect`` starts one
copy to the host and returns a function that waits for it and hands out the results. Triton is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK = 65536
_CRC_WORDS = 32768
_XOR_WORDS = 16384
_PAGE_SLOTS = 1 << 16
_TABLE_LINES = 4096
_MOST_PROGRAMS = 65535


class Measured(NamedTuple):
    """What the device found in one tensor; ``max`` and ``min`` skip NaN, ``total`` and ``squares`` do not."""

    max: float | int
    min: float | int
    total: float
    squares: float
    nan: int
    inf: int


class Flat(NamedTuple):
    """A run of elements in device memory. ``owner`` keeps the memory alive until the launch is queued."""

    owner: Any
    address: int
    elements: int


@dataclass
class _Page:
    """One buffer of slots on the device, and which jobs use which part of it."""

    buffer: Any
    used: int = 0
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)


class SlotPages:
    """Device memory for partial results; grows by whole pages, never waits."""

    def __init__(self, new_buffer: Callable[[int], Any]) -> None:
        self._new_buffer = new_buffer
        self.pages: list[_Page] = []

    def take(self, count: int, job: int) -> tuple[_Page, int]:
        """Reserve so many slots for a job; returns the page and the first slot."""
        page = self.pages[-1] if self.pages else None
        if page is None or page.used + count > page.buffer.shape[0]:
            page = _Page(self._new_buffer(max(count, _PAGE_SLOTS)))
            self.pages.append(page)
        start = page.used
        page.used += count
        page.starts.append(start)
        page.counts.append(count)
        page.jobs.append(job)
        return page, start


class LaunchTable:
    """Launch arguments in pinned memory: written by the host, copied asynchronously, never reused before ``reset``."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._pages: list[tuple[Any, Any, NDArray[np.int64]]] = []
        self._page = 0
        self._line = 0

    def send(self, lines: list[tuple[int, int, int]]) -> Any:
        """Copy the lines to the device on the current stream; returns the device view."""
        count = len(lines)
        if not self._pages or self._line + count > self._pages[self._page][2].shape[0]:
            self._next_page(count)
        pinned, device, view = self._pages[self._page]
        start = self._line
        self._line += count
        view[start : self._line] = lines
        target = device[start : self._line]
        target.copy_(pinned[start : self._line], non_blocking=True)
        return target

    def reset(self) -> None:
        """All copies are known to be done: start again from the first page."""
        self._page = self._line = 0

    def _next_page(self, count: int) -> None:
        if self._pages:
            self._page += 1
        self._line = 0
        while self._page < len(self._pages) and self._pages[self._page][2].shape[0] < count:
            self._page += 1
        if self._page >= len(self._pages):
            lines = max(count, _TABLE_LINES)
            pinned = self._torch.empty((lines, 3), dtype=self._torch.int64, pin_memory=self._device.type == "cuda")
            device = self._torch.empty((lines, 3), dtype=self._torch.int64, device=self._device)
            self._pages.append((pinned, device, pinned.numpy()))
            self._page = len(self._pages) - 1


class DeviceMeasure:
    """Measures tensors of one device. Not thread-safe: the caller holds a lock."""

    def __init__(self, device: Any) -> None:
        import torch

        from twinprobe.measure import cuda_crc, cuda_kernels

        self._torch = torch
        self._device = device
        self._kernels: Any = cuda_kernels
        self._crc: Any = cuda_crc
        self._table = LaunchTable(torch, device)
        self._constants: tuple[Any, Any] | None = None
        self._kinds: dict[Any, Any] = {}
        self._next_job = 0
        self._start_over()

    def _start_over(self) -> None:
        torch, device = self._torch, self._device
        self._floats = SlotPages(lambda n: torch.empty((n, 6), dtype=torch.float64, device=device))
        self._integers = SlotPages(lambda n: torch.empty((n, 6), dtype=torch.float64, device=device))
        self._crcs = SlotPages(lambda n: torch.empty(n, dtype=torch.uint32, device=device))
        self._xors = SlotPages(lambda n: torch.empty(n, dtype=torch.int64, device=device))

    def statistics(self, dtype: Any, batch: list[Flat]) -> list[int]:
        """Queue the statistics of tensors of one element type; returns a job number for each."""
        floating = dtype.is_floating_point
        pages = self._floats if floating else self._integers
        kind = self._kind(dtype)

        def launch(page: _Page, lines: list[tuple[int, int, int]], most: int) -> None:
            table = self._table.send(lines)
            grid = (-(-most // CHUNK), len(lines))
            if floating:
                acc = self._kernels.tl.float64 if dtype == self._torch.float64 else self._kernels.tl.float32
                aligned = all(line[0] % 16 == 0 for line in lines)
                self._kernels.float_statistics[grid](
                    table, page.buffer, kind, ACC=acc, ALIGNED=aligned, CHUNK=CHUNK, BLOCK=2048, num_warps=8
                )
            else:
                exact = page.buffer.view(self._torch.int64)
                self._kernels.integer_statistics[grid](table, page.buffer, exact, kind, CHUNK=CHUNK, BLOCK=1024)

        return self._launch(batch, pages, CHUNK, launch)

    def crc32(self, batch: list[Flat]) -> list[int]:
        """Queue the CRC-32 of tensors given as whole 32-bit words."""
        by_stride, lane_factors = self._crc_constants()

        def launch(page: _Page, lines: list[tuple[int, int, int]], most: int) -> None:
            table = self._table.send(lines)
            grid = (-(-most // _CRC_WORDS), len(lines))
            self._crc.crc_chunks[grid](table, page.buffer, by_stride, lane_factors, num_warps=4)

        return self._launch(batch, self._crcs, _CRC_WORDS, launch)

    def xor64(self, batch: list[Flat]) -> list[int]:
        """Queue the XOR of tensors given as whole 64-bit words."""

        def launch(page: _Page, lines: list[tuple[int, int, int]], most: int) -> None:
            table = self._table.send(lines)
            self._kernels.xor_chunks[(-(-most // _XOR_WORDS), len(lines))](
                table, page.buffer, CHUNK=_XOR_WORDS, BLOCK=1024
            )

        return self._launch(batch, self._xors, _XOR_WORDS, launch)

    def collect(self) -> Callable[[], dict[int, Any]]:
        """Start copying all results to the host; the returned function waits and maps job numbers to results.

        Results are Measured for statistics, and the bare number for checksums.
        """
        from twinprobe.measure.cuda_results import Copies

        copies = Copies(self._torch, self._device)
        for pages, kind in (
            (self._floats, "floats"),
            (self._integers, "integers"),
            (self._crcs, "crc"),
            (self._xors, "xor"),
        ):
            for page in pages.pages:
                copies.add(kind, page.buffer[: page.used], page.starts, page.counts, page.jobs)
        copies.mark()
        self._start_over()
        self._table = LaunchTable(self._torch, self._device)
        return copies.results

    def _launch(
        self,
        batch: list[Flat],
        pages: SlotPages,
        chunk: int,
        launch: Callable[[_Page, list[tuple[int, int, int]], int], None],
    ) -> list[int]:
        jobs: list[int] = []
        lines: list[tuple[int, int, int]] = []
        current: _Page | None = None
        most = 0
        for flat in batch:
            job = self._next_job
            self._next_job += 1
            jobs.append(job)
            page, slot = pages.take(-(-flat.elements // chunk), job)
            if current is not None and page is not current:
                launch(current, lines, most)
                lines, most = [], 0
            current = page
            lines.append((flat.address, flat.elements, slot))
            most = max(most, flat.elements)
        if current is not None and lines:
            launch(current, lines, most)
        return jobs

    def _kind(self, dtype: Any) -> Any:
        known = self._kinds.get(dtype)
        if known is None:
            stored = self._torch.uint8 if dtype == self._torch.bool else dtype
            known = self._kinds[dtype] = self._torch.empty(16, dtype=stored, device=self._device)
        return known

    def _crc_constants(self) -> tuple[Any, Any]:
        if self._constants is None:
            from twinprobe.measure.gf2 import power_of_x, table_of, times

            stride = 32 * 128
            lanes = [times(power_of_x(-32 * stride), power_of_x(32 * (128 - lane))) for lane in range(128)]
            table = self._torch.from_numpy(table_of(power_of_x(stride)).reshape(-1).copy())
            factors = self._torch.from_numpy(np.array(lanes, dtype=np.uint32))
            self._constants = table.to(self._device), factors.to(self._device)
        return self._constants
