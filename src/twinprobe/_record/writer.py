"""The files of one dump folder, written so that a killed process leaves a readable dump."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import prod
from pathlib import Path
from time import monotonic
from typing import IO, Any

import msgspec

from twinprobe._measure.blocks import one_summary
from twinprobe._record.entries import Entry, Renderer, Row, sketches_of
from twinprobe._runs.dtypes import COMPLEX
from twinprobe._runs.names import DIRECTIONS
from twinprobe._runs.sketches import JOURNAL_HEAD, NO_ROW, PLACE, SUFFIX, SUMMARIES, finish_journal, read_file
from twinprobe._runs.tensors.elements import HostTensor

PART_SUFFIX = ".part"
TENSOR_FOLDER = "dump_tensor_data"
_LONGEST_NAME = 200
UNSAFE = str.maketrans(dict.fromkeys('/\\\0:*?"<>|', "_"))  # what some file system takes in no name
_DISK_ERRORS = frozenset({
    errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG, errno.ENOTDIR,
    errno.EEXIST, errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT,
})  # fmt: skip
_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": "), default=str).encode

SaveTensor = Callable[[Any, IO[bytes]], None]


class DumpFolder:
    """One ``step<N>/rank<R>`` folder. The index grows as ``<index>.json.part``, one JSON object per line, and is
    closed into ``<index>.json``; every file gets a temporary name first. Used by the writer thread only.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, index: str = "dump", sketches: bool = False) -> None:
        self.path = path
        self.header = header
        self.index = index
        self.sketches = sketches
        self.bytes_written = 0
        self.entries = 0
        self._file: IO[bytes] | None = None
        self._sketches: _SketchJournal | None = None
        self._summaries: IO[bytes] | None = None
        self._taken: set[str] = set()
        self._unsynced = False
        self.tensor_folder = path / TENSOR_FOLDER
        self.sketch_file = path / f"{index}{SUFFIX}"
        self.sketch_part = path / f"{index}{SUFFIX}{PART_SUFFIX}"

    @property
    def part(self) -> Path:
        return self.path / f"{self.index}.json{PART_SUFFIX}"

    def open(self) -> None:
        """Create the folder and the index with its header line; an index that is there belongs to another recorder."""
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / f"{self.index}.json").exists():
            raise FileExistsError(errno.EEXIST, "another recorder has written to this folder")
        try:
            self._file = self.part.open("xb", buffering=1 << 16)
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, "another recorder is writing to this folder") from None
        self._file.write(_line(self.header))
        self._file.flush()

    def add(self, name: str, text: str) -> None:
        """Append one entry, given as JSON text, to the index."""
        if self._file is None:
            self.open()
        assert self._file is not None
        self._file.write(f"{{{_encode(name)}: {text}}}\n".encode("utf-8", "backslashreplace"))
        self.entries += 1

    def add_entries(self, batch: list[Entry], renderer: Renderer) -> None:
        """Append entries that are no text yet, and the sketches of their tensors."""
        for entry in batch:
            self.add(entry.name, renderer.entry(entry))
        if self.sketches:
            self.add_sketches([(entry.name, sketches_of(entry)) for entry in batch])

    def add_sketches(self, entries: list[tuple[str, list[tuple[int, bytes | None]]]]) -> None:
        """Append the sketches of the entries' tensors, in the order in which readers of the index count them."""
        if self.index == "dump":  # whose readers leave out what has no direction
            entries = [entry for entry in entries if not DIRECTIONS.isdisjoint(entry[0].rsplit(".", 2)[-2:])]
        if entries and self._sketches is None:
            self._sketches = _SketchJournal(self.sketch_part)
        if self._sketches is not None:
            self._sketches.add(row for _, rows in entries for row in rows)

    def add_summary(self, name: str, row: Row, host: Callable[[Any], HostTensor | None]) -> None:
        """Append what is inside one tensor, in a few kB; one that was seen before is only named.

        A line each: a killed process loses the last one at most.
        """
        line: dict[str, Any] = {"name": name, "like": row.summary}
        if row.summary is None:
            tensor = None if row.payload is None else host(row.payload)
            if tensor is None or tensor.dtype in COMPLEX or prod(tensor.shape) < 2:
                return  # nothing that could be drawn
            line = {"name": name, "summary": one_summary(tensor)}
            row.summary = name
        if self._summaries is None:
            self._summaries = (self.path / f"{self.index}{SUMMARIES}").open("ab", buffering=1 << 16)
        self._summaries.write(msgspec.json.encode(line) + b"\n")

    def reopen(self) -> None:
        """Go on with a closed index: the same step was started again."""
        target = self.path / f"{self.index}.json"
        with target.open("rb") as closed, self.part.open("wb") as part:
            part.write(_line(self.header))
            for line in closed:
                if line.startswith(b"  "):
                    part.write(b"{" + line[2:].rstrip(b"\n").removesuffix(b",") + b"}\n")
        self._file = self.part.open("ab", buffering=1 << 16)
        if self.sketch_file.exists():  # like the index, it stays until there is another
            self._sketches = _SketchJournal(self.sketch_part, self.sketch_file)

    def flush(self) -> None:
        """Hand everything added so far to the system, where it outlives this process."""
        for stream in self._streams:
            stream.flush()

    @property
    def _streams(self) -> list[IO[bytes]]:
        journal = None if self._sketches is None else self._sketches.stream
        return [stream for stream in (journal, self._summaries, self._file) if stream is not None]

    def tensor(self, name: str, suffix: str, payload: Any, save: SaveTensor) -> str:
        """Write one tensor file and return its name inside the tensor folder."""
        file = self.file_name(name, suffix)
        target = self.tensor_folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        with _replacing(target) as stream:
            save(payload, stream)
        self._unsynced = True
        self.bytes_written += target.stat().st_size
        return file

    def same_tensor(self, name: str, suffix: str, earlier: str) -> str:
        """The same bytes under another name: a hard link where the file system has them, else a copy."""
        file = self.file_name(name, suffix)
        folder = self.tensor_folder
        try:
            os.link(folder / earlier, folder / file)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EROFS, errno.EDQUOT}:
                raise
            with (folder / earlier).open("rb") as source, _replacing(folder / file) as stream:
                shutil.copyfileobj(source, stream)
            self._unsynced = True
            self.bytes_written += (folder / file).stat().st_size
        return file

    def close(self, side_files: dict[str, Any]) -> None:
        """Turn the index into its final form and write stack.json and construct.json beside it.

        The index appears last, when all that it names is on the disk: after a loss of power, a step with an index is
        whole.
        """
        if self._file is None:
            self.open()
        assert self._file is not None
        self._file.close()
        if self._summaries is not None:
            self._summaries.close()
            self._summaries, self._unsynced = None, True
            self.bytes_written += (self.path / f"{self.index}{SUMMARIES}").stat().st_size
        for name, content in side_files.items():
            target = self.path / f"{name}.json"
            lines = [f" {_encode(key)}: {_encode(value)}" for key, value in content.items()]
            text = "{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n"
            with _replacing(target, sync=True) as stream:
                stream.write(text.encode("utf-8", "backslashreplace"))
            self.bytes_written += target.stat().st_size
        if self._sketches is not None:
            self._sketches.stream.close()
            with _replacing(self.sketch_file, sync=True) as stream:
                finish_journal(self.sketch_part, stream)
            self.bytes_written += self.sketch_file.stat().st_size
            self.sketch_part.unlink()
            self._sketches = None
        if self._unsynced:
            sync_file_system(self.path)
            self._unsynced = False
        target = self.path / f"{self.index}.json"
        with self.part.open("rb") as part, _replacing(target, sync=True) as stream:
            stream.write(b"{\n")
            for key, value in json.loads(next(part)).items():
                stream.write(f' "{key}": {_encode(value)},\n'.encode())
            stream.write(b' "data": {')
            separator = b"\n  "
            for line in part:
                stream.write(separator + line.rstrip(b"\n")[1:-1])
                separator = b",\n  "
            stream.write(b"\n }\n}\n")
        sync_folder(self.path)
        self.part.unlink()
        self.bytes_written += target.stat().st_size

    def abandon(self) -> None:
        """Close the file handles and leave what is there."""
        for stream in self._streams:
            with suppress(OSError):
                stream.close()
        self._sketches = None

    def file_name(self, name: str, suffix: str) -> str:
        """A file name that every file system takes and that no other tensor of this folder has."""
        safe = name.translate(UNSAFE)
        if len(safe.encode()) > _LONGEST_NAME:
            digest = hashlib.sha1(name.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:12]
            safe = f"{safe.encode()[: _LONGEST_NAME - 13].decode('utf-8', 'ignore')}.{digest}"
        file = f"{safe}{suffix}"
        count = 1
        while file in self._taken:
            file = f"{safe}~{count}{suffix}"
            count += 1
        self._taken.add(file)
        return file


