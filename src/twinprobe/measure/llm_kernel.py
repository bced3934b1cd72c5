"""The rows of inference pairs by compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.measure.addresses import address_of
from twinprobe.measure.blocks import FLOATS
from twinprobe.measure.llm_rows import STATE, WIDTH
from twinprobe.measure.machine_code import load

_DTYPES = ("float32", "float16", "bfloat16")


def reads(dtype: str) -> bool:
    """Whether stored elements of this dtype are taken as they are."""
    return dtype in _DTYPES


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
    rows = np.empty((len(places), WIDTH + STATE)) if before is None else before
    assert rows.shape == (len(places), WIDTH + STATE)
    assert places.shape == (len(places), 3)
    assert places.dtype == np.int64
    most = (places[:, :2] + places[:, 2:]).max(axis=0) * FLOATS[dtype]
    assert places.min() >= 0
    assert most[0] <= my.nbytes
    assert most[1] <= golden.nbytes
    sides = address_of(my), address_of(golden)
    assert not (sides[0] | sides[1]) % FLOATS[dtype]
    room = np.empty(WIDTH)
    loop = load(f"inference_{dtype}", 7)
    loop(*sides, address_of(places), len(places), address_of(rows), address_of(room), before is None)
    return rows
