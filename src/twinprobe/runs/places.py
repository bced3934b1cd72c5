"""Where a path leads: a file of this machine, or a URL of a storage elsewhere."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from twinprobe.errors import BadInput
from twinprobe.runs.remote.path import RemotePath

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
        return _local(written)
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


def _local(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise BadInput("names another machine", where=url, hint="write file:///folder/file, with three slashes")
    return Path(unquote(parts.path))


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
        hint = f"{_package(protocol)}; fsspec says: {error}"
        raise BadInput(f"{protocol}:// needs a package that is missing", where=url, hint=hint) from None


def _package(protocol: str) -> str:
    """How to install what a kind of URL needs: fsspec knows which module it would have imported."""
    from fsspec.registry import known_implementations

    module = str(known_implementations.get(protocol, {}).get("class", "")).partition(".")[0]
    if module in ("", "fsspec"):
        return f"pip install 'fsspec[{protocol}]'"
    return f"pip install {module}"
