"""How stored elements become float32 or float64 numbers, a block at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)

# Floats that float32 holds exactly. Relative errors of two of these are taken in float32, all others in float64.
NARROW_FLOATS = frozenset(
    {
        "float16",
        "bfloat16",
        "float32",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)
COMPLEX = frozenset({"complex64", "complex128"})
INTEGERS = frozenset({"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"})


def calculation_dtype(*names: str) -> np.dtype[Any]:
    """The type in which such elements are compared: float32 if it holds all of them exactly, else float64."""
    return FLOAT32 if NARROW_FLOATS.issuperset(names) else FLOAT64


def widen(dtype: str, data: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
    """Write stored elements as numbers into ``out`` (float32 or float64); of complex ones the real part."""
    with np.errstate(all="ignore"):  # a signalling NaN is a number like any other here
        if dtype == "bfloat16":
            bits = data.astype(np.uint32)
            np.left_shift(bits, 16, out=bits)
            np.copyto(out, bits.view(np.float32))
        elif dtype.startswith("float8"):
            np.copyto(out, _float8_values(dtype).take(data, mode="clip"))  # clip: no index is checked
        elif dtype in COMPLEX:
            np.copyto(out, data.real)
        else:
            np.copyto(out, data, casting="unsafe")
    return out


def numbers(dtype: str, data: NDArray[Any], wanted: np.dtype[Any]) -> NDArray[Any]:
    """Stored elements as a new array of float32 or float64 numbers."""
    return widen(dtype, data, np.empty(data.size, wanted))


def complex_numbers(dtype: str, data: NDArray[Any]) -> NDArray[np.complex128]:
    """Stored elements as a new array of complex numbers."""
    if dtype in COMPLEX:
        return data.astype(np.complex128)
    return numbers(dtype, data, FLOAT64).astype(np.complex128)


@cache
def _float8_values(dtype: str) -> NDArray[Any]:
    """The number that each of the 256 codes of an 8-bit float stands for."""
    codes = np.arange(256, dtype=np.int32)
    if dtype == "float8_e8m0fnu":
        values = np.ldexp(1.0, codes - 127)
        values[255] = np.nan
        return np.asarray(values, np.float32)
    exponent_bits, mantissa_bits, bias = {
        "float8_e4m3fn": (4, 3, 7),
        "float8_e4m3fnuz": (4, 3, 8),
        "float8_e5m2": (5, 2, 15),
        "float8_e5m2fnuz": (5, 2, 16),
    }[dtype]
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    lead = np.where(exponent > 0, 1 << mantissa_bits, 0)
    values = np.ldexp(np.float64(lead + mantissa), np.maximum(exponent, 1) - bias - mantissa_bits)
    values[codes >= 128] *= -1
    if dtype == "float8_e4m3fn":
        values[[0x7F, 0xFF]] = np.nan
    elif dtype == "float8_e5m2":
        values[exponent == 31] = np.nan
        values[[0x7C, 0xFC]] = np.inf, -np.inf
    else:
        values[0x80] = np.nan
    return np.asarray(values, np.float32)
