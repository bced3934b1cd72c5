"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from twinprobe.errors import BadInput

_HINTS = {
    errno.ENOSPC: "free some space or choose another folder with -o",
    errno.EDQUOT: "the quota is used up: free some space or choose another folder with -o",
    errno.EFBIG: "the file size limit is reached: raise it (ulimit -f) or choose a smaller format such as parquet",
    errno.EROFS: "the file system is read-only: choose another folder with -o",
    errno.EACCES: "choose a folder that you may write to with -o",
    errno.EPERM: "choose a folder that you may write to with -o",
    errno.ENOTDIR: "a part of this path is a file: choose another folder with -o",
    errno.EISDIR: "a folder has the name of the result: remove it or choose another folder with -o",
    errno.ENAMETOOLONG: "choose a shorter folder with -o",
}
# Polars wraps some failures of the system in its own exceptions and keeps the number only in the text.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


class Staging:
    """Files under temporary names beside their final ones: all are renamed at the end, or none is and all vanish."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, Path]] = []

    def file(self, path: Path) -> Path:
        """Open a place for ``path`` and return the temporary name to write to."""
        temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        try:
            # Created here, so that a folder that cannot be written to is noticed before the work and not after it.
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            raise _unwritable(path, error) from error
        self._files.append((path, temporary))
        return temporary

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is None:
                self._publish()
            elif (system := _system_error(error)) is not None:
                raise _unwritable(self._files[-1][0] if self._files else None, system) from error
        finally:
            for _path, temporary in self._files:
                with suppress(OSError):
                    temporary.unlink()

    def _publish(self) -> None:
        for path, temporary in self._files:
            with _naming(path):
                _sync(temporary)
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        for path, temporary in self._files:
            with _naming(path):
                temporary.replace(path)
        for folder in {path.parent for path, _temporary in self._files}:
            with suppress(OSError):  # some network file systems cannot sync a folder; the files are there all the same
                _sync(folder)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes ``path`` on success and vanishes on any failure."""
    with Staging() as staging:
        yield staging.file(path)


def prepare_folder(path: Path) -> Path:
    """Create an output folder with its parents and make sure that files can be made in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise BadInput("is a file, not a folder", where=path, hint="choose another folder with -o") from error
    except OSError as error:
        raise _unwritable(path, error, what="the output folder cannot be made") from error
    probe = path / f".twinprobe.{secrets.token_hex(4)}.part"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise _unwritable(path, error, what="the output folder cannot be written to") from error
    return path


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(path, error) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _system_error(error: BaseException) -> OSError | None:
    found = _OS_ERROR.search(str(error))
    if isinstance(error, OSError) and (error.errno is not None or found is None):
        return error
    if found is None or not isinstance(error, Exception):
        return None
    number = int(found[1])
    return OSError(number, os.strerror(number))


def _unwritable(path: Path | None, error: OSError, what: str = "cannot be written") -> BadInput:
    reason = error.strerror or str(error)
    return BadInput(f"{what}: {reason}", where=path, hint=_HINTS.get(error.errno or 0, "choose another folder with -o"))
