"""ATB tensor files: lines of ``name=value``, then the elements as they lie in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.dtypes import DTYPES, STORAGE, small_floats
from twinprobe._runs.tensors.elements import Contents, HostTensor, elements
from twinprobe.errors import DamagedTensor

# Codes whose elements are stored as the kernels take them.
PLAIN = {dtype.atb: name for name, dtype in DTYPES.items() if dtype.atb is not None}
# Codes whose elements have another width or form: bits per element, the name shown, the dtype after decoding.
OTHER = {
    29: (4, "int4", "int8"),
    30: (1, "uint1", "bool"),
    33: (32, "complex32", "complex64"),
    34: (8, "hifloat8", "float32"),
    38: (6, "float6_e3m2", "float32"),
    39: (6, "float6_e2m3", "float32"),
    40: (4, "float4_e2m1", "float32"),
    41: (4, "float4_e1m2", "float32"),
}
NO_NUMBERS = {13: "text", -1: "elements of an undefined type"}

_SMALL_FLOATS = {38: (3, 2, 3), 39: (2, 3, 1), 40: (2, 1, 1), 41: (1, 2, 1)}  # exponent bits, mantissa bits, bias
_HIFLOAT8_INF = 0x6F


def dtype_text(code: int) -> str:
    """The name of a code's element type."""
    return PLAIN[code] if code in PLAIN else OTHER[code][1] if code in OTHER else f"dtype {code}"


def decoded(code: int, stored: NDArray[np.uint8], count: int) -> NDArray[Any]:
    """``count`` elements of one of the OTHER types, from bytes that hold them packed or one per byte."""
    bits = OTHER[code][0]
    if code == 33:
        halves = stored.view(np.float16).astype(np.float32)
        return halves.view(np.complex64)
    codes = stored if bits == 8 or stored.size == count else _unpacked(stored, bits, count)
    plain: NDArray[Any]
    if code == 29:
        plain = ((codes & 15) ^ 8).astype(np.int8) - np.int8(8)
    elif code == 30:
        plain = codes != 0
    else:
        values = _hifloat8_values() if code == 34 else _small_float_values(code)
        plain = values.take(codes & (values.size - 1))
    return plain


