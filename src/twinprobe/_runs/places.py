"""Where a path leads: a file of this machine, or a URL of a storage elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from stat import S_ISLNK
from typing import Any, Protocol, cast
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
    """The path that a user means: a plain Path, or for a URL its like (fsspec is imported only then).

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
    found: object = path
    return found if isinstance(found, RemotePath) else None


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

    A file that does not exist is no matter of this function: whoever opens it says so.
    """
    if not name or "\0" in name:
        raise _refused(name, "is empty or holds a NUL character")
    plain = "/" not in name and "\\" not in name
    if plain and name in (".", ".."):
        raise _refused(name, "names a folder, not a file")
    if not plain and (name[0] in "/\\" or os.path.splitdrive(name)[0]):
        raise _refused(name, "is an absolute path")
    if not plain and ".." in name.replace("\\", "/").split("/"):
        raise _refused(name, "climbs out of its folder with '..'")
    if remote(folder) is not None:
        return folder / name  # there are no links, or they count as missing: the name alone tells where it leads
    root = _resolved(os.fspath(folder))
    try:
        linked = S_ISLNK(os.lstat(f"{root}{os.sep}{name}").st_mode) if plain else True
        above = root if root.endswith(os.sep) else root + os.sep
        if linked and not os.path.realpath(f"{root}{os.sep}{name}").startswith(above):
            raise _refused(name, "leads to a place outside of the dump, through a symbolic link")
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


# Where this program keeps what it can compute again: folders that nobody but this user can write to.


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