class _SketchJournal:
    """The sketches of a step on their way: the place of each tensor's row, and the row itself where it is a new one."""

    def __init__(self, path: Path, earlier: Path | None = None) -> None:
        """``earlier``: a file to go on with."""
        self._rows = 0
        self._places: dict[int, int] = {}  # the row of each tensor, by its number
        self.stream = path.open("wb")
        self.stream.write(JOURNAL_HEAD)
        if earlier is not None:
            rows, index, _ = read_file(earlier)
            self.add((-1 - int(place), None if place == NO_ROW else rows[place].tobytes()) for place in index)

    def add(self, sketches: Iterable[tuple[int, bytes | None]]) -> None:
        """The next tensors in the order of dump.json: a number for each and its row, if it has one. A tensor that is
        seen again has the same number, and is not written again."""
        for number, sketch in sketches:
            place = NO_ROW if sketch is None else self._places.get(number)
            if place is not None:
                self.stream.write(PLACE.pack(place))
                continue
            assert sketch is not None
            self.stream.write(PLACE.pack(self._rows) + sketch)
            self._places[number] = self._rows
            self._rows += 1


class _replacing:  # noqa: N801  used as a function: `with _replacing(target) as stream`
    """Write under a temporary name in the same folder; rename when all went well, with ``sync`` once it is on disk."""

    def __init__(self, target: Path, *, sync: bool = False) -> None:
        self._target = target
        self._sync = sync
        self._temporary = target.with_name(f".{target.name}.tmp")

    def __enter__(self) -> IO[bytes]:
        self._stream = self._temporary.open("wb")
        return self._stream

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            with self._stream as stream:  # what is still in its buffer may not fit on the disk
                if kind is None and self._sync:
                    stream.flush()
                    os.fsync(stream.fileno())
            if kind is None:
                self._temporary.replace(self._target)
        finally:
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)


