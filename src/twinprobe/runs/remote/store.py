"""One file system of fsspec, its listings kept in short form, its files read by ranges and written whole."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.runs.remote.asking import Asking, Found, Options
from twinprobe.runs.remote.trouble import CREDENTIALS_HINT, understood

FOLDER = -1
"""Stands in a listing where a file has its size."""

_MOST_ENTRIES = 1 << 20
SMALL, _MOST_SMALL = 64 << 10, 1024  # bytes of a file that is worth keeping, and how many of them
_PIECE, _PIECES = 4 << 20, 8  # a long range is fetched in pieces, so many at a time

# Here a file appears whole when its upload ends, and folders need not be made.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "oss", "obs", "tos", "cos", "abfs", "abfss", "az", "adl", "hf"})


@lru_cache(maxsize=64)
def store_of(protocol: str, options: Options) -> Store:
    """The file system of a kind of URL (and host, where the URL names one), one per process."""
    return Store(protocol, options)


class Store(Asking):
    """A file system. All paths here are in its own form, without protocol."""

    def __init__(self, protocol: str, options: Options) -> None:
        super().__init__(protocol, options)
        self._listings: OrderedDict[str, dict[str, int]] = OrderedDict()
        self._entries = 0
        self._sizes: dict[str, int] = {}
        self._small: OrderedDict[str, bytes] = OrderedDict()

    @property
    def has_folders(self) -> bool:
        """Whether folders are made, and files renamed, as on a disk."""
        return self.protocol not in _OBJECT_STORES

    # -- looking ------------------------------------------------------------------------------------------------------

    def size(self, path: str, where: str) -> int:
        """The size of a file, or FOLDER; FileNotFoundError where there is nothing."""
        if path in self._listings:
            return FOLDER
        if path not in self._sizes:
            info = self.ask(where, lambda fs: fs.info(path))
            if _kind(info) is None:
                raise understood(FileNotFoundError(), where)
            self._sizes[path] = FOLDER if _kind(info) == "directory" else int(info.get("size") or 0)
        return self._sizes[path]

    def lacks_bucket(self, path: str, where: str) -> str | None:
        """The bucket of a path, if there is none of this name."""
        bucket, slash, _ = path.strip("/").partition("/")
        if self.has_folders or not slash:
            return None
        try:
            self.ask(where, lambda fs: fs.info(bucket))
        except FileNotFoundError:
            return bucket
        except OSError:  # one may not look at it as a whole
            return None
        return None

    def listed(self, path: str) -> bool:
        """Whether a folder's listing is at hand."""
        return path in self._listings

    def listing(self, path: str, where: str) -> dict[str, int]:
        """The sizes of the files in a folder by name; folders in it have FOLDER. One request, then kept."""
        found = self._listings.get(path)
        if found is None:
            found = self._list(path, where)
            self._keep({path: found})
        return found

    def list_below(self, path: str, where: str) -> None:
        """List a folder and all below it: object stores tell a thousand names at once, whatever folders they are in."""
        if path in self._listings:
            return
        found: dict[str, dict[str, int]] = {}
        for name, info in self.ask(where, lambda fs: fs.find(path, detail=True)).items():
            if _kind(info) != "file":
                continue
            inner, size = name.rstrip("/"), int(info.get("size") or 0)
            while len(inner) > len(path):
                folder, _, last = inner.rpartition("/")
                found.setdefault(folder, {}).setdefault(last, size)
                inner, size = folder, FOLDER
        self._keep(found)

    def _keep(self, found: dict[str, dict[str, int]]) -> None:
        with self._lock:
            for path, listing in found.items():
                self._listings[path] = listing
                self._entries += len(listing)
            while self._entries > _MOST_ENTRIES and len(self._listings) > 1:
                self._entries -= len(self._listings.popitem(last=False)[1])

    def _list(self, path: str, where: str) -> dict[str, int]:
        found: dict[str, int] = {}
        own = path.strip("/")
        for info in self.ask(where, lambda fs: fs.ls(path, detail=True)):
            name = str(info["name"]).strip("/")
            kind = _kind(info)
            if name == own:
                if kind == "file" and info.get("size"):
                    raise understood(NotADirectoryError(), where)
                continue  # the empty object by which some tools mark a folder
            if kind is not None:
                found[name.rpartition("/")[2]] = FOLDER if kind == "directory" else int(info.get("size") or 0)
        return found

    def forget(self, path: str) -> None:
        """Look anew at everything at and below this path, and at the folder that it lies in."""
        with self._lock:
            self._sizes.clear()
            self._small.clear()
            for known in [one for one in self._listings if one.startswith(path) or path.startswith(one)]:
                self._entries -= len(self._listings.pop(known))

    # -- bytes --------------------------------------------------------------------------------------------------------

    def read(self, path: str, start: int, stop: int, where: str) -> bytes:
        """The bytes of a range, exactly; OSError where the file has become shorter."""
        if stop - start <= _PIECE:
            return self._piece(path, start, stop, where)
        return b"".join(self.pieces(path, start, stop, where))

    def pieces(self, path: str, start: int, stop: int, where: str) -> Iterator[bytes]:
        """The bytes of a long range, a bounded number of pieces at a time."""
        starts = range(start, stop, _PIECE)
        for at in range(0, len(starts), _PIECES):
            some = [(first, min(first + _PIECE, stop)) for first in starts[at : at + _PIECES]]
            if len(some) == 1:
                yield self._piece(path, *some[0], where)
                continue
            for (first, last), piece in zip(some, self.ask(where, partial(_ranges, path, some)), strict=True):
                yield _whole(piece, last - first)

    def small(self, path: str, size: int, where: str, *, again: bool) -> bytes:
        """All of a small file. What will be read ``again`` is kept till then, as far as a bound allows."""
        with self._lock:
            content = self._small.pop(path, None)
        if content is None or len(content) != size:
            content = self._piece(path, 0, size, where)
        if again:
            with self._lock:
                self._small[path] = content
                if len(self._small) > _MOST_SMALL:
                    self._small.popitem(last=False)
        return content

    def _piece(self, path: str, start: int, stop: int, where: str) -> bytes:
        if start == stop:
            return b""
        return _whole(self.ask(where, lambda fs: fs.cat_file(path, start=start, end=stop)), stop - start)

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, path: str, content: bytes, where: str) -> None:
        """Put a small file there."""
        self._send(path, where, lambda fs: fs.pipe_file(path, content))

    def create(self, path: str, content: bytes, where: str) -> bool:
        """Put a small file there unless there is one; whether it was put. Only some storages can tell for sure."""

        def put(fs: Any) -> bool:
            try:
                fs.pipe_file(path, content, mode="create")
            except FileExistsError:
                return False
            except (TypeError, NotImplementedError):  # this one knows no such mode
                if fs.exists(path):
                    return False
                fs.pipe_file(path, content)
            return True

        return self._send(path, where, put)

    def upload(self, local: Path, path: str, where: str) -> None:
        """Put a local file there. Object stores show it when it is whole; others get it under another name first."""

        def put(fs: Any) -> None:
            if not self.has_folders or not _renames(fs):
                fs.put_file(str(local), path)
                return
            folder, _, name = path.rpartition("/")
            unfinished = f"{folder}/.{name}.{local.name[-20:]}.part"
            try:
                fs.put_file(str(local), unfinished)
                fs.mv(unfinished, path)
            except BaseException:
                _try_to_remove(fs, unfinished)
                raise

        self._send(path, where, put)

    def _send(self, path: str, where: str, call: Callable[[Any], Found]) -> Found:
        try:
            return self.ask(where, call)
        except FileNotFoundError:
            if self.has_folders:
                raise
            raise FileNotFoundError(2, f"there is no bucket {path.strip('/').partition('/')[0]}") from None
        finally:
            self.forget(path)

    def make_folder(self, path: str, where: str) -> None:
        """Make a folder with its parents, where folders are things of their own."""
        if self.has_folders:
            self.ask(where, lambda fs: fs.makedirs(path, exist_ok=True))
            self.forget(path)

    def remove(self, path: str, where: str) -> None:
        """Remove a file."""
        self.ask(where, lambda fs: fs.rm_file(path))
        self.forget(path)

    def remove_tree(self, path: str, where: str) -> None:
        """Remove a folder and all below it."""
        self.ask(where, lambda fs: fs.rm(path, recursive=True))
        self.forget(path)


