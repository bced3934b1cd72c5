"""Sketches of checkpoints and arrays in a file of their own: two sites compare weights by exchanging kilobytes."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from twinprobe._measure.sketch import measured
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.run import Run, open_run
from twinprobe._runs.sketches import SUFFIX, SketchFile
from twinprobe._runs.tensors.elements import Contents, HostTensor, contents, damage_of, elements
from twinprobe._runs.tensors.npy_file import read_npy
from twinprobe._runs.tensors.tensor_files import open_tensor
from twinprobe._runs.whole_files import in_proportion, write_whole
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare

KNOWN = (".safetensors", ".npz", ".npy", ".pt", ".pth")
_LONGEST_HEADER = 100 << 20  # of a safetensors file, as its own library has it
_MOST_DIMENSIONS = 64
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "C64": "complex64",
}  # fmt: skip


def write_sketches(files: Iterable[Path], output: Path) -> int:
    """Write the sketches of all tensors of these files, which are read one after the other; returns how many."""
    leaves: dict[str, Any] = {}
    came_from: dict[str, Path] = {}

    def write(place: Path) -> None:
        with place.open("wb") as stream:
            sketches = SketchFile(stream)
            for file in files:
                for name, tensor in _tensors(file):
                    if name in leaves:
                        raise BadInput(f"{came_from[name]} holds a tensor {name!r}, too", where=file)
                    values, row = measured(tensor) if tensor.data.size else ((), None)
                    leaf = {"type": "Tensor", "dtype": tensor.dtype, "shape": list(tensor.shape)}
                    leaves[name] = leaf | dict(zip(("Max", "Min", "Mean", "Norm"), values, strict=False))
                    came_from[name] = file
                    sketches.add([(len(leaves), row)])
            if not leaves:
                raise NothingToCompare("hold no tensors", where=", ".join(map(str, files)))
            head = {"task": "statistics", "level": "debug", "framework": "pytorch", "dump_data_dir": None}
            sketches.finish(json.dumps({**head, "data": leaves}).encode())

    write_whole(output, write)
    return len(leaves)


def sketched(path: Path) -> Run:
    """A file of tensors as a run of sketches."""
    with TemporaryDirectory(prefix="twinprobe-") as folder:
        place = Path(folder, f"tensors{SUFFIX}")
        write_sketches([path], place)
        run = open_run(place)
        assert run.sketches is not None  # read now: the file is gone when they are needed
    run.notes = [note.replace(str(place), str(path)) for note in run.notes]
    run.path = path.with_suffix(SUFFIX)
    return run


# -- reading files of several tensors ---------------------------------------------------------------------------------


def _tensors(path: Path) -> Iterator[tuple[str, HostTensor]]:
    """The tensors of a file by their names; a file of a single one gives its own."""
    kind = path.suffix.lower()
    if kind not in KNOWN:
        raise BadInput("is no file of tensors", where=path, hint=f"known are {', '.join(KNOWN)}")
    try:
        if kind == ".safetensors":
            yield from _safetensors(contents(path))
        elif kind == ".npz":
            yield from _npz(path)
        else:
            yield path.stem, open_tensor(path)
    except (DamagedTensor, OSError, MemoryError) as error:
        damage = error if isinstance(error, DamagedTensor) and error.where else damage_of(path, error)
        raise BadInput(damage.what, where=damage.where, hint=damage.hint) from None


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _safetensors(data: Contents) -> Iterator[tuple[str, HostTensor]]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_LONGEST_HEADER, len(data) - 8):
        raise DamagedTensor("is no safetensors file: its header does not fit into it")
    try:
        header = msgspec.json.decode(in_proportion(data[8 : 8 + length]), type=dict[str, msgspec.Raw])
        entries = {
            name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items() if name != "__metadata__"
        }
    except (ValueError, RecursionError) as error:
        raise DamagedTensor(f"is no safetensors file: {str(error)[:200]}") from error
    for name, entry in entries.items():
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise DamagedTensor(f"{name!r} has the dtype {entry.dtype!r}, which is not known")
        start, stop = entry.data_offsets
        stored = np.dtype(STORAGE[dtype])
        sound = len(entry.shape) <= _MOST_DIMENSIONS and all(size >= 0 for size in entry.shape)
        count = prod(entry.shape) if sound else -1
        if not sound or count * stored.itemsize != stop - start or not 0 <= start <= stop <= len(data) - 8 - length:
            raise DamagedTensor(f"{name!r} does not lie inside of the file, or has another size than its shape")
        flat = elements(data, stored, count, 8 + length + start) if count else np.empty(0, stored)
        if not flat.flags.aligned:
            flat = flat[:].copy()
        yield name, HostTensor(dtype, tuple(entry.shape), flat)


def _npz(path: Path) -> Iterator[tuple[str, HostTensor]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & 1:
                    raise DamagedTensor(f"{member.filename!r} is packed in a way that numpy does not use")
                with archive.open(member) as file:
                    # No more than the directory says, however much a hostile member would unpack to.
                    octets = file.read(member.file_size)
                yield member.filename.removesuffix(".npy"), read_npy(octets)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise DamagedTensor(f"is no npz file: {error}") from error
