"""How stored elements become float32 or float64 numbers, a block at a time."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from ctypes import addressof, c_char
from functools import cache
from itertools import permutations
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.loops.sums import BLOCK
from twinprobe._runs.dtypes import COMPLEX, NARROW_FLOATS, small_floats, widened
from twinprobe._runs.tensors.elements import HostTensor, JoinedElements

FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
# Pieces of this size are still in the processor's cache when they are measured: nearly twice as fast as whole files.
AT_ONCE = 2 << 20
ANY_ORDER = (-1,)  # of axes: the same elements in an order that nothing tells


def calculation_dtype(*names: str) -> np.dtype[Any]:
    """The type in which such elements, and their relative errors, are compared: float32 if it holds all exactly."""
    return FLOAT32 if NARROW_FLOATS.issuperset(names) else FLOAT64


def block_count(size: int) -> int:
    """How many rows of sums so many elements take."""
    return -(-size // BLOCK)


def widen(dtype: str, data: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
    """Write stored elements as numbers into ``out`` (float32 or float64); of complex ones the real part."""
    with np.errstate(all="ignore"):  # a signalling NaN is a number like any other here
        if dtype == "bfloat16":
            np.copyto(out, widened(data))
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


# Exponent bits, mantissa bits, bias.
_FLOAT8 = {
    "float8_e4m3fn": (4, 3, 7), "float8_e4m3fnuz": (4, 3, 8), "float8_e5m2": (5, 2, 15), "float8_e5m2fnuz": (5, 2, 16),
}  # fmt: skip


@cache
def _float8_values(dtype: str) -> NDArray[Any]:
    """The number that each of the 256 codes of an 8-bit float stands for."""
    if dtype == "float8_e8m0fnu":
        values = np.ldexp(1.0, np.arange(256, dtype=np.int32) - 127)
        values[255] = np.nan
        return np.asarray(values, np.float32)
    values = small_floats(*_FLOAT8[dtype])
    if dtype == "float8_e4m3fn":
        values[[0x7F, 0xFF]] = np.nan
    elif dtype == "float8_e5m2":
        values[0x7C:0x80] = values[0xFC:] = np.nan
        values[[0x7C, 0xFC]] = np.inf, -np.inf
    else:
        values[0x80] = np.nan
    return np.asarray(values, np.float32)


# Where the elements of an array lie, and whether two stretches of memory hold the same.

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


def array_at(address: int, storage: str, size: int) -> NDArray[Any]:
    """So many elements at an address as an array. The caller keeps that memory alive."""
    memory: Any = (c_char * (size * np.dtype(storage).itemsize)).from_address(address)
    return np.frombuffer(memory, storage) if size else np.empty(0, storage)


def same_bytes(address: int, other: int, count: int) -> bool:
    """Whether so many bytes at two addresses are the same. The caller keeps that memory alive."""
    return bool(_memcmp(address, other, count) == 0)


# Tensors put into the layout of the one they are compared with: turned, or several joined to one.
#
# How a fused projection lays out its parts is found by trying: along which dimension, in which order, whole or
# interleaved head by head. The shapes leave few ways, and the one nearest to the fused tensor is taken.

Array = NDArray[Any]
_SAMPLED = 8  # so many places of each other dimension are enough to tell one way from another
_MOST_PARTS = 4


class Way(NamedTuple):
    """How parts make a whole: each turned first, in this order, along this axis, in so many interleaved groups."""

    turned: bool
    order: tuple[int, ...]
    axis: int
    groups: int


def turned(tensor: HostTensor, ways: Sequence[Sequence[int]], like: HostTensor) -> HostTensor:
    """The tensor with its axes in one of these orders, whichever is nearest to ``like``.

    Where the numbers of axes differ, those of length 1 do not count, and neighbours may be one axis of the other; no
    axes at all mean a view in the other's shape, and the axis -1 that the elements are in an order that nothing tells.
    """
    if ANY_ORDER in ways:
        return _sorted_like(tensor, like)
    made = [array for axes in ways if (array := _with_axes(tensor, axes, like.shape)) is not None]
    if not made:
        return tensor  # the file holds another shape than the dump says: left as it is, and judged so
    array = made[0] if len(made) == 1 else made[_nearest_view(made, tensor.dtype, like)]
    return HostTensor(tensor.dtype, array.shape, np.ascontiguousarray(array).reshape(-1))


def _sorted_like(tensor: HostTensor, like: HostTensor) -> HostTensor:
    """The tensor's elements, the largest where the other's largest is, and so on."""
    if tensor.data.size != like.data.size:
        return tensor
    data = np.empty_like(tensor.data)
    mine, theirs = (numbers(one.dtype, one.data, FLOAT64) for one in (tensor, like))
    data[np.argsort(theirs, kind="stable")] = tensor.data[np.argsort(mine, kind="stable")]
    return HostTensor(tensor.dtype, like.shape, data)


def _with_axes(tensor: HostTensor, axes: Sequence[int], like: tuple[int, ...]) -> Array | None:
    shape = tensor.shape
    if not axes:
        return tensor.data.reshape(like) if tensor.data.size == prod(like) else None
    if len(shape) == len(like):
        return tensor.data.reshape(shape).transpose(axes) if sorted(axes) == list(range(len(shape))) else None
    mine, theirs = (tuple(size for size in sizes if size != 1) for sizes in (shape, like))
    longer = mine if len(mine) >= len(theirs) else theirs
    if sorted(axes) != list(range(len(longer))) or prod(mine) != prod(theirs):
        return None
    if longer is mine:
        return np.reshape(tensor.data.reshape(mine).transpose(axes), like)
    # Made up of the other's axes, turned: cut into them first, then turned back.
    cut = tensor.data.reshape([theirs[axis] for axis in axes])
    return np.reshape(cut.transpose(np.argsort(axes)), like)


def _nearest_view(arrays: list[Array], dtype: str, like: HostTensor) -> int:
    if like.data.size != arrays[0].size:
        return 0
    reference = _sample(like.data.reshape(arrays[0].shape), -1, like.dtype)
    return int(np.argmin([_gap(_sample(array, -1, dtype), reference) for array in arrays]))


def _gap(one: Array, other: Array) -> float:
    with np.errstate(all="ignore"):
        gap = np.abs(one - other)
    return float(np.where(np.isfinite(gap), gap, 0.0).mean()) if one.shape == other.shape else np.inf


def joined(parts: Sequence[HostTensor], whole: HostTensor) -> HostTensor:
    """The parts as one tensor laid out like ``whole``; the first part alone where no way fits the shapes."""
    first = parts[0]
    if len({part.dtype for part in parts}) > 1:
        return first
    shapes = [_like(part.shape, whole.shape) for part in parts]
    ways = list(_ways(shapes, whole.shape))
    if not ways:
        stacks = len(first.shape) + 1 == len(whole.shape) and whole.shape[0] and len(parts) % whole.shape[0] == 0
        return _stacked(parts, whole) if stacks else first
    arrays = [part.data.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    way = ways[0] if len(ways) == 1 else _nearest(ways, arrays, first.dtype, whole)
    data = _put_together(arrays, way)
    return HostTensor(first.dtype, data.shape, np.ascontiguousarray(data).reshape(-1))


def _stacked(parts: Sequence[HostTensor], whole: HostTensor) -> HostTensor:
    """The parts, as many for each of them, as the tensors that the whole holds along its first axis."""
    each, data = len(parts) // whole.shape[0], whole.data.reshape(whole.shape)
    layers = [
        joined(parts[at * each : (at + 1) * each], HostTensor(whole.dtype, one.shape, one.reshape(-1)))
        for at, one in enumerate(data)
    ]
    shape = len(layers), *layers[0].shape
    return HostTensor(parts[0].dtype, shape, np.concatenate([layer.data.reshape(-1) for layer in layers]))


def _like(shape: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """A part's shape with as many axes as the whole: batch and sequence may be one axis on one side."""
    if len(shape) == len(whole) or not shape or len(whole) < 2 or prod(shape[:-1]) != prod(whole[:-1]):
        return shape
    return (*whole[:-1], shape[-1])


