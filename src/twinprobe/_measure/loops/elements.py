"""What all loops are made of: how functions are compiled, how stored elements become numbers, arrays at addresses."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import config, njit, types
from numba.extending import intrinsic

# Nothing allocates memory, so nobody has to count who uses it: that would need numba at run time.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
# Said in so many words: a function that leaves fastmath open takes over that of its caller.
exact: Callable[[Any], Any] = njit(fastmath=False, **_OPTIONS)
reordered: Callable[[Any], Any] = njit(fastmath={"reassoc", "contract", "nsz"}, **_OPTIONS)
# A product may be rounded together with the sum that follows; nothing else may change.
fused: Callable[[Any], Any] = njit(fastmath={"contract"}, **_OPTIONS)
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
def half_by_arithmetic(bits: Any) -> Any:
    # Exponent and mantissa moved to their float32 places are 2^112 too small; inf and NaN come out at 65536 and above.
    moved = np.uint32(np.uint32(bits & 0x7FFF) << np.uint32(13)).view(np.float32) * np.float32(2.0**112)
    special = np.uint32(0x7F800000) if moved >= np.float32(65536) else np.uint32(0)
    sign = np.uint32(np.uint32(bits & 0x8000) << np.uint32(16))
    return np.uint32(np.float32(moved).view(np.uint32) | special | sign).view(np.float32)


@exact
def _half_with_hardware(bits: Any) -> Any:
    return _half_by_hardware(bits)


def converts_half_in_hardware() -> bool:
    """Whether compiled code can turn float16 into float32 without a library call that numba does not have."""
    if config.CPU_NAME or config.CPU_FEATURES:
        return False
    if platform.machine().lower() in ("aarch64", "arm64"):
        return True
    return bool(binding.get_host_cpu_features().get("f16c", False))


from_float16 = _half_with_hardware if converts_half_in_hardware() else half_by_arithmetic


@exact
def relative_error(target: Any, golden: Any, eps: Any, zero: Any) -> Any:
    shift = eps if golden == zero else zero
    base = golden + shift
    return abs(((target + shift) - base) / base)


def _pointer_to(element: Any) -> Any:
    @compiler_builtin
    def pointer(_context: Any, _address: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(element).as_pointer())

        return types.CPointer(element)(types.int64), generate

    return pointer


# Turn an address into what numba.carray takes.
float32_at = _pointer_to(types.float32)
float64_at = _pointer_to(types.float64)
uint16_at = _pointer_to(types.uint16)
int64_at = _pointer_to(types.int64)
uint8_at = _pointer_to(types.uint8)
int8_at = _pointer_to(types.int8)
int16_at = _pointer_to(types.int16)
int32_at = _pointer_to(types.int32)

# By dtype: how a stored element becomes a number, of which type, the integer of its bits, and the elements' pointer.
READING: dict[str, tuple[Any, Any, Any, Any]] = {
    "float32": (as_is, np.float32, np.int32, float32_at),
    "float64": (as_is, np.float64, np.int64, float64_at),
    "float16": (from_float16, np.float32, np.int32, uint16_at),
    "bfloat16": (from_bfloat16, np.float32, np.int32, uint16_at),
}


# Checksums: 64 bytes at a time are folded into four sums of 16, by the processor's multiplication of polynomials over
# GF(2). zlib's tables take three times as long.

_SUM = ir.VectorType(ir.IntType(64), 2)
# x^(4 * 128 + 32) and x^(4 * 128 - 32) modulo the polynomial of CRC-32, bits reversed; the same for 128.
_FOLD_FOUR, _FOLD_ONE = (0x154442BD4, 0x1C6E41596), (0x1751997D0, 0x0CCAA009E)


@compiler_builtin
def _folded_bytes(_context: Any, _address: Any, _size: Any, _out: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, size, out = arguments
        whole = ir.IntType(64)
        multiply = builder.module.declare_intrinsic(
            "llvm.x86.pclmulqdq", (), ir.FunctionType(_SUM, [_SUM, _SUM, ir.IntType(8)])
        )

        def fold(held: Any, by: tuple[int, int], more: Any) -> Any:
            factor = ir.Constant(_SUM, list(by))
            parts = (builder.call(multiply, [held, factor, ir.Constant(ir.IntType(8), half)]) for half in (0x00, 0x11))
            low, high = parts
            return builder.xor(builder.xor(low, high), more)

        def load(place: Any, lane: int) -> Any:
            pointer = builder.inttoptr(builder.add(place, ir.Constant(whole, 16 * lane)), _SUM.as_pointer())
            loaded = builder.load(pointer)
            loaded.align = 1
            return loaded

        start = [load(address, lane) for lane in range(4)]
        start[0] = builder.xor(start[0], ir.Constant(_SUM, [0xFFFFFFFF, 0]))
        before = builder.basic_block
        check, body, end = (builder.append_basic_block() for _ in range(3))
        builder.branch(check)
        builder.position_at_end(check)
        at = builder.phi(whole)
        at.add_incoming(ir.Constant(whole, 64), before)
        sums = [builder.phi(_SUM) for _ in start]
        for phi, first in zip(sums, start, strict=True):
            phi.add_incoming(first, before)
        builder.cbranch(builder.icmp_signed("<", at, size), body, end)
        builder.position_at_end(body)
        place = builder.add(address, at)
        for lane, phi in enumerate(sums):
            phi.add_incoming(fold(phi, _FOLD_FOUR, load(place, lane)), body)
        at.add_incoming(builder.add(at, ir.Constant(whole, 64)), body)
        builder.branch(check)
        builder.position_at_end(end)
        total = sums[0]
        for phi in sums[1:]:
            total = fold(total, _FOLD_ONE, phi)
        builder.store(total, builder.inttoptr(out, _SUM.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def folded_bytes(address: Any, size: Any, out: Any) -> None:
    """16 bytes with the checksum of ``size`` bytes, a multiple of 64, where that starts at zero."""
    _folded_bytes(address, size, out)


CHECKSUMS = {"folded_bytes": folded_bytes}
