"""The one way to open a tensor file: it is never trusted, never executed, and mapped rather than read if large."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from stat import S_ISREG

from twinprobe.errors import DamagedTensor
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.npy_file import read_npy
from twinprobe.runs.pt_file import read_pt

_READERS = {".pt": read_pt, ".pth": read_pt, ".npy": read_npy}

# Up to here reading is as fast as mapping, and costs neither a file descriptor nor a page that may vanish later.
SMALL_FILE = 64 << 10

# A fifo would otherwise block the reader until somebody writes to it.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_tensor(path: Path) -> HostTensor:
    """Open one ``.pt``, ``.pth`` or ``.npy`` file; whatever is wrong with it is a DamagedTensor that names the file.

    The elements of a file above 64 KiB are a read-only map of it, unless they need another layout there:
    compressed, strided, big-endian, Fortran-ordered or misaligned ones are copied, within a bound set by its size.
    """
    try:
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise DamagedTensor(
                f"is no tensor file: its suffix is {path.suffix!r}", hint="known are .pt, .pth and .npy"
            )
        return reader(contents(path))
    except DamagedTensor as error:
        raise DamagedTensor(error.what, where=_shown(path), hint=error.hint) from None
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error.strerror}"
        raise DamagedTensor(what, where=_shown(path)) from None
    except MemoryError:
        raise DamagedTensor("needs more memory than this machine has free", where=_shown(path)) from None


def contents(path: Path) -> bytes | mmap.mmap:
    try:
        handle = os.open(path, _FLAGS)
    except ValueError:
        raise DamagedTensor("has characters that no file name can have") from None
    try:
        status = os.fstat(handle)
        if not S_ISREG(status.st_mode):
            raise DamagedTensor("is not a regular file")
        if status.st_size == 0:
            raise DamagedTensor("is empty", hint="the run that wrote it may have been killed")
        if status.st_size <= SMALL_FILE:
            return os.read(handle, SMALL_FILE)
        return _mapped(handle, status.st_size)
    finally:
        os.close(handle)


def _mapped(handle: int, size: int) -> bytes | mmap.mmap:
    try:
        if sys.version_info >= (3, 13):
            return mmap.mmap(handle, size, access=mmap.ACCESS_READ, trackfd=False)
        return mmap.mmap(handle, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        # Storage that cannot be mapped, no descriptor left for the map, or a file that shrank since fstat.
        with os.fdopen(os.dup(handle), "rb", buffering=0) as file:
            return file.read(size) or b""


def _shown(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() else repr(text)
