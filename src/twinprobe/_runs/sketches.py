"""Sketches and summaries of tensors as they lie in a file beside a dump; sketches also alone, to be sent elsewhere.

docs/formats.md describes the bytes, what the numbers mean and the hash, so that other tools can write them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection
from math import prod
from pathlib import Path
from struct import Struct
from typing import IO, TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.dtypes import COMPLEX, DTYPES, INTEGERS, SYNONYMS, dtype_name
from twinprobe._runs.json_pieces import FileBlocks
from twinprobe._runs.table import TENSOR
from twinprobe._runs.whole_files import open_file
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    import polars as pl


SUFFIX = ".sketch"
PART = ".part"
MAGIC = b"TWPSKT\r\n"
JOURNAL = b"TWPSKJ\r\n"  # of a step that is not finished
VERSION = 1
HASH = b"fmix32-8x4"
BLOCKS, SIGNS = 16, 4
SUMS = BLOCKS * SIGNS

# What a row is. PRESENT is missing only where a tensor has no sketch.
PRESENT, INTEGER, COMPLEX_PAIRS, LOCAL, SHARD, PARTIAL, DOUBLE, SUMMED = (1 << bit for bit in range(8))
_KNOWN = (1 << 8) - 1

_FLOATS = ("total", "norm", "l1")
_COUNTS = ("zeros", "nan", "inf", "fill")
ROW = np.dtype([
    ("flags", "<u4"), ("reserved", "<u4"), ("count", "<u8"), ("whole", "<u8"), *((name, "<u8") for name in _COUNTS),
    *((name, "<f8") for name in _FLOATS), ("sums", "<f8", (SUMS,)), ("block_norm", "<f4", (BLOCKS,)),
    ("block_max", "<f4", (BLOCKS,)),
])  # fmt: skip
Rows = NDArray[Any]  # of ROW
NO_ROW = 0xFFFFFFFF

_HEADER = Struct("<8sII16sQQQQ")
_MOST = 1 << 62
_CHECKED = 1 << 14


class Sketches:
    """The sketches of one run, by the rows of its table. ``rows`` holds each once, however often a tensor was seen."""

    def __init__(self, rows: Rows, index: NDArray[np.int64]) -> None:
        self.rows = rows
        self.index = index
        """For each row of the run's table which sketch it has; -1 for none."""

    def of(self, table_rows: NDArray[Any]) -> Rows:
        """The sketches of these rows of the run's table, in their order; ``flags`` is 0 where there is none.

        A negative or null number stands for no row. Fields: sums (64), norm, total, l1, count, whole, zeros, nan, inf,
        fill, block_norm (16), block_max (16), flags.
        """
        wanted = np.asarray(table_rows)
        if wanted.dtype.kind == "f":  # a column with nulls
            wanted = np.where(np.isnan(wanted), -1, wanted)
        wanted = wanted.astype(np.int64)
        places = np.where(wanted >= 0, self.index[np.maximum(wanted, 0)], -1)
        sketches = np.zeros(len(places), ROW)
        present = places >= 0
        sketches[present] = self.rows[places[present]]
        return sketches


