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
