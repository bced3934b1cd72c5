"""The npy format: a header of one line, then the elements."""

from __future__ import annotations

import re
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.dtypes import NATIVE, STORAGE
from twinprobe._runs.tensors.elements import Contents, HostTensor, elements, in_order, stretch
from twinprobe.errors import DamagedTensor

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 1 << 16
MOST_DIMENSIONS = 64
_BIGGEST = (1 << 63) - 1

_NAMES = {np.dtype(STORAGE[name]).str[1:]: name for name in NATIVE}  # f4 is float32
# A header is a Python literal. It is matched, not evaluated: that needs no parser that a hostile text could exhaust.
_ITEM = re.compile(
    r"""[ ]*(?P<quote>['"])(?P<key>descr|fortran_order|shape)(?P=quote)[ ]*:[ ]*
        (?P<value>'[^'\\]{0,40}'|"[^"\\]{0,40}"|True|False|\[|
                  \([ ]*(?:-?\d{1,20}L?[ ]*(?:,[ ]*|(?=\))))*\))[ ]*(?P<next>,?)""",
    re.VERBOSE | re.ASCII,
)
_NUMBER = re.compile(r"-?\d+")


def read_npy(data: Contents) -> HostTensor:
    """The array in the contents of an npy file; C-ordered native elements stay where they are."""
    header, start = _header(data)
    dtype, stored = _dtype(header["descr"])
    shape = _shape(header["shape"])
    numel, itemsize = prod(shape), stored.itemsize
    if numel * itemsize > len(data) - start:
        raise DamagedTensor(f"claims {numel * itemsize} bytes of elements, but only {len(data) - start} are there")
    if numel == 0:
        return HostTensor(dtype, shape, np.empty(0, stored.newbyteorder("=")))
    long_axes = tuple(n for n in shape if n > 1)
    by_columns = header["fortran_order"] == "True" and len(long_axes) > 1
    if by_columns:
        return HostTensor(dtype, shape, _c_ordered(data, stored, long_axes, start))
    flat = elements(data, stored, numel, start)
    if not flat.dtype.isnative or not flat.flags.aligned:
        flat = flat.astype(stored.newbyteorder("="))
    return HostTensor(dtype, shape, flat)


def described(head: bytes) -> tuple[str, tuple[int, ...], int]:
    """The dtype and shape of the array whose npy file begins like this, and where its elements begin."""
    header, start = _header(head)
    return _dtype(header["descr"])[0], _shape(header["shape"]), start


def _header(data: Contents) -> tuple[dict[str, str], int]:
    """The three values of the header as text, and where the elements begin."""
    if data[:6] != MAGIC:
        kind = "a zip file (npz?)" if data[:4] == b"PK\3\4" else "no npy file"
        raise DamagedTensor(f"is {kind}: it does not begin as numpy.save would")
    if len(data) < 12:
        raise DamagedTensor("is cut off in its header")
    version = tuple(data[6:8])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise DamagedTensor(f"is of the npy version {version[0]}.{version[1]}, which is unknown")
    first = 10 if version == (1, 0) else 12
    length = int.from_bytes(data[8:first], "little")
    if length > min(LONGEST_HEADER, len(data) - first):
        raise DamagedTensor(f"claims a header of {length} bytes, but {len(data) - first} follow")
    text = data[first : first + length].decode("latin-1").strip()
    if text[:1] != "{" or text[-1:] != "}":
        raise DamagedTensor("has a damaged npy header")
    return _items(text[1:-1].rstrip()), first + length


def _items(text: str) -> dict[str, str]:
    items: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None or match["key"] in items:
            raise DamagedTensor(f"has a damaged npy header, at {text[position : position + 40]!r}")
        items[match["key"]] = match["value"]
        if match["value"] == "[":
            raise DamagedTensor("holds records (a structured dtype), not a tensor")
        position = match.end()
        if not match["next"] and position < len(text):
            raise DamagedTensor(f"has a damaged npy header, at {text[position : position + 40]!r}")
    if len(items) != 3 or items["fortran_order"] not in ("True", "False") or items["shape"][0] != "(":
        raise DamagedTensor("has a damaged npy header: descr, fortran_order and shape are needed")
    return items


def _dtype(descr: str) -> tuple[str, np.dtype[Any]]:
    """The dtype's name and the numpy dtype, in the byte order of the file."""
    text = descr[1:-1] if descr[0] in "'\"" else ""
    kind = text.lstrip("<>|=")
    if kind[:1] == "O":
        raise DamagedTensor("holds Python objects, which are never loaded", hint="save numbers, without pickle")
    if kind[:1] in ("U", "S", "a"):
        raise DamagedTensor("holds text, not numbers")
    name = _NAMES.get(kind)
    if name is None or len(text) - len(kind) > 1:
        raise DamagedTensor(f"has elements of the dtype {text!r}, which is not supported")
    return name, np.dtype(kind).newbyteorder("<" if text[0] == "<" else ">" if text[0] == ">" else "=")


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(int(number) for number in _NUMBER.findall(text))
    if len(shape) > MOST_DIMENSIONS or any(not 0 <= n <= _BIGGEST for n in shape) or (shape and "," not in text):
        raise DamagedTensor(f"claims the impossible shape {text[:80]}")
    return shape


def _c_ordered(data: Contents, stored: np.dtype[Any], lengths: tuple[int, ...], start: int) -> NDArray[Any]:
    if len(lengths) > 32:  # numpy 1.26 has no more, so no array that it wrote does
        raise DamagedTensor(f"has {len(lengths)} dimensions in Fortran order, more than are supported")
    steps = accumulate(lengths[:-1], mul, initial=stored.itemsize)
    axes = list(zip(lengths, steps, strict=True))
    return in_order(lambda offset, length: stretch(data, start + offset, length), axes, stored).reshape(-1)