def _ways(shapes: list[tuple[int, ...]], whole: tuple[int, ...]) -> Iterator[Way]:
    """All ways whose result has the shape of the whole, the plain ones first."""
    if len({len(shape) for shape in shapes} | {len(whole)}) != 1 or not whole:
        return
    for turns in (False, True) if len(whole) > 1 else (False,):
        # Turned, the first two axes change places: a transposed weight, a sequence before its batch.
        sides = [(shape[1], shape[0], *shape[2:]) if turns else shape for shape in shapes]
        for axis in range(len(whole)):
            others = {shape[:axis] + shape[axis + 1 :] for shape in sides}
            widths = [shape[axis] for shape in sides]
            if others != {whole[:axis] + whole[axis + 1 :]} or sum(widths) != whole[axis]:
                continue
            common = gcd(*widths)
            for groups in (number for number in range(1, common + 1) if common % number == 0):
                # Many parts are the shards of ranks, which are numbered.
                places = range(len(shapes))
                for order in permutations(places) if len(shapes) <= _MOST_PARTS else (tuple(places),):
                    yield Way(turns, order, axis, groups)


def _nearest(ways: list[Way], arrays: list[Array], dtype: str, whole: HostTensor) -> Way:
    complete = whole.data.reshape(whole.shape)
    samples: dict[tuple[bool, int], tuple[list[Array], Array]] = {}
    distances = []
    for way in ways:
        key = way.turned, way.axis
        if key not in samples:
            parts = [_sample(_turn(array, way), way.axis, dtype) for array in arrays]
            samples[key] = parts, _sample(complete, way.axis, whole.dtype)
        parts, reference = samples[key]
        distances.append(_gap(_put_together(parts, way._replace(turned=False)), reference))
    return ways[int(np.argmin(distances))]


