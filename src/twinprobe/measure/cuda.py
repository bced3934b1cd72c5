"""Statistics and checksums of many device tensors, without a synchronisation before the results are wanted.

A tensor is one line (address, element count, first slot) in a queue; ``launch`` measures all lines of a queue with one
kernel; ``collect`` starts one copy to the host and returns a function that waits for it and hands out the results.
Triton is imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinprobe.measure.cuda_launch import MOST_LINES, Kernel, Tables

_FIRST_PAGE = 4096
_PAGE_SLOTS = 1 << 16
_LINE = 3


class Page:
    """One buffer of slots on the device, and who gets which part of it."""

    __slots__ = ("buffer", "kind", "receivers", "size", "starts", "used")

    def __init__(self, kind: str, buffer: Any, size: int) -> None:
        self.kind = kind
        self.buffer = buffer
        self.size = size
        self.used = 0
        self.starts: list[int] = []
        self.receivers: list[Any] = []


class Queue:
    """Tensors that one kernel will measure together. All of them belong to one stream."""

    __slots__ = ("_new_page", "chunk", "kernel", "lines", "most", "page", "pages", "receivers", "starts")

    def __init__(self, kernel: Kernel, chunk: int, new_page: Callable[[int], Page]) -> None:
        self.kernel = kernel
        self.chunk = chunk
        self.lines: list[int] = []
        self.starts: list[int] = []
        self.receivers: list[Any] = []
        self.most = 0
        self._new_page = new_page
        self.page: Page = new_page(_FIRST_PAGE)
        self.pages = [self.page]

    def turn_page(self, elements: int) -> None:
        """After a launch: go on with a page that has room for a tensor of this size."""
        chunks = -(-elements // self.chunk)
        if self.page.used + chunks > self.page.size:
            self.page = self._new_page(max(chunks, _PAGE_SLOTS))
            self.pages.append(self.page)

    def add(self, address: int, elements: int, receiver: Any) -> int:
        """Queue one run of elements; ``receiver`` comes back beside its result. Returns the line's number, or -1 when
        what waits must be launched first and a page turned."""
        page, receivers = self.page, self.receivers
        slot, line = page.used, len(receivers)
        end = slot - (-elements // self.chunk)
        if end > page.size or line >= MOST_LINES:
            return -1
        page.used = end
        self.lines += (address, elements, slot)
        self.starts.append(slot)
        receivers.append(receiver)
        if elements > self.most:  # noqa: PLR1730  a call costs more
            self.most = elements
        return line

    def drop(self, line: int) -> None:
        """This run must not be read any more; nobody gets a result for it."""
        self.lines[line * _LINE + 1] = 0
        self.receivers[line] = None

    def launch(self, tables: Tables, stream: int) -> None:
        """Measure all lines on the current stream, whose raw number is given too."""
        lines, starts, receivers, most = self.lines, self.starts, self.receivers, self.most
        self.lines, self.starts, self.receivers, self.most = [], [], [], 0
        page = self.page
        page.starts += starts
        try:
            table = tables.send(lines)
            self.kernel((-(-most // self.chunk), len(receivers), 1), stream, table, page.buffer)
        except Exception:  # nobody gets a result; at the next launch the memory may be gone
            page.receivers += [None] * len(receivers)
            raise
        page.receivers += receivers


class Lane:
    """The queues of one stream. Buffers are taken on it and used on it only, so the allocator's order holds."""

    __slots__ = ("queues", "stream", "tables", "waiting")

    def __init__(self, stream: int, tables: Tables) -> None:
        self.stream = stream
        self.tables = tables
        self.queues: dict[Any, Queue] = {}
        self.waiting: dict[Queue, None] = {}

    def launch(self) -> None:
        """Measure everything that waits. The lane's stream is the current one."""
        waiting, self.waiting = self.waiting, {}
        failed: Exception | None = None
        for queue in waiting:
            try:
                queue.launch(self.tables, self.stream)
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed


class DeviceMeasure:
    """Measures tensors of one device. Not thread-safe: the caller holds a lock."""

    def __init__(self, device: Any) -> None:
        import torch

        from twinprobe.measure.cuda_variants import Variants

        self._torch = torch
        self._device = device
        self._variants = Variants(torch, device)
        self._lanes: dict[int, Lane] = {}
        self._spare: dict[int, Tables] = {}
        self.launches = 0

    def lane(self, stream: int) -> Lane:
        """The lane of a stream, which must be the current one."""
        known = self._lanes.get(stream)
        if known is None:
            tables = self._spare.get(stream)
            if tables is None:
                tables = self._spare[stream] = Tables(self._torch, self._device)
            known = self._lanes[stream] = Lane(stream, tables)
        return known

    def statistics(self, lane: Lane, dtype: Any, aligned: bool) -> Queue:
        """The queue for tensors of one element type; ``aligned``: their addresses are multiples of 16."""
        key = (dtype, aligned)
        queue = lane.queues.get(key)
        if queue is None:
            kind = "floats" if dtype.is_floating_point else "integers"
            queue = lane.queues[key] = self._queue(kind, self._variants.statistics(dtype, aligned))
        return queue

    def checksums(self, lane: Lane, mode: str) -> Queue:
        """The queue for ``md5`` (CRC-32 of whole 32-bit words) or ``xor`` (of whole 64-bit words)."""
        queue = lane.queues.get(mode)
        if queue is None:
            kind = "crc" if mode == "md5" else "xor"
            queue = lane.queues[mode] = self._queue(kind, self._variants.checksums(mode))
        return queue

    def _queue(self, kind: str, variant: tuple[Kernel, int]) -> Queue:
        kernel, chunk = variant
        torch, device = self._torch, self._device
        dtype = {"crc": torch.uint32, "xor": torch.int64}.get(kind, torch.float64)

        def new_page(size: int) -> Page:
            shape = (size,) if kind in ("crc", "xor") else (size, 6)
            return Page(kind, torch.empty(shape, dtype=dtype, device=device), size)

        return Queue(kernel, chunk, new_page)

    def collect(self) -> Callable[[], list[tuple[str, list[Any], list[Any]]]]:
        """Start copying all results to the host. The returned function waits for them, on whatever thread calls it,
        and gives for each page its kind, its receivers and their results.

        Call with everything launched and the current stream waiting for all others.
        """
        from twinprobe.measure.cuda_results import Copies

        copies = Copies(self._torch, self._device)
        for lane in self._lanes.values():
            for queue in lane.queues.values():
                for page in queue.pages:
                    copies.add(page)
            copies.give_back(lane.tables.end_of_stretch())
        copies.mark()
        self._lanes = {}
        return copies.results
