"""The engine compiled by numba: one fused pass without the interpreter lock, elements read in their own dtype.

Everything that is compiled stands in this one file, because numba's cache looks at a function's own file only.
The sums may be reordered (that is what makes them vectors); the relative error may not: (n + eps) - eps is not n.
Maxima are taken over the bit patterns as integers, which order non-negative floats the same way and need no NaN rule.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, config, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from twinprobe.measure.blocks import (
    BLOCK,
    FIVE_THOUSANDTHS,
    ONE_THOUSANDTH,
    PAIR_COLUMNS,
    TENSOR_COLUMNS,
    block_count,
)
from twinprobe.measure.kernel_cache import compile_cached, converts_half_in_hardware

# Said in so many words: a function that leaves fastmath open takes over that of its caller.
exact: Callable[[Any], Any] = njit(nogil=True, error_model="numpy", fastmath=False)
reordered: Callable[[Any], Any] = njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
compiler_builtin: Callable[[Any], Any] = intrinsic


@exact
def as_is(element: Any) -> Any:
    return element


@exact
def from_bfloat16(bits: Any) -> Any:
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


@compiler_builtin
def _half_by_hardware(_context: Any, _bits: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@exact
def _half_by_arithmetic(bits: Any) -> Any:
    # Exponent and mantissa moved to their float32 places are 2^112 too small; inf and NaN come out at 65536 and above.
    moved = np.uint32(np.uint32(bits & 0x7FFF) << np.uint32(13)).view(np.float32) * np.float32(2.0**112)
    special = np.uint32(0x7F800000) if moved >= np.float32(65536) else np.uint32(0)
    sign = np.uint32(np.uint32(bits & 0x8000) << np.uint32(16))
    return np.uint32(np.float32(moved).view(np.uint32) | special | sign).view(np.float32)


@exact
def _half_with_hardware(bits: Any) -> Any:
    return _half_by_hardware(bits)


from_float16 = _half_with_hardware if converts_half_in_hardware() else _half_by_arithmetic


@exact
def relative_error(target: Any, golden: Any, eps: Any, zero: Any) -> Any:
    shift = eps if golden == zero else zero
    base = golden + shift
    return abs(((target + shift) - base) / base)


def _pair_sums(load: Any, real: Any, integer: Any) -> Any:
    zero, unit, eps = real(0), real(1), real(np.finfo(real).eps)
    one, five = real(ONE_THOUSANDTH), real(FIVE_THOUSANDTHS)

    @reordered
    def sums(target: Any, golden: Any, row: Any) -> None:
        dot = target_squares = golden_squares = gap_squares = 0.0
        max_abs, max_rel = np.int64(0), integer(0)
        # Counted in floats (a block's counts fit): numba would widen an integer counter to 64 bits, at twice the cost.
        within_one = within_five = zero
        for i in range(target.size):
            narrow_n, narrow_b = load(target[i]), load(golden[i])
            relative = relative_error(narrow_n, narrow_b, eps, zero)
            max_rel = max(max_rel, real(relative).view(integer))
            within_one += unit if relative < one else zero
            within_five += unit if relative < five else zero
            n, b = np.float64(narrow_n), np.float64(narrow_b)
            gap = n - b
            dot += n * b
            target_squares += n * n
            golden_squares += b * b
            gap_squares += gap * gap
            max_abs = max(max_abs, np.float64(abs(gap)).view(np.int64))
        row[0], row[1], row[2], row[3] = dot, target_squares, golden_squares, gap_squares
        row[4], row[5] = np.int64(max_abs).view(np.float64), integer(max_rel).view(real)
        row[6], row[7] = within_one, within_five

    return sums


pair_sums_float32 = _pair_sums(as_is, np.float32, np.int32)
pair_sums_bfloat16 = _pair_sums(from_bfloat16, np.float32, np.int32)
pair_sums_float16 = _pair_sums(from_float16, np.float32, np.int32)
pair_sums_float64 = _pair_sums(as_is, np.float64, np.int64)


def pair_float32(target: Any, golden: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        pair_sums_float32(target[k * BLOCK : (k + 1) * BLOCK], golden[k * BLOCK : (k + 1) * BLOCK], rows[k])


def pair_bfloat16(target: Any, golden: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        pair_sums_bfloat16(target[k * BLOCK : (k + 1) * BLOCK], golden[k * BLOCK : (k + 1) * BLOCK], rows[k])


def pair_float16(target: Any, golden: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        pair_sums_float16(target[k * BLOCK : (k + 1) * BLOCK], golden[k * BLOCK : (k + 1) * BLOCK], rows[k])


def pair_float64(target: Any, golden: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        pair_sums_float64(target[k * BLOCK : (k + 1) * BLOCK], golden[k * BLOCK : (k + 1) * BLOCK], rows[k])


def _tensor_sums(load: Any, real: Any, integer: Any) -> Any:
    limits = np.iinfo(integer)
    lowest, mask, shift = integer(limits.min), integer(limits.max), integer(limits.bits - 1)

    @reordered
    def sums(data: Any, row: Any) -> None:
        total = squares = 0.0
        highest, smallest = lowest, lowest
        for i in range(data.size):
            narrow = load(data[i])
            # Flipping the magnitude of negative patterns makes integer order the order of the floats.
            bits = real(narrow).view(integer)
            key = integer(bits ^ ((bits >> shift) & mask))
            highest = max(highest, key)
            smallest = max(smallest, integer(~key))
            wide = np.float64(narrow)
            total += wide
            squares += wide * wide
        top, bottom = highest, integer(~smallest)
        row[0] = integer(top ^ ((top >> shift) & mask)).view(real)
        row[1] = integer(bottom ^ ((bottom >> shift) & mask)).view(real)
        row[2], row[3] = total, squares

    return sums


tensor_sums_float32 = _tensor_sums(as_is, np.float32, np.int32)
tensor_sums_bfloat16 = _tensor_sums(from_bfloat16, np.float32, np.int32)
tensor_sums_float16 = _tensor_sums(from_float16, np.float32, np.int32)
tensor_sums_float64 = _tensor_sums(as_is, np.float64, np.int64)


def tensor_float32(data: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        tensor_sums_float32(data[k * BLOCK : (k + 1) * BLOCK], rows[k])


def tensor_bfloat16(data: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        tensor_sums_bfloat16(data[k * BLOCK : (k + 1) * BLOCK], rows[k])


def tensor_float16(data: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        tensor_sums_float16(data[k * BLOCK : (k + 1) * BLOCK], rows[k])


def tensor_float64(data: Any, rows: Any) -> None:
    for k in range(rows.shape[0]):
        tensor_sums_float64(data[k * BLOCK : (k + 1) * BLOCK], rows[k])


def _pointer_to(element: Any) -> Any:
    @compiler_builtin
    def pointer(_context: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(element).as_pointer())

        return types.CPointer(element)(types.int64), generate

    return pointer


pointer_to_float32 = _pointer_to(types.float32)
pointer_to_float64 = _pointer_to(types.float64)
pointer_to_uint16 = _pointer_to(types.uint16)


def at_float32(address: Any, size: Any, row: Any) -> None:
    tensor_sums_float32(carray(pointer_to_float32(address), size), row)


def at_bfloat16(address: Any, size: Any, row: Any) -> None:
    tensor_sums_bfloat16(carray(pointer_to_uint16(address), size), row)


def at_float16(address: Any, size: Any, row: Any) -> None:
    tensor_sums_float16(carray(pointer_to_uint16(address), size), row)


def at_float64(address: Any, size: Any, row: Any) -> None:
    tensor_sums_float64(carray(pointer_to_float64(address), size), row)


AT_ADDRESS: dict[str, Callable[..., None]] = {
    "float32": at_float32, "float64": at_float64, "float16": at_float16, "bfloat16": at_bfloat16,
}  # fmt: skip
KERNELS: dict[str, tuple[np.dtype[Any], Any, Callable[..., None], Callable[..., None]]] = {
    "float32": (np.dtype(np.float32), types.float32, pair_float32, tensor_float32),
    "float64": (np.dtype(np.float64), types.float64, pair_float64, tensor_float64),
    "float16": (np.dtype(np.uint16), types.uint16, pair_float16, tensor_float16),
    "bfloat16": (np.dtype(np.uint16), types.uint16, pair_bfloat16, tensor_bfloat16),
}


class KernelEngine:
    """Rows of sums by compiled kernels; each is compiled, or fetched from the cache, when it is first asked for."""

    def __init__(self) -> None:
        if config.DISABLE_JIT:
            raise RuntimeError("NUMBA_DISABLE_JIT is set")
        self._pair: dict[str, Callable[..., None]] = {}
        self._tensor: dict[str, Callable[..., None]] = {}
        self._address: dict[str, Callable[..., None]] = {}
        self._compiling = Lock()

    def reads(self, dtype: str) -> bool:
        return dtype in KERNELS

    def pair_rows(self, dtype: str, target: NDArray[Any], golden: NDArray[Any]) -> NDArray[np.float64]:
        kernel = self._pair.get(dtype) or self._compile_pair(dtype)
        rows = np.empty((block_count(target.size), PAIR_COLUMNS))
        kernel(_frozen(dtype, target), _frozen(dtype, golden), rows)
        return rows

    def tensor_rows(self, dtype: str, data: NDArray[Any]) -> NDArray[np.float64]:
        kernel = self._tensor.get(dtype) or self._compile_tensor(dtype)
        rows = np.empty((block_count(data.size), TENSOR_COLUMNS))
        kernel(_frozen(dtype, data), rows)
        return rows

    def row_at(self, dtype: str, address: int, size: int) -> NDArray[np.float64]:
        """One row for one block of memory. The caller keeps the memory alive and knows that it is as large as this."""
        kernel = self._address.get(dtype) or self._compile_address(dtype)
        row = np.empty(TENSOR_COLUMNS)
        kernel(address, size, row)
        return row

    def _compile_address(self, dtype: str) -> Callable[..., None]:
        with self._compiling:
            if dtype not in self._address:
                signature = types.void(types.int64, types.int64, types.float64[::1])
                self._address[dtype] = compile_cached(AT_ADDRESS[dtype], signature)
        return self._address[dtype]

    def _compile_pair(self, dtype: str) -> Callable[..., None]:
        _, element, function, _ = KERNELS[dtype]
        array = types.Array(element, 1, "C", readonly=True)
        with self._compiling:
            if dtype not in self._pair:
                self._pair[dtype] = compile_cached(function, types.void(array, array, types.float64[:, ::1]))
        return self._pair[dtype]

    def _compile_tensor(self, dtype: str) -> Callable[..., None]:
        _, element, _, function = KERNELS[dtype]
        array = types.Array(element, 1, "C", readonly=True)
        with self._compiling:
            if dtype not in self._tensor:
                self._tensor[dtype] = compile_cached(function, types.void(array, types.float64[:, ::1]))
        return self._tensor[dtype]


def _frozen(dtype: str, data: NDArray[Any]) -> NDArray[Any]:
    # Exactly the compiled type: numba looks up anything that needs a conversion anew at each call.
    view: NDArray[Any] = data.view(KERNELS[dtype][0])
    view.flags.writeable = False
    return view