class SketchFile:
    """Writes one file: rows as they come, then which tensor has which, then the document that names them, if any."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self._rows = 0
        self._index = array("I")
        assert self._index.itemsize == 4
        stream.write(bytes(_HEADER.size))

    def add(self, sketch: bytes | None) -> None:
        """The row of the next tensor in the order of the document or of dump.json, if it has one."""
        self._index.append(NO_ROW if sketch is None else self._rows)
        if sketch is not None:
            assert len(sketch) == ROW.itemsize
            self.stream.write(sketch)
            self._rows += 1

    def finish(self, document: bytes = b"") -> None:
        """Write the end and the header. The stream stays open."""
        self.stream.write(np.array(self._index, "<u4").tobytes() + document)
        self.stream.seek(0)
        self.stream.write(_header(MAGIC, self._rows, len(self._index), len(document)))


def _header(magic: bytes, rows: int, tensors: int, document: int) -> bytes:
    return _HEADER.pack(magic, VERSION, ROW.itemsize, HASH.ljust(16, b"\0"), rows, tensors, document, 0)


# A journal grows with a step, so that whatever was written before a process was killed can be read: for each tensor the
# place of its row, and the row itself where it is a new one.
JOURNAL_HEAD = _header(JOURNAL, 0, 0, 0)
PLACE = Struct("<I")


def finish_journal(journal: Path, stream: IO[bytes]) -> None:
    """Write all of a journal to another stream, in the form that stays."""
    rows, index = _read_journal(journal, journal.read_bytes())
    stream.write(_header(MAGIC, len(rows), len(index), 0) + rows.tobytes() + index.tobytes())


def _read_journal(path: Path, data: bytes) -> tuple[Rows, NDArray[np.uint32]]:
    rows: list[bytes] = []
    index = array("I")
    start, end = _HEADER.size, len(data)
    while start + 4 <= end:
        (place,) = PLACE.unpack_from(data, start)
        start += 4
        if place == len(rows):
            if start + ROW.itemsize > end:
                break  # the last one was not written to its end
            rows.append(data[start : start + ROW.itemsize])
            start += ROW.itemsize
        elif place > len(rows) and place != NO_ROW:
            raise BadInput(f"names row {place} of {len(rows)}", where=f"{path}: tensor {len(index)}")
        index.append(place)
    return np.frombuffer(b"".join(rows), ROW), np.array(index, "<u4")


def read_file(path: Path) -> tuple[Rows, NDArray[np.uint32], bytes]:
    """The rows, which tensor has which, and the document; BadInput for any other file, or one that was changed."""
    file = FileBlocks(path)
    head = file.range(0, _HEADER.size)
    if len(head) < _HEADER.size or not head.startswith((MAGIC, JOURNAL)):
        raise BadInput("is not a file of sketches", where=path)
    _, version, width, name, count, tensors, length, reserved = _HEADER.unpack(head)
    supported = (VERSION, ROW.itemsize, HASH.ljust(16, b"\0"), 0)
    if (version, width, name, reserved) != supported:
        shown = name.rstrip(b"\0").decode("ascii", "replace")
        raise BadInput(
            f"version {version} with the hash {shown!r} and rows of {width} bytes is not known",
            where=f"{path}: header", hint=f"this TwinProbe reads version {VERSION} with {HASH.decode()!r}",
        )  # fmt: skip
    document = b""
    if head.startswith(JOURNAL):
        rows, index = _read_journal(path, file.range(0, file.size))
    else:
        expected = _HEADER.size + count * ROW.itemsize + tensors * 4 + length
        if expected != file.size:
            raise BadInput(
                f"holds {file.size} bytes, {expected} are expected for {count} rows, {tensors} tensors and a document "
                f"of {length} bytes", where=f"{path}: header", hint="it was not written completely, or was changed",
            )  # fmt: skip
        index_at, document_at = file.size - length - tensors * 4, file.size - length
        rows = np.frombuffer(file.range(_HEADER.size, index_at), ROW)
        index = np.frombuffer(file.range(index_at, document_at), "<u4")
        document = file.range(document_at, file.size)
        if len(rows) != count or len(index) != tensors:
            raise BadInput("became shorter while it was read", where=path)
    for start in range(0, len(rows), _CHECKED):
        _check(path, rows[start : start + _CHECKED], start)
    odd = np.flatnonzero((index >= len(rows)) & (index != NO_ROW))
    if len(odd):
        raise BadInput(f"names row {index[odd[0]]} of {len(rows)}", where=f"{path}: tensor {odd[0]}")
    return rows, index, document


def _check(path: Path, rows: Rows, start: int) -> None:
    """Refuse rows that no recorder writes: numbers that are not finite, counts that contradict each other."""
    finite = np.isfinite(rows["sums"]).all(axis=1)
    for name in (*_FLOATS, "block_norm", "block_max"):
        finite &= np.isfinite(rows[name]).reshape(len(rows), -1).all(axis=1)
    positive = (rows["norm"] >= 0) & (rows["l1"] >= 0)
    positive &= (rows["block_norm"] >= 0).all(axis=1) & (rows["block_max"] >= 0).all(axis=1)
    counted = (rows["count"] <= rows["whole"]) & (rows["whole"] <= _MOST)
    for name in _COUNTS:
        counted &= rows[name] <= rows["count"]
    with np.errstate(over="ignore"):
        counted &= sum(rows[name] for name in _COUNTS) <= rows["count"]
    plain = (rows["flags"] & ~np.uint32(_KNOWN) == 0) & (rows["flags"] & PRESENT != 0) & (rows["reserved"] == 0)
    for holds, problem in (
        (plain, "has flags that are not known"),
        (finite, "holds a number that is NaN or infinite"),
        (positive, "holds a negative norm"),
        (counted, "holds counts that contradict each other"),
    ):
        if not holds.all():
            raise BadInput(problem, where=f"{path}: row {start + int(np.argmin(holds))}")


def sketches_of(path: Path, table: pl.DataFrame, *, damaged: bool = False) -> Sketches:
    """The sketches of a run whose table is known; BadInput where they do not fit to it.

    ``damaged``: dump.json broke off, so that the file may hold sketches of tensors that are lost.
    """
    rows, index, _ = read_file(path)
    return fitted(path, rows, index, table, damaged=damaged)


def fitted(path: Path, rows: Rows, index: NDArray[np.uint32], table: pl.DataFrame, *, damaged: bool) -> Sketches:
    """Rows and index of a file brought into line with the table of a run."""
    tensors = np.flatnonzero(table["kind"].to_numpy() == TENSOR)
    if path.suffix == PART:  # of a killed process: either file may have come further than the other
        index = np.concatenate([index, np.full(max(0, len(tensors) - len(index)), NO_ROW, np.uint32)])
        damaged = True
    if len(index) < len(tensors) or (len(index) > len(tensors) and not damaged):
        raise BadInput(
            f"holds sketches of {len(index)} tensors, the dump beside it has {len(tensors)}",
            where=path, hint="the two are from different recordings; without this file, statistics are compared",
        )  # fmt: skip
    places = np.full(table.height, -1, np.int64)
    places[tensors] = np.where(index == NO_ROW, -1, index.astype(np.int64))[: len(tensors)]
    seen = np.flatnonzero(places >= 0)
    kinds = {dtype: _kind_of(dtype) for dtype in table["dtype"].unique().to_list()}
    sizes = {shape: _elements(shape) for shape in table["shape"].unique().to_list()}
    kind = np.array([kinds[dtype] for dtype in table["dtype"].gather(seen).to_list()], np.int64)
    size = np.array([sizes[shape] for shape in table["shape"].gather(seen).to_list()], np.int64)
    used = places[seen]
    flags, whole = rows["flags"][used].astype(np.int64), rows["whole"][used].astype(np.int64)
    odd = np.flatnonzero((kind >= 0) & (flags & (INTEGER | COMPLEX_PAIRS) != kind))
    if len(odd):
        row = int(seen[odd[0]])
        raise BadInput(
            f"the sketch of {table['name'][row]} is of another kind than its dtype {table['dtype'][row]}",
            where=f"{path}: row {used[odd[0]]}", hint="this file and the dump beside it are from different recordings",
        )  # fmt: skip
    # A part of a tensor, without its place in the whole: values of a sparse tensor, a shard of unknown offset.
    local = np.flatnonzero((flags & LOCAL == 0) & (whole != size * np.where(flags & COMPLEX_PAIRS, 2, 1)))
    if len(local):
        extra = rows[used[local]].copy()
        extra["flags"] |= LOCAL
        places[seen[local]] = len(rows) + np.arange(len(local))
        rows = np.concatenate([rows, extra])
    return Sketches(rows, places)


def _kind_of(dtype: str | None) -> int:
    """The flags that tensors of this dtype have; -1 where that is not known."""
    name = dtype_name(dtype or "")
    name = SYNONYMS.get(name, name)
    if name not in DTYPES:
        return -1
    return INTEGER if name == "bool" or name in INTEGERS else COMPLEX_PAIRS if name in COMPLEX else 0


def _elements(shape: str | None) -> int:
    sizes = (shape or "").strip("[]")
    try:
        return min(prod(int(size) for size in sizes.split(",")) if sizes else 1, _MOST)
    except ValueError:
        return -1


# What is inside the tensors of a run that kept none: a file of small summaries beside its dump, read and checked.

SUMMARIES = ".summaries.jsonl"
# A summary takes about 4 kB. A longer line was not written by a recorder.
_LONGEST = 1 << 16
_NAME = re.compile(rb'\{"name":("(?:[^"\\]|\\.)*"),')
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Short = Annotated[str, msgspec.Meta(max_length=40)]
Number = float | _Short
"""Infinity and NaN are written as text, since JSON has none."""


class Blocks(msgspec.Struct):
    """A number for each block: half floats, as shares of the scale."""

    scale: Number
    f16: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9+/]*={0,2}$")]


class Histogram(msgspec.Struct, rename={"start": "from"}):
    """How many elements there are of each power of two."""

    start: Annotated[int, msgspec.Meta(ge=-1100, le=1100)]
    counts: Annotated[list[_Count], msgspec.Meta(max_length=2200)]
    zeros: _Count
    odd: _Count


class Quantiles(msgspec.Struct):
    """From the smallest to the largest."""

    exact: bool
    values: Annotated[list[Number], msgspec.Meta(max_length=7)]


class TensorSummary(msgspec.Struct):
    """One tensor, as docs/formats.md describes it."""

    shape: Annotated[list[_Count], msgspec.Meta(min_length=1, max_length=64)]
    dtype: _Short
    rows: Annotated[int, msgspec.Meta(ge=-1, lt=64)]
    columns: Annotated[int, msgspec.Meta(ge=0, lt=64)]
    size: tuple[Annotated[int, msgspec.Meta(ge=1, le=64)], Annotated[int, msgspec.Meta(ge=1, le=64)]]
    read: _Count
    max: Blocks
    rms: Blocks
    mean: Blocks
    histogram: Histogram
    quantiles: Quantiles
    largest: Annotated[list[tuple[list[_Count], Number]], msgspec.Meta(max_length=12)]

    def __post_init__(self) -> None:
        axes, length = len(self.shape), -(-prod(self.size) * 2 // 3) * 4
        if not (self.rows < axes and self.columns < axes and self.rows != self.columns):
            raise ValueError("no such axes")
        if any(len(blocks.f16) != length for blocks in (self.max, self.rms, self.mean)):
            raise ValueError("another number of blocks")


class _Line(msgspec.Struct):
    name: str
    like: str | None = None
    summary: TensorSummary | None = None


def read_summaries(dump: Path, names: Collection[str]) -> dict[str, TensorSummary]:
    """The summaries beside a dump.json of the tensors with these names; what is damaged is left out."""
    file = dump.with_name(dump.name.split(".json")[0] + SUMMARIES)
    if not names or not file.is_file():
        return {}
    # A tensor that was seen before names the first place: its line comes earlier, so all lines are looked at twice.
    first = {line.name: line.like for line in _lines(file, names) if line.like}
    summaries = {line.name: line.summary for line in _lines(file, {*names, *first.values()}) if line.summary}
    places = {name: first.get(name, name) for name in names}
    return {name: summaries[place] for name, place in places.items() if place in summaries}


def _lines(file: Path, names: Collection[str]) -> list[_Line]:
    lines = []
    with open_file(file) as stream:
        while line := stream.readline(_LONGEST):
            head = _NAME.match(line)
            try:
                if head is not None and msgspec.json.decode(head[1], type=str) in names:
                    lines.append(msgspec.json.decode(line, type=_Line))
            except msgspec.DecodeError:
                continue  # of a process that was killed
    return lines
