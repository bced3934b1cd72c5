"""The zip container of torch.save, holding one bare tensor: a pickle that describes it and its elements beside it."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.dtypes import STORAGE, WIDTHS
from twinprobe._runs.tensors.elements import Contents, HostTensor, Read, elements, in_order, stretch
from twinprobe._runs.tensors.pickle_reader import LONGEST_PICKLE, TensorRecord, tensor_record
from twinprobe._runs.tensors.state_pickle import ArrayRecord, pickled_state, tensors_of
from twinprobe.errors import DamagedTensor

# Where the members of a zip file lie. The standard library reads the directory; every number in it is checked here.

MOST_MEMBERS = 1024
LONGEST_DIRECTORY = 1 << 18

_LOCAL = Struct("<4s5H3I2H")
_PIECE = 1 << 20
_ENCRYPTED, _UTF8 = 0x1, 0x800
# All that the standard library is known to raise for a directory that makes no sense.
_ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, StructError, ValueError, OverflowError)


@dataclass(slots=True)
class Member:
    """One file in the zip: its header begins at ``header``, its bytes fill ``start`` to ``end``."""

    header: int
    start: int
    end: int
    size: int
    deflated: bool


def zip_members(
    data: Contents, most: int = MOST_MEMBERS, longest_directory: int = LONGEST_DIRECTORY
) -> dict[str, Member]:
    """All members by name. None lies outside of the file, overlaps another or shares another's name."""
    try:
        with zipfile.ZipFile(cast("IO[bytes]", _Window(data, longest_directory))) as opened:
            listed = opened.infolist()
    except _ZIP_ERRORS as error:
        raise DamagedTensor(f"is a zip file with a damaged or missing directory ({str(error)[:100]})") from None
    if len(listed) > most:
        raise DamagedTensor(f"has {len(listed)} members, too many for one tensor (the limit is {most})")
    members: dict[str, Member] = {}
    for info in listed:
        name = info.orig_filename
        if name in members:
            raise DamagedTensor(f"holds two zip members named {_shown(name)}")
        members[name] = _member(data, info, name)
    end = 0
    for name, member in sorted(members.items(), key=lambda item: item[1].header):
        if member.header < end:
            raise DamagedTensor(f"holds the zip member {_shown(name)}, which overlaps another")
        end = member.end
    return members


class _Window:
    """The contents as a file object that refuses to return more at once than any sound directory is long."""

    __slots__ = ("data", "longest", "position")

    def __init__(self, data: Contents, longest: int) -> None:
        self.data = data
        self.position = 0
        self.longest = longest

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position = offset + (0, self.position, len(self.data))[whence]
        if position < 0:
            raise OSError("before the beginning")  # zipfile takes this for "no such record"
        self.position = position
        return position

    def tell(self) -> int:
        return self.position

    def seekable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        end = len(self.data) if count < 0 else min(self.position + count, len(self.data))
        if end - self.position > self.longest:
            raise DamagedTensor(f"has a zip directory of {end - self.position} bytes, too long for one tensor")
        piece = self.data[self.position : end]
        self.position += len(piece)
        return piece