def refuse_denied(error: OSError, where: str) -> BadInput:
    """What cannot even be looked at ends the command: it is no matter of one tensor."""
    return BadInput(error.strerror or str(error), where=where, hint=CREDENTIALS_HINT)


def _kind(info: dict[str, Any]) -> str | None:
    """``file`` or ``directory``; None for links and devices, which could lead anywhere."""
    kind = info.get("type")
    if info.get("islink") or kind not in ("file", "directory"):
        return None
    return str(kind)


def _ranges(path: str, some: list[tuple[int, int]], fs: Any) -> list[bytes]:
    got = fs.cat_ranges([path] * len(some), [start for start, _ in some], [stop for _, stop in some], on_error="raise")
    return [bytes(piece) for piece in got]


def _whole(piece: bytes, length: int) -> bytes:
    if len(piece) != length:
        raise OSError(5, f"only {len(piece)} of {length} bytes came: the file changed while it was read")
    return piece


def _renames(fs: Any) -> bool:
    """Whether renaming is an operation of its own there, and not a copy."""
    from fsspec import AbstractFileSystem

    return type(fs).mv is not AbstractFileSystem.mv


def _try_to_remove(fs: Any, path: str) -> None:
    try:
        fs.rm_file(path)
    except Exception:  # the failure that led here is the one to tell
        return
