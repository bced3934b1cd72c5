"""Sketches: 64 signed sums of a tensor, by which the norm of a difference is known although neither side was kept.

Element i of the whole tensor, counted row by row, lies in block i // block_length and has four signs, from a hash of
i // 8. The sums are linear: those of a difference are the difference of the sums, and those of shards add up to those
of the whole. docs/formats.md says the same in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import product
from math import exp, isfinite, lgamma, log, nan, prod, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import FLOAT32, FLOAT64, address_of, array_at, numbers
from twinprobe._measure.engine import STRIP, engine_for, over_strips
from twinprobe._measure.loops.sums import (
    BLOCK,
    FILLS,
    FLOATS,
    HIGHEST,
    INFS,
    L1,
    LARGEST,
    LOWEST,
    NANS,
    QUARTER,
    SKETCH_COLUMNS,
    SUM_OF_SQUARES,
    TOTAL,
    ZEROS,
    Engine,
)
from twinprobe._measure.statistics import Statistics, is_sound, statistics
from twinprobe._runs.dtypes import COMPLEX, INTEGERS, STORAGE
from twinprobe._runs.sketches import (
    BLOCKS,
    COMPLEX_PAIRS,
    DOUBLE,
    INTEGER,
    LOCAL,
    PARTIAL,
    PRESENT,
    ROW,
    SHARD,
    SIGNS,
    SUMMED,
    Rows,
    Sketches,
)
from twinprobe._runs.tensors.elements import FileElements, HostTensor

Floats = NDArray[np.float64]

# -- the definition ---------------------------------------------------------------------------------------------------

GROUP = 8  # elements that share one hash: 8 elements x 4 signs are its 32 bits
_U = np.uint32
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)
_SPREAD = np.uint64(0x85EBCA6B)
_ADDED = [*range(SIGNS), TOTAL, SUM_OF_SQUARES, L1, ZEROS, NANS, INFS, FILLS]


@lru_cache(maxsize=4096)  # a model has few sizes, and thousands of tensors
def block_length(whole: int) -> int:
    """How many elements each of the 16 blocks of a tensor has; the last ones may have fewer, or none.

    A sixteenth, rounded up to a multiple of up to 512, so that blocks begin where memory is read well.
    """
    length = max(1, -(-whole // BLOCKS))
    step = min(512, 1 << max(0, (length // 8).bit_length() - 1))
    return -(-length // step) * step


def mixed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The finaliser of MurmurHash3 (public domain) after adding 2^32 over the golden ratio: 32 bits to 32 bits."""
    with np.errstate(over="ignore"):
        words = words + _U(0x9E3779B9)
        words = (words ^ (words >> _U(16))) * _U(0x85EBCA6B)
        words = (words ^ (words >> _U(13))) * _U(0xC2B2AE35)
        found: NDArray[np.uint32] = words ^ (words >> _U(16))
    return found


