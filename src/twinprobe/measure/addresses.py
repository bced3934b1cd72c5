"""Where the elements of an array lie, and whether two stretches of memory hold the same."""

from __future__ import annotations

import ctypes
import sys
from ctypes import addressof, c_char
from typing import Any

from numpy.typing import NDArray

_memcmp = ctypes.CDLL(None).memcmp if sys.platform != "win32" else ctypes.cdll.msvcrt.memcmp
_memcmp.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


def address_of(array: NDArray[Any]) -> int:
    """The address of a dense array's first element."""
    flags = array.flags
    if not flags.c_contiguous:
        raise ValueError("the elements do not lie one behind the other")
    if flags.writeable and array.size:
        memory: Any = array
        return addressof(c_char.from_buffer(memory))  # much quicker than to have NumPy describe the array
    address: int = array.__array_interface__["data"][0]
    return address


def same_bytes(address: int, other: int, count: int) -> bool:
    """Whether so many bytes at two addresses are the same. The caller keeps that memory alive."""
    return bool(_memcmp(address, other, count) == 0)
