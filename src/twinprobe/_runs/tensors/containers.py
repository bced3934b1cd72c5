"""Files that hold many tensors by name: safetensors, npz, state dicts of torch and Paddle, MindSpore's checkpoints.

A tensor in such a file is named ``FILE::KEY``. Files are as little trusted as single tensors are: no pickle runs, and
every size and place is checked against the file before anything is read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from twinprobe._runs.dtypes import DTYPES, NATIVE, STORAGE, SYNONYMS, WIDTHS
from twinprobe._runs.tensors.elements import Contents, HostTensor, contents, damage_of, elements
from twinprobe._runs.tensors.npy_file import MAGIC, described, read_npy
from twinprobe._runs.tensors.pickle_reader import MOST_DIMENSIONS, Global
from twinprobe._runs.tensors.pt_file import (
    Member,
    inflated,
    is_old_state,
    read_old_state,
    read_pt,
    read_state,
    zip_members,
)
from twinprobe._runs.tensors.state_pickle import ArrayRecord, Opaque, pickled_state, tensors_of
from twinprobe._runs.whole_files import in_proportion, inside
from twinprobe.errors import DamagedTensor

MARK = "::"  # between the file and the name of a tensor in it
WEIGHTS = frozenset({".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pdparams", ".pdopt"})
ARRAYS = frozenset({".npy", ".npz", ".pb", ".tensors"})  # the last is ours: safetensors that are no weights
DISTRIBUTED = ".metadata"  # the list of what lies in the files of torch.distributed.checkpoint beside it
_MOST_TENSORS = 1 << 15  # of a small file
_MOST_BYTES = 16 << 30  # of a file that has to be held as a whole


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of such a file."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], HostTensor]

    @property
    def size(self) -> int:
        """Its bytes."""
        return prod(self.shape) * WIDTHS[self.dtype]


def tensors_in(path: Path) -> dict[str, Stored]:
    """All tensors of a file by name, without reading their elements; DamagedTensor for any other file."""
    try:
        status = path.stat()
        return _tensors(path, status.st_size, getattr(status, "st_mtime_ns", 0))
    except (DamagedTensor, OSError, MemoryError) as error:
        raise damage_of(path, error) from None


@lru_cache(maxsize=16)
def _tensors(path: Path, _size: int, _changed: int) -> dict[str, Stored]:
    data, suffix = contents(path), path.suffix.lower()
    head = data[:2]
    tensors: Iterable[tuple[str, Stored]]
    if path.name == DISTRIBUTED:
        tensors = _distributed(path, _held(data))
    elif suffix in (".safetensors", ".tensors"):
        tensors = _safetensors(data)
    elif suffix == ".pb":
        tensors = _onnx(data)
    elif head == MAGIC[:2]:
        dtype, shape = _npy_head(data[: 1 << 16], len(data))
        tensors = [("", Stored(dtype, shape, lambda: read_npy(data)))]
    elif head == b"PK":
        tensors = _npz(data) if suffix == ".npz" else _described(read_state(data))
    elif is_old_state(data):
        tensors = _described(read_old_state(_held(data)))
    elif head[:1] == b"\x80":
        records = tensors_of(pickled_state(_held(data))[0])
        tensors = _described(
            {name: (record, None) for name, record in records.items() if isinstance(record, ArrayRecord)}
        )
    elif suffix == ".ckpt":
        tensors = _mindspore(data)
    else:
        raise DamagedTensor(
            "is not a checkpoint that can be read",
            hint="expected safetensors, npy, npz, or a checkpoint of torch, MindSpore or Paddle",
        )
    return dict(tensors)


def _held(data: Contents) -> bytes:
    if len(data) > _MOST_BYTES:
        raise DamagedTensor(f"is a pickle of {len(data)} bytes, too large to hold", hint="save it as safetensors")
    return data if isinstance(data, bytes) else data[0 : len(data)]


def _refuse_crowd(tensors: int, data: Contents) -> None:
    """A tensor costs about a kilobyte here, whatever it has in the file."""
    if tensors > _MOST_TENSORS + len(data) // 512:
        raise DamagedTensor(f"holds {tensors} tensors, out of proportion to its size")


def _checked(name: str, dtype: str, shape: tuple[int, ...], octets: int) -> None:
    if len(shape) > MOST_DIMENSIONS or prod(shape) * WIDTHS[dtype] != octets:
        raise DamagedTensor(f"holds {name[:200]!r} in {octets} bytes, which its shape {list(shape)[:8]} contradicts")


# safetensors: the length of a JSON header, the header, then the elements.

_LONGEST_HEADER = 100 << 20
SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip
_Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[_Natural]
    data_offsets: tuple[_Natural, _Natural]


def _safetensors(data: Contents) -> Iterator[tuple[str, Stored]]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_LONGEST_HEADER, len(data) - 8):
        raise DamagedTensor(f"claims a header of {length} bytes, more than it has", hint="is it a safetensors file?")
    start = 8 + length
    try:
        header = msgspec.json.decode(in_proportion(data[8:start]), type=dict[str, Any])
        header.pop("__metadata__", None)
        entries = msgspec.convert(header, dict[str, _Entry])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # those of msgspec 0.19 are no ValueErrors
        raise DamagedTensor(f"has a damaged safetensors header: {str(error)[:200]}") from None
    _refuse_crowd(len(entries), data)
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        first, last = entry.data_offsets
        if not end <= first <= last <= len(data) - start:
            raise DamagedTensor(f"places {name[:200]!r} outside of the file, or over another tensor")
        end = last
    for name, entry in entries.items():
        dtype = SAFETENSORS.get(entry.dtype)
        if dtype is None:
            raise DamagedTensor(f"holds {name[:200]!r} as {entry.dtype[:20]!r}, which is not supported")
        first, last = entry.data_offsets
        _checked(name, dtype, tuple(entry.shape), last - first)
        yield name, Stored(dtype, tuple(entry.shape), _reading(data, dtype, tuple(entry.shape), start + first))


def _reading(data: Contents, dtype: str, shape: tuple[int, ...], start: int) -> Callable[[], HostTensor]:
    def read() -> HostTensor:
        stored, count = np.dtype(STORAGE[dtype]), prod(shape)
        flat = elements(data, stored, count, start) if count else np.empty(0, stored)
        return HostTensor(dtype, shape, flat if flat.flags.aligned else flat.copy())

    return read


def safetensors_bytes(tensors: dict[str, HostTensor]) -> Iterator[bytes]:
    """The file that holds these tensors, piece by piece."""
    names = {dtype: code for code, dtype in SAFETENSORS.items()}
    header: dict[str, Any] = {}
    start = 0
    for name, tensor in tensors.items():
        size = int(tensor.data.nbytes)
        offsets = [start, start + size]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        start += size
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield np.ascontiguousarray(tensor.data).tobytes()


# npz: a zip of npy files.


def _npz(data: Contents) -> Iterator[tuple[str, Stored]]:
    for member_name, member in zip_members(data, 1 << 17, 1 << 25).items():
        name = member_name.removesuffix(".npy")
        if name == member_name:
            raise DamagedTensor(f"holds {member_name[:200]!r}, which is not an npy file")

        def read(member: Member = member) -> HostTensor:
            if member.deflated:
                return read_npy(inflated(data, member, (48 << 20) + 8 * len(data)).tobytes())
            return read_npy(data[member.start : member.end])

        head = data[member.start : min(member.end, member.start + (1 << 16))]
        if member.deflated:
            try:
                head = zlib.decompressobj(-zlib.MAX_WBITS).decompress(head, 1 << 16)
            except zlib.error as error:
                raise DamagedTensor(f"holds compressed bytes that do not unpack ({error})") from None
        yield name, Stored(*_npy_head(head, member.size), read)


def _npy_head(head: bytes, size: int) -> tuple[str, tuple[int, ...]]:
    dtype, shape, start = described(head)
    if prod(shape) * WIDTHS[dtype] > size - start:
        raise DamagedTensor(f"claims the shape {list(shape)[:8]}, more than it has bytes for")
    return dtype, shape


# Pickles: torch's state dicts, and arrays as Paddle saves them.


def _described(state: dict[str, Any]) -> Iterator[tuple[str, Stored]]:
    for name, (record, read) in state.items():
        if read is not None:
            yield name, Stored(record.dtype, record.shape, read)
        elif (made := _array(name, record)) is not None:
            yield name, made


def _array(name: str, record: ArrayRecord) -> Stored | None:
    order, kind = record.dtype[:1], record.dtype[1:]
    try:
        stored = np.dtype(kind)
    except TypeError:
        return None
    if stored.name not in NATIVE:  # text and objects are no tensors
        return None
    dtype = stored.name
    _checked(name, dtype, record.shape, len(record.octets))

    def read() -> HostTensor:
        flat = np.frombuffer(record.octets, stored.newbyteorder(">" if order == ">" else "<")).astype(stored)
        if record.by_columns:
            flat = np.ascontiguousarray(flat.reshape(record.shape[::-1]).transpose()).reshape(-1)
        return HostTensor(dtype, record.shape, flat)

    return Stored(dtype, record.shape, read)


# torch.distributed.checkpoint: a pickle that says which part of which tensor lies where in which file.


def _distributed(path: Path, pickled: bytes) -> Iterator[tuple[str, Stored]]:
    state = _attributes(pickled_state(pickled)[0])
    places: dict[str, list[tuple[tuple[int, ...], str, int, int]]] = {}
    stored = state.get("storage_data")
    for key, value in stored.items() if isinstance(stored, dict) else ():
        index, info = _attributes(key), _attributes(value)
        name, offset, file = index.get("fqn"), index.get("offset"), info.get("relative_path")
        begin, length = info.get("offset"), info.get("length")
        if isinstance(name, str) and isinstance(file, str) and isinstance(begin, int) and isinstance(length, int):
            whole = tuple(offset) if isinstance(offset, tuple) else ()
            places.setdefault(name, []).append((whole, file, begin, length))
    described_by = state.get("state_dict_metadata")
    for name, value in described_by.items() if isinstance(described_by, dict) else ():
        about = _attributes(value)
        shape, properties = about.get("size"), _properties(about.get("properties"))
        if not isinstance(name, str) or not isinstance(shape, tuple) or properties not in DTYPES:
            continue  # numbers and texts, which are no tensors
        yield name, Stored(properties, shape, _assembling(path.parent, properties, shape, places.get(name, [])))


def _attributes(value: object) -> dict[Any, Any]:
    return value.state if isinstance(value, Opaque) and isinstance(value.state, dict) else {}


def _properties(value: object) -> str:
    """The dtype among the properties of a tensor, which are a tuple or, by newer versions, attributes."""
    state = value.state if isinstance(value, Opaque) else None
    dtype = state[0] if isinstance(state, tuple) and state else _attributes(value).get("dtype")
    return dtype.name.rpartition(".")[2] if isinstance(dtype, Global) else ""


def _assembling(
    folder: Path, dtype: str, shape: tuple[int, ...], parts: list[tuple[tuple[int, ...], str, int, int]]
) -> Callable[[], HostTensor]:
    def read() -> HostTensor:
        filled, pieces = 0, []
        for offset, file, begin, length in parts:
            data = contents(inside(folder, file))
            if begin < 0 or length < 0 or begin + length > len(data):
                raise DamagedTensor(f"places a tensor outside of {file[:200]!r}")
            piece = read_pt(data[begin : begin + length])
            filled += prod(piece.shape)
            pieces.append((offset or (0,) * len(shape), piece))
        if filled != prod(shape) or any(piece.dtype != dtype or len(piece.shape) != len(shape) for _, piece in pieces):
            raise DamagedTensor("does not have all parts of this tensor, or has them twice")
        if len(pieces) == 1:
            return pieces[0][1]
        whole = np.empty(shape, np.dtype(STORAGE[dtype]))
        for offset, piece in pieces:
            if len(offset) != len(shape) or any(o + n > s for o, n, s in zip(offset, piece.shape, shape, strict=True)):
                raise DamagedTensor("places a part of this tensor outside of it")
            region = tuple(slice(o, o + n) for o, n in zip(offset, piece.shape, strict=True))
            whole[region] = piece.data.reshape(piece.shape)
        return HostTensor(dtype, shape, whole.reshape(-1))

    return read


# Protobuf messages: MindSpore's checkpoints, and tensors as ONNX keeps them beside a model.

_ONNX = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
         10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 16: "bfloat16"}  # fmt: skip
_ONNX_LISTS = {4: "float32", 10: "float64"}  # fields with plain numbers in place of raw bytes


def _onnx(data: Contents) -> Iterator[tuple[str, Stored]]:
    shape: list[int] = []
    dtype, name, place = "", "", (0, 0)
    for number, wire, first, last in _fields(data, 0, len(data)):
        if number == 1:
            shape += [first] if wire == _VARINT else _varints(data, first, last)
        elif number == 2 and wire == _VARINT:
            dtype = _ONNX.get(first, "")
        elif number == 8 and wire == _BYTES:
            name = _short_text(data, first, last)
        elif wire == _BYTES and (number == 9 or _ONNX_LISTS.get(number) == dtype):
            place = first, last
    if not dtype:
        raise DamagedTensor("is not an ONNX tensor")
    _checked(name, dtype, tuple(shape), place[1] - place[0])
    yield name, Stored(dtype, tuple(shape), _reading(data, dtype, tuple(shape), place[0]))


# MindSpore: a protobuf message with a value for each tensor; large ones come in several values of the same name.

_VARINT, _BYTES = 0, 2
_SKIPPED = {1: 8, 5: 4}  # fixed-width fields
_LONGEST_TEXT = 1 << 12


def _mindspore(data: Contents) -> Iterator[tuple[str, Stored]]:
    pieces: dict[str, list[tuple[str, tuple[int, ...], int, int]]] = {}
    count = 0
    for number, wire, start, end in _fields(data, 0, len(data)):
        if (number, wire) != (1, _BYTES):
            continue
        name, piece = _mindspore_value(data, start, end)
        count += 1
        _refuse_crowd(count, data)
        if piece is not None:
            pieces.setdefault(name, []).append(piece)
    if not pieces:
        raise DamagedTensor("holds no tensor of MindSpore", hint="an encrypted checkpoint cannot be read")
    for name, parts in pieces.items():
        dtype, shape, *_ = parts[0]
        if dtype not in DTYPES:
            continue  # texts among the parameters
        _checked(name, dtype, shape, sum(stop - begin for _, _, begin, stop in parts))

        def read(dtype: str = dtype, shape: tuple[int, ...] = shape, parts: Any = parts) -> HostTensor:
            if len(parts) == 1:
                return _reading(data, dtype, shape, parts[0][2])()
            octets = b"".join(data[begin:stop] for *_, begin, stop in parts)
            return HostTensor(dtype, shape, np.frombuffer(octets, STORAGE[dtype]))

        yield name, Stored(dtype, shape, read)


def _mindspore_value(data: Contents, start: int, end: int) -> tuple[str, tuple[str, tuple[int, ...], int, int] | None]:
    name, piece = "", None
    for number, wire, first, last in _fields(data, start, end):
        if (number, wire) == (1, _BYTES):
            name = _short_text(data, first, last)
        elif (number, wire) == (2, _BYTES):
            shape: list[int] = []
            dtype, begin, stop = "", first, first
            for inner, kind, value_first, value_last in _fields(data, first, last):
                if inner == 1:
                    shape += [value_first] if kind == _VARINT else _varints(data, value_first, value_last)
                elif inner == 2 and kind == _BYTES:
                    word = _short_text(data, value_first, value_last).lower()
                    dtype = SYNONYMS.get(word, word)
                elif inner == 3 and kind == _BYTES:
                    begin, stop = value_first, value_last
                if len(shape) > MOST_DIMENSIONS:
                    raise DamagedTensor("holds a tensor of more dimensions than there are")
            piece = dtype, tuple(shape), begin, stop
    return name, piece


def _short_text(data: Contents, start: int, end: int) -> str:
    if end - start > _LONGEST_TEXT:
        raise DamagedTensor(f"holds a name of {end - start} bytes")
    return data[start:end].decode("utf-8", "backslashreplace")


def _fields(data: Contents, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, kind, and the value of a number or where the bytes lie."""
    while position < end:
        key, position = _varint(data, position, end)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _varint(data, position, end)
            yield number, wire, value, value
        elif wire == _BYTES:
            length, position = _varint(data, position, end)
            if length > end - position:
                raise DamagedTensor(f"claims {length} bytes where {end - position} are left")
            yield number, wire, position, position + length
            position += length
        elif wire in _SKIPPED:
            position += _SKIPPED[wire]
        else:
            raise DamagedTensor("is not a MindSpore checkpoint")


def _varint(data: Contents, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift, octet in enumerate(data[position : min(position + 10, end)]):
        value |= (octet & 127) << (7 * shift)
        if octet < 128:
            return value, position + shift + 1
    raise DamagedTensor("is cut off, or not a MindSpore checkpoint")


def _varints(data: Contents, position: int, end: int) -> Iterator[int]:
    while position < end:
        value, position = _varint(data, position, end)
        yield value
