"""What a storage says about the content of its files: enough to see that nothing has changed, without reading it."""

from __future__ import annotations

import hashlib
from typing import Any

from twinprobe.runs.remote.path import RemotePath

# By content where the storage has a checksum, else by the time of the last change.
_MARKS = (
    "ETag", "etag", "md5Hash", "crc32c", "content_md5", "checksum", "LastModified", "last_modified", "mtime",
    "modified", "updated", "created",
)  # fmt: skip


def marks_below(folder: RemotePath) -> dict[str, str]:
    """The marks of all files below a folder, by their paths from there; a thousand files cost one request."""
    found = folder.store.ask(str(folder), lambda fs: fs.find(folder.inner, detail=True))
    return {name[len(folder.inner) :].strip("/"): _mark(found[name]) for name in sorted(found)}


def version_of(path: RemotePath) -> tuple[int, int] | None:
    """Size and a number that changes with the file, as they are now; None where there is no such file."""
    try:
        info = path.store.ask(str(path), lambda fs: fs.info(path.inner))
    except OSError:
        return None
    return int(info.get("size") or 0), int.from_bytes(hashlib.sha256(_mark(info).encode()).digest()[:6], "big")


def _mark(info: dict[str, Any]) -> str:
    return f"{info.get('size')} {next((info[name] for name in _MARKS if info.get(name)), '')}"
