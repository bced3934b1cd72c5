"""Data that no recorder wrote, opened as a run: checkpoints, folders of arrays, dictionaries of arrays.

Each tensor is a call of its own, named by the key that it is stored under. Of large ones only names, dtypes and shapes
are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from twinprobe._runs.dtypes import DTYPES, NATIVE, dtype_name, widened
from twinprobe._runs.table import PARAMETER, POINT, Leaf, TableBuilder, settle
from twinprobe._runs.tensors.containers import ARRAYS, DISTRIBUTED, MARK, WEIGHTS, Stored, safetensors_bytes, tensors_in
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.whole_files import inside, json_file, scan
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare

if TYPE_CHECKING:
    import polars as pl

INDEX = ".index.json"  # which tensor lies in which of several files
SHARD = re.compile(r"mp_rank_\d+")
_NUMBERS = re.compile(r"(\d+)")
_MOST_FILES = 200_000
_SMALL = 64 << 20  # bytes of tensors whose statistics are computed when they are opened
# SGLang's dumper spells what it knows of a tensor in the name of its file.
_FACTS = re.compile(r"(?P<key>\w+?)=(?P<value>.*?)(?:___|$)")
_ORDER = "dump_index"
_TAKEN = ("name", _ORDER)


@dataclass
class Content:
    """What a run is made of, before it is one."""

    framework: str
    table: pl.DataFrame
    ops: list[str]
    tensors: Path  # the folder that the table's files are named in
    weights: bool = False  # parameters, not values that a program computed
    has_calls: bool = False  # with inputs and outputs, not single values
    task: str = "tensor"
    level: str = ""
    notes: list[str] = field(default_factory=list)
    parents: dict[str, str | None] = field(default_factory=dict)


def is_weights(path: Path) -> bool:
    """Whether this looks like a checkpoint: a file of one, an index, or a folder with an index, parts or shards."""
    if path.is_dir():
        return (path / DISTRIBUTED).is_file() or _index_in(path) is not None or bool(_shards(path))
    return path.suffix.lower() in WEIGHTS or path.name.endswith(INDEX) or path.name == DISTRIBUTED


def is_arrays(path: Path) -> bool:
    """Whether this is a file of arrays, or a folder of such files."""
    if not path.is_dir():
        return path.suffix.lower() in ARRAYS
    with scan(path) as entries:
        return any(_suffix(entry.name) in ARRAYS | WEIGHTS and not entry.is_dir() for entry in entries)


def open_weights(path: Path) -> Content:
    """A checkpoint as the content of a run: a row for each tensor."""
    shards = _shards(path) if path.is_dir() else []
    if shards:
        rows = ((f"{file.parent.name}.{name}", f"{file.parent.name}/{file.name}{MARK}{name}", stored)
                for file in shards for name, stored in tensors_in(file).items())  # fmt: skip
        return _content(path / shards[0].name, rows, weights=True)
    if path.is_dir():
        path = _index_in(path) or path / DISTRIBUTED
    if path.name.endswith(INDEX):
        return _content(path, _sharded(path), weights=True)
    rows = ((name, f"{path.name}{MARK}{name}", stored) for name, stored in tensors_in(path).items())
    return _content(path, rows, weights=True)


def open_arrays(path: Path) -> Content:
    """Saved arrays, in the order of their names (numbers count as numbers)."""
    files = sorted(_files(path), key=_by_numbers) if path.is_dir() else [path]
    if len(files) > 1 and all(_FACTS.match(file.name) and "name=" in file.name for file in files):
        return _content(files[0], _dumped(files), weights=False, notes=["names, passes and ranks are SGLang's"])
    return _content(files[0], _listed(files, alone=not path.is_dir()), weights=False)


def _content(
    file: Path, rows: Iterable[tuple[str, str, Stored]], *, weights: bool, notes: Iterable[str] = ()
) -> Content:
    builder = TableBuilder()
    ops: dict[str, None] = {}
    tensors = list(rows)
    is_small = sum(stored.size for *_, stored in tensors) <= _SMALL
    for name, locator, stored in tensors:
        shown = name
        while shown in ops:
            shown += "'"
        leaf = Leaf("Tensor", stored.dtype, list(stored.shape))
        if is_small:
            with suppress(DamagedTensor, OSError):  # a comparison says which tensor cannot be read
                leaf = measured(stored.read())
        leaf.data_name = locator
        leaf = settle(leaf, "")
        builder.add(len(ops), PARAMETER if weights else POINT, shown, leaf)
        ops[shown] = None
        builder.end_op(len(ops))
    if not ops:
        raise NothingToCompare("holds no tensors: nothing to compare", where=file)
    framework = {".ckpt": "mindspore", ".pdparams": "paddle", ".pdopt": "paddle"}.get(_suffix(file.name), "pytorch")
    level = "weights" if weights else "arrays"
    return Content(framework, builder.build(), list(ops), file.parent, weights, level=level, notes=list(notes))


def measured(array: HostTensor) -> Leaf:
    """The statistics of an array, as a recorder would write them."""
    leaf = Leaf("Tensor", array.dtype, list(array.shape))
    data = widened(array.data) if array.dtype == "bfloat16" else array.data
    if array.data.size and (array.dtype in NATIVE or array.dtype == "bfloat16") and data.dtype.kind in "fiu":
        with np.errstate(all="ignore"):  # NaN and infinity are values like others
            wide = data.astype(np.float64)
            leaf.Max, leaf.Min, leaf.Mean = float(wide.max()), float(wide.min()), float(wide.mean())
            leaf.Norm = float(np.sqrt(np.square(wide).sum()))
    return leaf


def _sharded(index: Path) -> Iterator[tuple[str, str, Stored]]:
    """The tensors of several files, in the order of the index."""

    class Index(msgspec.Struct):
        weight_map: dict[str, str]

    try:
        listed = msgspec.json.decode(json_file(index), type=Index).weight_map
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise BadInput(f"is not the index of a checkpoint: {str(error)[:200]}", where=index) from error
    for name, file in listed.items():
        stored = tensors_in(inside(index.parent, file)).get(name)
        if stored is None:
            raise DamagedTensor(f"is said to hold {name[:200]!r} and does not", where=index.parent / file)
        yield name, f"{file}{MARK}{name}", stored


def _listed(files: list[Path], *, alone: bool) -> Iterator[tuple[str, str, Stored]]:
    for file in files:
        for key, stored in tensors_in(file).items():
            named = ".".join(part for part in ("" if alone and key else file.stem, key) if part)
            yield named, f"{file.name}{MARK}{key}", stored


def _dumped(files: list[Path]) -> Iterator[tuple[str, str, Stored]]:
    """SGLang's files: ``forward_pass_id=1___rank=0___name=layer_0___dump_index=7.pt``, in the order of the dump."""
    facts = [({match["key"]: match["value"] for match in _FACTS.finditer(file.stem)}, file) for file in files]
    varying = [key for key in facts[0][0] if key not in _TAKEN and len({own.get(key) for own, _ in facts}) > 1]

    def order(stored: tuple[dict[str, str], Path]) -> tuple[int, list[Any]]:
        number = stored[0].get(_ORDER, "")
        return (int(number) if number.isdecimal() and len(number) < 19 else 0), _by_numbers(stored[1])

    seen: dict[str, int] = {}
    for own, file in sorted(facts, key=order):
        name = ".".join([*(f"{key}{own.get(key, '')}" for key in varying), own.get("name", file.stem)])
        seen[name] = seen.get(name, -1) + 1
        shown = f"{name}.{seen[name]}" if seen[name] else name
        for key, stored in tensors_in(file).items():
            inner = "" if key in ("", "value") else f".{key}"
            yield shown + inner, f"{file.name}{MARK}{key}", stored


