"""Perturbation: the results of recorded calls, changed by half a unit in the last place at random.

A run recorded like this shows how much rounding alone changes. A quarter of the values moves to a neighbouring
value, up and down alike: the mean of the change is 0, its root mean square half a unit. The bits are changed in place,
so that gradients, views, in-place calls and containers of any kind stay as they are. Zeros, integers, NaN and
infinities are not changed, nor are values that a call only passes on (its inputs, views of them, parameters).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from ctypes import c_char
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from twinprobe._record.calls import FOCUS, Api, rank_of, tensors_in, words

# By the name of a dtype: the integer of the same size, and the bits of infinity.
BITS = {
    "float16": ("int16", 0x7C00),
    "bfloat16": ("int16", 0x7F80),
    "float32": ("int32", 0x7F800000),
    "float64": ("int64", 0x7FF << 52),
}
ON_CPU = "run the program on the CPU, or perturb the PyTorch one"
ONE_IN = 8  # goes up, and one in as many goes down

# Functions that copy, cast or fill, whose names calls.py does not have: they round nothing, or are to round.
_EXACT = words("copy_ fill_ masked_fill_ index_fill_ index_copy_ __setitem__ assign set_value cast identity depend")


def computes(api: Api) -> bool:
    """Whether a function computes its results; others only move or create values."""
    name = api.prefix.rstrip(".").rpartition(".")[2].lower()
    return api.rank <= FOCUS and rank_of(name) <= FOCUS and name not in _EXACT


class Perturbation(ABC):
    """Stands around the recorded calls of a program."""

    @abstractmethod
    def before(self, inputs: Any) -> None:
        """A call with these tensors begins."""

    @abstractmethod
    def after(self, output: Any, inputs: Any, in_place: bool = False) -> None:
        """A call ended: change its results, once."""


Layout = Callable[[Any], tuple[int, tuple[int, ...]]]


class HostPerturbation(Perturbation):
    """For tensors in host memory, written to by address: MindSpore and Paddle on a CPU. ``layout`` waits until a tensor
    is computed and returns its address and its strides, in elements."""

    def __init__(self, seed: int, tensor_class: type, layout: Layout) -> None:
        self._tensor_class = tensor_class
        self._layout = layout
        self._random = np.random.default_rng(seed)
        self._done: dict[
            int, weakref.ref[Any]
        ] = {}  # results changed already, by address: an outer call may return those of an inner one

    def before(self, inputs: Any) -> None:
        """Nothing to do: addresses show afterwards which results are inputs passed on."""

    def after(self, output: Any, inputs: Any, in_place: bool = False) -> None:
        memories = (self._memory(tensor) for tensor in tensors_in(inputs, self._tensor_class, []))
        given = [(low, high) for _, _, low, high in filter(None, memories)]
        for tensor in tensors_in(output, self._tensor_class, []):
            memory = self._memory(tensor)
            if memory is None:
                continue
            bits, infinity, low, high = memory
            done = self._done.get(low)
            fresh = (done is None or done() is None) and not any(low < end and start < high for start, end in given)
            if fresh or in_place:
                drawn = self._random.integers(0, ONE_IN, bits.shape, np.int8)
                magnitude = bits & np.array(np.iinfo(bits.dtype).max, bits.dtype)
                movable = (magnitude != 0) & (magnitude < infinity - 1)
                bits += ((drawn == 0) & movable).astype(bits.dtype)
                bits -= ((drawn == 1) & movable).astype(bits.dtype)
            self._done[low] = weakref.ref(tensor)

    def _memory(self, tensor: Any) -> tuple[NDArray[Any], int, int, int] | None:
        """A tensor's own memory as integers, the bits of infinity, and where the memory begins and ends; None for what
        is not changed."""
        integer, infinity = BITS.get(str(tensor.dtype).rpartition(".")[2].lower(), ("", 0))
        shape = tuple(int(size) for size in tensor.shape)
        if not integer or 0 in shape:
            return None
        address, strides = self._layout(tensor)
        if any(size > 1 and step <= 0 for size, step in zip(shape, strides, strict=True)):
            return None  # an expanded tensor: several elements in one place
        count = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        size = np.dtype(integer).itemsize
        flat = np.frombuffer(memoryview((c_char * (count * size)).from_address(address)), integer)
        bits = as_strided(flat, shape, tuple(step * size for step in strides))
        return bits, infinity, address, address + count * size
