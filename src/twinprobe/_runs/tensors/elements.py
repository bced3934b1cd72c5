"""The contents of a tensor file: in memory, on this machine and read where they are looked at, or elsewhere."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.remote.contents import RemoteContents
from twinprobe._runs.whole_files import READING, remote
from twinprobe.errors import DamagedTensor

# The bytes of a tensor file on this machine, read where they are looked at.
#
# A mapped file that is truncated kills the process that reads it (SIGBUS); an ordinary read is merely short.

_HEAD = 4096
# One call of the system reads no more than 2 GiB.
_AT_ONCE = 1 << 30


class LocalContents:
    """Slices are read on demand; elements go to memory that is reused as soon as it has no other reference."""

    __slots__ = ("_changed", "_file", "_head", "_size", "at_once")

    def __init__(self, handle: int, status: os.stat_result, at_once: int | None = None) -> None:
        """Takes over the handle of an open file."""
        self.at_once = at_once
        """The most bytes of elements that are read at once, if limited."""
        self._file = io.FileIO(handle)
        self._size, self._changed = status.st_size, status.st_mtime_ns
        self._head = self._file.read(_HEAD) or b""

    def __del__(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, span: slice) -> bytes:
        start, stop, step = span.indices(self._size)
        assert step == 1
        if stop <= len(self._head):
            return self._head[start:stop]
        # Not by way of memory that is kept: a large pickle would be held twice as long as it is read.
        return self._filled(np.empty(max(stop - start, 0), np.uint8), start).tobytes()

    def stretch(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes of a range in memory of their own, aligned for every dtype."""
        return self._filled(_buffers.take(stop - start), start)

    def _filled(self, out: NDArray[np.uint8], start: int) -> NDArray[np.uint8]:
        view, filled = out.data, 0
        while filled < len(out):
            count = self._read_into(view[filled : filled + _AT_ONCE], start + filled)
            if not count:
                raise DamagedTensor("became shorter while it was read", hint="wait until its run has finished")
            filled += count
        now = os.fstat(self._file.fileno())
        if now.st_size != self._size or now.st_mtime_ns != self._changed:
            raise DamagedTensor("changed while it was read", hint="wait until its run has finished")
        out.flags.writeable = False
        return out

    def _read_into(self, view: memoryview, start: int) -> int | None:
        """Read from a place on. Several threads may do so at once, so the file's own position is not used."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [view], start)
        with _moving:
            self._file.seek(start)
            return self._file.readinto(view)


class _Buffers(threading.local):
    """Two pieces of memory for each thread, one a side. Fresh memory costs more than reading into it."""

    most_bytes = 256 << 20

    def __init__(self) -> None:
        self._kept: list[NDArray[np.uint8]] = []

    def take(self, size: int) -> NDArray[np.uint8]:
        """So many bytes that have no other reference."""
        kept = self._kept
        for index in range(len(kept)):
            if kept[index].size >= size and sys.getrefcount(kept[index]) == _UNUSED:
                return kept[index][:size]
        fresh = np.empty(size, np.uint8)
        if size <= self.most_bytes:
            if len(kept) >= 2:
                del kept[0]
            kept.append(fresh)
        return fresh[:]


def _count_of_unused() -> int:
    kept = [np.empty(1, np.uint8)]
    return sys.getrefcount(kept[0])


_UNUSED = _count_of_unused()
_buffers = _Buffers()
whole_buffers = _Buffers()  # for tensors that are put together from several files
_moving = threading.Lock()


# Up to here the elements are read at once, unless less is asked for. Of larger files they are read strip by strip, as
# they are measured: memory for all of them may be lacking.
LARGEST_READ = 256 << 20

Held = bytes | NDArray[np.uint8]
Contents = bytes | LocalContents | RemoteContents


# Up to here all of a file is read at once.
SMALL_FILE = 64 << 10


def damage_of(path: Path | str, error: DamagedTensor | OSError | MemoryError) -> DamagedTensor:
    """What went wrong while a file was opened, with its name."""
    shown = str(path) if str(path).isprintable() else repr(str(path))
    if isinstance(error, DamagedTensor):
        return DamagedTensor(error.what, where=shown, hint=error.hint)
    if isinstance(error, MemoryError):
        return DamagedTensor("needs more memory than this machine has free", where=shown)
    what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be opened: {error.strerror}"
    return DamagedTensor(what, where=shown)


def contents(path: Path | str, *, enough: int | None = None, at_once: int | None = None) -> Contents:
    """The contents of a file, as far as possible without reading them. A text names a file of this machine."""
    elsewhere = None if isinstance(path, str) else remote(path)
    if elsewhere is not None:
        return RemoteContents(elsewhere, enough)
    try:
        handle = os.open(path, READING)
    except ValueError:
        raise DamagedTensor("has characters that no file name can have") from None
    try:
        status = os.fstat(handle)
        if not S_ISREG(status.st_mode):
            raise DamagedTensor("is not a regular file")
        if status.st_size == 0:
            raise DamagedTensor("is empty", hint="the run that wrote it may have been killed")
        if status.st_size <= SMALL_FILE:
            return os.read(handle, SMALL_FILE)
        opened, handle = handle, -1  # closed with the contents
        return LocalContents(opened, status, at_once)
    finally:
        if handle >= 0:
            os.close(handle)


def stretch(data: Contents, start: int, length: int, *, whole: bool = True) -> tuple[Held, int]:
    """A buffer that holds these bytes, and where in it they begin; what is on this machine stays where it is.

    ``whole=False`` allows remote contents to leave out what their reader does not want to look at.
    """
    if isinstance(data, RemoteContents):
        return data.stretch(start, start + length, whole=whole), 0
    if isinstance(data, LocalContents):
        return data.stretch(start, start + length), 0
    return data, start


def elements(data: Contents, dtype: np.dtype[Any], count: int, start: int, *, whole: bool = False) -> NDArray[Any]:
    """``count`` elements from the byte ``start`` on; of a large file FileElements, unless they are wanted whole."""
    if isinstance(data, LocalContents) and not whole and count * dtype.itemsize > (data.at_once or LARGEST_READ):
        return cast("NDArray[Any]", FileElements(data, dtype, count, start))
    base, offset = stretch(data, start, count * dtype.itemsize, whole=whole)
    return np.frombuffer(base, dtype, count, offset)


# The elements of a file that is too large to hold: an array whose slices are read when they are asked for.


class FileElements:
    """Looks like a flat, read-only array in the machine's byte order.

    A slice is read into memory of its own, which is what kernels ask for, strip by strip. Whatever else is asked of an
    array reads all of the elements. A file that changes between two slices is a DamagedTensor for whoever reads on.
    """

    __slots__ = ("_file", "_start", "_stored", "dtype", "size")
    ndim = 1
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, file: LocalContents, stored: np.dtype[Any], count: int, start: int) -> None:
        self._file, self._stored, self._start = file, stored, start
        self.dtype: np.dtype[Any] = stored.newbyteorder("=")
        self.size = count

    @property
    def shape(self) -> tuple[int]:
        return (self.size,)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    @property
    def flags(self) -> Any:
        """Those that every slice has: aligned, and not to be written to."""
        none = np.empty(1, self.dtype)[:0]
        none.flags.writeable = False
        return none.flags

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and index.step in (None, 1):
            start, stop, _ = index.indices(self.size)
            return self._read(start, max(start, stop))
        if isinstance(index, int | np.integer):
            place = range(self.size)[int(index)]
            return self._read(place, place + 1)[0]
        return self.whole()[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole = self.whole()
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # numpy asks for its protocols, and must not get those of an array
        return getattr(self.whole(), name)

    def __eq__(self, other: object) -> Any:
        return self.whole() == np.asarray(other)

    def whole(self) -> NDArray[Any]:
        """All elements, in memory."""
        return self._read(0, self.size)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        width = self.dtype.itemsize
        octets = self._file.stretch(self._start + start * width, self._start + stop * width)
        elements = octets.view(self._stored)
        if not self._stored.isnative:
            elements = elements.astype(self.dtype)
            elements.flags.writeable = False
        return elements


class JoinedElements(FileElements):
    """The elements of several tensors, one behind the other along a dimension: put together as slices are asked for."""

    __slots__ = ("_parts", "_widths")

    def __init__(self, parts: Sequence[NDArray[Any]], widths: Sequence[int]) -> None:
        """Flat tensors, and how many elements of each follow one another before the next one's turn comes."""
        self._parts, self._widths = parts, widths
        self.dtype = parts[0].dtype
        self.size = sum(int(part.size) for part in parts)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        row = sum(self._widths)
        if row == self.size:
            return self._in_one_row(start, stop)
        first, last = start // row, -(-stop // row)
        out = whole_buffers.take((last - first) * row * self.dtype.itemsize).view(self.dtype).reshape(last - first, row)
        position = 0
        for part, width in zip(self._parts, self._widths, strict=True):
            out[:, position : position + width] = part[first * width : last * width].reshape(last - first, width)
            position += width
        return out.reshape(-1)[start - first * row : stop - first * row]

    def _in_one_row(self, start: int, stop: int) -> NDArray[Any]:
        slices, position = [], 0
        for part, width in zip(self._parts, self._widths, strict=True):
            if position < stop and start < position + width:
                slices.append(part[max(start - position, 0) : min(stop - position, width)])
            position += width
        if len(slices) == 1:
            return slices[0]
        return np.concatenate(slices) if slices else np.empty(0, self.dtype)


