"""Statistics and checksums of many device tensors, without a synchronisation before the results are wanted.

A tensor is one line (address, element count, first slot, block length) in a queue, a view whose elements do not lie in
order is three; ``launch`` measures all lines of a queue with one kernel; ``collect`` starts one copy to the host and
returns a function that waits for it and hands out the results. Triton is imported on first use.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.crc32 import combine_blocks, power_of_x, table_of, times
from twinprobe._measure.loops.sums import (
    BLOCKS,
    FILLS,
    INFS,
    L1,
    LARGEST,
    NANS,
    QUARTER,
    SKETCH_COLUMNS,
    SUM_OF_SQUARES,
    TOTAL,
    ZEROS,
)
from twinprobe._measure.sketch import block_length, flags_of, rows_of
from twinprobe._runs.dtypes import dtype_name

# Launching cheaply: launch tables that are used again, and compiled kernels called without Triton's dispatch.

MOST_LINES = 128
_LINE = 4  # words: address, elements, first slot, block length


class Table:
    """The lines of one launch: written to pinned memory, copied to the device by the stream."""

    __slots__ = ("_pinned", "_view", "device")

    def __init__(self, torch: Any, device: Any) -> None:
        self._pinned = torch.zeros((MOST_LINES, _LINE), dtype=torch.int64, pin_memory=device.type == "cuda")
        self._view: NDArray[np.int64] = self._pinned.numpy()
        self.device = torch.empty((MOST_LINES, _LINE), dtype=torch.int64, device=device)

    def send(self, lines: list[tuple[int, int, int, int]]) -> None:
        self._view[: len(lines)] = lines
        self.device.copy_(self._pinned, non_blocking=True)


class Tables:
    """Tables of one stream. One that was sent is used again only after the results of its launch have come."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._free: deque[Table] = deque()
        self._used: list[Table] = []

    def send(self, lines: list[tuple[int, int, int, int]]) -> Any:
        """Copy the lines on the current stream; returns the device's table."""
        table = self._free.popleft() if self._free else Table(self._torch, self._device)
        self._used.append(table)
        table.send(lines)
        return table.device

    def end_of_stretch(self) -> Callable[[], None]:
        """What to call, on any thread, when everything launched so far is known to be done."""
        used, self._used = self._used, []
        return lambda: self._free.extend(used)