def is_disk_error(error: BaseException) -> bool:
    """Whether the disk is full, read-only or forbidden: recording cannot go on, the training can."""
    return isinstance(error, OSError) and error.errno in _DISK_ERRORS


def sync_file_system(path: Path) -> None:
    """Have all written files of this file system reach the disk: for thousands of files, far less than one by one."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if os.name == "posix" else None
    if call is None:
        getattr(os, "sync", lambda: None)()
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        number = ctypes.get_errno() if call(handle) else 0
    finally:
        os.close(handle)
    if number in _DISK_ERRORS:  # a disk may find out only now that it is full or broken
        raise OSError(number, os.strerror(number))


def sync_folder(path: Path) -> None:
    """Have a folder's names reach the disk; some network file systems cannot, and need not."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _line(content: dict[str, Any]) -> bytes:
    return _encode(content).encode("utf-8", "backslashreplace") + b"\n"


# The writer thread: work in order, off the training thread, with a bound on what may wait.

Job = Callable[[], None]
_BYTES_WAITING = 1 << 30


class Worker:
    """Runs jobs one after another on a daemon thread; ``drain`` waits for all of them.

    The jobs catch their own errors: a job that raises is a defect, and is handed to ``on_error``. A forked child has
    no writer thread, and its copy of the lock may stay locked for ever: there, jobs are dropped and nothing waits.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._jobs: deque[tuple[Job, int]] = deque()
        self._bytes = 0
        self._queued = 0
        self._done = 0
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def put(self, job: Job, size: int = 0) -> int:
        """Queue a job that holds ``size`` bytes of memory; waits while too much is held already. Returns its number,
        for ``wait``."""
        if os.getpid() != self._pid:
            return 0
        with self._condition:
            self._queued += 1
            thread = self._thread or self._start()
            if thread is not None:
                while size and self._bytes and self._bytes + size > _BYTES_WAITING and thread.is_alive():
                    self._condition.wait(1.0)
                self._jobs.append((job, size))
                self._bytes += size
                self._condition.notify_all()
                return self._queued
            self._done += 1
        self._do(job)
        return self._done

    def wait(self, number: int, patience: float | None = None) -> None:
        """Return when the job of this number and all before it have been done, or none was for ``patience`` seconds."""
        thread = self._thread
        if thread is None or os.getpid() != self._pid or thread is threading.current_thread():
            return
        with self._condition:
            done, since = self._done, monotonic()
            while self._done < number and thread.is_alive():
                self._condition.wait(1.0)
                if self._done != done:
                    done, since = self._done, monotonic()
                elif patience is not None and monotonic() - since > patience:
                    return

    def drain(self, patience: float | None = None) -> None:
        """Return when everything queued so far has been done."""
        self.wait(self._queued, patience)

    def _start(self) -> threading.Thread | None:
        """Start the thread; None where the system allows no more of them or the interpreter is about to end."""
        thread = threading.Thread(target=self._run, name="twinprobe-writer", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        self._thread = thread
        return thread

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._jobs:
                    self._condition.wait()
                job, size = self._jobs.popleft()
            self._do(job)
            del job
            with self._condition:
                self._done += 1
                self._bytes -= size
                self._condition.notify_all()

    def _do(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:
            self._on_error(error)


def size_of(value: Any) -> int:
    """Bytes of a payload that waits for the writer; 0 for what has no size."""
    return int(getattr(value, "nbytes", 0) or 0)
