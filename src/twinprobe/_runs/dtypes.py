"""The element types of tensors: one table of their names, storage and precision in all frameworks and formats."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray


class Dtype(NamedTuple):
    """``storage`` is numpy's type; one that numpy lacks travels as unsigned integers of the same width.

    ``epsilon`` is the distance from 1 to the next number, 0 for whole numbers and scales. ``atb`` is the code in
    ATB files, ``torch`` the word before Storage in files by torch.save.
    """

    storage: str
    epsilon: float = 0.0
    atb: int | None = None
    torch: str | None = None


DTYPES = {
    "bool": Dtype("?", atb=12, torch="Bool"),
    "uint8": Dtype("u1", atb=4, torch="Byte"),
    "int8": Dtype("i1", atb=2, torch="Char"),
    "uint16": Dtype("u2", atb=7),
    "int16": Dtype("i2", atb=6, torch="Short"),
    "uint32": Dtype("u4", atb=8),
    "int32": Dtype("i4", atb=3, torch="Int"),
    "uint64": Dtype("u8", atb=10),
    "int64": Dtype("i8", atb=9, torch="Long"),
    "float16": Dtype("f2", 2.0**-10, 1, "Half"),
    "bfloat16": Dtype("u2", 2.0**-7, 27, "BFloat16"),
    "float32": Dtype("f4", 2.0**-23, 0, "Float"),
    "float64": Dtype("f8", 2.0**-52, 11, "Double"),
    "float8_e4m3fn": Dtype("u1", 2.0**-3, 36),
    "float8_e4m3fnuz": Dtype("u1", 2.0**-3),
    "float8_e5m2": Dtype("u1", 2.0**-2, 35),
    "float8_e5m2fnuz": Dtype("u1", 2.0**-2),
    "float8_e8m0fnu": Dtype("u1", atb=37),
    "complex64": Dtype("c8", 2.0**-23, 16, "ComplexFloat"),
    "complex128": Dtype("c16", 2.0**-52, 17, "ComplexDouble"),
}
STORAGE = {name: dtype.storage for name, dtype in DTYPES.items()}
WIDTHS = {name: np.dtype(storage).itemsize for name, storage in STORAGE.items()}
EPSILON = {name: dtype.epsilon for name, dtype in DTYPES.items() if dtype.epsilon}
# Names that mean the same to numpy.
NATIVE = frozenset(name for name, storage in STORAGE.items() if np.dtype(storage).name == name)

INTEGERS = frozenset(name for name in DTYPES if name.startswith(("int", "uint")))
COMPLEX = frozenset({"complex64", "complex128"})
# Those that float32 holds exactly.
NARROW_FLOATS = frozenset(name for name in DTYPES if "float" in name) - {"float64"}

# Other words of frameworks, in lower case and without the framework's name.
SYNONYMS = {
    "half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32", "bool_": "bool",
}  # fmt: skip


@cache
def dtype_name(dtype: object) -> str:
    """``float32`` for torch.float32, paddle.float32, Float32 and numpy's own, given as a dtype or as a text."""
    return str(dtype).rpartition(".")[2].lower()


def small_floats(exponent_bits: int, mantissa_bits: int, bias: int) -> NDArray[np.float64]:
    """The numbers that the codes of a float of at most 8 bits stand for, none of them NaN or inf yet."""
    width = 1 + exponent_bits + mantissa_bits
    codes = np.arange(1 << width)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    lead = np.where(exponent > 0, 1 << mantissa_bits, 0)
    values = np.ldexp((lead + mantissa).astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
    return cast("NDArray[np.float64]", np.where(codes >> (width - 1), -values, values))


def widened(bits: NDArray[Any]) -> NDArray[np.float32]:
    """bfloat16 numbers, stored as 16-bit integers, as a new array of float32, which holds them exactly."""
    wide = bits.astype(np.uint32)
    np.left_shift(wide, 16, out=wide)
    return wide.view(np.float32)
