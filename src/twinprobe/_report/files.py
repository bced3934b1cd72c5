"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from types import TracebackType

from twinprobe._report.console import visible
from twinprobe._runs.names import listed
from twinprobe._runs.remote.path import RemotePath
from twinprobe._runs.whole_files import OWNER, claimed, machine, open_file, remote, temporary_path
from twinprobe.errors import BadInput

# Clearing away what a killed command has left half written.

logger = logging.getLogger("twinprobe.report")
_TEMPORARY = re.compile(rf"\..*\.{OWNER}\.part", re.DOTALL)
_CLAIM = re.compile(r"\.twinprobe-\d{14}\.claim")


def sweep(folder: Path) -> None:
    """Remove what dead processes of this machine have left half written in a folder, and say so.

    Whether a process of another machine still lives cannot be seen from here: its files are named and kept.
    """
    removed, foreign = [], []
    names: list[str] = []
    with suppress(OSError):
        names = sorted(path.name for path in folder.iterdir())
    for name in names:
        match = _TEMPORARY.fullmatch(name)
        if _CLAIM.fullmatch(name):
            match = re.fullmatch(OWNER, _content(folder / name))
        if match is None:
            continue
        if match["machine"] != machine():
            foreign.append(name)
        elif not _alive(int(match["pid"])) and _remove(folder / name):
            removed.append(name)
    shown = visible(str(folder))
    if removed:
        logger.warning("%s: removed a half-written file of a killed command: %s", shown, visible(listed(removed)))
    if foreign:
        words = "a command on another machine, or before a restart, has not finished"
        logger.warning("%s: %s: %s (kept; delete it if no such command runs any more)", shown, words,
                       visible(listed(foreign)))  # fmt: skip


def _content(path: Path) -> str:
    try:
        with open_file(path) as file:
            return file.read(100).decode("ascii", "replace")
    except OSError:
        return ""


def _remove(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # somebody else's, or no number of a process here
    return True


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


class Staging(AbstractContextManager["Staging"]):
    """Files under temporary names beside their final ones: all are renamed at the end, or none is and all vanish."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, Path, RemotePath | None]] = []

    def file(self, path: Path) -> Path:
        """Open a place for ``path`` and return the temporary name to write to.

        What belongs to a URL is written on this machine and sent there when it is finished.
        """
        temporary, elsewhere = temporary_path(path)
        # First, so that an interruption on the next line leaves nothing behind.
        self._files.append((path, temporary, elsewhere))
        try:
            # Created here, so that a folder that cannot be written to is noticed before the work and not after it.
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            raise _unwritable(path, error) from error
        return temporary

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
        for _path, temporary, _elsewhere in self._files:
            with suppress(OSError):
                temporary.unlink()

    def _publish(self) -> None:
        for path, temporary, _elsewhere in self._files:
            with _naming(path):
                _sync(temporary)
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        for index, (path, temporary, elsewhere) in enumerate(self._files):
            with _naming(path):
                if elsewhere is None:
                    temporary.replace(path)
                else:
                    self._send(index, temporary, elsewhere)
        for folder in {path.parent for path, _temporary, elsewhere in self._files if elsewhere is None}:
            with suppress(OSError):  # some network file systems cannot sync a folder; the files are there all the same
                _sync(folder)

    def _send(self, index: int, temporary: Path, elsewhere: RemotePath) -> None:
        """Upload a file; where that fails, those that were sent before it are taken back."""
        try:
            elsewhere.upload(temporary)
        except BaseException:
            for sent, _temporary, _elsewhere in self._files[:index]:
                with suppress(OSError):
                    sent.unlink()
            raise


def scratch_folder(folder: Path) -> Path:
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
    temporary, elsewhere = temporary_path(path / "twinprobe")
    probe = path / temporary.name  # in the folder itself, wherever that is
    try:
        probe.touch(exist_ok=False)
    except OSError as error:
        raise _unwritable(path, error, what="the output folder cannot be written to") from error
    finally:
        with suppress(OSError):
            probe.unlink()
    if elsewhere is not None:
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
    match = _OS_ERROR.search(str(error))
    if isinstance(error, OSError) and (error.errno is not None or match is None):
        return error
    number = _SQLITE_ERRORS.get(str(error), 0) if match is None else int(match[1])
    if not number or not isinstance(error, Exception):
        return None
    return OSError(number, os.strerror(number))


def _unwritable(path: Path | None, error: OSError, what: str = "cannot be written") -> BadInput:
    reason = error.strerror or str(error)
    return BadInput(f"{what}: {reason}", where=path, hint=_HINTS.get(error.errno or 0, "choose another folder with -o"))


# Results are named by the second: two commands that start in the same one must not share their names.

_FORMAT = "%Y%m%d%H%M%S"
_MOST = 600


@contextmanager
def own_timestamp(folder: Path, wanted: str) -> Iterator[str]:
    """The wanted timestamp, or the next that no other command uses for its results in this folder.

    A command holds its claim until its results are there, so whoever comes later meets one or the other.
    """
    stamp, claim = wanted, None
    for _ in range(_MOST):
        claim = folder / f".twinprobe-{stamp}.claim"  # whoever makes it has the timestamp; it names its owner
        if claimed(claim):
            if not _is_used(folder, stamp):
                break
            claim.unlink(missing_ok=True)
        claim = None
        with suppress(ValueError):  # no time at all: then it stays as it is
            stamp = time.strftime(_FORMAT, time.localtime(time.mktime(time.strptime(stamp, _FORMAT)) + 1))
    try:
        yield stamp
    finally:
        if claim is not None:
            with suppress(OSError):
                claim.unlink()


def _is_used(folder: Path, stamp: str) -> bool:
    """Whether a result has this timestamp, here or in the folder of a step."""
    for place in (folder, *folder.glob("step*/")):
        with suppress(OSError):
            if any(stamp in path.name and not path.name.startswith(".") for path in place.iterdir()):
                return True
    return False


# How result files are called.

_TIMESTAMP = re.compile(r"\d{14}")


def timestamp_now() -> str:
    """The local time as it stands in result names."""
    return time.strftime(_FORMAT)


def result_stem(timestamp: str, rank_folder: str = "", *, debug: bool = False) -> str:
    """The name of a result without its ending, e.g. ``compare_result_rank0_20260102030405``."""
    if not _TIMESTAMP.fullmatch(timestamp):
        raise ValueError(f"a result's timestamp has 14 digits (YYYYmmddHHMMSS), not {timestamp!r}")
    if "/" in rank_folder or "\\" in rank_folder:
        raise ValueError(f"a rank folder is one name, not a path: {rank_folder!r}")
    prefix = "debug_compare_result" if debug else "compare_result"
    return "_".join(part for part in (prefix, rank_folder, timestamp) if part)


def part_name(name: str, part: int) -> str:
    """The name of one part (counted from 1) of a result that is too long for one file."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}_part_{part}{dot}{suffix}" if dot else f"{name}_part_{part}"
