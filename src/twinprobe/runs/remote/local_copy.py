"""A file for libraries that take none but local ones: itself, or a copy that lives as long as it is used.

They take no name that is not UTF-8 either: such a file gets another name, a link to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from twinprobe.runs.places import remote
from twinprobe.runs.remote.path import RemotePath

_ENDS = 1 << 20
_AT_ONCE = 16


@contextmanager
def local_copy(path: Path, *, only_ends: bool = False) -> Iterator[Path]:
    """The path itself where it is local. ``only_ends`` copies the two ends of a long file, which tell its columns."""
    elsewhere = remote(path)
    if elsewhere is None and has_utf8_name(path):
        yield path
        return
    with TemporaryDirectory(prefix="twinprobe-copy-") as folder:
        if elsewhere is None:
            link = Path(folder, f"file{path.suffix}")
            link.symlink_to(path.absolute())
            yield link
            return
        copy = Path(folder, elsewhere.name[-100:])
        fetch(elsewhere, copy, _ENDS if only_ends else None)
        yield copy


@contextmanager
def local_copies(root: Path, files: Sequence[Path]) -> Iterator[list[Path]]:
    """Small files below a folder, together; copies keep their places in it, which may tell what they are."""
    if remote(root) is None and has_utf8_name(root):
        yield list(files)
        return
    with TemporaryDirectory(prefix="twinprobe-copy-") as folder:
        if remote(root) is None:
            link = Path(folder, "root")
            link.symlink_to(root.absolute(), target_is_directory=True)
            yield [link / file.relative_to(root) for file in files]
            return
        copies = [Path(folder, *file.relative_to(root).parts) for file in files]
        for copy in copies:
            copy.parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(fetch, cast("Sequence[RemotePath]", files), copies))
        yield copies


def has_utf8_name(path: Path) -> bool:
    """Whether a path is text: on most systems a name may be any bytes."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def fetch(path: RemotePath, copy: Path, ends: int | None = None) -> None:
    """Copy a file, or so many bytes at each of its ends."""
    size = path.file_size()
    ranges = [(0, size)] if ends is None or size <= 2 * ends else [(0, ends), (size - ends, size)]
    with copy.open("wb") as file:
        file.truncate(size)  # what is not fetched takes no room
        for start, stop in ranges:
            file.seek(start, os.SEEK_SET)
            for piece in path.pieces(start, stop):
                file.write(piece)
