"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from types import TracebackType

from twinprobe.errors import BadInput
from twinprobe.report.leftovers import sweep
from twinprobe.runs.places import remote
from twinprobe.runs.temporary_names import temporary_name

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
# SQLite keeps not even that.
_SQLITE_ERRORS = {
    "database or disk is full": errno.ENOSPC,
    "disk I/O error": errno.EIO,
    "attempt to write a readonly database": errno.EROFS,
    "unable to open database file": errno.EACCES,
}


class Staging:
    """Files under temporary names beside their final ones: all are renamed at the end, or none is and all vanish."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, Path]] = []

    def file(self, path: Path) -> Path:
        """Open a place for ``path`` and return the temporary name to write to.

        What belongs to a URL is written on this machine and sent there when it is finished.
        """
        temporary = path.with_name(temporary_name(path.name))
        if remote(path) is not None:
            temporary = Path(gettempdir(), temporary.name)
        self._files.append((path, temporary))  # first, so that an interruption on the next line leaves nothing behind
        try:
            # Created here, so that a folder that cannot be written to is noticed before the work and not after it.
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            raise _unwritable(path, error) from error
        return temporary

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is None:
                self._publish()
            elif (system := _system_error(error) or self._ask_the_disk(error)) is not None:
                raise _unwritable(self._files[-1][0] if self._files else None, system) from error
        finally:
            try:
                self._clear()
            except BaseException:  # an interruption in the middle of it
                self._clear()
                raise

    def _ask_the_disk(self, error: BaseException) -> OSError | None:
        """Polars' writers may not say why they failed; a few more bytes in the same file meet the same reason."""
        if not self._files or not type(error).__module__.startswith("polars"):
            return None
        try:
            with self._files[-1][1].open("ab", buffering=0) as file:
                file.write(bytes(1 << 16))
                os.fsync(file.fileno())
        except OSError as reason:
            return reason
        return None

    def _clear(self) -> None:
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
                self._put(temporary, path)
        for folder in {path.parent for path, _temporary in self._files if remote(path) is None}:
            with suppress(OSError):  # some network file systems cannot sync a folder; the files are there all the same
                _sync(folder)

    def _put(self, temporary: Path, path: Path) -> None:
        elsewhere = remote(path)
        if elsewhere is None:
            temporary.replace(path)
            return
        try:
            elsewhere.upload(temporary)
        except BaseException:
            for sent, _temporary in self._files[: [one for one, _ in self._files].index(path)]:
                with suppress(OSError):
                    sent.unlink()
            raise


def workshop(folder: Path) -> Path:
    """Where to put what is on its way into a folder: the folder itself, or a place of this machine for a URL."""
    return folder if remote(folder) is None else Path(gettempdir())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it becomes ``path`` on success and vanishes on any failure."""
    with Staging() as staging:
        yield staging.file(path)


# Folders elsewhere that were tried already: each try costs some requests, and folders there do not vanish.
_PREPARED: set[str] = set()


def prepare_folder(path: Path) -> Path:
    """Create an output folder with its parents and make sure that files can be made in it.

    What a killed command has left there half written is removed, and said.
    """
    if str(path) in _PREPARED:
        return path
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise BadInput("is a file, not a folder", where=path, hint="choose another folder with -o") from error
    except OSError as error:
        raise _unwritable(path, error, what="the output folder cannot be made") from error
    sweep(path)
    probe = path / temporary_name("twinprobe")
    try:
        probe.touch(exist_ok=False)
    except OSError as error:
        raise _unwritable(path, error, what="the output folder cannot be written to") from error
    finally:
        with suppress(OSError):
            probe.unlink()
    if remote(path) is not None:
        _PREPARED.add(str(path))
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
    number = _SQLITE_ERRORS.get(str(error), 0) if found is None else int(found[1])
    if not number or not isinstance(error, Exception):
        return None
    return OSError(number, os.strerror(number))


def _unwritable(path: Path | None, error: OSError, what: str = "cannot be written") -> BadInput:
    reason = error.strerror or str(error)
    return BadInput(f"{what}: {reason}", where=path, hint=_HINTS.get(error.errno or 0, "choose another folder with -o"))
