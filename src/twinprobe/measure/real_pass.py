"""One pass over a pair of tensors of real numbers."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.blocks import BLOCK, GOLDEN_SQUARES, PAIR_COLUMNS, TARGET_SQUARES, Engine, block_count
from twinprobe.measure.decode import calculation_dtype, numbers, widen
from twinprobe.measure.nonfinite import Oddities, clear_nonfinite
from twinprobe.measure.totals import PairTotals
from twinprobe.runs.host_tensor import HostTensor


def real_totals(engine: Engine, target: HostTensor, golden: HostTensor, start: int, stop: int) -> PairTotals:
    """The totals of the elements from ``start`` to ``stop``."""
    rows = _rows(engine, target, golden, start, stop)
    totals = PairTotals.of_rows(rows)
    if isfinite(totals.target_squares + totals.golden_squares):
        return totals
    odd = Oddities()
    finite = np.isfinite(rows[:, TARGET_SQUARES]) & np.isfinite(rows[:, GOLDEN_SQUARES])
    for k in np.flatnonzero(~finite).tolist():
        block = slice(start + k * BLOCK, min(start + (k + 1) * BLOCK, stop))
        t, g = target.data[block], golden.data[block]
        rows[k] = _row_without_nonfinite(engine, (target.dtype, t), (golden.dtype, g), odd)
    totals = PairTotals.of_rows(rows)
    totals.odd = odd
    return totals


Stored = tuple[str, NDArray[Any]]

_PIECE = 8 * BLOCK  # elements of a file that are read at once: some MiB, which the processor's cache still holds


def _rows(engine: Engine, target: HostTensor, golden: HostTensor, start: int, stop: int) -> NDArray[np.float64]:
    """A row for each block. Elements that lie in a file are read and measured piece by piece."""
    found = []
    for at in range(start, stop, _PIECE):
        piece = slice(at, min(at + _PIECE, stop))
        # What was read has no name here: its memory takes the next piece.
        found.append(_rows_of_piece(engine, (target.dtype, target.data[piece]), (golden.dtype, golden.data[piece])))
    return np.concatenate(found)


def _rows_of_piece(engine: Engine, target: Stored, golden: Stored) -> NDArray[np.float64]:
    (dtype, t), (golden_dtype, g) = target, golden
    if dtype == golden_dtype and engine.reads(dtype) and t.flags.aligned and g.flags.aligned:
        return engine.pair_rows(dtype, t, g)
    wanted = calculation_dtype(dtype, golden_dtype)
    length = min(BLOCK, t.size)
    wide_t, wide_g = np.empty(length, wanted), np.empty(length, wanted)
    rows = np.empty((block_count(t.size), PAIR_COLUMNS))
    for k, start in enumerate(range(0, t.size, BLOCK)):
        stop = min(start + BLOCK, t.size)
        rows[k] = engine.pair_rows(
            wanted.name,
            widen(dtype, t[start:stop], wide_t[: stop - start]),
            widen(golden_dtype, g[start:stop], wide_g[: stop - start]),
        )[0]
    return rows


def _row_without_nonfinite(engine: Engine, target: Stored, golden: Stored, odd: Oddities) -> NDArray[np.float64]:
    wanted = calculation_dtype(target[0], golden[0])
    t, g = numbers(*target, wanted), numbers(*golden, wanted)
    odd.add(clear_nonfinite(t, g))
    rows = engine.pair_rows(wanted.name, t, g)
    return rows[0, :]