def _turn(array: Array, way: Way) -> Array:
    return array.swapaxes(0, 1) if way.turned else array


def _sample(array: Array, axis: int, dtype: str) -> Array:
    """A few places of every dimension but one (-1: of every dimension), as numbers."""
    chosen = array[tuple(slice(None) if at == axis else slice(_SAMPLED) for at in range(array.ndim))]
    return numbers(dtype, np.ascontiguousarray(chosen).reshape(-1), FLOAT64).reshape(chosen.shape)


def _put_together(arrays: Sequence[Array], way: Way) -> Array:
    parts = [_turn(arrays[at], way) for at in way.order]
    if way.groups == 1:
        return np.concatenate(parts, axis=way.axis)
    axis, groups = way.axis, way.groups
    cut = [  # with one axis cut in two: which group, and where in it
        part.reshape(*part.shape[:axis], groups, part.shape[axis] // groups, *part.shape[axis + 1 :]) for part in parts
    ]
    made = np.concatenate(cut, axis=way.axis + 1)
    return made.reshape(*made.shape[: way.axis], -1, *made.shape[way.axis + 2 :])


# Pieces of one tensor that several ranks hold.


def concatenated(parts: Sequence[HostTensor], dim: int, order: str = "blocks", groups: int = 1) -> HostTensor:
    """The parts one behind the other along a dimension; ValueError where their shapes do not fit.

    ``zigzag``: each part has a piece from the front and one from the back, as context parallel ranks have.
    ``interleaved``: the elements take turns. With groups, the dimension is first cut into so many equal stretches.
    """
    if len({part.dtype for part in parts}) > 1:
        raise ValueError("the pieces have different dtypes")
    if order == "blocks" and groups == 1 and sum(int(part.data.nbytes) for part in parts) > AT_ONCE:
        if len({part.shape[:dim] + part.shape[dim + 1 :] for part in parts}) > 1:
            raise ValueError("the pieces have different shapes")
        lengths = (*parts[0].shape[:dim], sum(part.shape[dim] for part in parts), *parts[0].shape[dim + 1 :])
        data: Any = JoinedElements([part.data for part in parts], [prod(part.shape[dim:]) for part in parts])
        return HostTensor(parts[0].dtype, lengths, data)
    arrays = []
    for part in parts:
        shape = part.shape
        length = shape[dim]
        if length % groups:
            raise ValueError(f"{length} elements cannot be cut into {groups} groups")
        arrays.append(np.asarray(part.data[:]).reshape(*shape[:dim], groups, length // groups, *shape[dim + 1 :]))
    axis = dim + 1
    if order == "interleaved":
        stacked = np.stack(arrays, axis + 1)
        whole = stacked.reshape(*stacked.shape[:axis], -1, *stacked.shape[axis + 2 :])
    elif order == "zigzag":
        halves = [np.split(array, 2, axis) for array in arrays]
        whole = np.concatenate([half[0] for half in halves] + [half[1] for half in reversed(halves)], axis)
    else:
        whole = np.concatenate(arrays, axis)
    shape = (*parts[0].shape[:dim], sum(part.shape[dim] for part in parts), *parts[0].shape[dim + 1 :])
    return HostTensor(parts[0].dtype, shape, np.ascontiguousarray(whole).reshape(-1))


def rearranged(tensor: HostTensor, dim: int, groups: int, stretches: Sequence[Sequence[int]]) -> HostTensor:
    """The tensor with the stretches of a dimension in this order, in each of so many equal groups of it."""
    shape = tensor.shape
    if shape[dim] != groups * sum(stop - start for start, stop in stretches):
        raise ValueError(f"the stretches do not make {shape[dim]} elements")
    array = np.asarray(tensor.data[:]).reshape(prod(shape[:dim]), groups, shape[dim] // groups, prod(shape[dim + 1 :]))
    moved = np.concatenate([array[:, :, start:stop] for start, stop in stretches], 2)
    return HostTensor(tensor.dtype, shape, moved.reshape(-1))


def added(parts: Sequence[HostTensor], weight: float) -> HostTensor:
    """The sum of the parts, each multiplied with a weight, in float64; kept as float64, which rounds nothing."""
    if len({part.shape for part in parts}) > 1:
        raise ValueError("the pieces have different shapes")
    total = numbers(parts[0].dtype, parts[0].data[:], FLOAT64)
    for part in parts[1:]:
        total += numbers(part.dtype, part.data[:], FLOAT64)
    if weight != 1.0:
        total *= weight
    return HostTensor("float64", parts[0].shape, total)
