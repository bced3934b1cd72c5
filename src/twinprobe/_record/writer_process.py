"""A dump folder that another process writes: the training sends names and numbers, that process makes text and files.

A training that records one step after the other has a single interpreter lock for its own work and the writer thread's.
So after a few steps the thread starts a process, and from then on only packs what was recorded and sends it. That
process is no child of the training, imports no framework, and ends when the training's end of the pipe is closed.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from twinprobe._measure.statistics import Statistics
from twinprobe._record.entries import LEAF_TAG, NOTE_TAG, Entry, Leaf, Note, Renderer, Row, logger, sketches_of
from twinprobe._record.writer import DumpFolder

Folders = dict[int, tuple[DumpFolder, Renderer]]  # by number
_LENGTH = struct.Struct("<Q")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_PIPE = 1 << 20
_LOOK = 5.0  # seconds between looks whether the training is alive: forked children may hold its end of the pipe
_UNPACKABLE = (TypeError, ValueError, OverflowError, RecursionError)  # a huge number, half a character, another's type
_HOME = str(Path(__file__).parents[2])  # where the package itself lies
_PROGRAM = """
import sys, json
path, tags, parent = json.loads(sys.argv[1])
sys.path[:] = path
from twinprobe._record import writer_process
writer_process.serve(tags, parent)
"""


class WriterGone(Exception):
    """The process has ended, or was killed."""


class WriterProcess:
    """The process and the pipes to and from it. Only the writer thread uses it."""

    def __init__(self) -> None:
        about = json.dumps([[_HOME, *map(str, sys.path)], [NOTE_TAG, LEAF_TAG], os.getpid()])
        few = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        # A session of its own: neither ctrl-c nor the end of the terminal reaches it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, about], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, bufsize=0, start_new_session=True, env={**os.environ, **few},
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        with suppress(AttributeError, OSError, ImportError):  # Linux: a step goes over in few pieces
            import fcntl

            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, _PIPE)
        self._ready = False
        self.pid = 0
        self.gone = False
        self._folders = 0

    @property
    def ready(self) -> bool:
        """Whether it has reported that it runs."""
        if not self._ready and not self.gone and select.select([self._from], [], [], 0)[0]:
            try:
                self.pid = int(_unpack(self._receive()))
                self._ready = True
            except WriterGone:
                self.gone = True
            self._process.wait()  # the started process has forked the real one, which is nobody's child
        return self._ready and not self.gone

    def new_number(self) -> int:
        """The number of another folder."""
        self._folders += 1
        return self._folders

    def send(self, message: bytes) -> None:
        """Hand over one message; waits while the pipe is full."""
        data = memoryview(_LENGTH.pack(len(message)) + message)
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except OSError as error:
            self.gone = True
            raise WriterGone from error

    def answer(self) -> Any:
        """The answer to a message that has one; raises the error that it reports."""
        try:
            error, result = _unpack(self._receive())
        except WriterGone:
            self.gone = True
            raise
        if error is None:
            return result
        number, text = error
        raise OSError(number, text) if number is not None else RuntimeError(f"in the writer process: {text}")

    def _receive(self) -> bytes:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def _read(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            try:
                part = os.read(self._from, size - len(received))
            except OSError as error:
                raise WriterGone from error
            if not part:
                raise WriterGone
            received += part
        return received

    def stop(self) -> None:
        """Close the pipes: it ends by itself. In a forked child too, where it goes on for the parent."""
        self.gone = True
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]


class RemoteFolder:
    """A DumpFolder in the writer process. Where that process is gone, one of this process's own takes over."""

    def __init__(
        self, process: WriterProcess, path: Path, header: dict[str, Any], index: str, renderer: Renderer, *,
        sketches: bool,
    ) -> None:  # fmt: skip
        self.path = path.absolute()
        self.entries = 0
        self.bytes_written = 0
        self.header = header
        self._index, self._sketches = index, sketches
        self._process = process
        self._renderer = renderer
        self._number = process.new_number()
        self._opened = False
        self._sent: list[bytes] = []  # since the index was opened, in case this process has to take over
        self._own: Folders | None = None

    def open(self) -> None:
        """Create the folder and the index."""
        self._begin("open")

    def reopen(self) -> None:
        """Go on with a closed index."""
        self._begin("reopen")

    def _begin(self, verb: str) -> None:
        header = json.dumps(self.header, default=str)  # settings may be of a framework's own types
        mode = self._renderer.summary_mode, self._renderer.precision, self._sketches
        self._tell(verb, os.fsencode(self.path), header, self._index, mode, answered=True)
        self._opened = True

    def add_entries(self, batch: list[Entry], renderer: Renderer) -> None:
        """Append entries to the index."""
        try:
            self._tell("entries", batch)
        except _UNPACKABLE:
            code = "utf-8", "surrogatepass"
            texts = [
                (entry.name.encode(*code), renderer.entry(entry).encode(*code), sketches_of(entry)) for entry in batch
            ]
            self._tell("texts", texts)
        self.entries += len(batch)

    def flush(self) -> None:
        """Wait until what was added is with the system."""
        self._tell("flush", answered=True)

    def close(self, side_files: dict[str, Any]) -> None:
        """Turn the index into its final form, with the files beside it."""
        try:
            self.entries, self.bytes_written = self._tell("close", side_files, answered=True)
        except _UNPACKABLE:
            text = json.dumps(side_files, default=str)
            self.entries, self.bytes_written = self._tell("close", text, answered=True)
        self._sent.clear()

    def abandon(self) -> None:
        """Leave what is there."""
        with suppress(Exception):
            self._tell("abandon", answered=True)

    def _tell(self, verb: str, *more: Any, answered: bool = False) -> Any:
        if not self._opened and verb not in {"open", "reopen", "abandon"}:
            self.open()  # a step without entries
        message = _pack([verb, self._number, *more])
        if self._own is None:
            self._sent.append(message)
            try:
                if self._process.gone:
                    raise WriterGone
                self._process.send(message)
                return self._process.answer() if answered else None
            except WriterGone:
                logger.warning("the writer process has ended; this process writes %s itself", self.path)
                return self._take_over()
        return obey(self._own, _unpack(message))

    def _take_over(self) -> Any:
        """Repeat here all messages since the index was opened; returns the last answer."""
        self._own = {}
        final, part = self.path / f"{self._index}.json", self.path / f"{self._index}.json.part"
        messages = [_unpack(message) for message in self._sent]
        if self._opened and messages[0][0] == "open":  # what is there is this run's own
            if final.exists() and not part.exists():  # it came to the end and could not say so
                self._sent.clear()
                return [self.entries, final.stat().st_size]
            final.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
        answer = None
        for message in messages:
            answer = obey(self._own, message)
        self._sent.clear()
        return answer


