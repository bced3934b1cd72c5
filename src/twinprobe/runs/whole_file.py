"""Opening a file that a user or a dump names. The name may lead to what is no file and never ends.

Whatever is named from outside is opened here: a pipe would make its reader wait for a writer that may never come.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import BinaryIO, cast

from twinprobe.runs.places import remote

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
