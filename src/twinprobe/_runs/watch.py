"""What ``level="watch"`` writes: one Arrow IPC stream for each rank, with the numbers of each step.

A row is one step: ``step``, ``names`` and ``values``. ``values`` has one float32 for each series (loss, learning rate,
norm of a gradient); ``names`` says which series these are. It stands alone in a row of its own, with step -1, before
the first step and whenever series have been added, and is null in all other rows. Every batch is written at once, so
that a killed run leaves a stream that can be read up to its last whole batch.
"""

from __future__ import annotations

import io
import re
import struct
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._lazy import polars as pl
from twinprobe._runs.whole_files import open_file, temporary_name
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    from twinprobe._runs.sketches import Rows

STREAM = "watch.arrows"
# A series that was not seen in a step. NaN is a value that a loss can have, so this one has bits that no processor
# makes by itself.
MISSING = np.array([0x7FE5A5A5], dtype=np.uint32).view(np.float32)[0]
DIGEST = 1 << 24  # digests are numbers below this, which a float32 holds exactly

_ROWS = 64  # steps in a batch
_SECONDS = 1.0  # after which a batch is written though it is not full: so much is lost when the process is killed
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MOST = 1 << 31  # bytes of one message; a larger one is damage


class WatchStream:
    """Writes one rank's stream. It holds at least ``keep`` steps; older ones go when there are a quarter more."""

    def __init__(self, path: Path, keep: int) -> None:
        self._path = path
        self._keep = keep
        self._names: list[str] = []
        self._rows: list[tuple[int, NDArray[np.float32]]] = []
        self._batches: list[tuple[int, int, int]] = []  # rows (0 for names), offset and size of each in the file
        self._size = 0
        self._due = time.monotonic() + _SECONDS
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("xb", buffering=0)

    def append(self, step: int, names: Sequence[str], values: NDArray[np.float32]) -> None:
        """Add a step. ``names`` only ever grow at their end."""
        if len(names) != len(self._names):
            self.flush()
            self._names = list(names)
            self._write([-1], [self._names], np.empty((1, 0), np.float32))
        self._rows.append((step, values))
        if len(self._rows) >= _ROWS or time.monotonic() > self._due:
            self.flush()

    def flush(self) -> None:
        """Write the steps collected so far."""
        self._due = time.monotonic() + _SECONDS
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        self._write([step for step, _ in rows], [None] * len(rows), np.stack([values for _, values in rows]))
        if sum(rows for rows, _, _ in self._batches) > self._keep + max(self._keep // 4, _ROWS):
            self._drop_old()

    def close(self) -> None:
        """Write the remaining steps and end the stream."""
        if not self._file.closed:
            self.flush()
            self._file.write(_END)
            self._file.close()

    def _write(self, steps: list[int], names: list[list[str] | None], values: NDArray[np.float32]) -> None:
        batch = _batch(steps, names, values)
        if not self._size:
            batch = _schema() + batch
        self._file.write(batch)
        self._batches.append((0 if names[0] is not None else len(steps), self._size, len(batch)))
        self._size += len(batch)

    def _drop_old(self) -> None:
        """Copy the newest batches into a new file, which takes the place of the old: in pieces, whatever their size."""
        kept = first = 0
        for first in range(len(self._batches) - 1, -1, -1):
            kept += self._batches[first][0]
            if kept >= self._keep:
                break
        start = self._batches[first][1]
        # The names that hold for the first step that is kept; a series that came later is added by what follows.
        later = sum(1 for rows, _, _ in self._batches[first:] if not rows)
        names = self._names if not later else self._names_before(first)
        copy = self._path.with_name(temporary_name(self._path.name))
        with copy.open("xb", buffering=0) as new, self._path.open("rb") as old:
            head = _schema() + _batch([-1], [names], np.empty((1, 0), np.float32))
            new.write(head)
            old.seek(start)
            while piece := old.read(1 << 20):
                new.write(piece)
        self._file.close()
        copy.replace(self._path)
        moved = len(head) - start
        self._batches = [
            (0, 0, len(head)),
            *((rows, start + moved, size) for rows, start, size in self._batches[first:]),
        ]
        self._file = self._path.open("ab", buffering=0)
        self._size += moved

    def _names_before(self, first: int) -> list[str]:
        _, start, size = next(batch for batch in reversed(self._batches[:first]) if not batch[0])
        with self._path.open("rb") as file:
            file.seek(start)
            message = file.read(size)
        if start:
            message = _schema() + message
        return list(_frame(message + _END)["names"][0])


# The messages of an Arrow IPC stream, written by hand: a training should not have to load a library of tables, with its
# threads, to append a few numbers. Their metadata are flatbuffers: tables whose fields are found through a list of
# offsets before them.

_INT, _FLOAT, _TEXT, _LIST = 2, 3, 5, 12  # the types that are used, as Arrow numbers them
_SCHEMA, _BATCH, _V5 = 1, 3, 4
_Field = tuple[str, int, "tuple[_Field, ...]"]
_FIELDS: tuple[_Field, ...] = (
    ("step", _INT, ()),
    ("names", _LIST, (("item", _TEXT, ()),)),
    ("values", _LIST, (("item", _FLOAT, ()),)),
)


def _schema() -> bytes:
    """The message that begins a stream."""
    buffer, header = _message(_SCHEMA, 0)
    fields = _table(buffer, header, [("h", 0), ("I", 0)])[1]
    _write_fields(buffer, fields, _FIELDS)
    return _framed(buffer)


def _write_fields(buffer: bytearray, refers: int, fields: tuple[_Field, ...]) -> None:
    """A vector of columns, each with its name, its type and the columns inside of it."""
    places = _vector(buffer, refers, len(fields), "I")
    for place, (name, kind, inner) in zip(places, fields, strict=True):
        nullable = kind == _LIST
        title, _, _, of, _, children = _table(
            buffer, place, [("I", 0), ("?", nullable), ("B", kind), ("I", 0), None, ("I", 0)]
        )
        _vector(buffer, title, len(name), "s", name.encode())
        details = {_INT: [("i", 64), ("?", True)], _FLOAT: [("h", 1)]}
        _table(buffer, of, details.get(kind, []))
        _write_fields(buffer, children, inner)


def _batch(steps: list[int], names: list[list[str] | None], values: NDArray[np.float32]) -> bytes:
    """The message with these rows."""
    count = len(steps)
    texts = [text.encode("utf-8", "backslashreplace") for row in names for text in row or ()]
    ends = np.cumsum([0, *(len(row or ()) for row in names)], dtype=np.int32)
    nulls = sum(row is None for row in names)
    present = np.packbits([row is not None for row in names], bitorder="little").tobytes() if nulls else b""
    width = values.shape[1]
    columns: list[tuple[int, int, list[bytes]]] = [  # rows, nulls, and the buffers: the first marks what is null
        (count, 0, [b"", np.array(steps, dtype="<i8").tobytes()]),
        (count, nulls, [present, ends.tobytes()]),
        (len(texts), 0, [b"", np.cumsum([0, *map(len, texts)], dtype="<i4").tobytes(), b"".join(texts)]),
        (count, 0, [b"", (np.arange(count + 1, dtype="<i4") * width).tobytes()]),
        (values.size, 0, [b"", np.ascontiguousarray(values, dtype="<f4").tobytes()]),
    ]
    body = bytearray()
    spans: list[tuple[int, int]] = []
    for _, _, parts in columns:
        for part in parts:
            spans.append((len(body), len(part)))
            body += part + bytes(-len(part) % 64)
    buffer, header = _message(_BATCH, len(body))
    _, nodes, buffers = _table(buffer, header, [("q", count), ("I", 0), ("I", 0)])
    _vector(
        buffer, nodes, len(columns), "qq", struct.pack(f"<{2 * len(columns)}q", *(n for c in columns for n in c[:2]))
    )
    _vector(buffer, buffers, len(spans), "qq", struct.pack(f"<{2 * len(spans)}q", *(n for span in spans for n in span)))
    return _framed(buffer) + body


def _message(kind: int, body: int) -> tuple[bytearray, int]:
    """The outermost table, and the place of its reference to the content."""
    buffer = bytearray(4)
    fields = _table(buffer, 0, [("h", _V5), ("B", kind), ("I", 0), ("q", body)])
    return buffer, fields[2]


def _table(buffer: bytearray, refers: int, fields: Sequence[tuple[str, Any] | None]) -> list[int]:
    """Append a table, which the offset at ``refers`` points to; returns the places of its fields."""
    offsets, size = [0] * len(fields), 4
    present = [(struct.calcsize(field[0]), index, *field) for index, field in enumerate(fields) if field]
    present.sort(key=lambda field: -field[0])  # the widest first: no padding between them
    for width, index, _, _ in present:
        size += -size % width
        offsets[index] = size
        size += width
    head = struct.pack(f"<{2 + len(fields)}H", 4 + 2 * len(fields), size, *offsets)
    buffer += bytes(-(len(buffer) + len(head)) % 8) + head
    start = len(buffer)
    buffer += struct.pack("<i", len(head)) + bytes(size - 4)
    for _, index, kind, value in present:
        struct.pack_into(f"<{kind}", buffer, start + offsets[index], value)
    struct.pack_into("<I", buffer, refers, start - refers)
    return [start + offset for offset in offsets]


def _vector(buffer: bytearray, refers: int, count: int, kind: str, content: bytes | None = None) -> list[int]:
    """Append a vector, which the offset at ``refers`` points to; returns the places of its elements."""
    buffer += bytes(-(len(buffer) + 4) % 8)
    struct.pack_into("<I", buffer, refers, len(buffer) - refers)
    buffer += struct.pack("<I", count)
    start, width = len(buffer), struct.calcsize(f"<{kind}")
    buffer += bytes(count * width) if content is None else content + b"\0"
    return [start + index * width for index in range(count)]


def _framed(metadata: bytearray) -> bytes:
    """A message without its body: a mark, the length, and the metadata up to a multiple of eight bytes."""
    metadata += bytes(-len(metadata) % 8)
    return b"\xff\xff\xff\xff" + struct.pack("<I", len(metadata)) + bytes(metadata)


# Reading.


@dataclass
class Watched:
    """The steps of one rank: ``values`` has a row for each step and a column for each series, ``known`` says where
    there is a value. Where a step was recorded twice, the later one counts."""

    path: Path
    steps: NDArray[np.int64]
    names: list[str]
    values: NDArray[np.float32]
    known: NDArray[np.bool_]
    notes: list[str] = field(default_factory=list)
    sketches: dict[str, Rows] = field(default_factory=dict)
    """Of recorded tensors, one for each step, by the series that tells how far apart two of them are."""

    def only(self, steps: Collection[int]) -> Watched:
        """The same with these steps alone."""
        rows = np.isin(self.steps, list(steps))
        return replace(self, steps=self.steps[rows], values=self.values[rows], known=self.known[rows])


def watch_files(folder: Path) -> dict[int, Path]:
    """The streams of a watched run by rank; empty for anything else."""
    if folder.is_file():
        return {0: folder} if folder.suffix == ".arrows" else {}
    if (folder / STREAM).is_file():
        return {0: folder / STREAM}
    streams = {}
    for child in folder.glob(f"rank*/{STREAM}"):
        number = re.fullmatch(r"rank(\d+)", child.parent.name)
        if number:
            streams[int(number[1])] = child
    return dict(sorted(streams.items()))


def read_watch(path: Path) -> Watched:
    """Read one rank's stream, as far as its batches are whole."""
    try:
        with open_file(path) as file:
            data = file.read()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    whole = _whole_messages(data)
    notes = []
    if not data.endswith(_END):
        notes.append(f"{path}: the run was killed, or is still going on; steps after the last whole batch are missing")
    frame = _frame(data[:whole] + _END, path)
    steps, names, rows = [], [""] * 0, []
    for step, named, values in frame.iter_rows():
        if named is not None:
            names = named
        elif step is not None and values is not None and len(values) <= len(names):
            steps.append(step)
            rows.append(values)
    if not steps:
        raise BadInput("holds no step", where=path, hint="the run ended before its first batch was written")
    table = np.full((len(rows), len(names)), MISSING, dtype=np.float32)
    for row, values in enumerate(rows):
        table[row, : len(values)] = values
    numbers = np.array(steps, dtype=np.int64)
    last = len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1]
    table, numbers = table[last], numbers[last]
    known = table.view(np.uint32) != np.float32(MISSING).view(np.uint32)
    return Watched(path, numbers, names, table, known, notes)


