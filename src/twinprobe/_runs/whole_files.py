"""Where a path leads (a file of this machine or a URL), and how a file is opened, written and named until it is whole.

Whatever is named from outside is opened here: a pipe would make its reader wait for a writer that may never come.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from hashlib import sha256
from io import TextIOWrapper
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from tempfile import gettempdir
from typing import Any, BinaryIO, Protocol, TextIO, cast
from urllib.parse import unquote, urlsplit

from twinprobe._runs.remote.path import RemotePath
from twinprobe._runs.remote.store import FOLDER
from twinprobe.errors import BadInput, DamagedTensor

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+._-]*)://")
_KNOWN = "s3://, gs://, oss://, hdfs://, abfs://, memory:// and file:// are known, and whatever else fsspec knows"
EXTRA = "pip install 'twinprobe[remote]'"
# Kinds of fsspec that look into another file or only cache another kind.
_WRAPPERS = frozenset({
    "zip", "tar", "libarchive", "dir", "cached", "blockcache", "filecache", "simplecache", "reference", "generic",
    "data", "async_wrapper", "asynclocal", "dask",
})  # fmt: skip


def place(text: str | os.PathLike[str]) -> Path:
    """The path that a user means: a plain Path, or its counterpart for a URL (fsspec is imported only then).

    What was known of a URL is forgotten: a command looks at what is there now.
    """
    if isinstance(text, RemotePath):
        text.forget()
        return cast(Path, text)
    written = os.fspath(text)
    match = _URL.match(written)
    if match is None:
        return Path(text).expanduser()
    protocol = match[1].lower()
    if protocol in ("file", "local"):
        parts = urlsplit(written)
        if parts.netloc not in ("", "localhost"):
            raise BadInput("names another machine", where=written, hint="write file:///folder/file, with three slashes")
        return Path(unquote(parts.path))
    path = _remote(protocol, written)
    path.forget()
    return cast(Path, path)


def remote(path: Path) -> RemotePath | None:
    """The path itself where it is a URL, None where it is on this machine."""
    given: object = path
    return given if isinstance(given, RemotePath) else None


def remove_tree(folder: Path) -> None:
    """Remove a folder and all in it, as far as that is possible."""
    elsewhere = remote(folder)
    if elsewhere is not None:
        elsewhere.remove_tree()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _remote(protocol: str, url: str) -> RemotePath:
    kind = _kind(protocol, url)
    clean = protocol + url[len(protocol) :].rstrip("/")
    inner = str(kind._strip_protocol(clean)) if clean.partition("://")[2] else ""
    if not inner.strip("/"):
        raise BadInput("names no bucket or folder", where=url, hint=f"write {protocol}://NAME/FOLDER")
    front = clean[: -len(inner)] if clean.endswith(inner) else f"{protocol}://"
    options = kind._get_kwargs_from_urls(clean)
    return RemotePath(protocol, tuple(sorted(options.items())), front, inner, named=True)


def _kind(protocol: str, url: str) -> Any:
    """The class of fsspec for a kind of URL; what is not installed is named."""
    try:
        from fsspec import available_protocols, get_filesystem_class
    except ImportError:
        raise BadInput(f"{protocol}:// needs the package fsspec, which is missing", where=url, hint=EXTRA) from None
    if protocol not in available_protocols() or protocol in _WRAPPERS:
        raise BadInput(f"there is no kind of URL {protocol}://", where=url, hint=_KNOWN)
    try:
        return get_filesystem_class(protocol)
    except (ImportError, OSError) as error:
        from fsspec.registry import known_implementations

        # fsspec knows which module it would have imported.
        module = str(known_implementations.get(protocol, {}).get("class", "")).partition(".")[0]
        package = f"'fsspec[{protocol}]'" if module in ("", "fsspec") else module
        hint = f"pip install {package}; fsspec says: {error}"
        raise BadInput(f"{protocol}:// needs a package that is missing", where=url, hint=hint) from None


# os.scandir for every place: the one way to look into a folder of a dump.


class Entry(Protocol):
    """What is asked of an entry."""

    @property
    def name(self) -> str: ...

    def is_dir(self, *, follow_symlinks: bool = True) -> bool: ...

    def is_symlink(self) -> bool: ...


class _RemoteEntry:
    __slots__ = ("_size", "name")

    def __init__(self, name: str, size: int) -> None:
        self.name, self._size = name, size

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002  storages have no links, or hide them
        return self._size == FOLDER

    def is_symlink(self) -> bool:
        return False


def scan(folder: Path) -> AbstractContextManager[Iterator[Entry]]:
    """The entries of a folder; use it in a ``with`` statement."""
    elsewhere = remote(folder)
    if elsewhere is None:
        return cast("AbstractContextManager[Iterator[Entry]]", os.scandir(folder))
    return nullcontext(_RemoteEntry(name, size) for name, size in elsewhere.listing().items())


def expect_all(folder: Path) -> None:
    """Say that all folders below will be looked into: remote ones are listed together, not with a request for each."""
    elsewhere = remote(folder)
    if elsewhere is not None:
        with suppress(OSError):
            elsewhere.list_below()


# Names that a dump gives to its files must lead to files of that dump.


def inside(folder: Path, name: str) -> Path:
    """Join ``name`` to ``folder``; refuse a name that leads, or links, to a place outside of the folder.

    Whether the file exists is not checked here: opening it shows that.
    """
    if not name or "\0" in name:
        raise _refused(name, "is empty or holds a NUL character")
    plain = "/" not in name and "\\" not in name
    if plain and name in (".", ".."):
        raise _refused(name, "names a folder, not a file")
    if not plain and (name[0] in "/\\" or os.path.splitdrive(name)[0]):
        raise _refused(name, "is an absolute path")
    if not plain and ".." in name.replace("\\", "/").split("/"):
        raise _refused(name, "leaves its folder with '..'")
    if remote(folder) is not None:
        return folder / name  # there are no links, or they count as missing: the name alone tells where it leads
    root = _resolved(os.fspath(folder))
    try:
        linked = S_ISLNK(os.lstat(f"{root}{os.sep}{name}").st_mode) if plain else True
        above = root if root.endswith(os.sep) else root + os.sep
        if linked and not os.path.realpath(f"{root}{os.sep}{name}").startswith(above):
            raise _refused(name, "leads outside the dump through a symbolic link")
    except ValueError:
        raise _refused(name, "has characters that no file name can have") from None
    except OSError:
        pass  # missing, too long or not permitted: opening it tells which
    return folder / name


@lru_cache(maxsize=256)
def _resolved(folder: str) -> str:
    return os.path.realpath(folder)


def _refused(name: str, why: str) -> DamagedTensor:
    shown = name if name.isprintable() and len(name) <= 300 else repr(name[:300])
    return DamagedTensor(
        f"the name of the tensor file {why}", where=shown, hint="a dump may only name files in its own folder"
    )


# Caches of computed results: folders that only this user can write to.


def private_folder(name: str) -> Path | None:
    """A folder of this name in the user's cache or, failing that, in a temporary one of the user's own; None where
    neither can be written, or another user could write to it."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    for base in (_user_cache(), Path(tempfile.gettempdir()) / f"twinprobe-{user}"):
        if _is_private_and_writable(base / name):
            return base / name
    return None