def inflated(data: Contents, member: Member, budget: int) -> NDArray[np.uint8]:
    """The bytes of a compressed member: exactly as many as it declares, and never more than ``budget``."""
    if member.size > budget:
        raise DamagedTensor(
            f"would unpack to {member.size} bytes, out of proportion to its size",
            hint="load it with torch and save it again",
        )
    out = np.empty(member.size, np.uint8)
    filled, stream = 0, zlib.decompressobj(-zlib.MAX_WBITS)
    packed, start = stretch(data, member.start, member.end - member.start)
    end = start + member.end - member.start
    try:
        for index in range(start, end, 1 << 14):
            waiting, piece = bytes(packed[index : min(index + (1 << 14), end)]), b""
            while (waiting or len(piece) == _PIECE) and not stream.eof:
                piece = stream.decompress(waiting, _PIECE)
                if filled + len(piece) > member.size:
                    raise DamagedTensor("holds a zip member that unpacks to more than it declares")
                out[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
                filled += len(piece)
                waiting = stream.unconsumed_tail
    except zlib.error as error:
        raise DamagedTensor(f"holds compressed bytes that do not unpack ({error})") from None
    if filled != member.size:
        raise DamagedTensor("holds a zip member that unpacks to less than it declares")
    return out


def _member(data: Contents, info: zipfile.ZipInfo, name: str) -> Member:
    """The place of the member by the directory, which its own header has to confirm."""
    # Nothing is ever unpacked to a path; such a name only shows that the file was made to do harm elsewhere.
    if not name or "\0" in name or name[0] in "/\\" or ".." in name.replace("\\", "/").split("/"):
        raise DamagedTensor(f"holds a zip member with the forbidden name {_shown(name)}")
    method, packed, size, header = info.compress_type, info.compress_size, info.file_size, info.header_offset
    supported = method == zipfile.ZIP_DEFLATED or (method == zipfile.ZIP_STORED and packed == size)
    if info.flag_bits & _ENCRYPTED or not supported:
        raise DamagedTensor(f"holds the zip member {_shown(name)} encrypted or packed in an unknown way")
    if header < 0 or header + _LOCAL.size > len(data):
        raise DamagedTensor(f"holds the zip member {_shown(name)} outside of the file")
    name_at = header + _LOCAL.size
    signature, _, _, own_method, *_, name_length, extra_length = _LOCAL.unpack(data[header:name_at])
    start = name_at + name_length + extra_length
    encoded = name.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
    own_name = data[name_at : name_at + name_length]
    if signature != b"PK\3\4" or own_method != method or own_name != encoded:
        raise DamagedTensor(f"describes the zip member {_shown(name)} in two ways that differ")
    if start + packed > len(data):
        raise DamagedTensor(f"holds the zip member {_shown(name)}, which claims more bytes than the file has")
    return Member(header, start, start + packed, size, method == zipfile.ZIP_DEFLATED)


def _shown(name: str) -> str:
    return repr(name[:80])


_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"


def read_pt(data: Contents) -> HostTensor:
    """The tensor in the contents of a file by torch.save; contiguous elements stay where they are."""
    if data[:4] != b"PK\3\4":
        raise _not_a_zip(data)
    members = zip_members(data)
    root = _root(members)
    pickled = members[root + "data.pkl"]
    record = tensor_record(_small(data, pickled, LONGEST_PICKLE))
    source = members.get(f"{root}data/{record.storage.key}")
    if source is None:
        raise DamagedTensor(f"lacks the zip member that holds its elements, data/{record.storage.key[:80]!r}")
    order = members.get(root + "byteorder")
    written = b"little" if order is None else _small(data, order, 16)
    if written not in (b"little", b"big"):
        raise DamagedTensor(f"has the unknown byte order {written!r}")
    return HostTensor(record.dtype, record.shape, _elements(data, source, record, swapped=written == b"big"))


# A whole checkpoint in one file: one pickle, the elements of each storage beside it.

_MOST_STORAGES, _LONGEST_LIST, _LONGEST_STATE = 1 << 17, 1 << 25, 1 << 28


State = dict[str, tuple[TensorRecord | ArrayRecord, Callable[[], HostTensor] | None]]


def read_state(data: Contents) -> State:
    """The tensors of a state dictionary by torch.save, with how to read each; arrays hold their own bytes."""
    members = zip_members(data, _MOST_STORAGES, _LONGEST_LIST)
    root = _root(members)
    pickled = _small(data, members[root + "data.pkl"], min(_LONGEST_STATE, budget(len(data))))
    state, _ = pickled_state(pickled, file_size=len(data))
    order = members.get(root + "byteorder")
    swapped = order is not None and _small(data, order, 16) == b"big"
    front = f"{root}data/"
    storages = {name[len(front) :]: member for name, member in members.items() if name.startswith(front)}
    return _readable(data, tensors_of(state), storages, swapped=swapped)


def read_old_state(data: bytes) -> State:
    """The same for the format before torch 1.6: pickles one after the other, then all storages."""
    place, parts = 0, []
    for _ in range(5):  # magic number, version, machine, state, keys of the storages
        part, place = pickled_state(data, place)
        parts.append(part)
    state, keys = parts[3:]
    records = tensors_of(state)
    widths = {record.storage.key: WIDTHS[record.storage.dtype or "uint8"] for record in records.values()
              if isinstance(record, TensorRecord)}  # fmt: skip
    storages: dict[str, Member] = {}
    for key in keys if isinstance(keys, list) else ():
        count = int.from_bytes(data[place : place + 8], "little")
        size = count * widths.get(key, 1)
        if place + 8 + size > len(data) or key not in widths:
            raise DamagedTensor("ends before its last tensor, or holds one that it does not describe")
        storages[key] = Member(place, place + 8, place + 8 + size, size, deflated=False)
        place += 8 + size
    return _readable(data, records, storages, swapped=False)


def _readable(
    data: Contents, records: dict[str, TensorRecord | ArrayRecord], storages: dict[str, Member], *, swapped: bool
) -> State:
    def reading(record: TensorRecord) -> Callable[[], HostTensor]:
        def read() -> HostTensor:
            source = storages.get(record.storage.key)
            if source is None:
                raise DamagedTensor(f"lacks the elements of one of its tensors, data/{record.storage.key[:80]!r}")
            return HostTensor(record.dtype, record.shape, _elements(data, source, record, swapped=swapped))

        return read

    return {
        name: (record, reading(record) if isinstance(record, TensorRecord) else None)
        for name, record in records.items()
    }


def is_old_state(data: Contents) -> bool:
    """Whether a file was written by torch.save before torch 1.6."""
    return data[: len(_LEGACY_MAGIC)] == _LEGACY_MAGIC


def budget(file_size: int) -> int:
    """How many bytes a file may cost beyond the mapping of itself: enough for one copy in another layout."""
    return (48 << 20) + 2 * file_size


def _elements(data: Contents, source: Member, record: TensorRecord, *, swapped: bool) -> NDArray[Any]:
    dtype = np.dtype(STORAGE[record.dtype])
    numel = prod(record.shape)
    _check_reach(source, record, numel)
    if numel == 0:
        return np.empty(0, dtype)
    first = record.offset * dtype.itemsize
    in_place = not (source.deflated or swapped or record.conjugated or record.negated)
    if in_place and _is_contiguous(record):
        flat = elements(data, dtype, numel, source.start + first)
        # A kernel compiled for aligned elements takes no others; torch.save always aligns.
        return flat if flat.flags.aligned else flat.copy()
    left = budget(len(data)) - numel * dtype.itemsize
    if left < 0:
        raise DamagedTensor(
            f"repeats its elements to {numel * dtype.itemsize} bytes, out of proportion to its size",
            hint="save tensor.contiguous() if it is really that large",
        )
    if source.deflated:
        unpacked = inflated(data, source, left)
        return _copied(lambda offset, _: (unpacked, first + offset), dtype, record, swapped=swapped)
    begin = source.start + first
    return _copied(lambda offset, length: stretch(data, begin + offset, length), dtype, record, swapped=swapped)


def _check_reach(source: Member, record: TensorRecord, numel: int) -> None:
    """The tensor must lie in its storage, and the storage in the bytes that the file has for it."""
    held = record.storage.numel * (WIDTHS[record.storage.dtype] if record.storage.dtype else 1)
    if held > source.size:
        raise DamagedTensor(f"claims {held} bytes of elements, but only {source.size} are there")
    if numel == 0:
        return
    last = record.offset + sum((n - 1) * step for n, step in zip(record.shape, record.strides, strict=True))
    if (last + 1) * WIDTHS[record.dtype] > held:
        raise DamagedTensor(f"has a shape that reaches beyond the {held} bytes of its storage")


def _is_contiguous(record: TensorRecord) -> bool:
    expected = 1
    for n, step in zip(reversed(record.shape), reversed(record.strides), strict=True):
        if n != 1 and step != expected:
            return False
        expected *= n
    return True


def _copied(read: Read, dtype: np.dtype[Any], record: TensorRecord, *, swapped: bool) -> NDArray[Any]:
    axes = [(n, step * dtype.itemsize) for n, step in zip(record.shape, record.strides, strict=True) if n != 1]
    if len(axes) > 32:  # as many as numpy 1.26 has
        raise DamagedTensor(f"has {len(axes)} dimensions that are not contiguous, more than are supported")
    out = in_order(read, axes, dtype.newbyteorder(">" if swapped else "<"))
    if record.conjugated and dtype.kind == "c":
        np.conjugate(out, out=out)
    if record.negated:
        if dtype.kind not in "fc":
            raise DamagedTensor(f"is marked as negated, which is unknown for {record.dtype}")
        np.negative(out, out=out)
    return out.reshape(-1)


def _root(members: dict[str, Member]) -> str:
    """The folder in the zip that holds everything, with its slash."""
    roots = [name[:-8] for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(roots) != 1:
        raise DamagedTensor("is a zip file, but not one that torch.save wrote: it needs one data.pkl")
    if roots[0] + "constants.pkl" in members:
        raise DamagedTensor("is a TorchScript program, not a tensor")
    return roots[0]


def _small(data: Contents, member: Member, most: int) -> bytes:
    if member.size > most:
        raise DamagedTensor(f"describes its contents in {member.size} bytes, too many for one tensor")
    return inflated(data, member, most).tobytes() if member.deflated else data[member.start : member.end]


def _not_a_zip(data: Contents) -> DamagedTensor:
    if is_old_state(data) or data[257:262] == b"ustar":
        return DamagedTensor(
            "is in the old format of torch.save (before torch 1.6), which is not read",
            hint="convert it once with torch: torch.save(torch.load(path, weights_only=True), path)",
        )
    if data[:1] == b"\x80":
        return DamagedTensor("is a bare pickle, which is never loaded", hint="write it with torch.save")
    return DamagedTensor("is not a torch.save file: it does not start like a zip file")
