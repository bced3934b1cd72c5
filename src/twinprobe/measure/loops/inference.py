"""The rows of an inference pair: each piece of it is walked over while it lies in the nearest cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from twinprobe.measure import llm_rows
from twinprobe.measure.blocks import MAX_ABS, PAIR_COLUMNS
from twinprobe.measure.llm_rows import PIECE, STATE, WIDTH
from twinprobe.measure.loops import inference_passes as passes
from twinprobe.measure.loops.elements import (
    as_is,
    exact,
    float32_at,
    float64_at,
    from_bfloat16,
    from_float16,
    int64_at,
    uint16_at,
)
from twinprobe.measure.loops.exponential import NEAR, powers_in

# Where float32 will do: golden values whose exponents are exact, and differences that leave most digits to their sums.
_LEAST_TOP, _MOST_TOP, _MOST_GAP = -9000.0, 10000.0, 8.0
# Where even less arithmetic will do. Differences count from that of the largest numbers, which itself is one.
_NEAR_GAP, _NEAR_SPREAD, _NEAR_POWERS = NEAR / 2, 80.0, 8.0


@exact
def bits_of_single(number: Any) -> Any:
    return np.float32(number).view(np.uint32)


@exact
def single_of_bits(bits: Any) -> Any:
    return np.uint32(bits).view(np.float32)


join_softmax = exact(llm_rows.join_softmax)


@exact
def join(row: Any, part: Any) -> None:
    """Add a piece to the row of its pair: first the columns of every comparison, then those of this one."""
    for at in range(4):
        row[at] += part[at]
    row[4], row[5] = max(row[4], part[4]), max(row[5], part[5])
    row[6] += part[6]
    row[7] += part[7]
    row, part = row[PAIR_COLUMNS:], part[PAIR_COLUMNS:]
    for top in (0, 3, 6, 8):
        row[top] = max(row[top], part[top])
    row[1], row[4] = min(row[1], part[1]), min(row[4], part[4])
    for total in (2, 5, 7, 9):
        row[total] += part[total]
    row, part = row[10:], part[10:]
    if row[0] == part[0] and row[4] == part[4]:
        for total in (1, 2, 3, 5):
            row[total] += part[total]
    else:
        join_softmax(row, part)


def _row_of(load: Any, extremes: Any) -> Any:
    sums, errors = passes.sums_of(load), passes.errors_of(load)
    near_softmax, softmax = passes.near_softmax_of(load), passes.softmax_of(load)
    wild_softmax = passes.wild_softmax_of(load)

    @exact
    def piece(my: Any, golden: Any, row: Any, last: Any) -> None:
        own = row[PAIR_COLUMNS:]
        sums(my, golden, row, own)
        errors(my, golden, row, own)
        extremes(my, own)
        extremes(golden, own[3:])
        my_top, golden_top, golden_low, gap = own[0], own[3], own[4], row[MAX_ABS]
        if not (_LEAST_TOP <= golden_top <= _MOST_TOP and gap <= _MOST_GAP):
            wild_softmax(my, golden, my_top, golden_top, own[10:])
            return
        powers, middle = powers_in(np.float32(golden_top)), np.float32(my_top - golden_top)
        if gap <= _NEAR_GAP and golden_top - golden_low <= _NEAR_SPREAD:
            # With the scales of the piece before, sums can be added as they are.
            if abs(powers - last[0]) <= _NEAR_POWERS and gap + abs(last[1]) <= NEAR:
                powers, middle = np.float32(last[0]), np.float32(last[1])
            last[0], last[1] = powers, middle
            near_softmax(my, golden, powers, middle, own[10:])
        else:
            softmax(my, golden, powers, middle, own[10:])

    @exact
    def whole(my: Any, golden: Any, row: Any, part: Any, begins: Any) -> None:
        last = row[WIDTH:]
        start = 0
        if begins:
            last[0] = last[1] = np.inf
            piece(my[:PIECE], golden[:PIECE], row, last)
            start = PIECE
        for at in range(start, my.size, PIECE):
            piece(my[at : at + PIECE], golden[at : at + PIECE], part, last)
            join(row, part)

    return whole


extremes_float32 = passes.extremes_of(bits_of_single, single_of_bits, np.uint32, np.int32)
extremes_float16 = passes.extremes_of(as_is, from_float16, np.uint16, np.int16)
extremes_bfloat16 = passes.extremes_of(as_is, from_bfloat16, np.uint16, np.int16)


def _loop(load: Any, extremes: Any, elements_at: Any, width: int) -> Any:
    whole = _row_of(load, extremes)

    def pairs(my: Any, golden: Any, places: Any, count: Any, rows: Any, part: Any, begins: Any) -> None:
        """Of each pair the places tell where it begins on both sides, and its size; ``part`` is room for a row."""
        at, found = carray(int64_at(places), (count, 3)), carray(float64_at(rows), (count, WIDTH + STATE))
        room = carray(float64_at(part), WIDTH)
        for k in range(count):
            mine = carray(elements_at(my + at[k, 0] * width), at[k, 2])
            theirs = carray(elements_at(golden + at[k, 1] * width), at[k, 2])
            whole(mine, theirs, found[k], room, begins != 0)

    return pairs


INFERENCE = {
    "inference_float32": _loop(as_is, extremes_float32, float32_at, 4),
    "inference_float16": _loop(from_float16, extremes_float16, uint16_at, 2),
    "inference_bfloat16": _loop(from_bfloat16, extremes_bfloat16, uint16_at, 2),
}
