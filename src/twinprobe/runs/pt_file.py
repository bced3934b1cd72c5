"""The zip container of torch.save, holding one bare tensor: a pickle that describes it and its elements beside it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.errors import DamagedTensor
from twinprobe.runs.contents import Contents, elements, stretch
from twinprobe.runs.host_tensor import STORAGE, HostTensor
from twinprobe.runs.pickle_reader import LONGEST_PICKLE, tensor_record
from twinprobe.runs.strided import Read, in_order
from twinprobe.runs.tensor_record import TensorRecord
from twinprobe.runs.zip_directory import Member, inflated, zip_members

_ITEM_SIZES = {name: np.dtype(kind).itemsize for name, kind in STORAGE.items()}
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
    swapped = order is not None and _is_big_endian(_small(data, order, 16))
    return HostTensor(record.dtype, record.shape, _elements(data, source, record, swapped=swapped))


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
        return _copied(lambda at, _: (unpacked, first + at), dtype, record, swapped=swapped)
    begin = source.start + first
    return _copied(lambda at, length: stretch(data, begin + at, length), dtype, record, swapped=swapped)


def _check_reach(source: Member, record: TensorRecord, numel: int) -> None:
    """The tensor must lie in its storage, and the storage in the bytes that the file has for it."""
    held = record.storage.numel * (_ITEM_SIZES[record.storage.dtype] if record.storage.dtype else 1)
    if held > source.size:
        raise DamagedTensor(f"claims {held} bytes of elements, but only {source.size} are there")
    if numel == 0:
        return
    last = record.offset + sum((n - 1) * step for n, step in zip(record.shape, record.strides, strict=True))
    if (last + 1) * _ITEM_SIZES[record.dtype] > held:
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


def _is_big_endian(text: bytes) -> bool:
    if text not in (b"little", b"big"):
        raise DamagedTensor(f"has the unknown byte order {text!r}")
    return text == b"big"


def _not_a_zip(data: Contents) -> DamagedTensor:
    if data[: len(_LEGACY_MAGIC)] == _LEGACY_MAGIC or data[257:262] == b"ustar":
        return DamagedTensor(
            "is in the old format of torch.save (before torch 1.6), which is not read",
            hint="convert it once with torch: torch.save(torch.load(path, weights_only=True), path)",
        )
    if data[:1] == b"\x80":
        return DamagedTensor("is a bare pickle, which is never loaded", hint="write it with torch.save")
    return DamagedTensor("is no file of torch.save: it does not begin as a zip file")
