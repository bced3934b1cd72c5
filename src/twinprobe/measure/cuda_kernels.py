"""Triton kernels over many tensors per launch. Imported only where there is a device.

Every launch reads a table with one line per tensor (address, element count, first slot) and has one program per
(chunk, tensor). A program writes the partial result of its chunk to its own slot; there are no atomics, so results do
not depend on the order in which programs run. A statistics slot holds six numbers: max, min, sum, sum of squares, how
many NaN, how many infinite.
"""

# mypy: ignore-errors
# ruff: noqa: N803  Triton compiles these bodies: no annotation but tl.constexpr, upper case for constants.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _fold_floats(value, outside_high, outside_low, high, low, total, squares, nans, infs):
    # maximum and minimum skip NaN, which is counted instead
    nans += (value != value).to(tl.int32)  # noqa: PLR0124
    infs += (tl.abs(value) == float("inf")).to(tl.int32)
    return (
        tl.maximum(high, outside_high),
        tl.minimum(low, outside_low),
        total + value,
        squares + value * value,
        nans,
        infs,
    )


@triton.jit
def float_statistics(
    table, slots, kind, ACC: tl.constexpr, ALIGNED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    """Floating-point tensors; ``kind`` is any tensor of the element type. Sums of a chunk are taken in ACC."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    count = tl.load(table + tensor * 3 + 1)
    if chunk * CHUNK < count:
        data = tl.load(table + tensor * 3).to(tl.pointer_type(kind.dtype.element_ty))
        if ALIGNED:
            data = tl.multiple_of(data, 16)
        slot = tl.load(table + tensor * 3 + 2) + chunk
        lanes = tl.arange(0, BLOCK)
        high = tl.full([BLOCK], float("-inf"), ACC)
        low = tl.full([BLOCK], float("inf"), ACC)
        total = tl.zeros([BLOCK], ACC)
        squares = tl.zeros([BLOCK], ACC)
        nans = tl.zeros([BLOCK], tl.int32)
        infs = tl.zeros([BLOCK], tl.int32)
        first = chunk * CHUNK
        if first + CHUNK <= count:
            for start in range(0, CHUNK, BLOCK):
                value = tl.load(data + (first + start) + lanes).to(ACC)
                high, low, total, squares, nans, infs = _fold_floats(
                    value, value, value, high, low, total, squares, nans, infs
                )
        else:
            for at in range(first, count, BLOCK):
                inside = at + lanes < count
                value = tl.load(data + at + lanes, mask=inside, other=0.0).to(ACC)
                up = tl.where(inside, value, float("-inf"))
                down = tl.where(inside, value, float("inf"))
                high, low, total, squares, nans, infs = _fold_floats(
                    value, up, down, high, low, total, squares, nans, infs
                )
        out = slots + slot * 6
        tl.store(out, tl.max(high, 0).to(tl.float64))
        tl.store(out + 1, tl.min(low, 0).to(tl.float64))
        tl.store(out + 2, tl.sum(total, 0).to(tl.float64))
        tl.store(out + 3, tl.sum(squares, 0).to(tl.float64))
        tl.store(out + 4, tl.sum(nans, 0).to(tl.float64))
        tl.store(out + 5, tl.sum(infs, 0).to(tl.float64))


@triton.jit
def integer_statistics(table, slots, exact, kind, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Integer and bool tensors: max and min stay exact in ``exact``, an int64 view of the same slots."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    count = tl.load(table + tensor * 3 + 1)
    if chunk * CHUNK < count:
        data = tl.load(table + tensor * 3).to(tl.pointer_type(kind.dtype.element_ty))
        slot = tl.load(table + tensor * 3 + 2) + chunk
        lanes = tl.arange(0, BLOCK)
        high = tl.full([BLOCK], -9223372036854775808, tl.int64)
        low = tl.full([BLOCK], 9223372036854775807, tl.int64)
        total = tl.zeros([BLOCK], tl.float64)
        squares = tl.zeros([BLOCK], tl.float64)
        for start in range(0, CHUNK, BLOCK):
            at = chunk * CHUNK + start + lanes
            inside = at < count
            value = tl.load(data + at, mask=inside, other=0).to(tl.int64)
            real = value.to(tl.float64)
            total += real
            squares += real * real
            high = tl.where(inside & (value > high), value, high)
            low = tl.where(inside & (value < low), value, low)
        out = slots + slot * 6
        tl.store(exact + slot * 6, tl.max(high, 0))
        tl.store(exact + slot * 6 + 1, tl.min(low, 0))
        tl.store(out + 2, tl.sum(total, 0))
        tl.store(out + 3, tl.sum(squares, 0))
        tl.store(out + 4, 0.0)
        tl.store(out + 5, 0.0)


@triton.jit
def xor_chunks(table, slots, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """The XOR of all 64-bit words of each chunk."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    count = tl.load(table + tensor * 3 + 1)
    if chunk * CHUNK < count:
        data = tl.load(table + tensor * 3).to(tl.pointer_type(tl.int64))
        slot = tl.load(table + tensor * 3 + 2) + chunk
        lanes = tl.arange(0, BLOCK)
        value = tl.zeros([BLOCK], tl.int64)
        for start in range(0, CHUNK, BLOCK):
            at = chunk * CHUNK + start + lanes
            value ^= tl.load(data + at, mask=at < count, other=0)
        tl.store(slots + slot, tl.xor_sum(value, 0))
