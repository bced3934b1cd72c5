"""Triton kernels of statistics over many tensors per launch. Imported only where there is a device.

Every launch reads a table with one line per tensor (address, element count, first slot, block length of a sketch) and
has one program per (chunk, tensor). A program writes the partial result of its chunk to its own slot; there are no
atomics, so results do not depend on the order in which programs run. A slot holds six numbers: max, min, sum, sum of
squares, how many NaN, how many infinite.
"""

# mypy: ignore-errors
# ruff: noqa: N803  Triton compiles these bodies: no annotation but tl.constexpr, upper case for constants.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _fold_floats(value, high_value, low_value, high, low, total, squares):
    # maximum and minimum skip NaN; it shows in the sums
    return tl.maximum(high, high_value), tl.minimum(low, low_value), total + value, squares + value * value


@triton.jit
def float_statistics(
    table, slots, kind, ACC: tl.constexpr, ALIGNED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    """Floating-point tensors; ``kind`` is any tensor of the element type. Sums of a chunk are taken in ACC.

    NaN and inf are counted in a second reading of the chunk, and only where the sum of squares is not finite.
    """
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    count = tl.load(table + tensor * 4 + 1)
    if chunk * CHUNK < count:
        data = tl.load(table + tensor * 4).to(tl.pointer_type(kind.dtype.element_ty))
        if ALIGNED:
            data = tl.multiple_of(data, 16)
        slot = tl.load(table + tensor * 4 + 2) + chunk
        lanes = tl.arange(0, BLOCK)
        high = tl.full([BLOCK], float("-inf"), ACC)
        low = tl.full([BLOCK], float("inf"), ACC)
        total = tl.zeros([BLOCK], ACC)
        squares = tl.zeros([BLOCK], ACC)
        first = chunk * CHUNK
        if first + CHUNK <= count:
            for start in range(0, CHUNK, 4 * BLOCK):  # four loads under way at a time
                at = data + (first + start) + lanes
                one = tl.load(at)
                two = tl.load(at + BLOCK)
                three = tl.load(at + 2 * BLOCK)
                four = tl.load(at + 3 * BLOCK)
                value = one.to(ACC)
                high, low, total, squares = _fold_floats(value, value, value, high, low, total, squares)
                value = two.to(ACC)
                high, low, total, squares = _fold_floats(value, value, value, high, low, total, squares)
                value = three.to(ACC)
                high, low, total, squares = _fold_floats(value, value, value, high, low, total, squares)
                value = four.to(ACC)
                high, low, total, squares = _fold_floats(value, value, value, high, low, total, squares)
        else:
            for at in range(first, count, BLOCK):
                inside = at + lanes < count
                value = tl.load(data + at + lanes, mask=inside, other=0.0).to(ACC)
                up = tl.where(inside, value, float("-inf"))
                down = tl.where(inside, value, float("inf"))
                high, low, total, squares = _fold_floats(value, up, down, high, low, total, squares)
        square = tl.sum(squares, 0)
        nans = tl.zeros([BLOCK], tl.int32)
        infs = tl.zeros([BLOCK], tl.int32)
        if (square != square) | (square == float("inf")):  # noqa: PLR0124
            for at in range(first, tl.minimum(first + CHUNK, count), BLOCK):
                value = tl.load(data + at + lanes, mask=at + lanes < count, other=0.0).to(ACC)
                nans += (value != value).to(tl.int32)  # noqa: PLR0124
                infs += (tl.abs(value) == float("inf")).to(tl.int32)
        out = slots + slot * 6
        tl.store(out, tl.max(high, 0).to(tl.float64))
        tl.store(out + 1, tl.min(low, 0).to(tl.float64))
        tl.store(out + 2, tl.sum(total, 0).to(tl.float64))
        tl.store(out + 3, square.to(tl.float64))
        tl.store(out + 4, tl.sum(nans, 0).to(tl.float64))
        tl.store(out + 5, tl.sum(infs, 0).to(tl.float64))


@triton.jit
def integer_statistics(table, slots, kind, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Integer and bool tensors: max and min stay exact, as int64 in the bits of their slots."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    count = tl.load(table + tensor * 4 + 1)
    if chunk * CHUNK < count:
        data = tl.load(table + tensor * 4).to(tl.pointer_type(kind.dtype.element_ty))
        slot = tl.load(table + tensor * 4 + 2) + chunk
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
        exact = out.to(tl.pointer_type(tl.int64))
        tl.store(exact, tl.max(high, 0))
        tl.store(exact + 1, tl.min(low, 0))
        tl.store(out + 2, tl.sum(total, 0))
        tl.store(out + 3, tl.sum(squares, 0))
        tl.store(out + 4, 0.0)
        tl.store(out + 5, 0.0)
