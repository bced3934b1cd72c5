"""The engine of compiled loops: one fused pass without the interpreter lock, elements read in their own dtype."""

from __future__ import annotations

import threading
import zlib
from ctypes import addressof, c_double, c_ubyte, string_at
from functools import cache
from platform import machine
from typing import Any

import numpy as np
from llvmlite import binding  # type: ignore[import-untyped]
from numpy.typing import NDArray

from twinprobe._measure.elements import address_of, block_count
from twinprobe._measure.loops.inference_sums import STATE, WIDTH
from twinprobe._measure.loops.sums import (
    BLOCK,
    BLOCKS,
    FLOATS,
    PAIR_COLUMNS,
    SKETCH_COLUMNS,
    STATE_AT,
    STATISTICS_AT,
    STRETCH_AT,
    TENSOR_COLUMNS,
    WORKSPACE,
)
from twinprobe._measure.machine_code import ensure_usable, load
from twinprobe._runs.dtypes import WIDTHS
from twinprobe._runs.sketches import ROW

_ROW = c_double * TENSOR_COLUMNS


class KernelEngine:
    """Rows of sums by compiled loops; each is compiled, or fetched from the cache, when it is first asked for."""

    def __init__(self) -> None:
        ensure_usable()

    def reads(self, dtype: str) -> bool:
        return dtype in FLOATS

    def pair_rows(self, dtype: str, target: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
        size = _elements(dtype, target)
        if size != _elements(dtype, golden):
            raise ValueError("the sizes of a pair differ")
        rows = np.empty((block_count(size), PAIR_COLUMNS))
        load(f"pair_{dtype}", 4)(address_of(target), address_of(golden), size, address_of(rows))
        return rows

    def tensor_rows(self, dtype: str, data: NDArray[Any]) -> NDArray[np.float64]:
        size = _elements(dtype, data)
        rows = np.empty((block_count(size), TENSOR_COLUMNS))
        load(f"tensor_{dtype}", 3)(address_of(data), size, address_of(rows))
        return rows

    def row_at(self, dtype: str, address: int, size: int) -> list[float]:
        """The row of at most one block of memory. The caller keeps it alive and knows that it is as large as this."""
        if size > BLOCK:
            raise ValueError("more than a block")
        row = _ROW()
        load(f"tensor_{dtype}", 3)(address, size, addressof(row))
        return row[:]

    def tensor_loop(self, dtype: str) -> Any:
        """A function of the address and the number of elements and of the address of rows, one for each block."""
        return load(f"tensor_{dtype}", 3)

    def crc32_at(self, address: int, size: int) -> int:
        if size < _LARGE or not _multiplies_polynomials():
            return zlib.crc32((c_ubyte * size).from_address(address))
        whole = size & ~63
        load("folded_bytes", 3)(address, whole, _work.address)
        # These 16 bytes have the checksum of all of it, if that starts from zero.
        found = zlib.crc32(string_at(_work.address, 16), 0xFFFFFFFF)
        return zlib.crc32((c_ubyte * (size - whole)).from_address(address + whole), found)

    def sketcher(self, dtype: str) -> KernelEngine | None:
        return self if dtype in _SKETCHED else None

    def sketch_state(
        self, dtype: str, data: NDArray[Any], runs: tuple[int, int, int, int], length: int
    ) -> NDArray[np.float64]:
        count, size, first, stride = runs
        if data.itemsize != WIDTHS[dtype] or data.size != count * size:
            raise ValueError(f"not {count * size} elements of {dtype}")
        data = np.require(data, requirements=["A", "C"])
        memory, address = _work.memory, _work.address
        load(f"sketch_{dtype}", 10)(
            address_of(data), count, size, first, stride, length, sign_table(dtype), address, 0, 0
        )
        return np.array(memory[STATE_AT:STRETCH_AT]).reshape(BLOCKS, SKETCH_COLUMNS)

    def sketch_at(self, dtype: str, address: int, size: int, length: int, flags: int) -> tuple[bytes, list[float]]:
        """The finished row of a whole tensor in memory, and its max, min, sum and sum of squares.

        The flags of the row are 0 where numpy has to do it; the last number is NaN where elements were left out. The
        caller keeps the memory alive and knows that it is as large as this.
        """
        memory, place = _work.memory, _work.address
        load(f"sketch_{dtype}", 10)(address, 1, size, 0, 0, length, sign_table(dtype), place, size, flags)
        return string_at(place, ROW.itemsize), memory[STATISTICS_AT:STATE_AT]


_LARGE = 8192  # bytes from which on folding them is quicker than zlib


@cache
def _multiplies_polynomials() -> bool:
    """Whether this processor can fold checksums."""
    try:
        return machine() in ("x86_64", "AMD64") and bool(binding.get_host_cpu_features().get("pclmul", False))
    except RuntimeError:  # llvmlite cannot tell on some processors
        return False


_SKETCHED = frozenset({*FLOATS, "bool", "uint8", "int8", "int16", "int32", "int64"})


class _Work(threading.local):
    """Memory that a loop of sketches works in, of each thread its own."""

    def __init__(self) -> None:
        self.memory = (c_double * WORKSPACE)()
        self.address = addressof(self.memory)


_work = _Work()


@cache
def sign_table(dtype: str) -> int:
    """The address of 256 vectors of eight signs, one for each byte: bit k set means that sign k is -1."""
    real = np.float64 if dtype == "float64" else np.float32
    signs = 1 - 2 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(real)
    room = np.empty(signs.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + signs.nbytes] = signs.reshape(-1).view(np.uint8)
    _tables.append(room)
    return int(room.ctypes.data) + start


_tables: list[NDArray[np.uint8]] = []  # what the addresses lead to


def _elements(dtype: str, data: NDArray[Any]) -> int:
    if data.itemsize != FLOATS[dtype] or not data.flags.aligned:
        raise ValueError(f"not elements of {dtype}")
    return data.size


# The rows of inference pairs by compiled loops.

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