def packed_bytes(code: int, count: int) -> int:
    """How many bytes so many packed elements take."""
    return -(-count * OTHER[code][0] // 8)


def _unpacked(stored: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """Elements that lie bit by bit after each other, the lowest bits first."""
    if bits == 4:
        both = np.empty((stored.size, 2), np.uint8)
        both[:, 0], both[:, 1] = stored & 15, stored >> 4
        return both.reshape(-1)[:count]
    single = np.unpackbits(stored, bitorder="little")[: count * bits]
    weights = (1 << np.arange(bits)).astype(np.uint8)
    return cast("NDArray[np.uint8]", (single.reshape(count, bits) * weights).sum(axis=1, dtype=np.uint8))


@cache
def _small_float_values(code: int) -> NDArray[np.float32]:
    """The numbers of a 4- or 6-bit float; these types have neither NaN nor inf."""
    return small_floats(*_SMALL_FLOATS[code]).astype(np.float32)


@cache
def _hifloat8_values() -> NDArray[np.float32]:
    """The numbers of HiFloat8: a prefix code (the dot) tells how many exponent bits follow."""
    values = np.array([_hifloat8(code) for code in range(128)])
    values[_HIFLOAT8_INF] = np.inf
    both = np.concatenate([values, -values])
    both[128] = np.nan  # negative zero stands for NaN
    return both.astype(np.float32)


def _hifloat8(code: int) -> float:
    if code < 8:  # dot 0000: only powers of two near zero
        return 2.0 ** (code - 23) if code else 0.0
    dots = ((3, 2, 4), (2, 2, 3), (1, 2, 2), (1, 3, 1), (1, 4, 0))  # the dot, its width, the exponent's width
    dot_bits, exponent_bits = next((width, bits) for dot, width, bits in dots if code >> (7 - width) == dot)
    mantissa_bits = 7 - dot_bits - exponent_bits
    field = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    if exponent_bits == 0:
        return 1 + mantissa
    # The exponent is a sign and a magnitude, whose leading one is not stored.
    lead = 1 << (exponent_bits - 1)
    magnitude = lead | (field & (lead - 1))
    return float((1 + mantissa) * 2.0 ** (-magnitude if field & lead else magnitude))


LONGEST_HEADER = 1 << 16
_USUAL_HEADER = 1 << 12
MOST_DIMENSIONS = 64
_MOST_ELEMENTS = 1 << 56
_END = b"$End=1\n"
_STATISTICS = ("max", "min", "mean", "l2norm")
_NUMBER = re.compile(r"-?\d{1,20}")
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class AtbHeader:
    """The header of a file. ``alias`` names the file that holds the same elements."""

    dtype: int | None
    shape: tuple[int, ...]
    start: int
    length: int | None = None
    format: int | None = None
    alias: str | None = None
    statistics: dict[str, float] = field(default_factory=dict)

    @property
    def dtype_text(self) -> str:
        return dtype_text(self.dtype) if self.dtype is not None else ""


def read_header(data: Contents) -> AtbHeader:
    """The header of an ATB file, each value checked."""
    head, start = _head(data)
    return _parsed(head, start)


@lru_cache(maxsize=256)
def _parsed(head: bytes, start: int) -> AtbHeader:
    """Tensors of one place have the same header at every token."""
    fields = _fields(head)
    dtype = fields.get("dtype", fields.get("type"))
    if "dims" not in fields or dtype is None:
        raise DamagedTensor("is not an ATB tensor: its header lacks dtype or dims")
    return AtbHeader(
        dtype=_integer(dtype, "dtype"),
        shape=_shape(fields["dims"]),
        start=start,
        length=_length(fields.get("$Object.data")),
        format=_integer(fields["format"], "format") if "format" in fields else None,
        alias=fields.get("data"),
        statistics={name: _number(fields[name], name) for name in _STATISTICS if name in fields},
    )


def tensor_of(data: Contents, header: AtbHeader) -> HostTensor:
    """The tensor that a header describes; elements that need no decoding stay where they are."""
    code = header.dtype
    assert code is not None
    if code in NO_NUMBERS:
        raise DamagedTensor(f"holds {NO_NUMBERS[code]}, not numbers")
    if code not in PLAIN and code not in OTHER:
        raise DamagedTensor(f"has elements of the type number {code}, which is unknown")
    count = prod(header.shape)
    held = len(data) - header.start
    if count and held <= 0:
        what = "holds statistics only" if header.statistics else "holds a description only"
        raise DamagedTensor(f"{what}, no elements", hint="dump again without --only-save-desc")
    if code in OTHER:
        return _decoded(data, header, count, held)
    name = PLAIN[code]
    dtype = np.dtype(STORAGE[name])
    if count * dtype.itemsize > held:
        raise DamagedTensor(f"claims {count * dtype.itemsize} bytes of elements, but only {held} are there")
    if not count:
        return HostTensor(name, header.shape, np.empty(0, dtype))
    # The header has no padding, so elements may be unaligned: the kernels copy them block by block.
    return HostTensor(name, header.shape, elements(data, dtype, count, header.start))


def _decoded(data: Contents, header: AtbHeader, count: int, held: int) -> HostTensor:
    code = header.dtype
    assert code is not None
    bits, shown, name = OTHER[code]
    needed = packed_bytes(code, count)
    stated = held if header.length is None else min(header.length, held)
    size = count if bits < 8 and stated >= count else needed
    if size > held:
        raise DamagedTensor(f"claims {size} bytes of {shown} elements, but only {held} are there")
    bytes_of = np.dtype(np.uint8)
    stored = elements(data, bytes_of, size, header.start, whole=True) if size else np.empty(0, bytes_of)
    out = np.empty(count, STORAGE[name])
    for first, last in _pieces(count):
        begin, end = (first, last) if size == count else (packed_bytes(code, first), packed_bytes(code, last))
        out[first:last] = decoded(code, stored[begin:end], last - first)
    return HostTensor(name, header.shape, out)


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Spans of whole bytes, so that the steps of decoding need little memory; the last has never one element alone."""
    first = 0
    while first < count:
        last = count if count - first <= _PIECE + 1 else first + _PIECE
        yield first, last
        first = last


def _head(data: Contents) -> tuple[bytes, int]:
    """The text of the header, and where the elements begin."""
    head = data[:_USUAL_HEADER]
    if b"\n" + _END not in head:
        head = data[:LONGEST_HEADER]
    end = 0 if head.startswith(_END) else head.find(b"\n" + _END) + 1
    if end == 0 and not head.startswith(_END):
        if head.rstrip().endswith(b"$End=1"):  # a text file whose last line break is missing
            end, stop = head.rindex(b"$End=1"), len(data)
        else:
            raise DamagedTensor("is not an ATB tensor, or is cut off: its header has no $End=1 line")
    else:
        stop = end + len(_END)
    return head[:end], stop


def _fields(head: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in head.decode("utf-8", "replace").split("\n"):
        name, equals, value = line.strip("\r").partition("=")
        if equals:
            fields.setdefault(name.strip(), value.strip())
        elif name.strip():
            raise DamagedTensor(f"has a header line without '=': {name[:60]!r}")
    return fields


def _integer(text: str, name: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise DamagedTensor(f"has the {name} {text[:60]!r}, which is not a number")
    return int(text)


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DamagedTensor(f"has the {name} {text[:60]!r}, which is not a number") from None


def _shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    shape = tuple(_integer(part, "dimension") for part in parts)
    if len(shape) > MOST_DIMENSIONS or any(n < 0 for n in shape) or prod(shape) > _MOST_ELEMENTS:
        raise DamagedTensor(f"claims the impossible shape {text[:80]}")
    return shape


def _length(text: str | None) -> int | None:
    """The bytes of the object ``data``: its offset, which is 0 for a single tensor, and its length."""
    if text is None:
        return None
    offset, _, length = text.partition(",")
    if offset.strip() not in ("0", ""):
        raise DamagedTensor(f"has elements at the offset {offset[:40]!r} of its data, which is not supported")
    return _integer(length.strip(), "data length") if length.strip() else None
