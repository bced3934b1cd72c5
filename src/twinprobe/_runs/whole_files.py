"""Opening a file that a user or a dump names. The name may lead to what is no file and never ends.

Whatever is named from outside is opened here: a pipe would make its reader wait for a writer that may never come.
"""

from __future__ import annotations

import csv
import errno
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from tempfile import gettempdir
from typing import BinaryIO, TextIO, cast

from twinprobe._runs.places import remote
from twinprobe._runs.remote.path import RemotePath

# A fifo would otherwise block the reader until somebody writes to it.
READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# What a small document may hold, and how much more for each byte. A value costs up to 70 bytes in memory, an object
# with what is made of it up to 700.
_VALUES, _BYTES_PER_VALUE = 1 << 18, 64
_OBJECTS, _BYTES_PER_OBJECT = 80_000, 640


def json_file(path: Path) -> bytes:
    """The bytes of a file that is decoded as a whole; ValueError where it would become very many small objects."""
    return in_proportion(whole_file(path))


def in_proportion(blob: bytes) -> bytes:
    """The same JSON text; ValueError where it would become very many small objects."""
    objects = blob.count(b"{")
    values = blob.count(b",") + blob.count(b"[") + objects
    for found, what, most in (
        (values, "values", _VALUES + len(blob) // _BYTES_PER_VALUE),
        (objects, "objects", _OBJECTS + len(blob) // _BYTES_PER_OBJECT),
    ):
        if found > most:
            raise ValueError(f"it holds up to {found} {what}, out of proportion to its size (at most {most} are read)")
    return blob


def whole_file(path: Path) -> bytes:
    """The bytes of a regular file, here or elsewhere; OSError for what is none."""
    with open_file(path) as file:
        return file.read()


def open_file(path: Path) -> BinaryIO:
    """A regular file, here or elsewhere, to be read; OSError for what is none: a pipe, a device, a folder."""
    if remote(path) is not None:
        return cast("BinaryIO", path.open("rb"))
    return os.fdopen(open_regular(path), "rb")


def open_regular(path: Path) -> int:
    """The handle of a regular file; OSError for what is none."""
    handle = os.open(path, READING)
    mode = os.fstat(handle).st_mode
    if S_ISREG(mode):
        return handle
    os.close(handle)
    if S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


# Temporary names say whose they are, so that a later command can tell what a killed one has left.

OWNER = r"(?P<machine>[0-9a-f]{8})-(?P<pid>\d{1,10})-[0-9a-f]{8}"  # as owner() writes it
_LONGEST_NAME = 180


def temporary_name(name: str) -> str:
    """A hidden name for what will be ``name``, of this process and no other."""
    short = name.encode("utf-8", "surrogateescape")[:_LONGEST_NAME].decode("utf-8", "ignore")
    return f".{short}.{owner()}.part"


def temporary_path(path: Path) -> tuple[Path, RemotePath | None]:
    """A temporary name beside ``path``; for a URL one on this machine, and the URL that it is sent to."""
    elsewhere = remote(path)
    folder = path.parent if elsewhere is None else Path(gettempdir())
    return folder / temporary_name(path.name), elsewhere


def claimed(claim: Path) -> bool:
    """Make a file that names this process, unless there is one; False where there is."""
    elsewhere = remote(claim)
    if elsewhere is not None:
        with suppress(OSError):
            return elsewhere.create(owner().encode())
        return True
    temporary = claim.with_name(temporary_name(claim.name))
    try:
        temporary.write_text(owner())
        try:
            os.link(temporary, claim)  # it appears with its owner in it: a command may be killed at any time
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            temporary.replace(claim)
    except FileExistsError:
        return False
    except OSError:
        return True  # a folder that cannot be written to is reported when the results are
    finally:
        with suppress(OSError):
            temporary.unlink()
    return True


def owner() -> str:
    """This process, as temporary names and claims tell of it, with a number that no other name has."""
    return f"{machine()}-{os.getpid()}-{secrets.token_hex(4)}"


@lru_cache(maxsize=1)
def machine() -> str:
    """Where process numbers mean what they mean here: this host since its start, and this container's own numbers."""
    parts = [os.fsencode(socket.gethostname())]
    with suppress(OSError):  # where there is no /proc, the name of the host has to do
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_bytes())
        parts.append(bytes(Path("/proc/self/ns/pid").readlink()))
    return sha256(b"\0".join(parts)).hexdigest()[:8]


# A single file that appears whole or not at all. Results of commands go by ``report/atomic``, which does more.


def write_whole(path: Path, write: Callable[[Path], object], *, sync: bool = False) -> None:
    """Write under a temporary name, then rename; with ``sync`` once it is on the disk.

    What belongs to a URL is written there at once: it appears when it is sent.
    """
    if remote(path) is not None:
        write(path)
        return
    temporary = path.with_name(temporary_name(path.name))
    try:
        write(temporary)
        if sync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


# The rows of a csv file, none of which is long: a row may go on over many lines, and have any number of columns.

_LONGEST = 1 << 20


class _Lines:
    """Lines for the csv reader, which fails when it takes too many of them for one row."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.taken = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._file.readline(_LONGEST)
        if not line:
            raise StopIteration
        self.taken += len(line)
        if self.taken >= _LONGEST:
            raise csv.Error(f"a row has more than {_LONGEST} characters")
        return line


def csv_rows(file: TextIO) -> Iterator[list[str]]:
    """The rows; csv.Error where one is longer than any that a recorder writes."""
    lines = _Lines(file)
    for row in csv.reader(lines):
        lines.taken = 0
        yield row
