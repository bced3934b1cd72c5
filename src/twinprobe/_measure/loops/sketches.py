"""The sums of sketches: one fused pass, eight neighbours at a time as one vector.

Written in the compiler's own terms, since numba's vectoriser does not see what makes it quick: the eight signs of a
sum are looked up by a byte of the hash, so that a sign costs one multiplication and nothing else. 1.6 to 1.9 times the
statistics alone; signs by shifting bits cost 2.5 times as much, by a branch 13 times.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import carray, config, types

from twinprobe._measure.loops.elements import (
    READING,
    compiler_builtin,
    converts_half_in_hardware,
    exact,
    float32_at,
    float64_at,
    int8_at,
    int16_at,
    int32_at,
    int64_at,
    reordered,
    uint8_at,
)
from twinprobe._measure.loops.sums import (
    BLOCKS,
    DOUBLE_GROUPS,
    FILLS,
    GROUPS,
    HIGHEST,
    INFS,
    L1,
    LARGEST,
    LOWEST,
    NANS,
    QUARTER,
    SIGNS,
    SIGNS_AT,
    SKETCH_COLUMNS,
    STATE_AT,
    STATISTICS_AT,
    STRETCH_AT,
    SUM_OF_SQUARES,
    TOTAL,
    ZEROS,
)

_PRESENT = 1
_SMALLEST_SOUND = 1e-280

_U = np.uint32
_GOLDEN, _FIRST, _SECOND = _U(0x9E3779B9), _U(0x85EBCA6B), _U(0xC2B2AE35)
_LOW = 0xFFFFFFFF
_NEGATIVE = _U(-0x85EBCA6B & _LOW)  # the upper half of a negative number, folded


@exact
def mixed(word: Any) -> Any:
    word = _U(_U(word) + _GOLDEN)
    word = _U(_U(word ^ _U(word >> _U(16))) * _FIRST)
    word = _U(_U(word ^ _U(word >> _U(13))) * _SECOND)
    return _U(word ^ _U(word >> _U(16)))


@exact
def folded(value: Any) -> Any:
    return _U(_U(value & _LOW) ^ _U(_U((value >> 32) & _LOW) * _FIRST))


# -- eight elements at a time -----------------------------------------------------------------------------------------

_LANES = 8
_HASHES = 16  # computed at a time
_TOGETHER = 2  # groups of a round: fewer counters and jumps
_AHEAD = 3072  # bytes: a stream that stops for signs again and again is not fetched ahead by the processor
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F32, _F64 = ir.FloatType(), ir.DoubleType()


def adds_by_mask() -> bool:
    """Whether the processor adds to some lanes of a vector as quickly as to all of them."""
    if config.CPU_NAME or config.CPU_FEATURES:
        return False
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # llvmlite cannot tell on some processors
        return False
    return bool(features.get("avx512vl", False) and features.get("avx512dq", False))


def _vector(of: Any, lanes: int = _LANES) -> Any:
    return ir.VectorType(of, lanes)


def _all(of: Any, value: Any, lanes: int = _LANES) -> Any:
    return ir.Constant(_vector(of, lanes), [value] * lanes)


@compiler_builtin
def _hash_groups(_context: Any, _first: Any, _high: Any, _count: Any, _out: Any) -> Any:
    """Write the hash of each group, sixteen at a time."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        first, high, count, out = arguments
        before = builder.basic_block
        loop, end = builder.append_basic_block(), builder.append_basic_block()
        words = _vector(_I32, _HASHES)
        place = builder.inttoptr(out, words.as_pointer())
        nothing, zero = ir.Constant(words, ir.Undefined), ir.Constant(_I32, 0)

        def splat(value: Any) -> Any:
            return builder.shuffle_vector(
                builder.insert_element(nothing, builder.trunc(value, _I32), zero), nothing, _all(_I32, 0, _HASHES)
            )

        def every(value: int) -> Any:
            return _all(_I32, int(value), _HASHES)

        above = splat(high)
        numbers = builder.add(splat(first), ir.Constant(words, list(range(_HASHES))))
        builder.branch(loop)
        builder.position_at_end(loop)
        at, group = builder.phi(_I64), builder.phi(words)
        at.add_incoming(ir.Constant(_I64, 0), before)
        group.add_incoming(numbers, before)
        word = builder.add(builder.xor(group, above), every(_GOLDEN))
        for bits, factor in ((16, _FIRST), (13, _SECOND)):
            word = builder.mul(builder.xor(word, builder.lshr(word, every(bits))), every(factor))
        word = builder.xor(word, builder.lshr(word, every(16)))
        builder.store(word, builder.gep(place, [at])).align = 8
        following = builder.add(at, ir.Constant(_I64, 1))
        at.add_incoming(following, loop)
        group.add_incoming(builder.add(group, every(_HASHES)), loop)
        done = builder.mul(following, ir.Constant(_I64, _HASHES))
        builder.cbranch(builder.icmp_signed("<", done, count), loop, end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


def _as_numbers(builder: Any, dtype: str, stored: Any) -> Any:
    """Eight stored elements as float32, or float64."""
    if dtype == "bfloat16":
        bits = builder.shl(builder.zext(stored, _vector(_I32)), _all(_I32, 16))
        return builder.bitcast(bits, _vector(_F32))
    if dtype != "float16":
        return stored
    if converts_half_in_hardware():
        return builder.fpext(builder.bitcast(stored, _vector(ir.HalfType())), _vector(_F32))
    # The same arithmetic as half_by_arithmetic.
    bits = builder.zext(stored, _vector(_I32))
    moved = builder.shl(builder.and_(bits, _all(_I32, 0x7FFF)), _all(_I32, 13))
    value = builder.fmul(builder.bitcast(moved, _vector(_F32)), _all(_F32, 2.0**112))
    large = builder.fcmp_ordered(">=", value, _all(_F32, 65536.0))
    special = builder.select(large, _all(_I32, 0x7F800000), _all(_I32, 0))
    sign = builder.shl(builder.and_(bits, _all(_I32, 0x8000)), _all(_I32, 16))
    value = builder.or_(builder.or_(builder.bitcast(value, _vector(_I32)), special), sign)
    return builder.bitcast(value, _vector(_F32))


def _add_group(builder: Any, value: Any, group: Any, part: int, hashes: Any, signs: Any, now: dict[int, Any]) -> None:
    """Add eight numbers to the lanes, with the signs that the table has for the four bytes of the group's hash.

    Masked, those with a minus are added up alone: the byte of the hash is the mask, and no table of 16 kB takes the
    place of data in the nearest cache. In float32 such sums would be too coarse. Where a vector of eight takes two
    registers, the numbers come four by four: ``part`` says which.
    """
    real, word, lanes = (_F64, _I64, value.type.count) if value.type.element == _F64 else (_F32, _I32, _LANES)
    contract, masked, real_width = ("contract",), real is _F64 and adds_by_mask(), word.width // 8

    def add_product(column: int, left: Any, right: Any) -> None:
        now[column] = builder.fadd(now[column], builder.fmul(left, right, flags=contract), flags=contract)

    size = builder.and_(builder.bitcast(value, _vector(word, lanes)), _all(word, (1 << (word.width - 1)) - 1, lanes))
    # Counted beside the vectors, whose units have enough to do.
    zeros = builder.bitcast(builder.icmp_signed("==", size, _all(word, 0, lanes)), ir.IntType(lanes))
    now[ZEROS] = builder.add(now[ZEROS], builder.ctpop(builder.zext(zeros, _I64)))
    for column, sign in ((HIGHEST, ">"), (LOWEST, "<")):  # NaN compares as false
        beyond = builder.fcmp_ordered(sign, value, now[column])
        now[column] = builder.select(beyond, value, now[column])
    wide = value if real is _F64 else builder.fpext(value, _vector(_F64))
    for column in range(SIGNS):
        place = builder.add(builder.shl(group, ir.Constant(_I64, 2)), ir.Constant(_I64, column))
        octet = builder.load(builder.gep(hashes, [place]))
        if masked:
            negative = builder.bitcast(octet, _vector(ir.IntType(1)))
            now[column] = builder.select(negative, builder.fadd(now[column], value), now[column])
            continue
        which = builder.mul(builder.zext(octet, _I64), ir.Constant(_I64, _LANES // lanes))
        sign = builder.load(builder.gep(signs, [builder.add(which, ir.Constant(_I64, part))]))
        sign.align = lanes * real_width
        add_product(column, value, sign)
    now[TOTAL] = builder.fadd(now[TOTAL], wide)
    add_product(SUM_OF_SQUARES, wide, wide)
    now[L1] = builder.fadd(now[L1], builder.bitcast(size, value.type))


def _fold_of(dtype: str) -> Any:
    """Add groups of eight elements to an empty row of columns, but for the largest magnitude."""
    real = _F64 if dtype == "float64" else _F32
    stored = {"float16": _I16, "bfloat16": _I16}.get(dtype, real)
    width = {_I16: 2, _F32: 4, _F64: 8}[stored]
    # Ten sums of eight float64 each are more than the registers of a processor whose vectors are of four.
    lanes = _LANES // 2 if real is _F64 and not adds_by_mask() else _LANES

    @compiler_builtin
    def fold(_context: Any, _data: Any, _groups: Any, _hashes: Any, _table: Any, _row: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            data, groups, hashes, table, row = arguments
            pointer = _I8.as_pointer()
            prefetch = builder.module.declare_intrinsic(
                "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
            )
            elements = builder.inttoptr(data, _vector(stored, lanes).as_pointer())
            octets = builder.inttoptr(hashes, pointer)
            signs = builder.inttoptr(table, _vector(real, lanes).as_pointer())
            columns = builder.inttoptr(row, _F64.as_pointer())
            now: dict[int, Any] = {
                **{column: _all(real, 0.0, lanes) for column in range(SIGNS)}, TOTAL: _all(_F64, 0.0, lanes),
                SUM_OF_SQUARES: _all(_F64, 0.0, lanes), L1: _all(real, 0.0, lanes), ZEROS: ir.Constant(_I64, 0),
                HIGHEST: _all(real, float("-inf"), lanes), LOWEST: _all(real, float("inf"), lanes),
            }  # fmt: skip
            begin = ir.Constant(_I64, 0)
            for together in (_TOGETHER, 1):  # several groups a round, then those that are left, in the same order
                before = builder.basic_block
                test, loop, end = (builder.append_basic_block() for _ in range(3))
                builder.branch(test)
                builder.position_at_end(test)
                at = builder.phi(_I64)
                at.add_incoming(begin, before)
                sums = {column: builder.phi(value.type) for column, value in now.items()}
                for column, value in now.items():
                    sums[column].add_incoming(value, before)
                following = builder.add(at, ir.Constant(_I64, together))
                builder.cbranch(builder.icmp_signed("<=", following, groups), loop, end)
                builder.position_at_end(loop)
                now = dict(sums)
                parts = _LANES // lanes
                here = builder.gep(elements, [builder.mul(at, ir.Constant(_I64, parts))])
                ahead = builder.gep(builder.bitcast(here, pointer), [ir.Constant(_I64, _AHEAD)])
                for line in range(0, together * _LANES * width, 64):
                    address = builder.gep(ahead, [ir.Constant(_I64, line)])
                    builder.call(prefetch, [address, *(ir.Constant(_I32, one) for one in (0, 3, 1))])
                for step, part in product(range(together), range(parts)):
                    group = builder.add(at, ir.Constant(_I64, step))
                    raw = builder.load(builder.gep(here, [ir.Constant(_I64, step * parts + part)]))
                    raw.align = width
                    _add_group(builder, _as_numbers(builder, dtype, raw), group, part, octets, signs, now)
                at.add_incoming(following, builder.basic_block)
                for column, phi in sums.items():
                    phi.add_incoming(now[column], builder.basic_block)
                builder.branch(test)
                builder.position_at_end(end)
                begin, now = at, dict(sums)
            if real is _F64 and adds_by_mask():  # the sum of all less twice those with a minus
                for column in range(SIGNS):
                    now[column] = builder.fsub(now[TOTAL], builder.fadd(now[column], now[column]))
            _store_lanes(builder, now, columns)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64, types.int64, types.int64), generate

    return fold


def _store_lanes(builder: Any, lanes: dict[int, Any], columns: Any) -> None:
    """Bring all lanes together and add them to the row, which was empty."""

    def together(vector: Any, join: Any) -> Any:
        count = vector.type.count
        while count > 1:
            count //= 2
            nothing = ir.Constant(vector.type, ir.Undefined)
            low, high = (
                builder.shuffle_vector(vector, nothing, ir.Constant(_vector(_I32, count), list(part)))
                for part in (range(count), range(count, 2 * count))
            )
            vector = join(low, high)
        value = builder.extract_element(vector, ir.Constant(_I32, 0))
        return value if value.type == _F64 else builder.fpext(value, _F64)

    def taken(sign: str) -> Any:
        return lambda low, high: builder.select(builder.fcmp_ordered(sign, low, high), low, high)

    for column, vector in lanes.items():
        place = builder.gep(columns, [ir.Constant(_I64, column)])
        held = builder.load(place)
        if column == ZEROS:
            value = builder.fadd(held, builder.sitofp(vector, _F64))
        elif column in (HIGHEST, LOWEST):
            sign = ">" if column == HIGHEST else "<"
            value = together(vector, taken(sign))
            value = builder.select(builder.fcmp_ordered(sign, value, held), value, held)
        else:
            value = builder.fadd(held, together(vector, builder.fadd))
        builder.store(value, place)


# -- one after the other: the ends of stretches, and stretches with elements that do not count ------------------------


@exact
def _add_one(value: Any, place: Any, limit: Any, row: Any) -> None:
    row[HIGHEST] = max(row[HIGHEST], value)
    row[LOWEST] = min(row[LOWEST], value)
    if not abs(value) <= limit:
        if value != value:  # noqa: PLR0124
            row[NANS] += 1
        elif abs(value) == np.inf:
            row[INFS] += 1
        else:
            row[FILLS] += 1
        return
    bits = mixed(folded(place >> 3)) >> _U(place & 7)
    for sign in range(SIGNS):
        row[sign] += -value if (bits >> _U(8 * sign)) & _U(1) else value
    row[TOTAL] += value
    row[SUM_OF_SQUARES] += value * value
    row[L1] += abs(value)
    row[ZEROS] += value == 0
    row[LARGEST] = max(row[LARGEST], abs(value))


@exact
def _clear(row: Any) -> None:
    row[:] = 0
    row[HIGHEST], row[LOWEST] = -np.inf, np.inf


@exact
def _join(row: Any, more: Any) -> None:
    for column in range(LARGEST):
        row[column] += more[column]
    row[LARGEST] = max(row[LARGEST], more[LARGEST])
    row[HIGHEST], row[LOWEST] = max(row[HIGHEST], more[HIGHEST]), min(row[LOWEST], more[LOWEST])
    for column in range(NANS, SKETCH_COLUMNS):
        row[column] += more[column]


def _stretch_of(dtype: str) -> Any:
    load = READING[dtype][0]
    fold = _fold_of(dtype)
    limit, width = QUARTER[dtype], {"float64": 8, "float32": 4}.get(dtype, 2)
    most = DOUBLE_GROUPS if dtype == "float64" else GROUPS

    @exact
    def stretch(data: Any, address: Any, first: Any, table: Any, workspace: Any, part: Any, row: Any) -> None:
        """Elements ``first`` and on of the whole, all of one block; the first lies at the address."""
        stop = first + data.size
        begin, end = min(stop, (first + 7) // 8 * 8), stop // 8 * 8
        if begin >= end:
            begin = end = stop
        for place in range(first, begin):
            _add_one(np.float64(load(data[place - first])), place, limit, row)
        at, room = begin, workspace + 8 * SIGNS_AT
        while at < end:
            group = at >> 3
            count = min(most, (end - at) >> 3, (_LOW + 1) - (group & _LOW))
            _clear(part)
            _hash_groups(group & _LOW, ((group >> 32) * 0x85EBCA6B) & _LOW, count, room)
            fold(address + (at - first) * width, count, room, table, workspace + 8 * STRETCH_AT)
            # Not a number where an element is none, which the extremes do not see, or where the sum overflows.
            part[LARGEST] = max(part[HIGHEST], -part[LOWEST]) + (part[TOTAL] - part[TOTAL])
            if part[LARGEST] <= limit:
                _join(row, part)
            else:
                for place in range(at, at + 8 * count):
                    _add_one(np.float64(load(data[place - first])), place, limit, row)
            at += 8 * count
        for place in range(end, stop):
            _add_one(np.float64(load(data[place - first])), place, limit, row)

    return stretch


_PIECE = 256  # so many bytes of hashes add up to less than 2**16: two sums fit into one word
_CHUNK = 8192  # so many small integers, or squares of 8-bit ones, add up to less than 2**31


def _integer_sums(dtype: str) -> Any:
    """What integers, no more than _CHUNK of them, add to the columns that are not of their weights."""
    square = np.int64 if dtype == "int16" else np.int32

    @exact
    def of_small(data: Any) -> Any:
        total = absolute = np.int32(0)
        squares = square(0)
        for i in range(data.size):
            value = np.int32(data[i])
            total = np.int32(total + value)
            absolute = np.int32(absolute + abs(value))
            squares = square(squares + square(np.int32(value * value)))
        return np.float64(total), np.float64(squares), np.float64(absolute)

    @reordered
    def of_large(data: Any) -> Any:
        total = squares = absolute = 0.0
        for i in range(data.size):
            value = np.float64(data[i])
            total += value
            squares += value * value
            absolute += abs(value)
        return total, squares, absolute

    sums = of_large if dtype in ("int32", "int64") else of_small

    @exact
    def add_values(data: Any, row: Any) -> None:
        zeros, top, bottom = np.int32(0), data[0], data[0]
        for i in range(data.size):
            zeros = np.int32(zeros + np.int32(data[i] == 0))
            top, bottom = max(top, data[i]), min(bottom, data[i])
        total, squares, absolute = sums(data)
        row[TOTAL] += total
        row[SUM_OF_SQUARES] += squares
        row[L1] += absolute
        row[ZEROS] += zeros
        row[LARGEST] = max(row[LARGEST], abs(np.float64(top)), abs(np.float64(bottom)))
        row[HIGHEST], row[LOWEST] = max(row[HIGHEST], np.float64(top)), min(row[LOWEST], np.float64(bottom))

    @exact
    def add_truths(data: Any, row: Any) -> None:
        true = np.int32(0)
        for i in range(data.size):  # a file may hold bytes that are neither 0 nor 1
            true = np.int32(true + np.int32(data[i] != 0))
        row[TOTAL] += true
        row[SUM_OF_SQUARES] += true
        row[L1] += true
        row[ZEROS] += data.size - true
        any_true, all_true = np.float64(true > 0), np.float64(true == data.size)
        row[LARGEST] = max(row[LARGEST], any_true)
        row[HIGHEST], row[LOWEST] = max(row[HIGHEST], any_true), min(row[LOWEST], all_true)

    return add_truths if dtype == "bool" else add_values


def _integer_stretch(dtype: str) -> Any:
    """The same for integers, whose weights are of place and value together; it needs less than that for floats."""
    add_values, signed, truth = _integer_sums(dtype), dtype.startswith("int"), dtype == "bool"

    @exact
    def folded_value(value: Any) -> Any:
        if dtype == "int64":
            return folded(value)
        if truth:
            return _U(value != 0)
        # The upper half of a negative number is all ones.
        return _U(_U(value) ^ (_NEGATIVE if value < 0 else _U(0))) if signed else _U(value)

    @exact
    def add_weights(data: Any, base: Any, high: Any, row: Any) -> None:
        even = odd = _U(0)
        for i in range(data.size):
            bits = mixed(_U(mixed(_U(_U(base + _U(i)) ^ high)) ^ folded_value(data[i])))
            even = _U(even + _U(bits & _U(0x00FF00FF)))
            odd = _U(odd + _U(_U(bits >> _U(8)) & _U(0x00FF00FF)))
        for column, pair in ((0, even), (1, odd)):
            row[column] += 2 * np.int64(pair & _U(0xFFFF)) - 255 * data.size
            row[column + 2] += 2 * np.int64(pair >> _U(16)) - 255 * data.size

    @exact
    def stretch(data: Any, _at: Any, first: Any, _table: Any, _workspace: Any, _part: Any, row: Any) -> None:
        for start in range(0, data.size, _CHUNK):
            chunk = data[start : min(start + _CHUNK, data.size)]
            add_values(chunk, row)
            at, stop = first + start, first + start + chunk.size
            while at < stop:  # the upper half of the place is the same for all of a piece
                end = min(stop, at + _PIECE, ((at >> 32) + 1) << 32)
                piece = data[at - first : end - first]
                add_weights(piece, _U(at & _LOW), _U(((at >> 32) * 0x85EBCA6B) & _LOW), row)
                at = end

    return stretch


# -- a whole tensor, or a shard of one --------------------------------------------------------------------------------


@exact
def _finish(state: Any, words: Any, row: Any, narrow: Any, statistics: Any, flags: Any) -> None:
    """The row as the file has it; its flags are 0 where squares overflow or vanish, which numpy then sees to."""
    total = squares = absolute = zeros = nans = infs = fills = 0.0
    high, low = -np.inf, np.inf
    sound = True
    for block in range(BLOCKS):
        part = state[block]
        total += part[TOTAL]
        squares += part[SUM_OF_SQUARES]
        absolute += part[L1]
        zeros += part[ZEROS]
        nans += part[NANS]
        infs += part[INFS]
        fills += part[FILLS]
        high, low = max(high, part[HIGHEST]), min(low, part[LOWEST])
        for sign in range(SIGNS):
            row[10 + block * SIGNS + sign] = part[sign]
        norm = np.sqrt(part[SUM_OF_SQUARES])
        narrow[block], narrow[BLOCKS + block] = norm, part[LARGEST]
        sound &= (part[SUM_OF_SQUARES] > _SMALLEST_SOUND or part[LARGEST] == 0) and norm < 3e38 and part[LARGEST] < 3e38
    sound &= squares < np.inf and absolute < np.inf
    words[0] = flags | _PRESENT if sound else 0
    words[3], words[4], words[5], words[6] = np.int64(zeros), np.int64(nans), np.int64(infs), np.int64(fills)
    row[7], row[8], row[9] = total, np.sqrt(squares), absolute
    statistics[0], statistics[1], statistics[2] = high, low, total
    # Those who want the statistics of all elements see by this that some were left out.
    statistics[3] = squares if nans + infs + fills == 0 and sound else np.nan


def _sketch_loop(stretch: Any, elements_at: Any, width: int) -> Any:
    def sketch(
        address: Any, count: Any, size: Any, first: Any, stride: Any, length: Any, table: Any, workspace: Any,
        whole: Any, flags: Any,
    ) -> None:  # fmt: skip
        """``count`` runs of ``size`` elements, ``stride`` apart in the whole, of which the first is ``first``."""
        data = carray(elements_at(address), count * size)
        blocks = np.int64(BLOCKS)
        state = carray(float64_at(workspace + 8 * STATE_AT), (blocks, np.int64(SKETCH_COLUMNS)))
        part = carray(float64_at(workspace + 8 * STRETCH_AT), np.int64(SKETCH_COLUMNS))
        for block in range(blocks):
            _clear(state[block])
        for run in range(count):
            at, end = first + run * stride, first + run * stride + size
            place = run * size
            while at < end:
                block = at // length
                stop = min(end, (block + 1) * length)
                piece = data[place : place + stop - at]
                stretch(piece, address + place * width, at, table, workspace, part, state[block])
                place += stop - at
                at = stop
        words, row = carray(int64_at(workspace), np.int64(7)), carray(float64_at(workspace), np.int64(STATISTICS_AT))
        narrow = carray(float32_at(workspace + 592), 2 * blocks)
        words[1], words[2] = count * size, whole
        _finish(state, words, row, narrow, carray(float64_at(workspace + 8 * STATISTICS_AT), np.int64(4)), flags)

    return sketch


_INTEGERS = {
    "bool": (uint8_at, 1), "uint8": (uint8_at, 1), "int8": (int8_at, 1), "int16": (int16_at, 2), "int32": (int32_at, 4),
    "int64": (int64_at, 8),
}  # fmt: skip
SKETCHES = {
    **{
        f"sketch_{dtype}": _sketch_loop(_stretch_of(dtype), how[3], {"float64": 8, "float32": 4}.get(dtype, 2))
        for dtype, how in READING.items()
    },
    **{f"sketch_{dtype}": _sketch_loop(_integer_stretch(dtype), *how) for dtype, how in _INTEGERS.items()},
}
