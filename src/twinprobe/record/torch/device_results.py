"""From what a device found to a row's values. Runs on the writer thread, after the step."""

from __future__ import annotations

from math import inf, isfinite, nan, sqrt
from typing import Any

from twinprobe.measure.cuda_results import Measured
from twinprobe.measure.gf2 import crc_of_zeros
from twinprobe.measure.statistics import Statistics
from twinprobe.record.torch.host import repeated

FLOAT, INTEGER, BOOL = 0, 1, 2


def set_values(receivers: list[Any], results: list[Measured]) -> None:
    """Fill rows; a receiver is (row, number of elements, how often each counts, style), or None."""
    for receiver, found in zip(receivers, results, strict=True):
        if receiver is not None:
            row, count, repeats, style = receiver
            values = _statistics(found, count, style)
            row.values = values if repeats == 1 else repeated(values, repeats)


def _statistics(found: Measured, count: int, style: int) -> Statistics:
    high, low, total, squares, nans, infs = found
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
