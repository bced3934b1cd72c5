"""The one way to open a tensor file: it is never trusted, never executed, and not read before it is looked at."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISREG

from twinprobe.errors import DamagedTensor
from twinprobe.runs.contents import Contents
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.local_contents import LocalContents
from twinprobe.runs.npy_file import read_npy
from twinprobe.runs.places import remote
from twinprobe.runs.pt_file import read_pt
from twinprobe.runs.remote.contents import RemoteContents
from twinprobe.runs.whole_file import READING

_READERS = {".pt": read_pt, ".pth": read_pt, ".npy": read_npy}

# Up to here all of a file is read at once.
SMALL_FILE = 64 << 10


def open_tensor(path: Path, *, enough: int | None = None, at_once: int | None = None) -> HostTensor:
    """Open one ``.pt``, ``.pth`` or ``.npy`` file; whatever is wrong with it is a DamagedTensor that names the file.

    Of a remote file only the ranges with the tensor are fetched. ``enough`` says how many bytes of the elements will
    be looked at, if not all: the rest is not fetched then.
    Nothing is mapped, since a mapped file that somebody shortens kills the process. Above ``at_once`` bytes (256 MiB)
    the elements are read strip by strip, as they are looked at; compressed, strided and Fortran-ordered ones are copied
    into memory, within a bound set by the size of the file.
    """
    try:
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise DamagedTensor(
                f"is no tensor file: its suffix is {path.suffix!r}", hint="known are .pt, .pth and .npy"
            )
        return reader(contents(path, enough=enough, at_once=at_once))
    except DamagedTensor as error:
        raise DamagedTensor(error.what, where=_shown(path), hint=error.hint) from None
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error.strerror}"
        raise DamagedTensor(what, where=_shown(path)) from None
    except MemoryError:
        raise DamagedTensor("needs more memory than this machine has free", where=_shown(path)) from None


def contents(path: Path | str, *, enough: int | None = None, at_once: int | None = None) -> Contents:
    """The contents of a file, as far as possible without reading them. A text names a file of this machine."""
    elsewhere = None if isinstance(path, str) else remote(path)
    if elsewhere is not None:
        return RemoteContents(elsewhere, enough)
    try:
        handle = os.open(path, READING)
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
        opened, handle = handle, -1  # closed by the contents, when nobody needs them any more
        return LocalContents(opened, status, at_once)
    finally:
        if handle >= 0:
            os.close(handle)


def _shown(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() else repr(text)
