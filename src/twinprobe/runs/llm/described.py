"""What the bytes before the elements say, remembered: tensors of one place say the same at every token.

Only files whose elements lie in them as kernels take them are described here; all others are None, and whoever asked
opens them with ``open_llm_tensor``, which also says what is wrong with them.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

import numpy as np

from twinprobe.errors import DamagedTensor
from twinprobe.runs.host_tensor import STORAGE
from twinprobe.runs.llm.atb_dtypes import PLAIN
from twinprobe.runs.llm.atb_file import read_header
from twinprobe.runs.pt_file import read_pt
from twinprobe.runs.zip_directory import zip_members

DTYPES = {name: np.dtype(STORAGE[name]).itemsize for name in ("float16", "bfloat16", "float32")}

# A longer header is not one of a usual tensor.
HEAD = 512
_END = b"\n$End=1\n"
_MOST_LENGTHS, _MOST_FRAMES, _LONGEST_FRAME = 256, 16, 1 << 13
_LAST_RECORD = Struct("<4s4H2IH")
_ENTRY_LENGTHS = Struct("<3H")


class Described(NamedTuple):
    """Elements of a file: their dtype, how many there are, at which byte they start, and how reports show them."""

    dtype: str
    elements: int
    start: int
    end: int
    shown_dtype: str
    shown_shape: str


def described_atb(head: bytes, length: int) -> Described | None:
    """The elements of an ATB file by its first bytes."""
    end = head.find(_END)
    found = _atb(head[: end + len(_END)]) if end > 0 else None
    return found if found is not None and found.end <= length else None


@lru_cache(maxsize=1 << 12)
def _atb(head: bytes) -> Described | None:
    try:
        header = read_header(head)
    except DamagedTensor:
        return None
    if header.dtype is None or header.alias is not None:
        return None
    return _usable(PLAIN.get(header.dtype, ""), header.shape, header.start)


def _usable(dtype: str, shape: tuple[int, ...], start: int) -> Described | None:
    if dtype not in DTYPES or not prod(shape):
        return None
    end = start + prod(shape) * DTYPES[dtype]
    return Described(dtype, prod(shape), start, end, f"torch.{dtype}", str(list(shape)))


class _Frame(NamedTuple):
    """All of a torch file that its reader looks at, as pieces of its bytes; files of equal frames are read alike."""

    pieces: tuple[tuple[int, int, bytes], ...]
    found: Described


_frames: dict[int, list[_Frame]] = {}


def described_torch(data: bytes) -> Described | None:
    """The elements in the whole contents of a file by torch.save."""
    known = _frames.get(len(data), [])
    for frame in known:
        for start, stop, piece in frame.pieces:
            if data[start:stop] != piece:
                break
        else:
            return frame.found
    try:
        made = _frame(data)
    except (DamagedTensor, StructError):
        return None
    if made is None:
        return None
    if sum(len(piece) for _, _, piece in made.pieces) <= _LONGEST_FRAME:
        if len(_frames) >= _MOST_LENGTHS:
            _frames.clear()
        _frames[len(data)] = [made, *known][:_MOST_FRAMES]
    return made.found


def _frame(data: bytes) -> _Frame | None:
    tensor = read_pt(data)
    address = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    start = tensor.data.__array_interface__["data"][0] - address
    in_place = tensor.data.size > 0 and 0 <= start <= len(data) - tensor.data.nbytes
    found = _usable(tensor.dtype, tensor.shape, start) if in_place else None
    if found is None:
        return None
    pieces, at = [], 0
    for first, last in [*sorted(_unread(data, found)), (len(data), len(data))]:
        if first > at:
            pieces.append((at, first, data[at:first]))
        at = max(at, last)
    return _Frame(tuple(pieces), found)


def _unread(data: bytes, found: Described) -> list[tuple[int, int]]:
    """What may differ between files without their being read differently: elements, checksums, the id of the file."""
    holes = [(found.start, found.end)]
    for name, member in zip_members(data).items():
        holes.append((member.header + 14, member.header + 18))
        if data[member.end : member.end + 4] == b"PK\7\10":
            holes.append((member.end + 4, member.end + 8))
        if name.endswith("/.data/serialization_id") and not member.deflated:
            holes.append((member.start, member.end))
    return holes + _directory_checksums(data)


def _directory_checksums(data: bytes) -> list[tuple[int, int]]:
    signature, _, _, _, count, size, _, _ = _LAST_RECORD.unpack(data[-_LAST_RECORD.size :])
    at, holes = len(data) - _LAST_RECORD.size - size, []
    if signature != b"PK\5\6" or at < 0:
        return []
    for _ in range(count):
        if data[at : at + 4] != b"PK\1\2":
            return []  # a directory of another build: its checksums stay part of the frame
        holes.append((at + 16, at + 20))
        at += 46 + sum(_ENTRY_LENGTHS.unpack(data[at + 28 : at + 34]))
    return holes
