"""Tensors on a device: queued, measured many at a time, and read back once when the step ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from math import inf, isfinite, nan, sqrt
from operator import itemgetter
from typing import Any

import torch

from twinprobe._measure.crc32 import crc_of_zeros
from twinprobe._measure.cuda.measure import MOST_LINES, DeviceMeasure, Lane, Measured, Queue, View, view_of
from twinprobe._measure.sketch import as_pairs
from twinprobe._measure.statistics import Statistics
from twinprobe._record.entries import Row, logger
from twinprobe._record.torch.host import LARGEST_COPY, host_digest, host_measures, host_statistics, packed, repeated

# From what a device found to a row's values. Runs on the writer thread, after the step.

# COMPLEX: magnitudes of complex numbers, for their statistics; PAIRS: real and imaginary parts, for their sketch.
FLOAT, INTEGER, BOOL, COMPLEX, PAIRS = range(5)


def set_values(receivers: list[Any], results: list[Measured]) -> None:
    """Fill rows; a receiver is (row, number of elements, how often each counts, style), or None."""
    for receiver, found in zip(receivers, results, strict=True):
        if receiver is not None:
            row, count, repeats, style = receiver
            if style == PAIRS:
                row.sketch = as_pairs(found.sketch)
                continue
            values = _statistics(found, count, style)
            row.values = values if repeats == 1 else repeated(values, repeats)
            if style != COMPLEX and repeats == 1:
                row.sketch = found.sketch


def _statistics(found: Measured, count: int, style: int) -> Statistics:
    high, low, total, squares, nans, infs, _ = found
    if style == BOOL:
        return Statistics(bool(high), bool(low), total / count, sqrt(squares))
    if nans:
        return Statistics(nan, nan, nan, nan, nans, infs)
    norm = sqrt(squares) if isfinite(squares) else inf
    return Statistics(high, low, total / count, norm, 0, infs)


def set_digest(receivers: list[Any], results: list[int], crc: bool) -> None:
    """Fill checksums; a receiver is (row, number of bytes, the bytes after the last whole word), or None."""
    for receiver, found in zip(receivers, results, strict=True):
        if receiver is None:
            continue
        row, count, rest = receiver
        tail = b"" if rest is None else rest.cpu().numpy().tobytes()
        if crc:
            row.digest = f"{_with_tail(found, tail) ^ crc_of_zeros(count):08x}"
        else:
            row.digest = f"0x{found ^ int.from_bytes(tail, 'little'):016x}"


def _with_tail(register: int, tail: bytes) -> int:
    for byte in tail:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
    return register


# What waits before it is measured. Fewer launches cost less (mix on an H200: 21 instead of 72, 7 ms a step), but what
# waits cannot be freed: so many bytes, or this part of a larger device's memory.
_MOST_TENSORS = MOST_LINES
_MOST_BYTES, _PART = 1 << 29, 64
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_stream_of: Any = itemgetter(4)
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # builds without CUDA have none
_STYLES = {torch.bool: BOOL, **dict.fromkeys(_INTEGERS, INTEGER), **dict.fromkeys(_FLOATS, FLOAT)}


class DeviceRows:
    """Rows of one device that wait for measurement, and those whose results are not on the host yet.

    What waits is held: its memory cannot be given to anyone else. What is about to be written must be launched before.
    While a model runs, a tensor costs one line here; everything else is done for many at once, when they are launched.
    """

    def __init__(self, device: torch.device, *, values: bool, digest: str | None, sketch: bool = False) -> None:
        self._device = device
        self._index: int = device.index or 0
        self._on_cuda = device.type == "cuda"
        memory = torch.cuda.get_device_properties(device).total_memory if self._on_cuda else 0
        self._most_bytes = max(_MOST_BYTES, memory // _PART)
        self._values = values
        self._digest = digest
        self._held: deque[tuple[torch.Tensor, int | None, int, Row, int]] = deque()
        self._bytes = 0
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._small: list[Callable[[], None]] = []
        self._sketch = sketch
        self._measure: DeviceMeasure | None = _device_measure(device, sketch)
        self._lost = 0

    @property
    def waiting(self) -> bool:
        """Whether anything waits for a launch."""
        return bool(self._held)

    def add(self, tensor: torch.Tensor, row: Row, version: int | None, address: int) -> bool:
        """Queue one tensor, whose elements begin at ``address``; ``version`` is None where it has none. Held until
        ``launch``. Returns whether so much waits that it is time for that. Several threads may add at a time."""
        if self._measure is None:
            data = tensor.detach().to("cpu")
            if self._sketch:
                row.values, row.sketch = host_measures(data)
            elif self._values:
                row.values = host_statistics(data)
            if self._digest:
                row.digest = host_digest(data, self._digest)
            return False
        stream = _raw_stream(self._index) if self._on_cuda else 0
        held = self._held
        held.append((tensor, version, address, row, stream))
        self._bytes += tensor.nbytes
        return len(held) >= _MOST_TENSORS or self._bytes >= self._most_bytes

    def launch(self) -> None:
        """Measure everything that waits, on the streams that made it."""
        held = self._held
        self._bytes = 0
        batch = [held.popleft() for _ in range(len(held))]  # who adds meanwhile is not lost
        for stream, lines in groupby(batch, _stream_of):
            if not self._on_cuda or (torch._C._cuda_getDevice() == self._index and _raw_stream(self._index) == stream):
                self._launch_on(stream, lines)
            else:
                known = self._streams.get(stream) or torch.cuda.ExternalStream(stream, device=self._device)
                with torch.cuda.stream(known):  # makes its device the current one, too
                    self._launch_on(stream, lines)
            if self._on_cuda and stream not in self._streams:
                self._streams[stream] = torch.cuda.ExternalStream(stream, device=self._device)

    def _launch_on(self, stream: int, lines: Iterable[tuple[torch.Tensor, int | None, int, Row, int]]) -> None:
        """Queue tensors for the kernels that measure them, and launch these; the stream is the current one."""
        measure = self._measure
        assert measure is not None
        lane = measure.lane(stream)
        queues = lane.queues
        copies: list[torch.Tensor] = []  # alive until their kernel is in the stream
        for tensor, version, address, row, _ in lines:
            if (version is not None and tensor._version != version) or tensor.data_ptr() != address:
                self._lost += 1
                if self._lost == 1:
                    logger.warning(
                        "a tensor changed or was freed before it was measured; it is recorded without values"
                    )
                continue
            if self._values:
                dtype = tensor.dtype
                style = _STYLES.get(dtype)
                if style is not None and tensor.is_contiguous():
                    elements, aligned = tensor.numel(), not address & 15
                    queue = queues.get((dtype, aligned)) or measure.statistics(lane, dtype, aligned)
                    receiver: tuple[Row, int, int, int | None] = (row, elements, 1, style)
                    line = queue.add(address, elements, receiver)
                    if line <= 0:
                        add_line(queue, lane, address, elements, receiver, line)
                else:
                    for dense, repeats, kind, view in self._dense(tensor.detach()):
                        copies.append(dense)
                        dtype, start, elements = dense.dtype, dense.data_ptr(), dense.numel()
                        receiver = (row, elements, repeats, kind)
                        queue = measure.statistics(lane, dtype, not start & 15, 0 if view is None else view.width)
                        add_line(queue, lane, start, elements, receiver, view=view)
            if self._digest:
                self._add_digest(measure, lane, tensor.detach(), row, self._digest, copies)
        lane.launch()

    def _dense(self, tensor: torch.Tensor) -> list[tuple[torch.Tensor, int, int | None, View | None]]:
        """The elements as the kernels take them, how often each counts, the style, and how a kernel reads them where
        they do not lie in order; complex numbers come twice."""
        pieces: list[tuple[torch.Tensor, int, int | None, View | None]] = []
        style = _STYLES.get(tensor.dtype)
        if style is None:
            style = COMPLEX if tensor.is_complex() else FLOAT
            if self._sketch and style == COMPLEX:
                pairs = torch.view_as_real(tensor.resolve_conj())
                pieces.append(self._in_order(pairs, PAIRS))
            tensor = tensor.abs() if style == COMPLEX else tensor.float()
        return [*pieces, self._in_order(tensor, style)]

    def _in_order(self, tensor: torch.Tensor, style: int | None) -> tuple[torch.Tensor, int, int | None, View | None]:
        """A tensor as ``_dense`` gives it. A sketch tells elements apart by their place: it needs them in order."""
        if tensor.is_contiguous():
            return tensor, 1, style, None
        tensor = tensor.resolve_neg()  # memory holds something else
        if self._sketch:
            few = tensor.nbytes <= LARGEST_COPY  # a larger view that repeats its elements gets no sketch
            if few or tensor.nbytes <= tensor.untyped_storage().nbytes():
                aligned_floats = tensor.is_floating_point() and not tensor.data_ptr() & 15
                view = view_of(tuple(tensor.shape), tensor.stride(), tensor.itemsize, aligned_floats)
                if view is not None:
                    return tensor, 1, style, view
            if few or style == PAIRS:
                return tensor.contiguous(), 1, style, None
            style = COMPLEX
        return (*packed(tensor), style, None)

    def _add_digest(
        self, measure: DeviceMeasure, lane: Lane, tensor: torch.Tensor, row: Row, mode: str, copies: list[torch.Tensor]
    ) -> None:
        count = tensor.nbytes
        if not tensor.shape or count < 8:
            copy = tensor.clone()

            def digest() -> None:
                row.digest = host_digest(copy.cpu(), mode)

            self._small.append(digest)
            return
        width = 4 if mode == "md5" else 8
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
            copies.append(tensor)
        rest: torch.Tensor | None = None
        address = tensor.data_ptr()
        if count % width or address % width:
            octets = tensor.reshape(-1).view(torch.uint8)
            rest = octets[count - count % width :].clone() if count % width else None
            if address % width:
                copies.append(octets.clone())
                address = copies[-1].data_ptr()
        add_line(measure.checksums(lane, mode), lane, address, count // width, (row, count, rest))

    def collect(self) -> Callable[[], None]:
        """Start the copy to the host; the returned job waits for it and fills the rows."""
        measure = self._measure
        if measure is None:
            return lambda: None
        self.launch()
        for stream in self._streams.values():
            torch.cuda.current_stream(self._device).wait_stream(stream)
        results, small = measure.collect(), self._small
        self._streams, self._small = {}, []
        crc = self._digest == "md5"

        def fill() -> None:
            for kind, receivers, found in results():
                if kind in ("crc", "xor"):
                    set_digest(receivers, found, crc)
                else:
                    set_values(receivers, found)
            for digest in small:
                digest()

        return fill


def add_line(
    queue: Queue, lane: Lane, address: int, elements: int, receiver: Any, line: int | None = None,
    view: View | None = None,
) -> None:  # fmt: skip
    """Queue one run of elements, after launching what waits where there is no room for it. ``line``: what the queue has
    said to it before."""
    if line is None:
        line = queue.add(address, elements, receiver, view)
    if line < 0:
        lane.launch()
        queue.turn_page(elements, view)
        line = queue.add(address, elements, receiver, view)
    if not line:
        lane.waiting[queue] = None


def _device_measure(device: torch.device, sketch: bool) -> DeviceMeasure | None:
    try:
        return DeviceMeasure(device, sketch=sketch)
    except ImportError:
        logger.warning("Triton is not installed: tensors on %s are copied to the host, which is slow", device)
        return None