def _shards(folder: Path) -> list[Path]:
    """The files of Megatron's tensor-parallel ranks: one in each folder ``mp_rank_00`` ..., in the order of ranks."""
    with scan(folder) as entries:
        names = sorted(entry.name for entry in entries if SHARD.fullmatch(entry.name) and entry.is_dir())
    shards = [[file for file in _files(folder / name) if _suffix(file.name) in WEIGHTS] for name in names]
    return [min(files, key=lambda file: ("optim" in file.name and "model" not in file.name, file.name))
            for files in shards if files]  # fmt: skip


def _index_in(folder: Path) -> Path | None:
    with scan(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(INDEX) and not entry.is_dir())
    return folder / names[0] if names else None


def _files(folder: Path) -> list[Path]:
    with scan(folder) as entries:
        names = [entry.name for entry in entries if _suffix(entry.name) in ARRAYS | WEIGHTS and not entry.is_dir()]
    if len(names) > _MOST_FILES:
        raise BadInput(f"holds {len(names)} files, more than are opened at once", where=folder)
    return [folder / name for name in names]


def _suffix(name: str) -> str:
    return Path(name).suffix.lower()


def _by_numbers(path: Path) -> list[Any]:
    return [int(part) if part.isdecimal() and len(part) < 19 else part for part in _NUMBERS.split(path.name)]


# A dictionary of arrays in memory: kept in a file of its own, so that it is a run like any other.


def keep_arrays(arrays: Mapping[str, Any], *, weights: bool = False) -> Path:
    """Write arrays of numpy, torch, jax or whatever speaks DLPack to a new temporary file; returns its path."""
    tensors = {str(name): host_tensor(str(name), array) for name, array in arrays.items()}
    if not tensors:
        raise NothingToCompare("the dictionary holds no arrays: nothing to compare")
    path = Path(mkdtemp(prefix="twinprobe-")) / f"arrays{'.safetensors' if weights else '.tensors'}"
    with path.open("wb") as file:
        file.writelines(safetensors_bytes(tensors))
    return path


def host_tensor(name: str, array: Any) -> HostTensor:
    """One array, wherever it lies, as elements in memory."""
    if hasattr(array, "detach"):  # torch, which numpy understands in all dtypes but bfloat16 and float8
        array = array.detach().cpu().contiguous()
        dtype = dtype_name(array.dtype)
        if dtype in DTYPES and dtype not in NATIVE:
            import torch  # the array is one of its own, so it is there

            wide = array.element_size() == 2
            bits = array.reshape(-1).view(torch.int16 if wide else torch.uint8).numpy()
            return HostTensor(dtype, tuple(array.shape), bits.view("u2" if wide else "u1"))
    try:
        by_dlpack = hasattr(array, "__dlpack__") and not hasattr(array, "__array__")
        plain = np.from_dlpack(array) if by_dlpack else np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{name!r} is not an array: {str(error)[:200]}") from None
    if plain.dtype.name in DTYPES and plain.dtype.name not in NATIVE:  # as jax has bfloat16 and float8: by their bits
        bits = np.ascontiguousarray(plain).reshape(-1).view(f"u{plain.dtype.itemsize}")
        return HostTensor(plain.dtype.name, plain.shape, bits)
    if plain.dtype.name not in NATIVE:
        raise BadInput(
            f"{name!r} is not an array of numbers, but of {plain.dtype}", hint="name numpy, torch or jax arrays"
        )
    return HostTensor(plain.dtype.name, plain.shape, np.ascontiguousarray(plain).reshape(-1))
