"""ATB tensor files: lines of ``name=value``, then the elements as they lie in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np

from twinprobe.errors import DamagedTensor
from twinprobe.runs.contents import Contents, elements
from twinprobe.runs.host_tensor import STORAGE, HostTensor
from twinprobe.runs.llm.atb_dtypes import NO_NUMBERS, OTHER, PLAIN, decoded, dtype_text, packed_bytes

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
    """What a file says about its tensor. ``alias`` names the file that holds the same elements."""

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
        raise DamagedTensor("is no ATB tensor: its header lacks dtype or dims")
    return AtbHeader(
        dtype=_integer(dtype, "dtype"),
        shape=_shape(fields["dims"]),
        start=start,
        length=_length(fields.get("$Object.data")),
        format=_integer(fields["format"], "format") if "format" in fields else None,
        alias=fields.get("data"),
        statistics={name: _number(fields[name], name) for name in _STATISTICS if name in fields},
    )


def read_atb(data: Contents) -> HostTensor:
    """The tensor in the contents of an ATB file; elements that need no decoding stay where they are."""
    return tensor_of(data, read_header(data))


def tensor_of(data: Contents, header: AtbHeader) -> HostTensor:
    """The tensor that a header describes."""
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
    # The header has no padding, so elements may lie off their own boundaries: whoever measures copies block by block.
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
            raise DamagedTensor("is no ATB tensor, or is cut off: its header has no $End=1 line")
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
        raise DamagedTensor(f"has the {name} {text[:60]!r}, which is no number")
    return int(text)


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DamagedTensor(f"has the {name} {text[:60]!r}, which is no number") from None


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
