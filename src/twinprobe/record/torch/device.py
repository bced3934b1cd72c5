"""Tensors on a device: queued, measured many at a time, and read back once when the step ends."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite, nan, sqrt
from typing import Any

import torch

from twinprobe.measure.cuda import DeviceMeasure, Flat, Measured
from twinprobe.measure.gf2 import crc_of_zeros
from twinprobe.measure.statistics import Statistics
from twinprobe.record.problems import logger
from twinprobe.record.rows import Row
from twinprobe.record.torch.host import host_digest, host_statistics, packed, repeated

_MOST_TENSORS = 128
_MOST_BYTES = 1 << 28
_DIRECT = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)
Finish = Callable[[Any], None]


class DeviceRows:
    """Rows of one device that wait for measurement, and those whose results are not on the host yet."""

    def __init__(self, device: torch.device, *, values: bool, digest: str | None) -> None:
        self._device = device
        self._values = values
        self._digest = digest
        self._waiting: list[tuple[torch.Tensor, Row, int]] = []
        self._bytes = 0
        self._stream = 0
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._finish: dict[int, Finish] = {}
        self._small: list[Callable[[], None]] = []
        self._measure: DeviceMeasure | None = _device_measure(device)
        self._lost = 0

    def add(self, tensor: torch.Tensor, row: Row) -> None:
        """Queue one detached tensor. It is held until ``launch``, which comes by itself when much waits."""
        if self._measure is None:
            self._on_host(tensor, row)
            return
        stream = self._current_stream()
        if self._waiting and stream != self._stream:
            self.launch()  # what waits was made on another stream
        self._stream = stream
        self._waiting.append((tensor, row, _version(tensor)))
        self._bytes += tensor.numel() * tensor.element_size()
        if len(self._waiting) >= _MOST_TENSORS or self._bytes >= _MOST_BYTES:
            self.launch()

    def launch(self) -> None:
        """Measure everything that waits, on the stream that made it."""
        if not self._waiting:
            return
        if self._device.type == "cuda" and self._stream not in self._streams:
            self._streams[self._stream] = torch.cuda.ExternalStream(self._stream, device=self._device)
        if self._current_stream() == self._stream:
            self._launch_here()
        else:
            with torch.cuda.stream(self._streams[self._stream]):
                self._launch_here()

    def _current_stream(self) -> int:
        on_cuda = self._device.type == "cuda"
        return int(torch._C._cuda_getCurrentRawStream(self._device.index)) if on_cuda else 0

    def _launch_here(self) -> None:
        assert self._measure is not None
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        by_type: dict[torch.dtype, list[tuple[Flat, Finish]]] = {}
        digests: list[tuple[Flat, Finish]] = []
        for tensor, row, version in waiting:
            if _version(tensor) != version or not tensor.data_ptr():
                self._lose()
            else:
                self._sort(tensor, row, by_type, digests)
        for dtype, batch in by_type.items():
            self._queue(self._measure.statistics(dtype, [flat for flat, _ in batch]), batch)
        if digests:
            flats = [flat for flat, _ in digests]
            self._queue(self._measure.crc32(flats) if self._digest == "md5" else self._measure.xor64(flats), digests)

    def _queue(self, jobs: list[int], batch: list[tuple[Flat, Finish]]) -> None:
        for job, (_, finish) in zip(jobs, batch, strict=True):
            self._finish[job] = finish

    def _sort(
        self,
        tensor: torch.Tensor,
        row: Row,
        by_type: dict[torch.dtype, list[tuple[Flat, Finish]]],
        digests: list[tuple[Flat, Finish]],
    ) -> None:
        if self._values:
            dense, repeats = packed(_readable(tensor))
            flat = Flat(dense, dense.data_ptr(), dense.numel())
            integer = not dense.dtype.is_floating_point
            as_bool = tensor.dtype == torch.bool
            by_type.setdefault(dense.dtype, []).append(
                (flat, lambda found: _set_values(row, found, flat.elements, repeats, integer, as_bool))
            )
        if self._digest:
            self._sort_digest(tensor, row, digests)

    def _sort_digest(self, tensor: torch.Tensor, row: Row, digests: list[tuple[Flat, Finish]]) -> None:
        mode = self._digest or ""
        if not tensor.shape or tensor.numel() * tensor.element_size() < 8:
            copy = tensor.clone()
            self._small.append(lambda: _digest_on_host(copy, row, mode))
            return
        width = 4 if mode == "md5" else 8
        words, count, rest = _words(tensor, width)
        flat = Flat(words, words.data_ptr(), words.numel() // width)
        digests.append((flat, lambda found: _set_digest(row, found, count, rest, mode == "md5")))

    def collect(self) -> Callable[[], None]:
        """Start the copy to the host; the returned job waits for it and fills the rows."""
        if self._measure is None:
            return _nothing
        self.launch()
        for stream in self._streams.values():
            torch.cuda.current_stream(self._device).wait_stream(stream)
        results, finish, small = self._measure.collect(), self._finish, self._small
        self._finish, self._streams, self._small = {}, {}, []

        def fill() -> None:
            for job, found in results().items():
                finish[job](found)
            for digest in small:
                digest()

        return fill

    def _on_host(self, tensor: torch.Tensor, row: Row) -> None:
        data = tensor.to("cpu")
        if self._values:
            row.values = host_statistics(data)
        if self._digest:
            row.digest = host_digest(data, self._digest)

    def _lose(self) -> None:
        self._lost += 1
        if self._lost == 1:
            logger.warning("a tensor was changed or freed behind the recorder's back; it is recorded without values")


def _device_measure(device: torch.device) -> DeviceMeasure | None:
    try:
        return DeviceMeasure(device)
    except ImportError:
        logger.warning("Triton is not installed: tensors on %s are copied to the host, which is slow", device)
        return None


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in _DIRECT:
        return tensor
    return tensor.abs() if tensor.is_complex() else tensor.float()


def _words(tensor: torch.Tensor, width: int) -> tuple[torch.Tensor, int, torch.Tensor | None]:
    """The tensor's bytes as whole aligned words, its number of bytes, and the bytes that are left over."""
    octets = tensor.contiguous().reshape(-1).view(torch.uint8)
    count = octets.numel()
    whole = count - count % width
    rest = None
    if whole != count:
        rest = octets[whole:].clone()
    if octets.data_ptr() % width:
        octets = octets.clone()
    return octets[:whole], count, rest


