"""Where the elements of an array lie."""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any

from numpy.typing import NDArray


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
