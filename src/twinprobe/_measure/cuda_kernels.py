"""Triton kernels over many tensors per launch. Imported only where there is a device.

Every launch reads a table with one line per tensor (address, element count, first slot, block length of a sketch) and
has one program per (chunk, tensor). A program writes the partial result of its chunk to its own slot; there are no
atomics, so results do not depend on the order in which programs run. A statistics slot holds six numbers: max, min,
sum, sum of squares, how many NaN, how many infinite. A slot of a sketch holds ten more, and its chunk is of one block:
four signed sums, then sum, sum of squares, L1 and largest magnitude of the ordinary elements, how many zeros and fill
values.
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


@triton.jit
def _mixed(word):
    """The hash of docs/formats.md."""
    word = word.to(tl.uint32) + 0x9E3779B9
    word = (word ^ (word >> 16)) * 0x85EBCA6B
    word = (word ^ (word >> 13)) * 0xC2B2AE35
    return word ^ (word >> 16)


@triton.jit
def _folded(value):
    """64 bits as 32; small numbers stay what they are."""
    value = value.to(tl.int64)
    low = (value & 0xFFFFFFFF).to(tl.uint32)
    high = ((value >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return low ^ (high * 0x85EBCA6B)


@triton.jit
def _signed(value, bits, SHIFT: tl.constexpr):
    """The value, negated where the bit is set that SHIFT moves to the top."""
    top = (bits << SHIFT) & 0x80000000
    if value.dtype == tl.float64:
        return (value.to(tl.uint64, bitcast=True) ^ (top.to(tl.uint64) << 32)).to(tl.float64, bitcast=True)
    else:  # noqa: RET505  Triton compiles what follows a return
        return (value.to(tl.uint32, bitcast=True) ^ top).to(tl.float32, bitcast=True)


@triton.jit
def _sign_bits(start, within):
    """Of each element the bits of its hash, moved so that bit 7 is its first sign, bit 15 its second and so on."""
    place = start + within
    return _mixed(_folded(place >> 3)) << (7 - (place & 7)).to(tl.uint32)


@triton.jit
def _add_signed(value, bits, one, two, three, four):
    """Add up along the last axis, which a thread holds, so that few sums have to be kept."""
    one += tl.sum(_signed(value, bits, 24), 1)
    two += tl.sum(_signed(value, bits, 16), 1)
    three += tl.sum(_signed(value, bits, 8), 1)
    four += tl.sum(_signed(value, bits, 0), 1)
    return one, two, three, four


@triton.jit
def _add_values(value, up, down, zero, high, low, total, squares, absolute, zeros):
    high = tl.maximum(high, tl.max(up, 1))
    low = tl.minimum(low, tl.min(down, 1))
    total += tl.sum(value, 1)
    squares += tl.sum(value * value, 1)
    absolute += tl.sum(tl.abs(value), 1)
    zeros += tl.sum(zero.to(tl.int32), 1)
    return high, low, total, squares, absolute, zeros


@triton.jit
def _sum(values):
    return tl.sum(values.to(tl.float64), 0)


@triton.jit
def float_sketches(
    table,
    slots,
    kind,
    ACC: tl.constexpr,
    LIMIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Statistics and sketches of floating-point tensors in one reading.

    ALIGNED: the tensor starts at a multiple of 16. WIDTH: elements in 16 bytes, no more than 8. A second reading leaves
    out elements beyond LIMIT, and comes only where there are any.
    """
    program = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    count = tl.load(table + tensor * 4 + 1)
    length = tl.load(table + tensor * 4 + 3)
    pieces = (length + CHUNK - 1) // CHUNK
    block = program // pieces
    if block * length < count:
        data = tl.load(table + tensor * 4).to(tl.pointer_type(kind.dtype.element_ty))
        first = block * length + (program - block * pieces) * CHUNK
        stop = tl.minimum(tl.minimum(first + CHUNK, (block + 1) * length), count)
        if ALIGNED:
            data = tl.multiple_of(data, 16)
        rows = tl.arange(0, ROWS)[:, None]
        lanes = tl.arange(0, WIDTH)[None, :]
        within = rows * WIDTH + lanes
        high = tl.full([ROWS], float("-inf"), ACC)
        low = tl.full([ROWS], float("inf"), ACC)
        total = tl.zeros([ROWS], ACC)
        squares = tl.zeros([ROWS], ACC)
        absolute = tl.zeros([ROWS], ACC)
        zeros = tl.zeros([ROWS], tl.int32)
        one = tl.zeros([ROWS], ACC)
        two = tl.zeros([ROWS], ACC)
        three = tl.zeros([ROWS], ACC)
        four = tl.zeros([ROWS], ACC)
        # Large tensors have blocks that begin at multiples of 512: eight elements in a row share one hash. The upper
        # half of the numbers of groups is the same in all of a chunk but one in 2**19.
        wide = (length % 512 == 0) & (first >> 35 == (stop - 1) >> 35)
        if wide:
            first = tl.multiple_of(first, 512)
            upper = (first >> 35).to(tl.uint32) * 0x85EBCA6B
            lower = ((first >> 3) & 0xFFFFFFFF).to(tl.uint32) + (rows * WIDTH // 8).to(tl.uint32)
            turn = (8 - WIDTH - rows * WIDTH % 8).to(tl.uint32)
            last = (WIDTH - 1 - lanes).to(tl.uint32)
            at = data + first + within
            if first + CHUNK == stop:
                ahead = tl.load(at)
                for step in range(0, CHUNK, ROWS * WIDTH):
                    value = ahead.to(ACC)
                    following = tl.minimum(step + ROWS * WIDTH, CHUNK - ROWS * WIDTH)
                    ahead = tl.load(at + tl.multiple_of(following, ROWS * WIDTH))
                    hashes = _mixed((lower + step // 8) ^ upper) << turn
                    one, two, three, four = _add_signed(value, hashes << last, one, two, three, four)
                    high, low, total, squares, absolute, zeros = _add_values(
                        value, value, value, value == 0, high, low, total, squares, absolute, zeros
                    )
            else:
                size = (stop - first).to(tl.int32)
                for step in range(0, size, ROWS * WIDTH):
                    inside = step + within < size
                    value = tl.load(at + step, mask=inside, other=0.0).to(ACC)
                    hashes = _mixed((lower + step // 8) ^ upper) << turn
                    one, two, three, four = _add_signed(value, hashes << last, one, two, three, four)
                    up = tl.where(inside, value, float("-inf"))
                    down = tl.where(inside, value, float("inf"))
                    high, low, total, squares, absolute, zeros = _add_values(
                        value, up, down, inside & (value == 0), high, low, total, squares, absolute, zeros
                    )
        else:
            for start in range(first, stop, ROWS * WIDTH):
                inside = start + within < stop
                value = tl.load(data + start + within, mask=inside, other=0.0).to(ACC)
                one, two, three, four = _add_signed(value, _sign_bits(start, within), one, two, three, four)
                up = tl.where(inside, value, float("-inf"))
                down = tl.where(inside, value, float("inf"))
                high, low, total, squares, absolute, zeros = _add_values(
                    value, up, down, inside & (value == 0), high, low, total, squares, absolute, zeros
                )
        top = tl.max(high, 0)
        bottom = tl.min(low, 0)
        square = tl.sum(squares, 0)
        out = slots + (tl.load(table + tensor * 4 + 2) + program) * 16
        tl.store(out, top.to(tl.float64))
        tl.store(out + 1, bottom.to(tl.float64))
        tl.store(out + 2, tl.sum(total, 0).to(tl.float64))
        tl.store(out + 3, square.to(tl.float64))
        largest = tl.maximum(tl.abs(top), tl.abs(bottom))
        nans = tl.zeros([ROWS], tl.int32)
        infs = tl.zeros([ROWS], tl.int32)
        fills = tl.zeros([ROWS], tl.int32)
        if (square != square) | (largest > LIMIT):  # noqa: PLR0124
            total = tl.zeros([ROWS], ACC)
            squares = tl.zeros([ROWS], ACC)
            absolute = tl.zeros([ROWS], ACC)
            high = tl.zeros([ROWS], ACC)
            one = tl.zeros([ROWS], ACC)
            two = tl.zeros([ROWS], ACC)
            three = tl.zeros([ROWS], ACC)
            four = tl.zeros([ROWS], ACC)
            for start in range(first, stop, ROWS * WIDTH):
                value = tl.load(data + start + within, mask=start + within < stop, other=0.0).to(ACC)
                nan = value != value  # noqa: PLR0124
                infinite = tl.abs(value) == float("inf")
                ordinary = tl.abs(value) <= LIMIT
                nans += tl.sum(nan.to(tl.int32), 1)
                infs += tl.sum(infinite.to(tl.int32), 1)
                fills += tl.sum(((ordinary == 0) & (nan == 0) & (infinite == 0)).to(tl.int32), 1)
                value = tl.where(ordinary, value, 0.0)
                high = tl.maximum(high, tl.max(tl.abs(value), 1))
                total += tl.sum(value, 1)
                squares += tl.sum(value * value, 1)
                absolute += tl.sum(tl.abs(value), 1)
                one, two, three, four = _add_signed(value, _sign_bits(start, within), one, two, three, four)
            largest = tl.max(high, 0)
        tl.store(out + 4, _sum(nans))
        tl.store(out + 5, _sum(infs))
        tl.store(out + 6, _sum(one))
        tl.store(out + 7, _sum(two))
        tl.store(out + 8, _sum(three))
        tl.store(out + 9, _sum(four))
        tl.store(out + 10, _sum(total))
        tl.store(out + 11, _sum(squares))
        tl.store(out + 12, _sum(absolute))
        tl.store(out + 13, tl.where(first < stop, largest, 0.0).to(tl.float64))
        tl.store(out + 14, _sum(zeros))
        tl.store(out + 15, _sum(fills))


@triton.jit
def integer_sketches(table, slots, kind, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """Statistics and sketches of integer and bool tensors: weights from place and value together."""
    program = tl.program_id(0).to(tl.int64)
    tensor = tl.program_id(1)
    count = tl.load(table + tensor * 4 + 1)
    length = tl.load(table + tensor * 4 + 3)
    pieces = (length + CHUNK - 1) // CHUNK
    block = program // pieces
    if block * length < count:
        data = tl.load(table + tensor * 4).to(tl.pointer_type(kind.dtype.element_ty))
        first = block * length + (program - block * pieces) * CHUNK
        stop = tl.minimum(tl.minimum(first + CHUNK, (block + 1) * length), count)
        lanes = tl.arange(0, BLOCK)
        high = tl.full([BLOCK], -9223372036854775808, tl.int64)
        low = tl.full([BLOCK], 9223372036854775807, tl.int64)
        total = tl.zeros([BLOCK], tl.float64)
        squares = tl.zeros([BLOCK], tl.float64)
        absolute = tl.zeros([BLOCK], tl.float64)
        zeros = tl.zeros([BLOCK], tl.int32)
        one = tl.zeros([BLOCK], tl.int32)
        two = tl.zeros([BLOCK], tl.int32)
        three = tl.zeros([BLOCK], tl.int32)
        four = tl.zeros([BLOCK], tl.int32)
        for start in range(first, stop, BLOCK):
            at = start + lanes
            inside = at < stop
            value = tl.load(data + at, mask=inside, other=0).to(tl.int64)
            bits = _mixed(_mixed(_folded(at)) ^ _folded(value))
            real = value.to(tl.float64)
            total += real
            squares += real * real
            absolute += tl.abs(real)
            zeros += (inside & (value == 0)).to(tl.int32)
            high = tl.where(inside & (value > high), value, high)
            low = tl.where(inside & (value < low), value, low)
            counts = inside.to(tl.int32)
            one += counts * (2 * (bits & 255).to(tl.int32) - 255)
            two += counts * (2 * ((bits >> 8) & 255).to(tl.int32) - 255)
            three += counts * (2 * ((bits >> 16) & 255).to(tl.int32) - 255)
            four += counts * (2 * (bits >> 24).to(tl.int32) - 255)
        out = slots + (tl.load(table + tensor * 4 + 2) + program) * 16
        exact = out.to(tl.pointer_type(tl.int64))
        top = tl.max(high, 0)
        bottom = tl.min(low, 0)
        tl.store(exact, top)
        tl.store(exact + 1, bottom)
        tl.store(out + 2, tl.sum(total, 0))
        tl.store(out + 3, tl.sum(squares, 0))
        tl.store(out + 4, 0.0)
        tl.store(out + 5, 0.0)
        tl.store(out + 6, tl.sum(one, 0).to(tl.float64))
        tl.store(out + 7, tl.sum(two, 0).to(tl.float64))
        tl.store(out + 8, tl.sum(three, 0).to(tl.float64))
        tl.store(out + 9, tl.sum(four, 0).to(tl.float64))
        tl.store(out + 10, tl.sum(total, 0))
        tl.store(out + 11, tl.sum(squares, 0))
        tl.store(out + 12, tl.sum(absolute, 0))
        largest = tl.maximum(tl.abs(top.to(tl.float64)), tl.abs(bottom.to(tl.float64)))
        tl.store(out + 13, tl.where(first < stop, largest, 0.0))
        tl.store(out + 14, tl.sum(zeros, 0).to(tl.float64))
        tl.store(out + 15, 0.0)


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


# CRC-32 on the device, exactly zlib's, at the speed of memory. Imported only where there is a device.


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
        tl.store(slots + slot, tl.xor_sum(value, 0))
