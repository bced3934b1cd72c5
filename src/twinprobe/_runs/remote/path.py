"""A path behind a URL, with as much of pathlib's manners as TwinProbe uses.

Every function that takes a Path works with one. Asked for a path of this machine it refuses, instead of letting
something else be opened; and its errors are OSErrors with words in them, which libraries behind fsspec do not grant.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import total_ordering
from pathlib import Path, PurePath, PurePosixPath
from stat import S_IFDIR, S_IFREG
from typing import IO, TYPE_CHECKING, Any

from twinprobe._runs.remote.store import FOLDER, Answer, Options, Store, refuse_denied, store_of
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    from typing_extensions import Self


@total_ordering
class UrlName:
    """``front`` and ``inner`` together are the URL; ``inner`` is what the file system calls the path.

    ``named`` paths are those that the user wrote and their parents: others are known from the listing of their folder.
    """

    __slots__ = ("_front", "_inner", "_named", "_options", "_protocol")

    def __init__(self, protocol: str, options: Options, front: str, inner: str, named: bool = False) -> None:
        self._protocol, self._options, self._front, self._inner, self._named = protocol, options, front, inner, named

    def __reduce__(self) -> tuple[object, ...]:
        own = (self._protocol, self._options, self._front, self._inner, self._named)
        return _arrived, (type(self), own, os.getpid())

    def __str__(self) -> str:
        return self._front + self._inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __hash__(self) -> int:
        return hash((self._front, self._inner))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlName) and str(self) == str(other)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, UrlName):
            return NotImplemented
        return (self._front, self._inner.split("/")) < (other._front, other._inner.split("/"))

    def _at(self, inner: str, *, named: bool = False) -> Self:
        return type(self)(self._protocol, self._options, self._front, inner, named)

    def __truediv__(self, other: str | PurePath) -> Self:
        text = (other.as_posix() if isinstance(other, PurePath) else other).strip("/")
        if text in ("", "."):
            return self
        return self._at(f"{self._inner.rstrip('/')}/{text}")

    def joinpath(self, *others: str | PurePath) -> Self:
        path = self
        for other in others:
            path = path / other
        return path

    @property
    def inner(self) -> str:
        """The path as the file system of fsspec takes it."""
        return self._inner

    @property
    def name(self) -> str:
        return self._inner.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for part in self._inner.split("/") if part)

    @property
    def parent(self) -> Self:
        above, slash, _ = self._inner.rstrip("/").rpartition("/")
        if not above:
            return self._at("/", named=True) if slash else self
        return self._at(above, named=True)

    @property
    def parents(self) -> list[Self]:
        parents: list[Self] = []
        path = self
        while path.parent != path:
            path = path.parent
            parents.append(path)
        return parents

    def with_name(self, name: str) -> Self:
        return self._at(self._inner[: len(self._inner) - len(self.name)] + name)

    def with_suffix(self, suffix: str) -> Self:
        return self.with_name(PurePosixPath(self.name).with_suffix(suffix).name)

    def is_relative_to(self, other: object) -> bool:
        return self == other or str(self).startswith(str(other).rstrip("/") + "/")

    def relative_to(self, other: object) -> PurePosixPath:
        if not isinstance(other, UrlName) or not self.is_relative_to(other):
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(str(self)[len(str(other)) :].strip("/"))

    def as_posix(self) -> str:
        return str(self)

    def is_symlink(self) -> bool:
        return False

    def expanduser(self) -> Self:
        return self

    absolute = resolve = expanduser


def _arrived(kind: type[UrlName], own: tuple[Any, ...], sender: int) -> UrlName:
    """A path that was sent here; what is in one process's memory cannot be reached from another."""
    path = kind(*own)
    if path._protocol == "memory" and sender != os.getpid():
        raise BadInput("is in the memory of one process, which others cannot read", where=str(path),
                       hint="use --engine inline")  # fmt: skip
    return path


class RangeReader(io.RawIOBase):
    """The raw side of a buffered reader; how much is read ahead is the buffer's size."""

    def __init__(self, source: RemotePath, size: int) -> None:
        super().__init__()
        self._source, self._size, self._at = source, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position = offset + (0, self._at, self._size)[whence]
        if position < 0:
            raise OSError(22, "before the beginning")
        self._at = position
        return position

    def tell(self) -> int:
        return self._at

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        stop = min(self._at + len(target), self._size)
        if stop <= self._at:
            return 0
        piece = self._source.read_range(self._at, stop)
        target[: len(piece)] = piece
        self._at = stop
        return len(piece)


_BUFFER = 1 << 20