class GatheredElements(FileElements):
    """Stretches of several tensors one behind the other, in any order: read as slices are asked for."""

    __slots__ = ("_ends", "_first", "_of", "_parts")

    def __init__(
        self, parts: Sequence[NDArray[Any]], of: NDArray[np.int64], first: NDArray[np.int64], length: NDArray[np.int64]
    ) -> None:
        """Flat tensors; for each stretch its tensor, its first element there, and how many it has."""
        self._parts, self._of, self._first = parts, of, first
        self._ends = np.cumsum(length)
        self.dtype = parts[0].dtype
        self.size = int(self._ends[-1]) if len(length) else 0

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        slices = []
        position = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            begin = int(self._ends[position - 1]) if position else 0
            end = min(int(self._ends[position]), stop)
            first = int(self._first[position]) - begin
            slices.append(self._parts[int(self._of[position])][first + start : first + end])
            start, position = end, position + 1
        return slices[0] if len(slices) == 1 else np.concatenate(slices) if slices else np.empty(0, self.dtype)


# Elements in another order than the file has them, put in order without the file in memory beside them.

# Bytes of a file that are held while they are put in order.
PIECE = 64 << 20

Axes = list[tuple[int, int]]  # for each axis its length and the bytes from one place to the next
Read = Callable[[int, int], tuple[Held, int]]  # from a byte on so many: a buffer, and where they begin in it


