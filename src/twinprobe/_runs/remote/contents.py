"""The bytes of a remote tensor file, indexed like the bytes of a local one and fetched where they are looked at."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.remote.path import RemotePath
from twinprobe._runs.remote.store import SMALL
from twinprobe._runs.whole_files import remote
from twinprobe.errors import DamagedTensor

# One request for all of a small file costs less than three for its parts.
WHOLE = 512 << 10
_BLOCK, _MOST_BLOCKS = 16 << 10, 64


class RemoteContents:
    """Headers and directories are read in blocks, which are kept; elements in one stretch, which is not.

    With ``enough``, no more than so many bytes of the elements are fetched; the rest is zeros that nobody may look at.
    """

    __slots__ = ("_blocks", "_enough", "_path", "_size")

    def __init__(self, path: RemotePath, enough: int | None = None) -> None:
        self._path, self._enough = path, enough
        self._size = path.file_size()
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        if self._size == 0:
            raise DamagedTensor("is empty", hint="the run that wrote it may have been killed")

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        start, stop, step = span.indices(self._size)
        assert step == 1
        return self._bytes(start, stop)

    def stretch(self, start: int, stop: int, *, whole: bool) -> NDArray[np.uint8]:
        """The bytes of a range, in memory of their own, aligned for every dtype; all of them if ``whole``."""
        if self._size <= (WHOLE if self._enough is None else SMALL):
            return np.frombuffer(bytearray(self._bytes(start, stop)), np.uint8)
        wanted = stop if whole or self._enough is None else min(stop, start + self._enough)
        out: NDArray[Any] = (np.empty if wanted == stop else np.zeros)(stop - start, np.uint8)
        filled = 0
        for piece in self._path.pieces(start, wanted):
            out[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
            filled += len(piece)
        return out

    def _bytes(self, start: int, stop: int) -> bytes:
        if stop <= start:
            return b""
        if self._size <= SMALL:
            # A file that is only looked at to see what it is will be read again to be measured.
            self._blocks[0] = self._blocks.get(0) or self._path.small(again=self._enough is not None)
            return self._blocks[0][start:stop]
        whole = self._size <= WHOLE and self._enough is None
        length = WHOLE if whole else _BLOCK
        first, last = start // length, (stop - 1) // length
        missing = [index for index in range(first, last + 1) if index not in self._blocks]
        if missing:
            begin, end = missing[0] * length, min((missing[-1] + 1) * length, self._size)
            fetched = self._path.read_range(begin, end)
            for index in range(missing[0], missing[-1] + 1):
                self._blocks[index] = fetched[index * length - begin : (index + 1) * length - begin]
        joined = b"".join([self._blocks[index] for index in range(first, last + 1)])
        while len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)
        return joined[start - first * length : stop - first * length]


# A file for libraries that take none but local ones: itself, or a copy that lives as long as it is used.
#
# They take no name that is not UTF-8 either: such a file gets another name, a link to it.

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