def obey(folders: Folders, message: list[Any]) -> Any:
    """Carry out a message."""
    verb, number, *more = message
    if verb in {"open", "reopen"}:
        path, header, index, (summary_mode, precision, sketches) = more
        opened = folders.get(number)
        place = Path(os.fsdecode(path))
        folder = opened[0] if opened else DumpFolder(place, json.loads(header), index=index, sketches=sketches)
        folders[number] = folder, Renderer(summary_mode=summary_mode, precision=precision)
        (folder.open if verb == "open" else folder.reopen)()
        return None
    folder, renderer = folders[number]
    if verb == "entries":
        batch = (
            Entry(name, {key: _thawed(part) for key, part in parts.items()}, bare, boxed)
            for name, parts, bare, boxed in more[0]
        )
        folder.add_entries(list(batch), renderer)
    elif verb == "texts":
        texts = [(name.decode("utf-8", "surrogatepass"), text, rows) for name, text, rows in more[0]]
        for name, text, _ in texts:
            folder.add(name, text.decode("utf-8", "surrogatepass"))
        if folder.sketches:
            folder.add_sketches([(name, rows) for name, _, rows in texts])
    elif verb == "flush":
        folder.flush()
    elif verb == "abandon":
        folder.abandon()
    else:
        folder.close(json.loads(more[0]) if isinstance(more[0], str) else more[0])
        return [folder.entries, folder.bytes_written]
    return None


