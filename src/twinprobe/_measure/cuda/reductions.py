"""Triton kernels of statistics and checksums over many tensors per launch. Imported only where there is a device.

Every launch reads a table with one line per tensor (address, element count, first slot, block length of a sketch) and
has one program per (chunk, tensor). A program writes the partial result of its chunk to its own slot; there are no
atomics, so results do not depend on the order in which programs run. A slot holds six numbers: max, min, sum, sum of
squares, how many NaN, how many infinite.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0915  Triton compiles these bodies: no annotation but tl.constexpr, upper case for constants.
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


# Triton kernels of checksums over many tensors per launch. Imported only where there is a device.


@triton.jit
def xor_chunks(table, slots, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """The XOR of all 64-bit words of each chunk."""
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    count = tl.load(table + tensor * 4 + 1)
    if chunk * CHUNK < count:
        data = tl.load(table + tensor * 4).to(tl.pointer_type(tl.int64))
        slot = tl.load(table + tensor * 4 + 2) + chunk
        lanes = tl.arange(0, BLOCK)
        value = tl.zeros([BLOCK], tl.int64)
        for start in range(0, CHUNK, BLOCK):
            at = chunk * CHUNK + start + lanes
            value ^= tl.load(data + at, mask=at < count, other=0)
        tl.store(slots + slot, tl.xor_sum(value, 0))


# CRC-32, exactly zlib's, at the speed of memory.


@triton.jit
def _times(value, table):
    product = tl.load(table + (value & 255))
    product ^= tl.load(table + 256 + ((value >> 8) & 255))
    product ^= tl.load(table + 512 + ((value >> 16) & 255))
    product ^= tl.load(table + 768 + ((value >> 24) & 255))
    return product


@triton.jit
def _mul(a, b):
    product = a & 0
    for bit in range(32):
        product ^= tl.where(((b >> (31 - bit)) & 1) != 0, a, a & 0)
        a = (a >> 1) ^ tl.where((a & 1) != 0, a * 0 + 0xEDB88320, a & 0)
    return product


@triton.jit
def _word(data, at, row: tl.constexpr):
    index = at + row * 128
    return tl.load(data + index, mask=index >= 0, other=0)


@triton.jit
def crc_chunks(table, slots, by_stride, lane_factors):
    """The zero-started CRC-32 register of each chunk of 128 x 256 words, chunks counted from the tensor's end.

    Lane j takes the words j, j + 128, ... of its chunk. With z = x^(32 * 128) its share is a polynomial in z, and z
    is a root of the checksum's own polynomial (squaring permutes the roots), so dividing by it costs XORs of whole
    words only: q[n] = w[n] ^ q[n-6] ^ q[n-9] ^ ... with the polynomial's taps. What is left, 32 words per lane, is
    multiplied out with table look-ups (``by_stride``: times z) and moved to its place (``lane_factors``).
    """
    chunk = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    by_stride = by_stride.to(tl.pointer_type(tl.uint32))
    lane_factors = lane_factors.to(tl.pointer_type(tl.uint32))
    words = tl.load(table + tensor * 4 + 1)
    if chunk * 32768 < words:
        data = tl.load(table + tensor * 4).to(tl.pointer_type(tl.uint32))
        slot = tl.load(table + tensor * 4 + 2) + chunk
        lanes = tl.arange(0, 128)
        at = words - (chunk + 1) * 32768 + lanes
        q0 = tl.zeros([128], tl.uint32)
        q1, q2, q3, q4, q5, q6, q7, q8 = q0, q0, q0, q0, q0, q0, q0, q0
        q9, q10, q11, q12, q13, q14, q15, q16 = q0, q0, q0, q0, q0, q0, q0, q0
        q17, q18, q19, q20, q21, q22, q23, q24 = q0, q0, q0, q0, q0, q0, q0, q0
        q25, q26, q27, q28, q29, q30, q31 = q0, q0, q0, q0, q0, q0, q0
        for _ in range(8):
            q0 = _word(data, at, 0) ^ q26 ^ q23 ^ q22 ^ q16 ^ q12 ^ q11 ^ q10 ^ q8 ^ q7 ^ q5 ^ q4 ^ q2 ^ q1 ^ q0
            q1 = _word(data, at, 1) ^ q27 ^ q24 ^ q23 ^ q17 ^ q13 ^ q12 ^ q11 ^ q9 ^ q8 ^ q6 ^ q5 ^ q3 ^ q2 ^ q1
            q2 = _word(data, at, 2) ^ q28 ^ q25 ^ q24 ^ q18 ^ q14 ^ q13 ^ q12 ^ q10 ^ q9 ^ q7 ^ q6 ^ q4 ^ q3 ^ q2
            q3 = _word(data, at, 3) ^ q29 ^ q26 ^ q25 ^ q19 ^ q15 ^ q14 ^ q13 ^ q11 ^ q10 ^ q8 ^ q7 ^ q5 ^ q4 ^ q3
            q4 = _word(data, at, 4) ^ q30 ^ q27 ^ q26 ^ q20 ^ q16 ^ q15 ^ q14 ^ q12 ^ q11 ^ q9 ^ q8 ^ q6 ^ q5 ^ q4
            q5 = _word(data, at, 5) ^ q31 ^ q28 ^ q27 ^ q21 ^ q17 ^ q16 ^ q15 ^ q13 ^ q12 ^ q10 ^ q9 ^ q7 ^ q6 ^ q5
            q6 = _word(data, at, 6) ^ q0 ^ q29 ^ q28 ^ q22 ^ q18 ^ q17 ^ q16 ^ q14 ^ q13 ^ q11 ^ q10 ^ q8 ^ q7 ^ q6
            q7 = _word(data, at, 7) ^ q1 ^ q30 ^ q29 ^ q23 ^ q19 ^ q18 ^ q17 ^ q15 ^ q14 ^ q12 ^ q11 ^ q9 ^ q8 ^ q7
            q8 = _word(data, at, 8) ^ q2 ^ q31 ^ q30 ^ q24 ^ q20 ^ q19 ^ q18 ^ q16 ^ q15 ^ q13 ^ q12 ^ q10 ^ q9 ^ q8
            q9 = _word(data, at, 9) ^ q3 ^ q0 ^ q31 ^ q25 ^ q21 ^ q20 ^ q19 ^ q17 ^ q16 ^ q14 ^ q13 ^ q11 ^ q10 ^ q9
            q10 = _word(data, at, 10) ^ q4 ^ q1 ^ q0 ^ q26 ^ q22 ^ q21 ^ q20 ^ q18 ^ q17 ^ q15 ^ q14 ^ q12 ^ q11 ^ q10
            q11 = _word(data, at, 11) ^ q5 ^ q2 ^ q1 ^ q27 ^ q23 ^ q22 ^ q21 ^ q19 ^ q18 ^ q16 ^ q15 ^ q13 ^ q12 ^ q11
            q12 = _word(data, at, 12) ^ q6 ^ q3 ^ q2 ^ q28 ^ q24 ^ q23 ^ q22 ^ q20 ^ q19 ^ q17 ^ q16 ^ q14 ^ q13 ^ q12
            q13 = _word(data, at, 13) ^ q7 ^ q4 ^ q3 ^ q29 ^ q25 ^ q24 ^ q23 ^ q21 ^ q20 ^ q18 ^ q17 ^ q15 ^ q14 ^ q13
            q14 = _word(data, at, 14) ^ q8 ^ q5 ^ q4 ^ q30 ^ q26 ^ q25 ^ q24 ^ q22 ^ q21 ^ q19 ^ q18 ^ q16 ^ q15 ^ q14
            q15 = _word(data, at, 15) ^ q9 ^ q6 ^ q5 ^ q31 ^ q27 ^ q26 ^ q25 ^ q23 ^ q22 ^ q20 ^ q19 ^ q17 ^ q16 ^ q15
            q16 = _word(data, at, 16) ^ q10 ^ q7 ^ q6 ^ q0 ^ q28 ^ q27 ^ q26 ^ q24 ^ q23 ^ q21 ^ q20 ^ q18 ^ q17 ^ q16
            q17 = _word(data, at, 17) ^ q11 ^ q8 ^ q7 ^ q1 ^ q29 ^ q28 ^ q27 ^ q25 ^ q24 ^ q22 ^ q21 ^ q19 ^ q18 ^ q17
            q18 = _word(data, at, 18) ^ q12 ^ q9 ^ q8 ^ q2 ^ q30 ^ q29 ^ q28 ^ q26 ^ q25 ^ q23 ^ q22 ^ q20 ^ q19 ^ q18
            q19 = _word(data, at, 19) ^ q13 ^ q10 ^ q9 ^ q3 ^ q31 ^ q30 ^ q29 ^ q27 ^ q26 ^ q24 ^ q23 ^ q21 ^ q20 ^ q19
            q20 = _word(data, at, 20) ^ q14 ^ q11 ^ q10 ^ q4 ^ q0 ^ q31 ^ q30 ^ q28 ^ q27 ^ q25 ^ q24 ^ q22 ^ q21 ^ q20
            q21 = _word(data, at, 21) ^ q15 ^ q12 ^ q11 ^ q5 ^ q1 ^ q0 ^ q31 ^ q29 ^ q28 ^ q26 ^ q25 ^ q23 ^ q22 ^ q21
            q22 = _word(data, at, 22) ^ q16 ^ q13 ^ q12 ^ q6 ^ q2 ^ q1 ^ q0 ^ q30 ^ q29 ^ q27 ^ q26 ^ q24 ^ q23 ^ q22
            q23 = _word(data, at, 23) ^ q17 ^ q14 ^ q13 ^ q7 ^ q3 ^ q2 ^ q1 ^ q31 ^ q30 ^ q28 ^ q27 ^ q25 ^ q24 ^ q23
            q24 = _word(data, at, 24) ^ q18 ^ q15 ^ q14 ^ q8 ^ q4 ^ q3 ^ q2 ^ q0 ^ q31 ^ q29 ^ q28 ^ q26 ^ q25 ^ q24
            q25 = _word(data, at, 25) ^ q19 ^ q16 ^ q15 ^ q9 ^ q5 ^ q4 ^ q3 ^ q1 ^ q0 ^ q30 ^ q29 ^ q27 ^ q26 ^ q25
            q26 = _word(data, at, 26) ^ q20 ^ q17 ^ q16 ^ q10 ^ q6 ^ q5 ^ q4 ^ q2 ^ q1 ^ q31 ^ q30 ^ q28 ^ q27 ^ q26
            q27 = _word(data, at, 27) ^ q21 ^ q18 ^ q17 ^ q11 ^ q7 ^ q6 ^ q5 ^ q3 ^ q2 ^ q0 ^ q31 ^ q29 ^ q28 ^ q27
            q28 = _word(data, at, 28) ^ q22 ^ q19 ^ q18 ^ q12 ^ q8 ^ q7 ^ q6 ^ q4 ^ q3 ^ q1 ^ q0 ^ q30 ^ q29 ^ q28
            q29 = _word(data, at, 29) ^ q23 ^ q20 ^ q19 ^ q13 ^ q9 ^ q8 ^ q7 ^ q5 ^ q4 ^ q2 ^ q1 ^ q31 ^ q30 ^ q29
            q30 = _word(data, at, 30) ^ q24 ^ q21 ^ q20 ^ q14 ^ q10 ^ q9 ^ q8 ^ q6 ^ q5 ^ q3 ^ q2 ^ q0 ^ q31 ^ q30
            q31 = _word(data, at, 31) ^ q25 ^ q22 ^ q21 ^ q15 ^ q11 ^ q10 ^ q9 ^ q7 ^ q6 ^ q4 ^ q3 ^ q1 ^ q0 ^ q31
            at += 4096
        value = q26 ^ q23 ^ q22 ^ q16 ^ q12 ^ q11 ^ q10 ^ q8 ^ q7 ^ q5 ^ q4 ^ q2 ^ q1 ^ q0
        value = _times(value, by_stride) ^ q27 ^ q24 ^ q23 ^ q17 ^ q13 ^ q12 ^ q11 ^ q9 ^ q8 ^ q6 ^ q5 ^ q3 ^ q2 ^ q1
        value = _times(value, by_stride) ^ q28 ^ q25 ^ q24 ^ q18 ^ q14 ^ q13 ^ q12 ^ q10 ^ q9 ^ q7 ^ q6 ^ q4 ^ q3 ^ q2
        value = _times(value, by_stride) ^ q29 ^ q26 ^ q25 ^ q19 ^ q15 ^ q14 ^ q13 ^ q11 ^ q10 ^ q8 ^ q7 ^ q5 ^ q4 ^ q3
        value = _times(value, by_stride) ^ q30 ^ q27 ^ q26 ^ q20 ^ q16 ^ q15 ^ q14 ^ q12 ^ q11 ^ q9 ^ q8 ^ q6 ^ q5 ^ q4
        value = _times(value, by_stride) ^ q31 ^ q28 ^ q27 ^ q21 ^ q17 ^ q16 ^ q15 ^ q13 ^ q12 ^ q10 ^ q9 ^ q7 ^ q6 ^ q5
        value = _times(value, by_stride) ^ q29 ^ q28 ^ q22 ^ q18 ^ q17 ^ q16 ^ q14 ^ q13 ^ q11 ^ q10 ^ q8 ^ q7 ^ q6
        value = _times(value, by_stride) ^ q30 ^ q29 ^ q23 ^ q19 ^ q18 ^ q17 ^ q15 ^ q14 ^ q12 ^ q11 ^ q9 ^ q8 ^ q7
        value = _times(value, by_stride) ^ q31 ^ q30 ^ q24 ^ q20 ^ q19 ^ q18 ^ q16 ^ q15 ^ q13 ^ q12 ^ q10 ^ q9 ^ q8
        value = _times(value, by_stride) ^ q31 ^ q25 ^ q21 ^ q20 ^ q19 ^ q17 ^ q16 ^ q14 ^ q13 ^ q11 ^ q10 ^ q9
        value = _times(value, by_stride) ^ q26 ^ q22 ^ q21 ^ q20 ^ q18 ^ q17 ^ q15 ^ q14 ^ q12 ^ q11 ^ q10
        value = _times(value, by_stride) ^ q27 ^ q23 ^ q22 ^ q21 ^ q19 ^ q18 ^ q16 ^ q15 ^ q13 ^ q12 ^ q11
        value = _times(value, by_stride) ^ q28 ^ q24 ^ q23 ^ q22 ^ q20 ^ q19 ^ q17 ^ q16 ^ q14 ^ q13 ^ q12
        value = _times(value, by_stride) ^ q29 ^ q25 ^ q24 ^ q23 ^ q21 ^ q20 ^ q18 ^ q17 ^ q15 ^ q14 ^ q13
        value = _times(value, by_stride) ^ q30 ^ q26 ^ q25 ^ q24 ^ q22 ^ q21 ^ q19 ^ q18 ^ q16 ^ q15 ^ q14
        value = _times(value, by_stride) ^ q31 ^ q27 ^ q26 ^ q25 ^ q23 ^ q22 ^ q20 ^ q19 ^ q17 ^ q16 ^ q15
        value = _times(value, by_stride) ^ q28 ^ q27 ^ q26 ^ q24 ^ q23 ^ q21 ^ q20 ^ q18 ^ q17 ^ q16
        value = _times(value, by_stride) ^ q29 ^ q28 ^ q27 ^ q25 ^ q24 ^ q22 ^ q21 ^ q19 ^ q18 ^ q17
        value = _times(value, by_stride) ^ q30 ^ q29 ^ q28 ^ q26 ^ q25 ^ q23 ^ q22 ^ q20 ^ q19 ^ q18
        value = _times(value, by_stride) ^ q31 ^ q30 ^ q29 ^ q27 ^ q26 ^ q24 ^ q23 ^ q21 ^ q20 ^ q19
        value = _times(value, by_stride) ^ q31 ^ q30 ^ q28 ^ q27 ^ q25 ^ q24 ^ q22 ^ q21 ^ q20
        value = _times(value, by_stride) ^ q31 ^ q29 ^ q28 ^ q26 ^ q25 ^ q23 ^ q22 ^ q21
        value = _times(value, by_stride) ^ q30 ^ q29 ^ q27 ^ q26 ^ q24 ^ q23 ^ q22
        value = _times(value, by_stride) ^ q31 ^ q30 ^ q28 ^ q27 ^ q25 ^ q24 ^ q23
        value = _times(value, by_stride) ^ q31 ^ q29 ^ q28 ^ q26 ^ q25 ^ q24
        value = _times(value, by_stride) ^ q30 ^ q29 ^ q27 ^ q26 ^ q25
        value = _times(value, by_stride) ^ q31 ^ q30 ^ q28 ^ q27 ^ q26
        value = _times(value, by_stride) ^ q31 ^ q29 ^ q28 ^ q27
        value = _times(value, by_stride) ^ q30 ^ q29 ^ q28
        value = _times(value, by_stride) ^ q31 ^ q30 ^ q29
        value = _times(value, by_stride) ^ q31 ^ q30
        value = _times(value, by_stride) ^ q31
        value = _mul(value, tl.load(lane_factors + lanes))
        tl.store(slots.to(tl.pointer_type(tl.uint32)) + slot, tl.xor_sum(value, 0))