def _set_values(row: Row, found: Measured, count: int, repeats: int, integer: bool, as_bool: bool) -> None:
    if as_bool:
        row.values = repeated(
            Statistics(bool(found.max), bool(found.min), found.total / count, sqrt(found.squares)), repeats
        )
    elif found.nan:
        row.values = repeated(Statistics(nan, nan, nan, nan, found.nan, found.inf), repeats)
    else:
        norm = sqrt(found.squares) if isfinite(found.squares) else inf
        top, low = (int(found.max), int(found.min)) if integer else (found.max, found.min)
        row.values = repeated(Statistics(top, low, found.total / count, norm, 0, found.inf), repeats)


def _set_digest(row: Row, found: int, count: int, rest: Any, crc: bool) -> None:
    tail = b"" if rest is None else rest.cpu().numpy().tobytes()
    if not crc:
        row.digest = f"0x{found ^ int.from_bytes(tail, 'little'):016x}"
        return
    register = found
    for byte in tail:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0xEDB88320 if register & 1 else 0)
    row.digest = f"{register ^ crc_of_zeros(count):08x}"


def _digest_on_host(tensor: torch.Tensor, row: Row, mode: str) -> None:
    row.digest = host_digest(tensor.cpu(), mode)


def _nothing() -> None:
    return None