class RemotePath(UrlName):
    """What lies behind a URL."""

    __slots__ = ()

    @property
    def store(self) -> Store:
        return store_of(self._protocol, self._options)

    def _size(self) -> int:
        """The size, or FOLDER. What lies in a folder is asked of its listing, so that a folder costs one request."""
        parent = self.parent
        if parent == self or (self._named and not self.store.listed(parent._inner)):
            return self.store.size(self._inner, str(self))
        size = self.store.listing(parent._inner, str(parent)).get(self.name)
        if size is None:
            raise FileNotFoundError(2, os.strerror(2), str(self))
        return size

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
        for path in (self / name for name in names if fnmatchcase(name, first)):
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
        """Drop what is cached of this path: it may have changed since it was last listed."""
        self.store.forget(self._inner)

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
        self, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:  # fmt: skip
        """Open for reading; only what is read is fetched, with a bounded read-ahead."""
        if mode not in ("r", "rb", "rt"):
            raise io.UnsupportedOperation("a remote file is written whole, not in pieces")
        reader = io.BufferedReader(RangeReader(self, self.file_size()), buffering if buffering > 1 else _BUFFER)
        return reader if mode == "rb" else io.TextIOWrapper(reader, encoding or "utf-8", errors, newline)

    def _put(self, call: Callable[[Any], Answer]) -> Answer:
        """Send something there; what was known of the place is forgotten."""
        try:
            return self.store.ask(str(self), call)
        except FileNotFoundError:
            if self.store.has_folders:
                raise
            raise FileNotFoundError(2, f"there is no bucket {self._inner.strip('/').partition('/')[0]}") from None
        finally:
            self.forget()

    def write_bytes(self, content: bytes) -> int:
        self._put(lambda fs: fs.pipe_file(self._inner, content))
        return len(content)

    def write_text(self, text: str, encoding: str = "utf-8") -> int:
        return self.write_bytes(text.encode(encoding))

    def create(self, content: bytes) -> bool:
        """Write a file unless there is one already; whether it was written. Only some storages can tell for sure."""

        def put(fs: Any) -> bool:
            try:
                fs.pipe_file(self._inner, content, mode="create")
            except FileExistsError:
                return False
            except (TypeError, NotImplementedError):  # this file system has no such mode
                if fs.exists(self._inner):
                    return False
                fs.pipe_file(self._inner, content)
            return True

        return self._put(put)

    def touch(self, exist_ok: bool = True) -> None:
        if exist_ok or not self.exists():
            self.write_bytes(b"")

    def upload(self, local: Path) -> None:
        """Make this a copy of a local file. Object stores show it when it is whole; others get it under another name
        first, if renaming is an operation of its own there and not a copy."""
        from fsspec import AbstractFileSystem

        def put(fs: Any) -> None:
            if not self.store.has_folders or type(fs).mv is AbstractFileSystem.mv:
                fs.put_file(str(local), self._inner)
                return
            folder, _, name = self._inner.rpartition("/")
            unfinished = f"{folder}/.{name}.{local.name[-20:]}.part"
            try:
                fs.put_file(str(local), unfinished)
                fs.mv(unfinished, self._inner)
            except BaseException:
                with suppress(Exception):  # the failure that led here is the one to tell
                    fs.rm_file(unfinished)
                raise

        self._put(put)

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: ARG002  as pathlib has it
        """Make the folder with its parents, where folders are things of their own."""
        if self.store.has_folders:
            self._put(lambda fs: fs.makedirs(self._inner, exist_ok=True))

    def remove_tree(self) -> None:
        """Remove this folder and all below it; what is not there is no trouble."""
        with suppress(OSError):
            self.store.ask(str(self), lambda fs: fs.rm(self._inner, recursive=True))
            self.forget()

    def rmdir(self) -> None:
        """Remove an empty folder, where folders are things of their own."""
        if self.store.has_folders:
            self.store.ask(str(self), lambda fs: fs.rmdir(self._inner))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self.store.ask(str(self), lambda fs: fs.rm_file(self._inner))
            self.forget()
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


# What a storage reports about its files: enough to see that nothing has changed, without reading them.

# By content where the storage has a checksum, else by the time of the last change.
_MARKS = (
    "ETag", "etag", "md5Hash", "crc32c", "content_md5", "checksum", "LastModified", "last_modified", "mtime",
    "modified", "updated", "created",
)  # fmt: skip


def marks_below(folder: RemotePath) -> dict[str, str]:
    """The marks of all files below a folder, by their paths from there; a thousand files cost one request."""
    files = folder.store.ask(str(folder), lambda fs: fs.find(folder.inner, detail=True))
    return {name[len(folder.inner) :].strip("/"): _mark(files[name]) for name in sorted(files)}


def version_of(path: RemotePath) -> tuple[int, int] | None:
    """Size and a number that changes with the file, as they are now; None where there is no such file."""
    try:
        info = path.store.ask(str(path), lambda fs: fs.info(path.inner))
    except OSError:
        return None
    return int(info.get("size") or 0), int.from_bytes(hashlib.sha256(_mark(info).encode()).digest()[:6], "big")


def _mark(info: dict[str, Any]) -> str:
    return f"{info.get('size')} {next((info[name] for name in _MARKS if info.get(name)), '')}"
