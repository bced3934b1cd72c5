"""A tensor's bytes in host memory, as every reader hands them out and every kernel takes them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Element types that numpy lacks travel as unsigned integers of the same width; the name says how to read them.
STORAGE: dict[str, str] = {
    "bool": "?",
    "uint8": "u1",
    "int8": "i1",
    "uint16": "u2",
    "int16": "i2",
    "uint32": "u4",
    "int32": "i4",
    "uint64": "u8",
    "int64": "i8",
    "float16": "f2",
    "bfloat16": "u2",
    "float32": "f4",
    "float64": "f8",
    "float8_e4m3fn": "u1",
    "float8_e4m3fnuz": "u1",
    "float8_e5m2": "u1",
    "float8_e5m2fnuz": "u1",
    "float8_e8m0fnu": "u1",
    "complex64": "c8",
    "complex128": "c16",
}


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A flat, C-ordered array of storage elements with the dtype's own name and the shape.

    Nobody may write to ``data``. Of a large file it is a FileElements, whose slices are read when they are asked for:
    whoever takes it strip by strip needs no memory for all of it.
    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[Any]

    def __post_init__(self) -> None:
        assert self.data.ndim == 1
        assert self.data.size == prod(self.shape)
        assert self.data.dtype == np.dtype(STORAGE[self.dtype])
