"""Reading a file of a dump that is taken as a whole. Its name may lead to what is no file and never ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from twinprobe.runs.places import remote

# A fifo would otherwise block the reader until somebody writes to it.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


# A value of a JSON document costs up to 160 bytes in memory; with texts between the commas of which a stack consists.
_VALUES, _BYTES_PER_VALUE = 1 << 18, 16


def json_file(path: Path) -> bytes:
    """The bytes of a file that is decoded as a whole; ValueError where it would become very many small objects."""
    blob = whole_file(path)
    values = blob.count(b",") + blob.count(b"[") + blob.count(b"{")
    most = _VALUES + len(blob) // _BYTES_PER_VALUE
    if values > most:
        raise ValueError(f"it holds up to {values} values, out of proportion to its size (at most {most} are read)")
    return blob


def whole_file(path: Path) -> bytes:
    """The bytes of a regular file, here or elsewhere; OSError for what is none: a pipe, a device, a folder."""
    if remote(path) is not None:
        return path.read_bytes()
    handle = os.open(path, _FLAGS)
    try:
        mode = os.fstat(handle).st_mode
        if S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)
