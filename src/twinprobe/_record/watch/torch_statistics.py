"""Statistics of PyTorch's tensors for a watch: a few numbers of each, computed where it is."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from twinprobe._measure.cuda.measure import DeviceMeasure
from twinprobe._measure.elements import address_of
from twinprobe._measure.engine import KERNEL_BYTES, STRIP, engine_for
from twinprobe._measure.loops.sums import BLOCK, MAX, MIN, SQUARES, SUM, TENSOR_COLUMNS
from twinprobe._record.torch.device import add_line
from twinprobe._record.watch import MOST_ELEMENTS, ODD, Read, mixed_digests

FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_NORM_HAS_DTYPE = "dtype" in str(torch.ops.aten._foreach_norm.Scalar._schema)  # since 2.3
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FINE = {"mps": torch.float32}  # which has no float64
_ROW = TENSOR_COLUMNS * 8  # bytes
_LOW = 1 << 40


class HostPass:
    """Measures tensors in host memory, at once: a compiled loop reads each of them once for all statistics.

    PyTorch's own operations take several times as long, most of it before they come to the elements. They do what the
    loop does not: views, odd dtypes, environments without numba, and large tensors where PyTorch has several threads.
    """

    def __init__(self) -> None:
        self._loops: dict[torch.dtype, Any] = {}
        self._rows = np.empty((256, TENSOR_COLUMNS))
        self._address = address_of(self._rows)
        self._used = 0
        self._measured: list[tuple[Sequence[int], int]] = []
        self._layout: _Layout | None = None
        self._others: list[tuple[int, float]] = []

    def measure(self, tensors: list[tuple[Sequence[int], torch.Tensor]]) -> None:
        """Beside each tensor stand its series: norm, max and, for the output of a module, mean."""
        most = STRIP if torch.get_num_threads() > 1 else sys.maxsize
        for series, tensor in tensors:
            size, address, dtype = tensor.numel(), tensor.data_ptr(), tensor.dtype
            loop = self._loops[dtype] if dtype in self._loops else self._loop(dtype)
            # Memory that was freed, as sharded parameters are between their uses, is no memory of its own: its
            # address is no more than an offset.
            if (
                loop is None
                or size > most
                or address & 7
                or not tensor.is_contiguous()
                or (address < _LOW and not tensor.untyped_storage().nbytes())
            ):
                self._measure_otherwise(series, tensor)
                continue
            used = self._used + -(-size // BLOCK)
            if used > len(self._rows):
                self._rows = np.concatenate((self._rows, np.empty((used, TENSOR_COLUMNS))))
                self._address = address_of(self._rows)
            loop(address, size, self._address + self._used * _ROW)
            self._used = used
            self._measured.append((series, size))

    def _loop(self, dtype: torch.dtype) -> Any:
        find = getattr(engine_for(KERNEL_BYTES), "tensor_loop", None)
        self._loops[dtype] = find(str(dtype).removeprefix("torch.")) if find is not None and dtype in FLOATS else None
        return self._loops[dtype]

    def _measure_otherwise(self, series: Sequence[int], tensor: torch.Tensor) -> None:
        if not tensor.untyped_storage().nbytes():
            return
        fine = torch.float64 if len(series) == 3 or tensor.dtype == torch.float64 else torch.float32
        low, high = torch.aminmax(tensor)  # the norm of infinite order takes twenty times as long
        statistics = [float(torch.linalg.vector_norm(tensor, dtype=fine)), max(float(high), -float(low))]
        if len(series) == 3:
            statistics.append(float(tensor.mean(dtype=torch.float32)))
        self._others += zip(series, statistics, strict=True)

    def collect(self) -> tuple[list[int], NDArray[np.float64]]:
        """All series and their values since the last time."""
        rows, others, layout = self._rows[: self._used], self._others, self._layout
        if layout is None or layout.measured != self._measured:
            layout = self._layout = _Layout(self._measured)
        self._measured, self._used, self._others = [], 0, []
        values = [np.array([value for _, value in others])]
        if layout.measured:
            squares = np.add.reduceat(rows[:, SQUARES], layout.starts)
            largest = np.maximum.reduceat(np.maximum(rows[:, MAX], -rows[:, MIN]), layout.starts)
            largest[np.isnan(squares)] = np.nan  # the loop orders patterns of bits, and NaN is one of them
            totals = np.add.reduceat(rows[:, SUM], layout.starts)[layout.means]
            values[:0] = [np.sqrt(squares), largest, totals / layout.sizes]
        return [*layout.places, *(place for place, _ in others)], np.concatenate(values)


class _Layout:
    """Where the results of tensors are in the rows; most steps have the same layout, so it is computed once."""

    def __init__(self, measured: list[tuple[Sequence[int], int]]) -> None:
        self.measured = measured
        sizes = np.array([size for _, size in measured], dtype=np.int64)
        self.starts = np.cumsum([0, *(-(-sizes // BLOCK))[:-1]], dtype=np.int64)
        self.means = np.array([index for index, (series, _) in enumerate(measured) if len(series) == 3], dtype=np.int64)
        self.sizes = sizes[self.means]
        self.places = [series[kind] for kind in range(3) for series, _ in measured if kind < len(series)]


class DevicePass:
    """Measures tensors of one device with the recorder's kernels, which read each of them once for all statistics."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._measure = DeviceMeasure(device)
        self._streams: dict[int, Any] = {}

    def measure(self, tensors: list[tuple[Sequence[int], torch.Tensor]]) -> None:
        """Measure now, on the current stream; each tensor comes with its series: norm, max and perhaps mean."""
        stream = 0
        with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
            if self._device.type == "cuda":
                current = torch.cuda.current_stream(self._device)
                stream = current.cuda_stream
                self._streams[stream] = current
            lane = self._measure.lane(stream)
            for series, tensor in tensors:
                address, elements = tensor.data_ptr(), tensor.numel()
                queue = self._measure.statistics(lane, tensor.dtype, not address & 15)
                add_line(queue, lane, address, elements, (series, elements))
            lane.launch()

    def collect(self) -> Read:
        """Start the copy to the host."""
        for stream in self._streams.values():
            torch.cuda.current_stream(self._device).wait_stream(stream)
        self._streams.clear()
        results = self._measure.collect()

        def read() -> tuple[list[int], NDArray[np.float64]]:
            places: list[int] = []
            values: list[float] = []
            for _, receivers, measured in results():
                for (series, count), statistics in zip(receivers, measured, strict=True):
                    # The largest value is taken without regard to NaN; the sums show it.
                    largest = math.nan if statistics.nan else max(abs(statistics.max), abs(statistics.min))
                    places += series
                    values += (math.sqrt(statistics.squares), largest, statistics.total / count)[: len(series)]
            return places, np.array(values, dtype=np.float64)

        return read