def in_order(read: Read, axes: Axes, stored: np.dtype[Any]) -> NDArray[Any]:
    """The elements of a strided view as a new C-ordered array in the machine's byte order."""
    out = np.empty(tuple(n for n, _ in axes), stored.newbyteorder("="))
    strides = tuple(step for _, step in axes)
    for region, start, length in _pieces(axes, stored.itemsize):
        part: NDArray[Any] = out[region] if region else out
        base, first = read(start, length)
        part[...] = np.ndarray(part.shape, stored, buffer=base, offset=first, strides=strides)
    return out


def _pieces(axes: Axes, width: int) -> Iterator[tuple[tuple[slice, ...], int, int]]:
    """Parts of the array with the stretches of the file that hold them, along the axis with the longest steps."""
    longest = max(range(len(axes)), key=lambda axis: axes[axis][1], default=None)
    if longest is None:
        yield (), 0, width
        return
    count, step = axes[longest]
    rest = width + sum((n - 1) * other for axis, (n, other) in enumerate(axes) if axis != longest)
    # Where one place reaches far into the next ones, much is read twice; not more than a quarter of all.
    at_once = max(1, (max(PIECE, 4 * rest) - rest) // step) if step else count
    for first in range(0, count, at_once):
        last = min(first + at_once, count)
        index = tuple(slice(first, last) if axis == longest else slice(None) for axis in range(len(axes)))
        yield index, first * step, (last - first - 1) * step + rest


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A flat, C-ordered array of storage elements with the dtype's own name and the shape.

    Nobody may write to ``data``. Of a large file it is a FileElements, whose slices are read when they are asked for:
    whoever takes it strip by strip needs no memory for all of it.
    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[Any]

    def __post_init__(self) -> None:
        assert self.data.ndim == 1
        assert self.data.size == prod(self.shape)
        assert self.data.dtype == np.dtype(STORAGE[self.dtype])
