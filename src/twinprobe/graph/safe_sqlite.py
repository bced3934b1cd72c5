"""Opening a database that somebody else wrote: to read only, changing nothing beside it, trusting nothing in it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from twinprobe.errors import BadInput
from twinprobe.runs.private_folder import private_folder
from twinprobe.runs.whole_file import open_file

# SQLite quotes what it stumbles over, and Python cannot always decode that.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError)
_MAGIC = b"SQLite format 3\0"
_LONGEST_VALUE = 64 << 20
_LIMIT_LENGTH = 0  # sqlite3.SQLITE_LIMIT_LENGTH, which Python 3.10 does not name
_LIMIT_ATTACHED = 7
_SECONDS_PER_QUERY = 60.0


def connect(path: Path) -> sqlite3.Connection:
    """Open a database read-only; no -wal or -shm file is made beside it, and what it holds cannot run for ever."""
    _check_header(path)
    address = _address(path)
    try:
        connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for setting in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0", "cache_size=-8000"):
            connection.execute(f"PRAGMA {setting}")
    except SQLITE_ERRORS as error:
        raise damaged(path, error) from error
    if hasattr(connection, "setlimit"):  # from Python 3.11
        connection.setlimit(_LIMIT_LENGTH, _LONGEST_VALUE)
        connection.setlimit(_LIMIT_ATTACHED, 0)
    limit_time(connection)
    return connection


def limit_time(connection: sqlite3.Connection, seconds: float = _SECONDS_PER_QUERY) -> None:
    """Let queries from now on run for this long in all; a hostile file can make one endless."""
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), 100_000)


def damaged(path: Path, error: Exception) -> BadInput:
    """The message for a file that SQLite cannot read."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return BadInput("is being written right now", where=path, hint="wait for the writer to finish, then reload")
    return BadInput(f"cannot be read: {text}", where=path, hint="if it is still being written, wait and reload; "
                    "otherwise it is damaged: make it again")  # fmt: skip


def cache_folder(name: str) -> Path:
    """A private folder for what can be computed again."""
    folder = private_folder(name)
    if folder is None:
        hint = "set XDG_CACHE_HOME to a folder that only you may write to"
        raise BadInput("no folder for temporary files can be written", hint=hint)
    return folder


def file_key(path: Path, *also: Path) -> str:
    """A name for what was computed from a file: another one as soon as the file changes."""
    parts = [str(path.resolve())]
    for part in (path, *also):
        status = part.stat()
        parts += [str(status.st_size), str(status.st_mtime_ns), str(status.st_ino)]
    return sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _check_header(path: Path) -> None:
    try:
        with open_file(path) as file:
            head = file.read(len(_MAGIC))
    except OSError as error:
        raise BadInput(f"cannot be opened: {error.strerror}", where=path) from error
    if not head:
        raise BadInput("is empty", where=path, hint="it may still be being written: wait and reload")
    if head != _MAGIC:
        raise BadInput("is not a graph database (no SQLite file)", where=path, hint="make the file again")


def _address(path: Path) -> str:
    log, shared = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    if not _has_bytes(log):
        # Plain read-only mode would make -wal and -shm files for a database in WAL mode, or fail in a read-only folder.
        return database_uri(path, "mode=ro&immutable=1")
    if shared.exists():
        return database_uri(path, "mode=ro")  # a writer is, or was, at work: take part in its locking
    return database_uri(_copy_with_log(path, log), "mode=ro&immutable=1")


def _has_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def database_uri(path: Path, options: str = "") -> str:
    """How SQLite is told a path whatever its name: one that is not UTF-8 is no text."""
    return f"file:{quote(os.fsencode(path.resolve()))}?{options}"


def _copy_with_log(path: Path, log: Path) -> Path:
    """Rows that only the write-ahead log holds: put them together in a copy, never in the user's own file."""
    folder = cache_folder("graphs")
    ready = folder / f"{file_key(path, log)}.db"
    if ready.exists():
        return ready
    if shutil.disk_usage(folder).free < 2 * (path.stat().st_size + log.stat().st_size):
        raise BadInput("has unfinished changes in its -wal file, and there is no room to copy both", where=path,
                       hint="open it once with sqlite3 to finish them")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder) as work:
        copy = Path(work) / "copy.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name("copy.db-wal"))
        try:
            connection = sqlite3.connect(copy)
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.close()
        except SQLITE_ERRORS as error:
            raise damaged(path, error) from error
        copy.replace(ready)
    return ready
