"""One file system of fsspec, its listings kept in short form, its files read by ranges and written whole."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, TypeVar

from twinprobe.errors import BadInput

# What the libraries behind fsspec raise, in words. They share no base class: exceptions are known by their names.

_NO_CREDENTIALS = frozenset({
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError",
    "DefaultCredentialsError", "RefreshError", "ProfileNotFound", "NoAuthTokenError", "UnauthorizedSSOTokenError",
    "SSOTokenLoadError", "ClientAuthenticationError",
})  # fmt: skip
_NO_ANSWER = frozenset({
    "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "ConnectionError",
    "ProxyConnectionError", "HTTPClientError", "SSLError", "ClientConnectorError", "ClientConnectorDNSError",
    "ServerDisconnectedError", "ServerTimeoutError", "FSTimeoutError", "TimeoutError", "MaxRetryError",
    "NewConnectionError", "TransportError", "RequestError", "ServiceRequestError",
})  # fmt: skip
_NO_ANSWER_NUMBERS = frozenset({
    errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT,
})  # fmt: skip
_LONGEST = 300

CREDENTIALS_HINT = "see docs/remote.md for credentials, e.g. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"


class NoAnswer(OSError):
    """The other end could not be reached, or fell silent."""


def understood(error: BaseException, where: str) -> OSError | BadInput:
    """An OSError with words in it, or BadInput where nothing can be had without other credentials."""
    names = {kind.__name__ for kind in type(error).__mro__}
    text = " ".join(str(getattr(error, "strerror", None) or str(error) or type(error).__name__).split())[:_LONGEST]
    if isinstance(error, ImportError):
        package = (error.name or "").partition(".")[0]
        hint = f"pip install {package}" if package else "install it with pip"
        return BadInput(f"needs a package that is missing: {text}", where=where, hint=hint)
    if names & _NO_CREDENTIALS:
        return BadInput(f"no credentials for this storage: {text}", where=where, hint=CREDENTIALS_HINT)
    if names & _NO_ANSWER or (isinstance(error, OSError) and error.errno in _NO_ANSWER_NUMBERS):
        return NoAnswer(errno.ETIMEDOUT, f"the storage does not answer: {text}")
    return _plain(error, text, where)


def _plain(error: BaseException, text: str, where: str) -> OSError:
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
    if isinstance(error, NotADirectoryError):
        return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), where)
    if isinstance(error, PermissionError):
        return PermissionError(errno.EACCES, f"access is denied: {text}")
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    return OSError(number, text)


Answer = TypeVar("Answer")
Options = tuple[tuple[str, Any], ...]

PATIENCE = 15.0  # seconds for the first answer; after it, the library's own limits hold
_SILENCES = 3  # requests in a row without an answer, after which the storage counts as gone


class LazyFileSystem:
    """A file system that is made when it is first asked something."""

    def __init__(self, protocol: str, options: Options) -> None:
        import fsspec

        self.protocol = protocol
        self._made: Any = None
        # An instance of our own: listings are cached here, and the program's instances keep their own caches.
        settings = dict(options) | {"skip_instance_cache": True, "use_listings_cache": False}
        self._make: Callable[[], Any] = partial(fsspec.filesystem, protocol, **settings)
        self._lock = threading.Lock()
        self._answered = False
        self._silences = 0

    def ask(self, where: str, call: Callable[[Any], Answer]) -> Answer:
        """Call a function of the file system; whatever goes wrong is an OSError with words, or BadInput."""
        try:
            answer = call(self._filesystem()) if self._answered else self._patiently(call)
        except BadInput:
            raise
        except Exception as error:
            raise self._judged(error, where) from None
        self._answered, self._silences = True, 0
        return answer

    def _judged(self, error: Exception, where: str) -> Exception:
        understood_as = understood(error, where)
        if isinstance(understood_as, NoAnswer):
            self._silences += 1
            if not self._answered or self._silences >= _SILENCES:
                self._answered = False
                return BadInput(
                    str(understood_as.strerror),
                    where=where,
                    hint="check the address (endpoint), the network and any proxy",
                )
        elif isinstance(understood_as, OSError):
            self._answered, self._silences = True, 0
        return understood_as

    def _patiently(self, call: Callable[[Any], Answer]) -> Answer:
        """The first call, in a thread that is left behind if there is no answer in time."""
        results: list[Answer] = []
        errors: list[BaseException] = []

        def attempt() -> None:
            try:
                results.append(call(self._filesystem()))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=attempt, name="twinprobe-remote", daemon=True)
        thread.start()
        thread.join(PATIENCE)
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError(f"no answer for {PATIENCE:.0f} s")
        return results[0]

    def _filesystem(self) -> Any:
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = self._make()
        return self._made


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


class Store(LazyFileSystem):
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
        except OSError:
            pass  # no permission to look at the bucket itself
        return None

    def listed(self, path: str) -> bool:
        """Whether a folder's listing is at hand."""
        return path in self._listings

    def listing(self, path: str, where: str) -> dict[str, int]:
        """The sizes of the files in a folder by name; folders in it have FOLDER. One request, then kept."""
        listing = self._listings.get(path)
        if listing is None:
            listing = self._list(path, where)
            self._keep({path: listing})
        return listing

    def list_below(self, path: str, where: str) -> None:
        """List a folder and all below it: object stores tell a thousand names at once, whatever folders they are in."""
        if path in self._listings:
            return
        listings: dict[str, dict[str, int]] = {}
        for name, info in self.ask(where, lambda fs: fs.find(path, detail=True)).items():
            if _kind(info) != "file":
                continue
            inner, size = name.rstrip("/"), int(info.get("size") or 0)
            while len(inner) > len(path):
                folder, _, last = inner.rpartition("/")
                listings.setdefault(folder, {}).setdefault(last, size)
                inner, size = folder, FOLDER
        self._keep(listings)

    def _keep(self, listings: dict[str, dict[str, int]]) -> None:
        with self._lock:
            for path, listing in listings.items():
                self._listings[path] = listing
                self._entries += len(listing)
            while self._entries > _MOST_ENTRIES and len(self._listings) > 1:
                self._entries -= len(self._listings.popitem(last=False)[1])

    def _list(self, path: str, where: str) -> dict[str, int]:
        sizes: dict[str, int] = {}
        own = path.strip("/")
        for info in self.ask(where, lambda fs: fs.ls(path, detail=True)):
            name = str(info["name"]).strip("/")
            kind = _kind(info)
            if name == own:
                if kind == "file" and info.get("size"):
                    raise understood(NotADirectoryError(), where)
                continue  # the empty object by which some tools mark a folder
            if kind is not None:
                sizes[name.rpartition("/")[2]] = FOLDER if kind == "directory" else int(info.get("size") or 0)
        return sizes

    def forget(self, path: str) -> None:
        """Forget what is known of everything at and below this path, and of the folder that contains it."""
        with self._lock:
            self._sizes.clear()
            self._small.clear()
            for known in [listed for listed in self._listings if listed.startswith(path) or path.startswith(listed)]:
                self._entries -= len(self._listings.pop(known))

    def read(self, path: str, start: int, stop: int, where: str) -> bytes:
        """The bytes of a range, exactly; OSError where the file has become shorter."""
        if stop - start <= _PIECE:
            return self._piece(path, start, stop, where)
        return b"".join(self.pieces(path, start, stop, where))

    def pieces(self, path: str, start: int, stop: int, where: str) -> Iterator[bytes]:
        """The bytes of a long range, a bounded number of pieces at a time."""
        starts = range(start, stop, _PIECE)
        for index in range(0, len(starts), _PIECES):
            some = [(first, min(first + _PIECE, stop)) for first in starts[index : index + _PIECES]]
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
        raise OSError(5, f"only {len(piece)} of {length} bytes arrived: the file changed while it was read")
    return piece