def _folded(values: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """64 bits as 32; small numbers stay what they are."""
    with np.errstate(over="ignore"):
        found: NDArray[np.uint32] = ((values & _LOW) ^ ((values >> _HIGH) * _SPREAD & _LOW)).astype(np.uint32)
    return found


def float_signs(first: int, count: int) -> NDArray[np.int8]:
    """The signs of elements ``first`` and on: four rows of +1 and -1."""
    start, stop = first // GROUP, -(-(first + count) // GROUP)
    words = mixed(_folded(np.arange(start, stop, dtype=np.uint64)))
    # Byte r of a hash holds the bits of sign r, one for each of the eight elements.
    octets = words.astype("<u4").view(np.uint8).reshape(-1, SIGNS).T
    bits = np.unpackbits(np.ascontiguousarray(octets), axis=1, bitorder="little")
    skipped = first - start * GROUP
    signs: NDArray[np.int8] = 1 - 2 * bits[:, skipped : skipped + count].view(np.int8)
    return signs


# The mean square of a weight of integers: odd numbers from -255 to 255.
_MEAN_SQUARE = (256**2 - 1) / 3


def integer_weights(first: int, values: NDArray[np.uint64]) -> NDArray[np.int16]:
    """What integers add to the sums, from the place and the value together: a byte of the hash for each of the four.

    Signs alone would hide one difference in sixteen that stands alone.
    """
    place = mixed(_folded(np.arange(first, first + len(values), dtype=np.uint64)))
    words = mixed(place ^ _folded(values))
    octets = words.astype("<u4").view(np.uint8).reshape(-1, SIGNS).T
    weights: NDArray[np.int16] = 2 * octets.astype(np.int16) - 255
    return weights


@lru_cache(maxsize=8)
def _first_signs(size: int) -> NDArray[np.float64]:
    """Those of the first elements, in which most small tensors end."""
    return float_signs(0, size).astype(np.float64)


# -- sums by numpy ----------------------------------------------------------------------------------------------------


def empty_state() -> Floats:
    """Nothing added up yet: a row of columns for each block."""
    state = np.zeros((BLOCKS, SKETCH_COLUMNS))
    state[:, HIGHEST], state[:, LOWEST] = -np.inf, np.inf
    return state


def _add(state: Floats, more: Floats) -> None:
    with np.errstate(over="ignore"):
        state[:, _ADDED] += more[:, _ADDED]
    for column, take in ((LARGEST, np.maximum), (HIGHEST, np.maximum), (LOWEST, np.minimum)):
        take(state[:, column], more[:, column], out=state[:, column])


def _plain_state(dtype: str, data: NDArray[Any], first: int, length: int) -> Floats:
    """What numpy finds in elements ``first`` and on, no more than a BLOCK of them."""
    state, size = empty_state(), data.size
    if dtype == "bool" or dtype in INTEGERS:
        bits = data.astype(np.int64).view(np.uint64) if dtype != "uint64" else data
        values = data.astype(np.float64)
        signed, ordinary = integer_weights(first, bits).astype(np.float64), np.ones(size, bool)
    else:
        values = numbers(dtype, data, FLOAT64)
        with np.errstate(invalid="ignore"):
            ordinary = np.abs(values) <= QUARTER.get(dtype, np.inf)
            ordinary &= np.isfinite(values)
        signs: NDArray[Any] = float_signs(first, size) if first else _first_signs(-(-size // 4096) * 4096)[:, :size]
        with np.errstate(invalid="ignore"):
            signed = signs * np.where(ordinary, values, 0.0)
    starts = np.arange(-(-first // length) * length if first % length else first, first + size, length) - first
    if not len(starts) or starts[0]:
        starts = np.concatenate([[0], starts])
    blocks = (first + starts) // length
    kept = np.where(ordinary, values, 0.0)
    strange = ~ordinary
    with np.errstate(all="ignore"):
        state[blocks, :SIGNS] = np.add.reduceat(signed, starts, axis=1).T
        for column, part in (
            (TOTAL, kept), (SUM_OF_SQUARES, kept * kept), (L1, np.abs(kept)), (ZEROS, values == 0),
            (NANS, np.isnan(values)), (INFS, np.isinf(values)), (FILLS, strange & np.isfinite(values)),
        ):  # fmt: skip
            state[blocks, column] = np.add.reduceat(part.astype(np.float64), starts)
        state[blocks, LARGEST] = np.maximum.reduceat(np.abs(kept), starts)
        state[blocks, HIGHEST] = np.fmax.reduceat(values, starts)
        state[blocks, LOWEST] = np.fmin.reduceat(values, starts)
    return state


def rows_of(states: Floats, counts: Any, wholes: Any, flags: int) -> Rows:
    """The rows of tensors from what was added up: for each of them a state, how many elements it and the whole have."""
    rows = np.zeros(len(states), ROW)
    most, narrow = np.finfo(np.float64).max, float(np.finfo(np.float32).max)
    squares, largest = states[:, :, SUM_OF_SQUARES], states[:, :, LARGEST]
    with np.errstate(all="ignore"):
        # Of numbers whose squares overflow or vanish only the order of magnitude is told.
        unsound = ~(np.isfinite(squares) & ((squares > 1e-280) | (largest == 0)))
        norms = np.where(unsound, largest, np.sqrt(squares))
        top = norms.max(axis=1)
        scale = np.where(top > 0, top, 1.0)
        rows["norm"] = np.minimum(scale * np.sqrt(np.sum((norms / scale[:, None]) ** 2, axis=1)), most)
        rows["flags"], rows["count"], rows["whole"] = flags | PRESENT, counts, wholes
        for name, column in (("zeros", ZEROS), ("nan", NANS), ("inf", INFS), ("fill", FILLS)):
            rows[name] = states[:, :, column].sum(axis=1).astype(np.uint64)
        for name, column in (("total", TOTAL), ("l1", L1)):
            rows[name] = np.clip(np.nan_to_num(states[:, :, column].sum(axis=1)), -most, most)
        rows["sums"] = np.clip(np.nan_to_num(states[:, :, :SIGNS].reshape(len(states), -1)), -most, most)
        rows["block_norm"], rows["block_max"] = np.minimum(norms, narrow), np.minimum(largest, narrow)
    return rows


def _row_of(state: Floats, count: int, whole: int, flags: int) -> Rows:
    return rows_of(state[None], count, whole, flags)


# -- one tensor, or a part of one -------------------------------------------------------------------------------------


def sketch(
    tensor: HostTensor,
    global_shape: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    *,
    flags: int = 0,
    engine: Engine | None = None,
) -> Rows:
    """The sketch of a tensor, an array of one row.

    ``global_shape`` and ``offsets`` say where in a larger tensor this one lies, as a shard does: then its elements
    have the places that they have there, and the sketches of all shards add up to that of the whole.
    """
    dtype, data = tensor.dtype, tensor.data
    flags |= flags_of(dtype)
    shape, whole_shape = tensor.shape, tuple(global_shape) if global_shape is not None else tensor.shape
    if dtype in COMPLEX:  # two reals each, one behind the other
        dtype, data = ("float32", data.view(np.float32)) if dtype == "complex64" else ("float64", data.view(np.float64))
        shape, whole_shape = (*shape, 2), (*whole_shape, 2)
        offsets = (*offsets, 0) if offsets is not None else None
    whole = prod(whole_shape)
    length = block_length(whole)
    if whole_shape != shape:
        if offsets is None or len(offsets) != len(shape) or len(whole_shape) != len(shape):
            raise ValueError(f"no place for a tensor of shape {shape} in one of {whole_shape}: offsets {offsets}")
        if any(at < 0 or at + size > most for at, size, most in zip(offsets, shape, whole_shape, strict=True)):
            raise ValueError(f"a tensor of shape {shape} at {tuple(offsets)} reaches beyond {whole_shape}")
        flags |= SHARD
        runs = _runs(shape, whole_shape, offsets)
    else:
        runs = iter([(0, 0, 1, data.size, 0)]) if data.size else iter(())
    state = empty_state()
    for start, first, count, size, stride in runs:
        part = data[start : start + count * size]
        used = engine or engine_for(part.nbytes)
        _add(state, _state_of(used, dtype, part, (count, size, first, stride), length))
    return _row_of(state, data.size, whole, flags)


# Read as float32, once for sketch and statistics.
_WIDENED = frozenset({"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})
_EXACT = 2.0**53  # sums of integers below this are exact, in whatever order they were added up


def measured(tensor: HostTensor) -> tuple[Statistics, bytes]:
    """Statistics and sketch of a tensor, in one pass wherever its sums tell both."""
    dtype, data = tensor.dtype, tensor.data
    if data.size and data.flags.aligned and dtype not in COMPLEX:
        if data.size <= STRIP and not isinstance(data, FileElements) and dtype not in _WIDENED:
            values, row = _compiled(dtype, address_of(data), data.size)
            if row is not None:
                return values or statistics(tensor), row
        elif dtype == "bool" or dtype in FLOATS or dtype in INTEGERS or dtype in _WIDENED:
            engine, runs = engine_for(data.nbytes), (1, data.size, 0, 0)
            state = _state_of(engine, dtype, data, runs, block_length(data.size))
            squares, total = (float(state[:, column].sum()) for column in (SUM_OF_SQUARES, TOTAL))
            whole = not state[:, NANS:].any() and (dtype not in FLOATS or is_sound(squares))
            extremes = float(state[:, HIGHEST].max()), float(state[:, LOWEST].min())
            values = _statistics(dtype, data.size, *extremes, total, squares if whole else nan)
            row = _row_of(state, data.size, data.size, flags_of(dtype)).tobytes()
            return values or statistics(tensor), row
    return statistics(tensor), sketch(tensor).tobytes()


def measured_at(dtype: str, address: int, size: int) -> tuple[Statistics, bytes]:
    """The same straight from memory, for recorders, which measure thousands of small tensors: where compiled loops
    read it, no array is made. The memory must stay alive, be aligned and hold ``size`` elements."""
    values, row = _compiled(dtype, address, size) if size <= STRIP else (None, None)
    if values is not None and row is not None:
        return values, row
    host = HostTensor(dtype, (size,), array_at(address, STORAGE[dtype], size))
    return measured(host) if row is None else (statistics(host), row)


def _statistics(dtype: str, size: int, top: float, bottom: float, total: float, squares: float) -> Statistics | None:
    """From the sums of a sketch; None where they are not those of all elements, or not exact."""
    if dtype == "bool" or dtype in INTEGERS:
        if not squares < _EXACT:
            return None
        number = bool if dtype == "bool" else int
        return Statistics(number(top), number(bottom), total / size, sqrt(squares))
    return Statistics(top, bottom, total / size, sqrt(squares)) if isfinite(squares) and isfinite(total) else None


def as_pairs(row: bytes | None) -> bytes | None:
    """The row of real and imaginary parts, marked as such."""
    return None if row is None else bytes((row[0] | COMPLEX_PAIRS, *row[1:4])) + row[4:]


@cache
def flags_of(dtype: str) -> int:
    """What a dtype says about its sketches."""
    if dtype == "bool" or dtype in INTEGERS:
        return PRESENT | INTEGER | DOUBLE
    double = DOUBLE if dtype in ("float64", "complex128") else 0
    return PRESENT | double | (COMPLEX_PAIRS if dtype in COMPLEX else 0)


def _runs(
    shape: tuple[int, ...], whole: tuple[int, ...], offsets: Sequence[int]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Stretches of a dense shard: where each begins in it, where in the whole, how many runs of how many elements it
    has, and how far apart these lie in the whole."""
    if 0 in shape:
        return
    strides = [prod(whole[axis + 1 :]) for axis in range(len(whole))]
    last = max(axis for axis in range(len(whole)) if shape[axis] != whole[axis])
    size = prod(shape[last:])
    origin = sum(at * stride for at, stride in zip(offsets, strides, strict=True))
    outer, count, stride = shape[:last], 1, 0
    if last:
        outer, count, stride = shape[: last - 1], shape[last - 1], strides[last - 1]
    for number, place in enumerate(product(*map(range, outer))):
        moved = sum(at * step for at, step in zip(place, strides, strict=False))
        yield number * count * size, origin + moved, count, size, stride


def _state_of(engine: Engine, dtype: str, data: NDArray[Any], runs: tuple[int, int, int, int], length: int) -> Floats:
    """The sums over so many runs of so many elements, from ``first`` on in the whole and so far apart there."""
    count, size, first, stride = runs
    sketcher = engine.sketcher(dtype) if count > 1 else None
    if sketcher is not None:
        return sketcher.sketch_state(dtype, data[:], runs, length)
    state = empty_state()
    for run in range(count):
        begin, place = run * size, first + run * stride

        def of_strip(start: int, stop: int, begin: int = begin, place: int = place) -> Floats:
            return _strip_state(engine, dtype, data[begin + start : begin + stop], place + start, length)

        for part in over_strips(of_strip, size):
            _add(state, part)
    return state


def _strip_state(engine: Engine, dtype: str, data: NDArray[Any], first: int, length: int) -> Floats:
    sketcher = engine.sketcher(dtype)
    if sketcher is not None:
        return sketcher.sketch_state(dtype, data, (1, data.size, first, 0), length)
    # 8-bit floats and unsigned integers go in a type that compiled loops read. The largest numbers of float8_e8m0fnu
    # are no fill values, as they are of the others; those of uint64 are no int64.
    name = "int64" if dtype in INTEGERS else "float32"
    beyond = dtype == "float8_e8m0fnu" or (dtype == "uint64" and data.max() >= 1 << 63)
    sketcher = None if beyond else engine.sketcher(name)
    state = empty_state()
    for start in range(0, data.size, BLOCK):
        part = data[start : start + BLOCK]
        if sketcher is None:
            more = _plain_state(dtype, part, first + start, length)
        else:
            wide = part.astype(np.int64) if dtype in INTEGERS else numbers(dtype, part, FLOAT32)
            more = sketcher.sketch_state(name, wide, (1, wide.size, first + start, 0), length)
        _add(state, more)
    return state


def _compiled(dtype: str, address: int, size: int) -> tuple[Statistics | None, bytes | None]:
    """Statistics and sketch by compiled loops; no sketch where they cannot, and no statistics where elements were left
    out of the sums, or sums of integers are not exact."""
    sketcher = engine_for(0).sketcher(dtype)
    if sketcher is None:
        return None, None
    row, sums = sketcher.sketch_at(dtype, address, size, block_length(size), flags_of(dtype))
    return (_statistics(dtype, size, *sums), row) if row[0] & PRESENT else (None, None)


# -- what two sketches say --------------------------------------------------------------------------------------------

# Sums in float32 lanes resolve about this part of a norm; sums in float64 nearly all of it.
RESOLUTION, DOUBLE_RESOLUTION = 2e-7, 1e-14
_MISSED = 0.001  # bounds hold but for one case in a thousand
_LAYOUT = INTEGER | COMPLEX_PAIRS | LOCAL | SHARD | PARTIAL
_PAIRS_AT_ONCE = 1 << 14


class Estimate(NamedTuple):
    """Per pair: how far apart the tensors are. NaN where the sketches say nothing about each other.

    ``relative``: norm of the difference over the golden norm; of integers the share of elements that differ.
    ``worst``: the same of the block that is farthest off, and ``block`` which that is.
    ``refilled``: one holds more fill values, of a mask, than the other.
    ``noisy``: the share of elements that may be nothing but error, block by block.
    """

    comparable: NDArray[np.bool_]
    relative: Floats
    lower: Floats
    upper: Floats
    worst: Floats
    block: NDArray[np.int64]
    refilled: NDArray[np.bool_]
    noisy: Floats


def replaced(estimate: Estimate, rows: NDArray[np.int64], part: Estimate) -> Estimate:
    """The same with another estimate for these pairs."""
    columns: list[Any] = [column.copy() for column in estimate]
    for column, new in zip(columns, part, strict=True):
        column[rows] = new
    return Estimate(*columns)


def comparable(target: Rows, golden: Rows) -> NDArray[np.bool_]:
    """Whether two sketches are of tensors of the same size, kind and layout."""
    both = target["flags"] & golden["flags"] & PRESENT != 0
    alike = both & ((target["flags"] ^ golden["flags"]) & _LAYOUT == 0)
    fits: NDArray[np.bool_] = alike & (target["whole"] == golden["whole"]) & (target["count"] == golden["count"])
    return fits


def estimate(target: Rows, golden: Rows) -> Estimate:
    """How far each target is from its golden tensor, with bounds that hold in 999 of 1,000 cases.

    The part of the difference that is a multiple of the golden tensor is known better than the sums tell: its norm is
    that multiple of a norm that was measured. The sums give the multiple and the norm of the rest.
    """
    fits = comparable(target, golden)
    integer = (golden["flags"] & INTEGER) != 0
    scale = np.maximum(np.abs(target["sums"]).max(axis=1), np.abs(golden["sums"]).max(axis=1))
    scale = np.where(scale > 0, scale, 1.0)  # squares of float64 sums may overflow
    t, g = target["sums"] / scale[:, None], golden["sums"] / scale[:, None]
    own = (g * g).sum(axis=1)
    with np.errstate(all="ignore"):
        factor = np.where(integer | (own == 0), 1.0, (t * g).sum(axis=1) / own)
        unsure = np.where(own == 0, 0.0, 3.3 * np.sqrt(((t - factor[:, None] * g) ** 2).mean(axis=1) / own))
    rest = ((t - factor[:, None] * g) ** 2).reshape(-1, BLOCKS, SIGNS).mean(axis=2)
    squares = rest.sum(axis=1)
    with np.errstate(all="ignore"):
        evenly = np.where(squares > 0, squares**2 / (rest**2).sum(axis=1), BLOCKS)
        low, high = _quantiles()[:, np.clip(evenly.astype(np.int64), 1, BLOCKS)]
        # Of integers every differing element adds two mean squares to each squared sum, on average.
        share = squares * scale**2 / (2 * _MEAN_SQUARE) / np.maximum(golden["count"], 1)
        floor = np.where((target["flags"] & golden["flags"] & DOUBLE) != 0, DOUBLE_RESOLUTION, RESOLUTION)
        floor = floor * np.maximum(golden["norm"], target["norm"])

        def relative(divisor: Any, slack: float) -> Floats:
            multiple = np.maximum(np.abs(factor - 1) + slack * unsure, 0.0) * golden["norm"]
            gap = np.hypot(multiple, np.sqrt(squares / divisor) * scale)
            gap = np.where((squares == 0) & (factor == 1), 0.0, np.maximum(gap + slack * floor, 0.0))
            gap = np.where(gap == 0, 0.0, gap / golden["norm"])
            return np.where(fits, np.where(integer, np.minimum(share / divisor, 1.0), gap), np.nan)

        apart = ((t - g) ** 2).reshape(-1, BLOCKS, SIGNS).mean(axis=2) * scale[:, None] ** 2
        worst = _worst(apart, golden, integer)
        error = np.where(apart > 0, np.sqrt(apart) / golden["block_norm"], 0.0)
        likely, lower, upper = relative(1.0, 0.0), relative(high, -1.0), relative(low, 1.0)
    largest, block = np.where(fits, worst.max(axis=1), np.nan), np.where(fits, worst.argmax(axis=1), -1)
    filled = [rows["fill"] + rows["inf"] for rows in (target, golden)]
    masked = (target["fill"] + golden["fill"] > 0) | ((target["inf"] > 0) & (golden["inf"] > 0))
    refilled = fits & ~integer & masked & (filled[0] != filled[1])
    noisy = np.where(fits, np.fmin(error, 1.0).mean(axis=1), np.nan)
    return Estimate(fits, likely, lower, upper, largest, block, refilled, noisy)


def _worst(squares: Floats, golden: Rows, integer: NDArray[np.bool_]) -> Floats:
    lengths = np.array([block_length(int(whole)) for whole in golden["whole"]], np.float64)
    sizes = np.clip(golden["whole"][:, None] - np.arange(BLOCKS) * lengths[:, None], 0, lengths[:, None])
    # A block of next to nothing must not make much of its noise.
    base = np.maximum(golden["block_norm"].astype(np.float64), 1e-3 * golden["norm"][:, None] / sqrt(BLOCKS))
    reals = np.where(squares > 0, np.sqrt(squares) / base, 0.0)
    wholes = np.where(squares > 0, np.minimum(squares / (2 * _MEAN_SQUARE) / np.maximum(sizes, 1.0), 1.0), 0.0)
    result: Floats = np.where(integer[:, None], wholes, reals)
    return result


def estimate_pairs(
    target: Sketches | None, golden: Sketches | None, t_rows: NDArray[Any], g_rows: NDArray[Any]
) -> Estimate | None:
    """``estimate`` for pairs of rows of two runs' tables; None where a run has no sketches."""
    if target is None or golden is None:
        return None
    parts = [
        estimate(target.of(t_rows[at : at + _PAIRS_AT_ONCE]), golden.of(g_rows[at : at + _PAIRS_AT_ONCE]))
        for at in range(0, max(1, len(t_rows)), _PAIRS_AT_ONCE)
    ]
    return Estimate(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@cache
def _quantiles() -> NDArray[np.float64]:
    """Low and high quantiles of estimated over true squares, by the number of blocks that hold the difference.

    Four squared sums of normal numbers for each block: chi-square over its degrees of freedom.
    """
    found = np.ones((2, BLOCKS + 1))
    for blocks in range(1, BLOCKS + 1):
        half = SIGNS * blocks // 2
        for side, chance in enumerate((1 - _MISSED / 2, _MISSED / 2)):
            low, high = 0.0, 40.0 * half
            for _ in range(80):
                middle = (low + high) / 2
                above = sum(exp(-middle + k * log(middle) - lgamma(k + 1)) for k in range(half))
                low, high = (middle, high) if above > chance else (low, middle)
            found[side, blocks] = low / half
    return found


def combined(rows: Rows) -> Rows | None:
    """The sketch of the whole from those of all its shards, or of its summands (Partial): an array of one row.

    Replicas count once. None where the rows do not cover the whole, or their places in it are not known. Of summands
    only the sums are known; norms are then estimated from them, and there are no counts.
    """
    flags, size = int(rows["flags"][0]), int(rows["whole"][0])
    if not flags & PRESENT or flags & LOCAL or (rows["flags"] != flags).any() or (rows["whole"] != size).any():
        return None
    if not flags & PARTIAL and rows["count"].sum() > size:
        rows = np.unique(rows)
    if rows["count"].sum() != (len(rows) * size if flags & PARTIAL and not flags & SHARD else size):
        return None
    whole = np.zeros(1, ROW)
    whole["flags"] = flags & ~(SHARD | PARTIAL)
    whole["whole"] = size
    with np.errstate(all="ignore"):
        whole["sums"], whole["total"] = rows["sums"].sum(axis=0), rows["total"].sum()
        if flags & PARTIAL:
            whole["flags"] |= SUMMED
            whole["count"] = size
            squares = (whole["sums"] ** 2).reshape(BLOCKS, SIGNS).mean(axis=1)
            whole["norm"], whole["block_norm"] = sqrt(squares.sum()), np.sqrt(squares)
            return whole
        for name in ("count", "zeros", "nan", "inf", "fill", "l1"):
            whole[name] = rows[name].sum()
        whole["norm"] = sqrt(float((rows["norm"] ** 2).sum()))
        whole["block_norm"] = np.sqrt((rows["block_norm"].astype(np.float64) ** 2).sum(axis=0))
        whole["block_max"] = rows["block_max"].max(axis=0)
    return whole