def norms_and_largest(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm and the largest magnitude of each tensor, a few kernels for all; they are of one device and dtype."""
    dtype = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    if tensors[0].dtype == dtype:
        norms = [torch._foreach_norm(tensors, order) for order in (2.0, math.inf)]
    elif _NORM_HAS_DTYPE:
        norms = [torch._foreach_norm(tensors, order, dtype=dtype) for order in (2.0, math.inf)]
    else:
        norms = [
            [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors] for order in (2.0, math.inf)
        ]
    return torch.stack(norms[0]), torch.stack(norms[1])


def output_statistics(values: torch.Tensor) -> list[torch.Tensor]:
    """The norm, the largest magnitude and the mean, where neither of the passes above can work."""
    return [
        torch.linalg.vector_norm(values, dtype=_FINE.get(values.device.type, torch.float64)),
        torch.linalg.vector_norm(values, math.inf, dtype=torch.float32),
        values.mean(dtype=torch.float32),
    ]


class Digests:
    """Digests of inputs, computed where these are; on the host NumPy takes a tenth of the time."""

    def __init__(self) -> None:
        self._weights: dict[torch.device, Any] = {}

    def of(self, tensor: torch.Tensor) -> Any:
        """A pair of numbers, in a tensor where the input is on a device; None for what has no elements to look at."""
        if (
            not tensor.numel()
            or tensor.layout is not torch.strided
            or tensor.is_meta
            or tensor.element_size() not in _BITS
        ):
            return None
        samples = tensor.shape[0] if tensor.dim() else 1
        values = tensor.reshape(samples, -1)
        if values.shape[1] * samples > MOST_ELEMENTS:
            values = values[:, :: 1 + values.shape[1] * samples // MOST_ELEMENTS]
        bits: Any = values.contiguous().view(_BITS[values.element_size()])
        bits = bits.numpy().astype(np.int64) if tensor.is_cpu else bits.to(torch.int64)
        weights = self._weights.get(tensor.device)
        if weights is None or len(weights) < max(bits.shape):
            ends = 1, 2 * max(bits.shape) + 1
            weights = np.arange(*ends) if tensor.is_cpu else torch.arange(*ends, device=tensor.device)
            weights = self._weights[tensor.device] = weights * ODD | 1
        digests = mixed_digests(bits, weights)
        return tuple(map(int, digests)) if tensor.is_cpu else torch.stack(digests)