class Kernel:
    """One Triton function with its constants. The first launch compiles; later ones call the compiled kernel itself,
    which takes bare addresses and costs a tenth of Triton's own dispatch."""

    def __init__(
        self, function: Any, more: tuple[Any, ...], constants: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self._function, self._more, self._constants, self._options = function, more, constants, options
        self._tail = (*(one.data_ptr() for one in more), *constants.values())
        self._compiled: Any = None
        self._plain = False

    def __call__(self, grid: tuple[int, int, int], stream: int, table: Any, slots: Any) -> None:
        """Queue the kernel on the current stream. All buffers start at multiples of 16, as they did when compiling."""
        if self._compiled is not None:
            try:
                self._compiled[grid](table.data_ptr(), slots.data_ptr(), *self._tail, stream=stream)
                return
            except (TypeError, AttributeError, ValueError, KeyError) as error:  # another Triton with another launcher
                logging.getLogger(__name__).info("Triton's compiled kernels are called its own way: %s", error)
                self._compiled, self._plain = None, True
        done = self._function[grid](table, slots, *self._more, **self._constants, **self._options)
        if not self._plain:
            done = done.result() if hasattr(done, "result") else done
            self._compiled = done if hasattr(done, "__getitem__") else None


# Elements that fill one slot of results.
_CHUNK, _CRC_WORDS, _XOR_WORDS = 65536, 32768, 16384
_FIRST_PAGE = 4096
_PAGE_SLOTS = 1 << 16
_SKETCH_NUMBERS = 16


@dataclass(slots=True, eq=False)
class Page:
    """One buffer of slots on the device, and who gets which part of it."""

    kind: str
    buffer: Any
    size: int
    flags: int = 0  # what the dtype says about sketches
    used: int = 0
    sizes: list[int] = field(default_factory=list)  # elements, where there are sketches
    blocks: NDArray[np.int64] | None = None  # of sketches: how many blocks each tensor has
    pieces: NDArray[np.int64] | None = None  # and how many slots each of its blocks
    views: list[View] = field(default_factory=list)  # of a queue of views
    starts: list[int] = field(default_factory=list)
    receivers: list[Any] = field(default_factory=list)


@lru_cache(maxsize=4096)
def _sketch_room(elements: int) -> tuple[int, int]:
    """How many slots a sketch takes, and its block length. A model has few sizes, and thousands of tensors."""
    length = block_length(elements)
    return -(-elements // length) * -(-length // _CHUNK), length


_MOST_ELEMENTS, _FARTHEST = 1 << 29, 1 << 31  # what kernels of views count in 32 bits
_AXES = 4
_NEAR = 4  # elements: so near, what follows in order mostly comes with what is read
_SHORT = 64  # of rows so short, threads that work together read enough for neighbours in memory to meet
_LOWEST_TILE, _HIGHEST_TILE = 5, 10  # logarithm of the rows of a tile: as many threads read neighbours in memory
_FEW = 1 << 18  # elements: so few are in the cache when they are read again


class View(NamedTuple):
    """How a kernel reads a view in its logical order: what follows its line in the table, how many neighbours it reads
    at a time, and what its sketch takes."""

    words: tuple[tuple[int, int, int, int], tuple[int, int, int, int]]
    width: int
    pieces: int  # slots of a block
    slots: int
    length: int  # of a block


@lru_cache(maxsize=4096)
def view_of(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, aligned_floats: bool) -> View | None:
    """How to read a view with these strides, in elements; ``aligned_floats``: it begins at a multiple of 16 bytes. None
    where copying it is the better way: too many axes or elements, or neighbours in memory that are far apart in order.
    """
    axes: list[tuple[int, int]] = []
    for size, step in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == step * size:  # the two are one longer axis
            axes[-1] = axes[-1][0] * size, step
        else:
            axes.append((size, step))
    elements = prod(shape)
    beyond = sum((size - 1) * step for size, step in axes) >= _FARTHEST
    if not axes or len(axes) > _AXES or elements > _MOST_ELEMENTS or beyond or min(strides) < 0:
        return None
    (_, step_1), (size_2, step_2), (size_3, step_3), (size, step) = [(1, 0)] * (_AXES - len(axes)) + axes
    length = block_length(elements)
    pieces, tile, width = -(-length // _CHUNK), 0, min(8, 16 // itemsize)
    grouped = step == 1 and not (size % width or step_1 % width or step_2 % width or step_3 % width)
    if aligned_floats and grouped and length % 8 == 0:
        size, step_1, step_2, step_3 = size // width, step_1 // width, step_2 // width, step_3 // width
    else:
        width = 1
        by_columns = step > max(_NEAR, step_3) and 0 < step_3 * itemsize <= 8
        if by_columns and _SHORT < size <= length // 2:
            tile = min(max(_LOWEST_TILE, _log2(_CHUNK // size)), _HIGHEST_TILE, _log2(length // size))
            rows = length // size + (2 if length % size else 0)
            pieces = -(-size // (_CHUNK >> tile)) * -(-rows >> tile)
        elif step > _NEAR and elements > _FEW and not (by_columns and size <= _SHORT):
            return None
    divisors = [_divisor(one) for one in (size, size_3, size_2)]
    shifts = sum(shift << 8 * at for at, (_, shift) in enumerate(divisors)) | tile << 24
    words = (divisors[0][0], divisors[1][0], divisors[2][0], shifts), (step, step_3, step_2, step_1)
    return View(words, width, pieces, -(-elements // length) * pieces, length)


def _log2(number: int) -> int:
    return max(0, number.bit_length() - 1)


def _divisor(number: int) -> tuple[int, int]:
    """A divisor in one word with its multiplier, and its shift: n // number is (n * multiplier // 2**32 + n) >> shift
    for n below 2**31."""
    shift = (number - 1).bit_length()
    return number << 32 | (((1 << shift) - number) << 32) // number + 1, shift


class Queue:
    """Tensors that one kernel will measure together. All of them belong to one stream."""

    __slots__ = (
        "_new_page", "_sketches", "chunk", "kernel", "lines", "most", "most_lines", "page", "pages", "receivers",
        "views",
    )  # fmt: skip

    def __init__(self, kernel: Kernel, chunk: int, new_page: Callable[[int], Page], views: bool = False) -> None:
        self.kernel = kernel
        self.most_lines = MOST_LINES // 3 if views else MOST_LINES
        self.views: list[View] = []
        self.chunk = chunk
        self.lines: list[tuple[int, int, int, int]] = []
        self.receivers: list[Any] = []
        self.most = 0  # slots of the tensor that takes most
        self._new_page = new_page
        self.page: Page = new_page(_FIRST_PAGE)
        self.pages = [self.page]
        self._sketches = self.page.kind.startswith("sketched")

    def turn_page(self, elements: int, view: View | None = None) -> None:
        """After a launch: go on with a page that has room for a tensor of this size."""
        several = _sketch_room(elements)[0] if self._sketches else -(-elements // self.chunk)
        chunks = several if view is None else view.slots
        if self.page.used + chunks > self.page.size:
            self.page = self._new_page(max(chunks, _PAGE_SLOTS))
            self.pages.append(self.page)

    def add(self, address: int, elements: int, receiver: Any, view: View | None = None) -> int:
        """Queue one run of elements, or a view whose elements do not lie in order; ``receiver`` comes back beside its
        result. Returns the line's number, or -1 when what waits must be launched first and a page turned."""
        page, receivers = self.page, self.receivers
        slot, line = page.used, len(receivers)
        if view is not None:
            slots, length = view.slots, view.length
        else:
            slots, length = _sketch_room(elements) if self._sketches else (-(-elements // self.chunk), 0)
        if slot + slots > page.size or line >= self.most_lines:
            return -1
        page.used = slot + slots
        self.lines.append((address, elements, slot, length))
        if view is not None:
            self.lines += view.words
            self.views.append(view)
        receivers.append(receiver)
        if slots > self.most:  # noqa: PLR1730  a call costs more
            self.most = slots
        return line

    def launch(self, tables: Tables, stream: int) -> None:
        """Measure all lines on the current stream, whose raw number is given too."""
        lines, receivers, most = self.lines, self.receivers, self.most
        page, firsts = self.page, lines[::3] if self.views else lines
        self.lines, self.receivers, self.most = [], [], 0
        page.views += self.views
        self.views = []
        page.starts += [line[2] for line in firsts]
        if self._sketches:
            page.sizes += [line[1] for line in firsts]
        try:
            table = tables.send(lines)
            self.kernel((most, len(receivers), 1), stream, table, page.buffer)
        except Exception:  # nobody gets a result; at the next launch the memory may be gone
            page.receivers += [None] * len(receivers)
            raise
        page.receivers += receivers


@dataclass(slots=True, eq=False)
class Lane:
    """The queues of one stream. Buffers are taken on it and used on it only, so the allocator's order holds."""

    stream: int
    tables: Tables
    queues: dict[Any, Queue] = field(default_factory=dict)
    waiting: dict[Queue, None] = field(default_factory=dict)

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

    def __init__(self, device: Any, *, sketch: bool = False) -> None:
        import torch

        self._torch, self._device = torch, device
        self._sketch = sketch
        self._kernels: dict[Any, tuple[Kernel, int]] = {}
        self._lanes: dict[int, Lane] = {}
        self._spare: dict[int, Tables] = {}

    def lane(self, stream: int) -> Lane:
        """The lane of a stream, which must be the current one."""
        known = self._lanes.get(stream)
        if known is None:
            if stream not in self._spare:
                self._spare[stream] = Tables(self._torch, self._device)
            known = self._lanes[stream] = Lane(stream, self._spare[stream])
        return known

    def statistics(self, lane: Lane, dtype: Any, aligned: bool, view_width: int = 0) -> Queue:
        """The queue for tensors of one element type; ``aligned``: their addresses are multiples of 16.

        ``view_width``: of views, that are read so many elements at a time. Only where sketches are made: statistics
        alone take elements in any order.
        """
        key = (dtype, "view", view_width) if view_width else (dtype, aligned)
        queue = lane.queues.get(key)
        if queue is None:
            if key not in self._kernels:
                self._kernels[key] = self._statistics_kernel(dtype, aligned, view_width), _CHUNK
            kind = "floats" if dtype.is_floating_point else "integers"
            flags = flags_of(dtype_name(dtype))
            kind = f"sketched {kind}" if self._sketch else kind
            queue = self._queue(kind, *self._kernels[key], flags=flags, views=view_width > 0)
            lane.queues[key] = queue
        return queue

    def checksums(self, lane: Lane, mode: str) -> Queue:
        """The queue for ``md5`` (CRC-32 of whole 32-bit words) or ``xor`` (of whole 64-bit words)."""
        queue = lane.queues.get(mode)
        if queue is None:
            if mode not in self._kernels:
                self._kernels[mode] = self._crc_kernel() if mode == "md5" else self._xor_kernel()
            kind = "crc" if mode == "md5" else "xor"
            queue = lane.queues[mode] = self._queue(kind, *self._kernels[mode])
        return queue

    # Triton's kernels are imported here, where there surely is a device, each with the constants that suit it.

    def _statistics_kernel(self, dtype: Any, aligned: bool, view_width: int) -> Kernel:
        from twinprobe._measure.cuda import reductions, sketches

        kernels = cast(Any, sketches if self._sketch else reductions)
        torch, front = self._torch, "strided_" if view_width else ""
        example = (torch.empty(16, dtype=torch.uint8 if dtype == torch.bool else dtype, device=self._device),)
        if not dtype.is_floating_point:
            integers = getattr(kernels, f"{front}integer_sketches" if self._sketch else "integer_statistics")
            return Kernel(integers, example, {"CHUNK": _CHUNK, "BLOCK": 1024}, {})
        acc = kernels.tl.float64 if dtype == torch.float64 else kernels.tl.float32
        if not self._sketch:
            constants = {"ACC": acc, "ALIGNED": aligned, "CHUNK": _CHUNK, "BLOCK": 2048}
            return Kernel(kernels.float_statistics, example, constants, {"num_warps": 8})
        width = view_width or (min(8, 16 // dtype.itemsize) if aligned else 1)
        limit = QUARTER[dtype_name(dtype)]
        constants = {"ACC": acc, "LIMIT": limit, "CHUNK": _CHUNK, "ROWS": 1024 // width, "WIDTH": width}
        if not view_width:
            constants["ALIGNED"] = aligned
        warps = 8 if view_width == 1 else 4
        return Kernel(getattr(kernels, f"{front}float_sketches"), example, constants, {"num_warps": warps})

    def _xor_kernel(self) -> tuple[Kernel, int]:
        from twinprobe._measure.cuda import reductions

        kernels = cast(Any, reductions)
        return Kernel(kernels.xor_chunks, (), {"CHUNK": _XOR_WORDS, "BLOCK": 1024}, {}), _XOR_WORDS

    def _crc_kernel(self) -> tuple[Kernel, int]:
        from twinprobe._measure.cuda import reductions

        stride = 32 * 128
        lanes = [times(power_of_x(-32 * stride), power_of_x(32 * (128 - lane))) for lane in range(128)]
        # PyTorch has uint32 since 2.3: words travel as int32.
        by_stride = self._torch.from_numpy(table_of(power_of_x(stride)).reshape(-1).view(np.int32))
        factors = self._torch.from_numpy(np.array(lanes, dtype=np.uint32).view(np.int32))
        constants = (by_stride.to(self._device), factors.to(self._device))
        return Kernel(cast(Any, reductions).crc_chunks, constants, {}, {"num_warps": 4}), _CRC_WORDS

    def _queue(self, kind: str, kernel: Kernel, chunk: int, flags: int = 0, views: bool = False) -> Queue:
        torch, device = self._torch, self._device
        dtype = {"crc": torch.int32, "xor": torch.int64}.get(kind, torch.float64)

        def new_page(size: int) -> Page:
            columns = _SKETCH_NUMBERS if kind.startswith("sketched") else 6
            shape = (size,) if kind in ("crc", "xor") else (size, columns)
            return Page(kind, torch.empty(shape, dtype=dtype, device=device), size, flags)

        return Queue(kernel, chunk, new_page, views)

    def collect(self) -> Callable[[], list[tuple[str, list[Any], list[Any]]]]:
        """Start copying all results to the host. The returned function waits for them, on whatever thread calls it,
        and gives for each page its kind, its receivers and their results.

        Call with everything launched and the current stream waiting for all others.
        """

        copies = Copies(self._torch, self._device)
        for lane in self._lanes.values():
            for queue in lane.queues.values():
                for page in queue.pages:
                    copies.add(page)
            copies.give_back(lane.tables.end_of_stretch())
        copies.mark()
        self._lanes = {}
        return copies.results


# Partial results of the device, copied once and put together on the host.


class Measured(NamedTuple):
    """What the device found in one tensor; ``max`` and ``min`` skip NaN, ``total`` and ``squares`` do not."""

    max: float | int
    min: float | int
    total: float
    squares: float
    nan: int
    inf: int
    sketch: bytes | None = None


class Copies:
    """Host copies under way. ``mark`` ends the list; ``results`` waits for the device, on whatever thread calls it."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._parts: list[tuple[Page, Any]] = []
        self._event: Any = None
        self._after: list[Callable[[], None]] = []

    def add(self, page: Page) -> None:
        """Start copying one page of slots."""
        if not page.receivers:
            return
        host = slots = page.buffer[: page.used]
        if page.kind.startswith("sketched"):
            sizes, places = np.unique(np.array(page.sizes, np.int64), return_inverse=True)
            lengths = np.array([_sketch_room(int(size))[1] for size in sizes], np.int64)
            page.blocks, page.pieces = (-(-sizes // lengths))[places], (-(-lengths // _CHUNK))[places]
            if page.views:
                page.pieces = np.array([view.pieces for view in page.views], np.int64)
            if page.kind == "sketched floats" and page.used > 2 * int(page.blocks.sum()):
                host = slots = self._by_block(page, slots)
        if self._device.type == "cuda":
            host = self._torch.empty(slots.shape, dtype=slots.dtype, pin_memory=True)
            host.copy_(slots, non_blocking=True)
        self._parts.append((page, host))

    def _by_block(self, page: Page, slots: Any) -> Any:
        """One slot a block, put together on the device: of large tensors the host gets far less."""
        torch = self._torch
        assert page.blocks is not None
        assert page.pieces is not None
        pieces = torch.from_numpy(np.repeat(page.pieces, page.blocks))
        if self._device.type == "cuda":  # a copy from other memory would wait for the device
            pieces = pieces.pin_memory().to(self._device, non_blocking=True)

        def reduced(part: Any, how: str) -> Any:
            return torch.segment_reduce(part.contiguous(), how, lengths=pieces, axis=0, unsafe=True)

        try:
            found = reduced(slots, "sum")
            found[:, 0], found[:, 1] = reduced(slots[:, 0], "max"), reduced(slots[:, 1], "min")
            found[:, 13] = reduced(slots[:, 13], "max")
        except (RuntimeError, AttributeError, TypeError) as error:  # a beta function of torch: the host can do it, too
            logging.getLogger(__name__).info("the host puts blocks of sketches together: %s", error)
            return slots
        page.starts = (np.cumsum(page.blocks) - page.blocks).tolist()
        page.used, page.pieces = len(found), np.ones_like(page.pieces)
        return found

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
        return [int(value) for value in combine_blocks(slots.view(np.uint32), counts, 32 * _CRC_WORDS)]
    if page.kind == "xor":
        return [int(value) for value in np.bitwise_xor.reduceat(slots, starts).view(np.uint64)]
    with np.errstate(all="ignore"):
        sums = np.add.reduceat(slots[:, 2:6], starts, axis=0).tolist()
    extremes = np.ascontiguousarray(slots[:, :2])
    if page.kind.endswith("integers"):
        extremes = extremes.view(np.int64)
    high = np.maximum.reduceat(extremes[:, 0], starts).tolist()
    low = np.minimum.reduceat(extremes[:, 1], starts).tolist()
    sketches: Any = _sketches(page, slots) if page.kind.startswith("sketched") else repeat(None)
    return [
        Measured(top, bottom, total, squares, _count(nan), _count(inf), sketch)
        for top, bottom, (total, squares, nan, inf), sketch in zip(high, low, sums, sketches, strict=False)
    ]


def _count(number: float) -> int:
    """Slots of a dropped line hold anything: what cannot be a count counts as none."""
    return int(number) if 0 <= number < 1e18 else 0


def _sketches(page: Page, slots: NDArray[np.float64]) -> list[bytes]:
    """The rows of all tensors of a page, as a file has them. A slot is of one block; large blocks have several."""
    used, pieces = page.blocks, page.pieces
    assert used is not None
    assert pieces is not None
    sizes = np.array(page.sizes, np.int64)
    tensor = np.repeat(np.arange(len(sizes)), used)
    block = np.arange(len(tensor)) - np.repeat(np.cumsum(used) - used, used)
    added, largest = slots, slots[:, 13]
    if pieces.max(initial=1) > 1:
        starts = np.array(page.starts, np.int64)[tensor] + block * pieces[tensor]
        with np.errstate(all="ignore"):
            added, largest = np.add.reduceat(slots, starts, axis=0), np.maximum.reduceat(largest, starts)
    state = np.zeros((len(sizes) * BLOCKS, SKETCH_COLUMNS))
    here: Any = slice(None) if len(tensor) == len(state) else tensor * BLOCKS + block
    for column, found in (
        (NANS, 4), (INFS, 5), (0, 6), (1, 7), (2, 8), (3, 9), (TOTAL, 10), (SUM_OF_SQUARES, 11), (L1, 12),
        (ZEROS, 14), (FILLS, 15),
    ):  # fmt: skip
        state[here, column] = added[:, found]
    state[here, LARGEST] = largest
    states = state.reshape(len(sizes), BLOCKS, SKETCH_COLUMNS)
    return [row.tobytes() for row in rows_of(states, sizes, sizes, page.flags)]
