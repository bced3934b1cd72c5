"""A path behind a URL, with as much of pathlib's manners as TwinProbe uses.

Every function that takes a Path works with one. Asked for a path of this machine it refuses, instead of letting
something else be opened; and its errors are OSErrors with words in them, which libraries behind fsspec do not grant.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from stat import S_IFDIR, S_IFREG
from typing import IO, Any

from twinprobe.errors import BadInput
from twinprobe.runs.remote.names import UrlName
from twinprobe.runs.remote.reader import RangeReader
from twinprobe.runs.remote.store import FOLDER, Store, refuse_denied, store_of

_BUFFER = 1 << 20


class RemotePath(UrlName):
    """What lies behind a URL."""

    __slots__ = ()

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        return store_of(self._protocol, self._options)

    def _size(self) -> int:
        """The size, or FOLDER. What lies in a folder is asked of its listing, so that a folder costs one request."""
        parent = self.parent
        if parent == self or (self._named and not self.store.listed(parent._inner)):
            return self.store.size(self._inner, str(self))
        found = self.store.listing(parent._inner, str(parent)).get(self.name)
        if found is None:
            raise FileNotFoundError(2, os.strerror(2), str(self))
        return found

    def _kind(self) -> int | None:
        try:
            return self._size()
        except (FileNotFoundError, NotADirectoryError):
            bucket = self.store.lacks_bucket(self._inner, str(self)) if self._named else None
            if bucket:
                raise BadInput(f"there is no bucket {bucket}", where=str(self)) from None
            return None
        except OSError as error:
            raise refuse_denied(error, str(self)) from None

    def exists(self) -> bool:
        return self._kind() is not None

    def is_dir(self) -> bool:
        return self._kind() == FOLDER

    def is_file(self) -> bool:
        return self._kind() not in (None, FOLDER)

    def stat(self) -> os.stat_result:
        size = self._size()
        mode = S_IFDIR | 0o555 if size == FOLDER else S_IFREG | 0o444
        return os.stat_result((mode, 0, 0, 1, 0, 0, max(size, 0), 0, 0, 0))

    lstat = stat

    def listing(self) -> dict[str, int]:
        """The sizes of the files in this folder by name, FOLDER for folders; BadInput where one may not look."""
        try:
            return self.store.listing(self._inner, str(self))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise refuse_denied(error, str(self)) from None

    def list_below(self) -> None:
        """List this folder and all below it together."""
        self.store.list_below(self._inner, str(self))

    def iterdir(self) -> Iterator[RemotePath]:
        return (self / name for name in self.listing())

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Paths below that fit; every part of the pattern is one name with * or ? in it."""
        first, _, rest = pattern.partition("/")
        try:
            names = [first] if not set(first) & set("*?[") else list(self.listing())
        except OSError:
            return
        for name in names:
            if not fnmatchcase(name, first):
                continue
            path = self / name
            if rest:
                yield from path.glob(rest)
            elif path.exists():
                yield path

    def rglob(self, pattern: str) -> Iterator[RemotePath]:
        """Files and folders at any depth whose names fit."""
        for name, size in self.listing().items():
            path = self / name
            if fnmatchcase(name, pattern):
                yield path
            if size == FOLDER:
                yield from path.rglob(pattern)

    def forget(self) -> None:
        """Look anew: what lies there may have changed since it was last listed."""
        self.store.forget(self._inner)

    # -- bytes --------------------------------------------------------------------------------------------------------

    def read_range(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` up to ``stop``, exactly."""
        return self.store.read(self._inner, start, stop, str(self))

    def small(self, *, again: bool) -> bytes:
        """All bytes of a file of no more than SMALL, kept for the next time if that will come."""
        return self.store.small(self._inner, self.file_size(), str(self), again=again)

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """The same in pieces, for long ranges."""
        return self.store.pieces(self._inner, start, stop, str(self))

    def file_size(self) -> int:
        """The size; IsADirectoryError for a folder."""
        size = self._size()
        if size == FOLDER:
            raise IsADirectoryError(21, os.strerror(21), str(self))
        return size

    def read_bytes(self) -> bytes:
        return self.read_range(0, self.file_size())

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        with self.open("r", encoding=encoding, errors=errors) as file:
            return str(file.read())

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open for reading; only what is read is fetched, with a bounded read-ahead."""
        if mode not in ("r", "rb", "rt"):
            raise io.UnsupportedOperation("a remote file is written whole, not in pieces")
        reader = io.BufferedReader(RangeReader(self, self.file_size()), buffering if buffering > 1 else _BUFFER)
        return reader if mode == "rb" else io.TextIOWrapper(reader, encoding or "utf-8", errors, newline)

    # -- writing ------------------------------------------------------------------------------------------------------

    def write_bytes(self, content: bytes) -> int:
        self.store.write(self._inner, content, str(self))
        return len(content)

    def write_text(self, text: str, encoding: str = "utf-8") -> int:
        return self.write_bytes(text.encode(encoding))

    def create(self, content: bytes) -> bool:
        """Write a file unless there is one already; whether it was written."""
        return self.store.create(self._inner, content, str(self))

    def touch(self, exist_ok: bool = True) -> None:
        if exist_ok or not self.exists():
            self.write_bytes(b"")

    def upload(self, local: Path) -> None:
        """Make this a copy of a local file; where the storage can do that, it appears whole or not at all."""
        self.store.upload(local, self._inner, str(self))

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: ARG002  as pathlib has it
        """Make the folder, where folders are things of their own."""
        self.store.make_folder(self._inner, str(self))

    def remove_tree(self) -> None:
        """Remove this folder and all below it; what is not there is no trouble."""
        with suppress(OSError):
            self.store.remove_tree(self._inner, str(self))

    def rmdir(self) -> None:
        """Remove an empty folder, where folders are things of their own."""
        if self.store.has_folders:
            self.store.ask(str(self), lambda fs: fs.rmdir(self._inner))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.store.remove(self._inner, str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def replace(self, target: RemotePath) -> RemotePath:
        """Move a small file by writing it again, which is what object stores do as well."""
        target.write_bytes(self.read_bytes())
        self.unlink()
        return target

    def __fspath__(self) -> str:
        raise BadInput("must be a path on this machine: a URL is not read here", where=str(self), hint="copy it first")
