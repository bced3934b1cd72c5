"""The rows of an inference pair, compiled: each piece of it is walked over while it lies in the nearest cache."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from twinprobe.measure import llm_passes as passes
from twinprobe.measure import llm_rows
from twinprobe.measure.blocks import MAX_ABS, PAIR_COLUMNS
from twinprobe.measure.kernel_cache import compile_cached
from twinprobe.measure.kernels import KERNELS, as_is, exact, from_bfloat16, from_float16
from twinprobe.measure.llm_exponential import NEAR, powers_in
from twinprobe.measure.llm_rows import COLUMNS

# Elements that both sides keep in the nearest cache; few enough to be added up in float32.
PIECE = 2048
WIDTH = PAIR_COLUMNS + COLUMNS
_STATE = 2  # columns behind those: the scales of the piece before

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
    def whole(my: Any, golden: Any, row: Any, begins: Any) -> None:
        last = row[WIDTH:]
        start = 0
        if begins:
            last[0] = last[1] = np.inf
            piece(my[:PIECE], golden[:PIECE], row, last)
            start = PIECE
        part = np.empty(WIDTH)
        for at in range(start, my.size, PIECE):
            piece(my[at : at + PIECE], golden[at : at + PIECE], part, last)
            join(row, part)

    return whole


extremes_float32 = passes.extremes_of(bits_of_single, single_of_bits, np.uint32, np.int32)
extremes_float16 = passes.extremes_of(as_is, from_float16, np.uint16, np.int16)
extremes_bfloat16 = passes.extremes_of(as_is, from_bfloat16, np.uint16, np.int16)
row_float32 = _row_of(as_is, extremes_float32)
row_float16 = _row_of(from_float16, extremes_float16)
row_bfloat16 = _row_of(from_bfloat16, extremes_bfloat16)


def pairs_float32(my: Any, golden: Any, places: Any, rows: Any, begins: Any) -> None:
    for k in range(rows.shape[0]):
        m, g, size = places[k, 0], places[k, 1], places[k, 2]
        row_float32(my[m : m + size], golden[g : g + size], rows[k], begins)


def pairs_float16(my: Any, golden: Any, places: Any, rows: Any, begins: Any) -> None:
    for k in range(rows.shape[0]):
        m, g, size = places[k, 0], places[k, 1], places[k, 2]
        row_float16(my[m : m + size], golden[g : g + size], rows[k], begins)


def pairs_bfloat16(my: Any, golden: Any, places: Any, rows: Any, begins: Any) -> None:
    for k in range(rows.shape[0]):
        m, g, size = places[k, 0], places[k, 1], places[k, 2]
        row_bfloat16(my[m : m + size], golden[g : g + size], rows[k], begins)


_FUNCTIONS = {"float32": pairs_float32, "float16": pairs_float16, "bfloat16": pairs_bfloat16}
_compiled: dict[str, Callable[..., None]] = {}
_compiling = Lock()


def reads(dtype: str) -> bool:
    """Whether stored elements of this dtype are taken as they are."""
    return dtype in _FUNCTIONS


def kernel_row(dtype: str, my: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
    """The row of a pair of stored elements: the columns of every comparison, then those of this one."""
    row: NDArray[np.float64] = kernel_rows(dtype, my, golden, np.array([(0, 0, my.size)], np.int64))[0, :WIDTH]
    return row


def kernel_rows(
    dtype: str,
    my: NDArray[Any],
    golden: NDArray[Any],
    places: NDArray[np.int64],
    before: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """One row for each pair of tensors that lie in two pieces of memory: where both begin, and their size.

    Where these are the next elements of the same pairs, ``before`` are their rows so far, which are then added to.
    Nothing changes in the numbers as long as all but the last elements come in whole pieces.
    """
    kernel = _compiled.get(dtype) or _compile(dtype)
    rows = np.empty((len(places), WIDTH + _STATE)) if before is None else before
    sides = [_frozen(dtype, side) for side in (my, golden)]
    most = (places[:, :2] + places[:, 2:]).max(axis=0)
    assert places.min() >= 0
    assert most[0] <= sides[0].size
    assert most[1] <= sides[1].size
    kernel(sides[0], sides[1], places, rows, before is None)
    return rows


def _compile(dtype: str) -> Callable[..., None]:
    array = types.Array(KERNELS[dtype][1], 1, "C", readonly=True)
    with _compiling:
        if dtype not in _compiled:
            signature = types.void(array, array, types.int64[:, ::1], types.float64[:, ::1], types.boolean)
            _compiled[dtype] = compile_cached(_FUNCTIONS[dtype], signature)
    return _compiled[dtype]


def _frozen(dtype: str, data: NDArray[Any]) -> NDArray[Any]:
    """The elements in memory of their own dtype, or of bytes."""
    if data.itemsize == 1:
        data = data[: data.size // 8 * 8]
    view: NDArray[Any] = data.view(KERNELS[dtype][0])
    view.flags.writeable = False
    return view