def _frame(stream: bytes, path: Path | None = None) -> pl.DataFrame:
    try:
        frame = pl.read_ipc_stream(io.BytesIO(stream))
    except (Exception, pl.exceptions.PanicException) as error:  # what the reader makes of damaged bytes
        raise BadInput(f"is not a readable Arrow IPC stream: {error}", where=path) from None
    if frame.schema != {"step": pl.Int64, "names": pl.List(pl.String), "values": pl.List(pl.Float32)}:
        raise BadInput("is not the stream of a watched run", where=path, hint='record with level="watch"')
    return frame


def _whole_messages(data: bytes) -> int:
    """Where the last whole message ends. Each says in its metadata, a flatbuffer, how long its body is."""
    end = 0
    while end + 8 <= len(data):
        mark, size = struct.unpack_from("<II", data, end)
        if mark != 0xFFFFFFFF or not size or end + 8 + size > len(data):
            break
        body = _body_length(data[end + 8 : end + 8 + size])
        if body is None or end + 8 + size + body > len(data):
            break
        end += 8 + size + body
    return end


def _body_length(metadata: bytes) -> int | None:
    """The field bodyLength of an Arrow message: the fourth of its table; absent means 0."""
    try:
        table = struct.unpack_from("<I", metadata, 0)[0]
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        if fields < 0 or struct.unpack_from("<H", metadata, fields)[0] < 12:
            return 0
        place = struct.unpack_from("<H", metadata, fields + 10)[0]
        length = struct.unpack_from("<q", metadata, table + place)[0] if place else 0
    except struct.error:
        return None
    return length if 0 <= length <= _MOST else None
