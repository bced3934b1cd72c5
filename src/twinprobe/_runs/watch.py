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
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.whole_files import open_file, temporary_name
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    import polars as pl

STREAM = "watch.arrows"
# A series that was not seen in a step. NaN is a value that a loss can have, so this one has bits that no processor
# makes by itself.
MISSING = np.array([0x7FE5A5A5], dtype=np.uint32).view(np.float32)[0]
DIGEST = 1 << 24  # digests are numbers below this, which a float32 holds exactly

_ROWS = 64  # steps in a batch
_SECONDS = 1.0  # after which a batch is written though it is not full: so much is lost when the process is killed
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MOST = 1 << 31  # bytes of one message that is believed


class WatchStream:
    """Writes one rank's stream. It holds at least ``keep`` steps; older ones go when there are a quarter more."""

    def __init__(self, path: Path, keep: int) -> None:
        self._path = path
        self._keep = keep
        self._names: list[str] = []
        self._rows: list[tuple[int, NDArray[np.float32]]] = []
        self._batches: list[tuple[int, int, int]] = []  # rows (0 for names), offset and size of each in the file
        self._head = b""
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
        """Write the steps that wait."""
        self._due = time.monotonic() + _SECONDS
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        self._write([step for step, _ in rows], [None] * len(rows), np.stack([values for _, values in rows]))
        if sum(rows for rows, _, _ in self._batches) > self._keep + max(self._keep // 4, _ROWS):
            self._drop_old()

    def close(self) -> None:
        """Write what waits and end the stream."""
        if not self._file.closed:
            self.flush()
            self._file.write(_END)
            self._file.close()

    def _write(self, steps: list[int], names: list[list[str] | None], values: NDArray[np.float32]) -> None:
        schema, batch = _messages(steps, names, values)
        if not self._head:
            self._head, batch = schema, schema + batch
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
            head = self._head + _messages([-1], [names], np.empty((1, 0), np.float32))[1]
            new.write(head)
            old.seek(start)
            while piece := old.read(1 << 20):
                new.write(piece)
        self._file.close()
        copy.replace(self._path)
        moved = len(head) - start
        self._batches = [(0, 0, len(head)), *((rows, at + moved, size) for rows, at, size in self._batches[first:])]
        self._file = self._path.open("ab", buffering=0)
        self._size += moved

    def _names_before(self, first: int) -> list[str]:
        _, at, size = next(batch for batch in reversed(self._batches[:first]) if not batch[0])
        with self._path.open("rb") as file:
            file.seek(at)
            message = file.read(size)
        if at:
            message = self._head + message
        return list(_frame(message + _END)["names"][0])


def _messages(
    steps: list[int], names: list[list[str] | None], values: NDArray[np.float32]
) -> tuple[bytes, bytes]:  # fmt: skip
    """The schema and one batch, each as the message that stands in a stream."""
    import polars as pl

    lists = pl.Series("values", values.reshape(-1)).reshape((len(steps), -1)) if values.size else None
    frame = pl.DataFrame({
        "step": pl.Series(steps, dtype=pl.Int64),
        "names": pl.Series(names, dtype=pl.List(pl.String)),
        "values": pl.Series([[]], dtype=pl.List(pl.Float32)) if lists is None else lists.cast(pl.List(pl.Float32)),
    })  # fmt: skip
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer)
    stream = buffer.getvalue().removesuffix(_END)
    end = 8 + struct.unpack_from("<I", stream, 4)[0]  # a schema has no body
    return stream[:end], stream[end:]


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
    found = {}
    for child in folder.glob(f"rank*/{STREAM}"):
        number = re.fullmatch(r"rank(\d+)", child.parent.name)
        if number:
            found[int(number[1])] = child
    return dict(sorted(found.items()))


def is_watched(path: Path) -> bool:
    """Whether this is a watched run: a stream, or a folder with the streams of its ranks."""
    return bool(watch_files(path))


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
    for at, values in enumerate(rows):
        table[at, : len(values)] = values
    numbers = np.array(steps, dtype=np.int64)
    last = len(numbers) - 1 - np.unique(numbers[::-1], return_index=True)[1]
    table, numbers = table[last], numbers[last]
    known = table.view(np.uint32) != np.float32(MISSING).view(np.uint32)
    return Watched(path, numbers, names, table, known, notes)


def _frame(stream: bytes, path: Path | None = None) -> pl.DataFrame:
    import polars as pl

    try:
        frame = pl.read_ipc_stream(io.BytesIO(stream))
    except (Exception, pl.exceptions.PanicException) as error:  # what the reader makes of damaged bytes
        raise BadInput(f"is no Arrow IPC stream that can be read: {error}", where=path) from None
    if frame.schema != {"step": pl.Int64, "names": pl.List(pl.String), "values": pl.List(pl.Float32)}:
        raise BadInput("is not the stream of a watched run", where=path, hint='record with level="watch"')
    return frame


def _whole_messages(data: bytes) -> int:
    """Where the last whole message ends. Each says in its metadata, a flatbuffer, how long its body is."""
    at = 0
    while at + 8 <= len(data):
        mark, size = struct.unpack_from("<II", data, at)
        if mark != 0xFFFFFFFF or not size or at + 8 + size > len(data):
            break
        body = _body_length(data[at + 8 : at + 8 + size])
        if body is None or at + 8 + size + body > len(data):
            break
        at += 8 + size + body
    return at


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
