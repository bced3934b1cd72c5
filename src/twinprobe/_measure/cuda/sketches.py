"""Triton kernels of statistics and sketches in one reading. Imported only where there is a device.

Tables and programs are those of the statistics alone. A slot holds ten numbers more than theirs, and its chunk is of
one block: four signed sums, then sum, sum of squares, L1 and largest magnitude of the ordinary elements, how many zeros
and fill values.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0915  Triton compiles these bodies: no annotation but tl.constexpr, upper case for constants.
from __future__ import annotations

import triton
import triton.language as tl


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
def _no_floats(ROWS: tl.constexpr, ACC: tl.constexpr):
    """Extremes, counts and sums of nothing: high, low, zeros, NaN, infinite, fill values; total, squares, absolute and
    the four signed sums."""
    none, nothing = tl.zeros([ROWS], tl.int32), tl.zeros([ROWS], ACC)
    high = tl.full([ROWS], float("-inf"), ACC)
    low = tl.full([ROWS], float("inf"), ACC)
    return high, low, none, none, none, none, nothing, nothing, nothing, nothing, nothing, nothing, nothing


@triton.jit
def _no_integers(BLOCK: tl.constexpr):
    """The same of integers, of which none is special: high, low, zeros, total, squares, absolute, signed sums."""
    none, nothing = tl.zeros([BLOCK], tl.int32), tl.zeros([BLOCK], tl.float64)
    high = tl.full([BLOCK], -9223372036854775808, tl.int64)
    low = tl.full([BLOCK], 9223372036854775807, tl.int64)
    return high, low, none, nothing, nothing, nothing, none, none, none, none


@triton.jit
def _sum(values):
    return tl.sum(values.to(tl.float64), 0)


@triton.jit
def _add_integers(value, place, inside, total, squares, absolute, zeros, high, low, one, two, three, four):
    bits = _mixed(_mixed(_folded(place)) ^ _folded(value))
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
    return total, squares, absolute, zeros, high, low, one, two, three, four


@triton.jit
def _add_ordinary(
    value, bits, LIMIT: tl.constexpr, high, nans, infs, fills, total, squares, absolute, one, two, three, four
):
    """Add up the values that count; the others are counted."""
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
    one, two, three, four = _add_signed(value, bits, one, two, three, four)
    return high, nans, infs, fills, total, squares, absolute, one, two, three, four


@triton.jit
def _store_floats(out, high, low, total, squares):
    """Max, min, sum and sum of squares of all elements; returns max, min and the sum of squares."""
    top = tl.max(high, 0)
    bottom = tl.min(low, 0)
    square = tl.sum(squares, 0)
    tl.store(out, top.to(tl.float64))
    tl.store(out + 1, bottom.to(tl.float64))
    tl.store(out + 2, tl.sum(total, 0).to(tl.float64))
    tl.store(out + 3, square.to(tl.float64))
    return top, bottom, square


@triton.jit
def _store_sketch(out, largest, total, squares, absolute, zeros, nans, infs, fills, one, two, three, four):
    """What a slot holds beside max, min, sum and sum of squares of all elements."""
    tl.store(out + 4, _sum(nans))
    tl.store(out + 5, _sum(infs))
    tl.store(out + 6, _sum(one))
    tl.store(out + 7, _sum(two))
    tl.store(out + 8, _sum(three))
    tl.store(out + 9, _sum(four))
    tl.store(out + 10, _sum(total))
    tl.store(out + 11, _sum(squares))
    tl.store(out + 12, _sum(absolute))
    tl.store(out + 13, largest.to(tl.float64))
    tl.store(out + 14, _sum(zeros))
    tl.store(out + 15, _sum(fills))


@triton.jit
def _store_integers(out, high, low, total, squares, absolute, zeros, one, two, three, four):
    exact = out.to(tl.pointer_type(tl.int64))
    top = tl.max(high, 0)
    bottom = tl.min(low, 0)
    tl.store(exact, top)
    tl.store(exact + 1, bottom)
    tl.store(out + 2, tl.sum(total, 0))
    tl.store(out + 3, tl.sum(squares, 0))
    largest = tl.maximum(tl.abs(top.to(tl.float64)), tl.abs(bottom.to(tl.float64)))
    largest = tl.where(top >= bottom, largest, 0.0)
    none = tl.zeros_like(zeros)
    _store_sketch(out, largest, total, squares, absolute, zeros, none, none, none, one, two, three, four)


@triton.jit
def float_sketches(
    table, slots, kind, ACC: tl.constexpr, LIMIT: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
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
        high, low, zeros, nans, infs, fills, total, squares, absolute, one, two, three, four = _no_floats(ROWS, ACC)
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
        out = slots + (tl.load(table + tensor * 4 + 2) + program) * 16
        top, bottom, square = _store_floats(out, high, low, total, squares)
        largest = tl.maximum(tl.abs(top), tl.abs(bottom))
        if (square != square) | (largest > LIMIT):  # noqa: PLR0124
            high, _, _, nans, infs, fills, total, squares, absolute, one, two, three, four = _no_floats(ROWS, ACC)
            for start in range(first, stop, ROWS * WIDTH):
                value = tl.load(data + start + within, mask=start + within < stop, other=0.0).to(ACC)
                high, nans, infs, fills, total, squares, absolute, one, two, three, four = _add_ordinary(
                    value, _sign_bits(start, within), LIMIT, high, nans, infs, fills,
                    total, squares, absolute, one, two, three, four,
                )  # fmt: skip
            largest = tl.max(high, 0)
        largest = tl.where(first < stop, largest, 0.0)
        _store_sketch(out, largest, total, squares, absolute, zeros, nans, infs, fills, one, two, three, four)


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
        high, low, zeros, total, squares, absolute, one, two, three, four = _no_integers(BLOCK)
        for start in range(first, stop, BLOCK):
            at = start + lanes
            inside = at < stop
            value = tl.load(data + at, mask=inside, other=0).to(tl.int64)
            total, squares, absolute, zeros, high, low, one, two, three, four = _add_integers(
                value, at, inside, total, squares, absolute, zeros, high, low, one, two, three, four
            )
        out = slots + (tl.load(table + tensor * 4 + 2) + program) * 16
        _store_integers(out, high, low, total, squares, absolute, zeros, one, two, three, four)


# Views whose elements do not lie in order: transposed, sliced, broadcast. A line of their table has twelve words. After
# the four of the others: of the last, third and second axis the size (upper half) and the multiplier that divides by it
# (lower half), then the shifts of these divisions, a byte each, and the logarithm of the rows of a tile; then the steps
# of the last, third, second and first axis. Sizes and steps count in groups of WIDTH elements. Places, and distances in
# memory, are below 2**31.


@triton.jit
def _layout(line):
    last = tl.load(line + 4)
    third = tl.load(line + 5)
    second = tl.load(line + 6)
    shifts = tl.load(line + 7).to(tl.int32)
    return (
        (last >> 32).to(tl.int32), (last & 0xFFFFFFFF).to(tl.uint32), (shifts & 255).to(tl.uint32),
        tl.load(line + 8).to(tl.int32),
        (third >> 32).to(tl.int32), (third & 0xFFFFFFFF).to(tl.uint32), ((shifts >> 8) & 255).to(tl.uint32),
        tl.load(line + 9).to(tl.int32),
        (second >> 32).to(tl.int32), (second & 0xFFFFFFFF).to(tl.uint32), ((shifts >> 16) & 255).to(tl.uint32),
        tl.load(line + 10).to(tl.int32), tl.load(line + 11).to(tl.int32),
    )  # fmt: skip


@triton.jit
def _quotient(number, multiplier, shift):
    number = number.to(tl.uint32)
    return ((tl.umulhi(number, multiplier) + number) >> shift).to(tl.int32)


@triton.jit
def _distance(
    place,
    size, multiplier, shift, step,
    size_3, multiplier_3, shift_3, step_3,
    size_2, multiplier_2, shift_2, step_2, step_1,
):  # fmt: skip
    """How far from the first element the one lies that is at this place of the logical order."""
    row = _quotient(place, multiplier, shift)
    plane = _quotient(row, multiplier_3, shift_3)
    volume = _quotient(plane, multiplier_2, shift_2)
    distance = (place - row * size) * step + (row - plane * size_3) * step_3
    return distance + (plane - volume * size_2) * step_2 + volume * step_1


@triton.jit
def _strided_chunk(program, count, length, size, tile, CHUNK: tl.constexpr):
    """What a program reads: ``low`` to ``high`` of its block, in order, or a tile of 2**tile rows in that range.

    Of a tile the columns are read across all its rows, since it is the elements of a column that are neighbours in
    memory. Returns low, high, its first place, its first column, behind which column rows end, how many elements it
    has, whether all of them are there, and whether there is such a block: numbers of later ones may overflow.
    """
    wide = CHUNK >> tile
    across = tl.where(tile > 0, (size + wide - 1) // wide, 1)
    rows = length // size + tl.where(length % size > 0, 2, 0)
    down = tl.where(tile > 0, (rows + (1 << tile) - 1) >> tile, (length + CHUNK - 1) // CHUNK)
    block = program // (across * down)
    piece = program - block * (across * down)
    low = block * length
    high = tl.minimum(low + length, count)
    column = tl.where(tile > 0, piece % across * wide, 0)
    end = tl.where(tile > 0, size, 0x7FFFFFFF)
    tile_start = (low // size + (piece // across << tile)) * size + column
    start = tl.where(tile > 0, tile_start, low + piece * CHUNK)
    high = tl.where(tile > 0, high, tl.minimum(high, start + CHUNK))
    elements = tl.where(tile > 0, tl.minimum(wide, size - column) << tile, high - start)
    beyond = start + tl.where(tile > 0, ((1 << tile) - 1) * size + wide, CHUNK)
    full = (start >= low) & (beyond <= high) & (column + wide <= end)
    return low, high, start, column, end, elements, full, block < (count + length - 1) // length


@triton.jit
def _tile_places(step, start, column, end, low, high, size, tile, within):
    """The places that come next, and which of them are in the chunk."""
    columns = (step + within) >> tile
    place = start + (within & ((1 << tile) - 1)) * size + columns
    return place, (place >= low) & (place < high) & (column + columns < end)


@triton.jit
def strided_float_sketches(
    table, slots, kind, ACC: tl.constexpr, LIMIT: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """``float_sketches`` of views. WIDTH above 1: so many neighbours lie together everywhere, at multiples of 16 bytes,
    and blocks begin at multiples of 8."""
    program = tl.program_id(0)
    line = table + tl.program_id(1) * 12
    count = tl.load(line + 1).to(tl.int32)
    length = tl.load(line + 3).to(tl.int32)
    (
        size, multiplier, shift, step_4, size_3, multiplier_3, shift_3, step_3, size_2, multiplier_2, shift_2, step_2,
        step_1,
    ) = _layout(line)  # fmt: skip
    tile = tl.load(line + 7).to(tl.int32) >> 24
    low_place, high_place, begin, column, end, elements, full, there = _strided_chunk(
        program, count, length, size, tile, CHUNK
    )
    if there:
        data = tl.load(line).to(tl.pointer_type(kind.dtype.element_ty))
        if WIDTH > 1:
            data = tl.multiple_of(data, 16)
        within = tl.arange(0, ROWS)[:, None] * WIDTH
        lanes = tl.arange(0, WIDTH)[None, :]
        last = (WIDTH - 1 - lanes).to(tl.uint32)
        high, low, zeros, nans, infs, fills, total, squares, absolute, one, two, three, four = _no_floats(ROWS, ACC)
        if full:
            for step in range(0, CHUNK, ROWS * WIDTH):
                place, _ = _tile_places(step, begin, column, end, low_place, high_place, size, tile, within)
                distance = _distance(
                    place // WIDTH, size, multiplier, shift, step_4, size_3, multiplier_3, shift_3, step_3,
                    size_2, multiplier_2, shift_2, step_2, step_1,
                )  # fmt: skip
                value = tl.load(data + distance * WIDTH + lanes).to(ACC)
                hashes = _mixed(place >> 3) << (8 - WIDTH - (place & 7)).to(tl.uint32)
                one, two, three, four = _add_signed(value, hashes << last, one, two, three, four)
                high, low, total, squares, absolute, zeros = _add_values(
                    value, value, value, value == 0, high, low, total, squares, absolute, zeros
                )
        else:
            for step in range(0, elements, ROWS * WIDTH):
                place, inside = _tile_places(step, begin, column, end, low_place, high_place, size, tile, within)
                distance = _distance(
                    place // WIDTH, size, multiplier, shift, step_4, size_3, multiplier_3, shift_3, step_3,
                    size_2, multiplier_2, shift_2, step_2, step_1,
                )  # fmt: skip
                value = tl.load(data + distance * WIDTH + lanes, mask=inside, other=0.0).to(ACC)
                hashes = _mixed(place >> 3) << (8 - WIDTH - (place & 7)).to(tl.uint32)
                one, two, three, four = _add_signed(value, hashes << last, one, two, three, four)
                up = tl.where(inside, value, float("-inf"))
                down = tl.where(inside, value, float("inf"))
                high, low, total, squares, absolute, zeros = _add_values(
                    value, up, down, inside & (value == 0), high, low, total, squares, absolute, zeros
                )
        out = slots + (tl.load(line + 2) + program) * 16
        top, bottom, square = _store_floats(out, high, low, total, squares)
        largest = tl.where(top >= bottom, tl.maximum(tl.abs(top), tl.abs(bottom)), 0.0)
        if (square != square) | (largest > LIMIT):  # noqa: PLR0124
            high, _, _, nans, infs, fills, total, squares, absolute, one, two, three, four = _no_floats(ROWS, ACC)
            for step in range(0, elements, ROWS * WIDTH):
                place, inside = _tile_places(step, begin, column, end, low_place, high_place, size, tile, within)
                distance = _distance(
                    place // WIDTH, size, multiplier, shift, step_4, size_3, multiplier_3, shift_3, step_3,
                    size_2, multiplier_2, shift_2, step_2, step_1,
                )  # fmt: skip
                value = tl.load(data + distance * WIDTH + lanes, mask=inside, other=0.0).to(ACC)
                hashes = _mixed(place >> 3) << (8 - WIDTH - (place & 7)).to(tl.uint32)
                high, nans, infs, fills, total, squares, absolute, one, two, three, four = _add_ordinary(
                    value, hashes << last, LIMIT, high, nans, infs, fills,
                    total, squares, absolute, one, two, three, four,
                )  # fmt: skip
            largest = tl.max(high, 0)
        _store_sketch(out, largest, total, squares, absolute, zeros, nans, infs, fills, one, two, three, four)


@triton.jit
def strided_integer_sketches(table, slots, kind, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    """``integer_sketches`` of views."""
    program = tl.program_id(0)
    line = table + tl.program_id(1) * 12
    count = tl.load(line + 1).to(tl.int32)
    length = tl.load(line + 3).to(tl.int32)
    (
        size, multiplier, shift, step_4, size_3, multiplier_3, shift_3, step_3, size_2, multiplier_2, shift_2, step_2,
        step_1,
    ) = _layout(line)  # fmt: skip
    tile = tl.load(line + 7).to(tl.int32) >> 24
    low_place, high_place, begin, column, end, elements, _, there = _strided_chunk(
        program, count, length, size, tile, CHUNK
    )
    if there:
        data = tl.load(line).to(tl.pointer_type(kind.dtype.element_ty))
        within = tl.arange(0, BLOCK)
        high, low, zeros, total, squares, absolute, one, two, three, four = _no_integers(BLOCK)
        for step in range(0, elements, BLOCK):
            place, inside = _tile_places(step, begin, column, end, low_place, high_place, size, tile, within)
            distance = _distance(
                place, size, multiplier, shift, step_4, size_3, multiplier_3, shift_3, step_3,
                size_2, multiplier_2, shift_2, step_2, step_1,
            )  # fmt: skip
            value = tl.load(data + distance, mask=inside, other=0).to(tl.int64)
            total, squares, absolute, zeros, high, low, one, two, three, four = _add_integers(
                value, place, inside, total, squares, absolute, zeros, high, low, one, two, three, four
            )
        out = slots + (tl.load(line + 2) + program) * 16
        _store_integers(out, high, low, total, squares, absolute, zeros, one, two, three, four)