def _user_cache() -> Path:
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path("~/Library/Caches").expanduser()
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "twinprobe"


def _is_private_and_writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "getuid"):
            for part in (folder, folder.parent):
                status = part.lstat()
                if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022 or part.is_symlink():
                    return False
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


# Opening a file that a user or a dump names.

# A fifo would otherwise block the reader until something is written to it.
READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# What a small document may hold, and how much more for each byte. A value costs up to 70 bytes in memory, an object
# with what is made of it up to 700.
_VALUES, _BYTES_PER_VALUE = 1 << 18, 64
_OBJECTS, _BYTES_PER_OBJECT = 80_000, 640


def json_file(path: Path) -> bytes:
    """The bytes of a file that is decoded as a whole; ValueError where it would become very many small objects."""
    return in_proportion(whole_file(path))


def read_json(path: Path) -> Any:
    """The document of a JSON file; BadInput where it cannot be read, or is not JSON."""
    import msgspec

    try:
        return msgspec.json.decode(json_file(path))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # older versions of msgspec have no ValueError
        raise BadInput(f"is not valid JSON: {error}", where=path) from None


def in_proportion(blob: bytes) -> bytes:
    """The same JSON text; ValueError where it would become very many small objects."""
    objects = blob.count(b"{")
    values = blob.count(b",") + blob.count(b"[") + objects
    for count, what, most in (
        (values, "values", _VALUES + len(blob) // _BYTES_PER_VALUE),
        (objects, "objects", _OBJECTS + len(blob) // _BYTES_PER_OBJECT),
    ):
        if count > most:
            raise ValueError(f"it holds up to {count} {what}, out of proportion to its size (at most {most} are read)")
    return blob


def whole_file(path: Path) -> bytes:
    """The bytes of a regular file, local or remote; OSError for anything else."""
    with open_file(path) as file:
        return file.read()


def open_file(path: Path) -> BinaryIO:
    """A regular file, local or remote, to be read; OSError for a pipe, a device or a folder."""
    if remote(path) is not None:
        return cast("BinaryIO", path.open("rb"))
    return os.fdopen(open_regular(path), "rb")


def open_regular(path: Path) -> int:
    """The handle of a regular file; OSError for anything else."""
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
    """This process as temporary names and claims name it, with a random number that no other name has."""
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


def csv_rows(path: Path) -> Iterator[list[str]]:
    """The rows; csv.Error where one is longer than any that a recorder writes."""
    taken = 0  # characters of this row so far

    def lines(file: TextIO) -> Iterator[str]:
        nonlocal taken
        while line := file.readline(_LONGEST):
            taken += len(line)
            if taken >= _LONGEST:
                raise csv.Error(f"a row has more than {_LONGEST} characters")
            yield line

    with TextIOWrapper(open_file(path), encoding="utf-8-sig", errors="replace", newline="") as file:
        for row in csv.reader(lines(file)):
            taken = 0
            yield row