_tags = [NOTE_TAG, LEAF_TAG]


def _thawed(value: Any) -> Any:
    """A captured value as it was before it was packed."""
    if type(value) is list:
        if value and type(value[0]) is str:
            if value[0] == _tags[0]:
                kind, dtype, shape, row, grad, save, file, extra, shard = value[1:]
                return Note(kind, dtype, tuple(shape), _row(row), grad, save, file, extra, _row(shard))
            if value[0] == _tags[1]:
                return Leaf({key: _thawed(item) for key, item in value[1].items()})
        return [_thawed(item) for item in value]
    if type(value) is dict:
        return {key: _thawed(item) for key, item in value.items()}
    return value


def _row(packed: list[Any] | None) -> Row | None:
    if packed is None:
        return None
    values, digest, *_, sketch, number = packed
    return Row(None if values is None else Statistics(*values), digest, sketch=sketch, number=number)


# The process itself.


def serve(tags: list[str], parent: int) -> None:
    """Read messages and carry them out, until the training's end of the pipe is closed and all has been read."""
    if os.fork():
        os._exit(0)  # the training has no child that it did not start: it may wait for all of them
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of the pipe is the end
    _tags[:] = tags
    gc.freeze()
    gc.set_threshold(_OBJECTS)  # messages come and go without its help
    _answer(_pack(os.getpid()))
    folders: Folders = {}
    failed: dict[int, list[Any]] = {}
    while True:
        head = _read_all(_LENGTH.size, parent)
        message = None if head is None else _read_all(_LENGTH.unpack(head)[0], parent)
        if message is None:
            break
        _serve_one(folders, failed, _unpack(message))
    for folder, _ in folders.values():
        folder.abandon()  # what was added reaches the system


def _serve_one(folders: Folders, failed: dict[int, list[Any]], message: list[Any]) -> None:
    verb, number = message[:2]
    result = None
    if verb in {"open", "reopen"}:
        failed.pop(number, None)
    if number not in failed:
        try:
            result = obey(folders, message)
        except Exception as error:
            place = error.errno if isinstance(error, OSError) else None
            failed[number] = [place, error.strerror if isinstance(error, OSError) else repr(error)]
    if verb not in {"entries", "texts"}:
        _answer(_pack([failed.get(number), result]))
    if verb in {"close", "abandon"} and len(folders) > _KEPT:
        folders.pop(next(iter(folders)))


_OBJECTS = 1_000_000
_KEPT = 4  # a step may be started again, but not long after


def _answer(message: bytes) -> None:
    with suppress(OSError):  # the training is gone: what it sent is still written
        os.write(1, _LENGTH.pack(len(message)) + message)


def _read_all(size: int, parent: int) -> bytes | None:
    """The next ``size`` bytes; None at the end of the stream."""
    received = bytearray()
    while len(received) < size:
        if not select.select([0], [], [], _LOOK)[0]:
            try:
                os.kill(parent, 0)
            except ProcessLookupError:
                return None
            except OSError:
                pass
            continue
        part = os.read(0, min(size - len(received), 1 << 20))
        if not part:
            return None
        received += part
    return bytes(received)


def start_writer_process(on_error: Callable[[str, BaseException], None]) -> WriterProcess | None:
    """Start one; None where the system does not allow it."""
    if os.name != "posix" or not sys.executable or getattr(sys, "frozen", False):
        return None
    try:
        return WriterProcess()
    except Exception as error:
        on_error("starting a writer process; a thread writes", error)
        return None
