"""Many small tensor files, read one after the other into one piece of memory that kernels take as it lies there.

The description of its elements is remembered: tensors at one place have the same one at every token. Only
files whose elements lie in them as kernels take them are read here; ``open_llm_tensor`` opens all others and says what
is wrong with them.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import lru_cache
from math import prod
from stat import S_ISREG
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.dtypes import WIDTHS
from twinprobe._runs.tensors.atb_file import PLAIN, read_header
from twinprobe._runs.tensors.pt_file import read_pt, zip_members
from twinprobe._runs.whole_files import READING
from twinprobe.errors import DamagedTensor

DTYPES = {name: WIDTHS[name] for name in ("float16", "bfloat16", "float32")}

# A longer header is not one of a usual tensor.
HEAD = 512
_END = b"\n$End=1\n"
_MOST_LENGTHS, _MOST_FRAMES, _LONGEST_FRAME = 256, 16, 1 << 13
_LAST_RECORD = Struct("<4s4H2IH")
_ENTRY_LENGTHS, _ENTRY_HEADER = Struct("<3H"), Struct("<I")


class ElementLayout(NamedTuple):
    """Elements of a file: their dtype, how many there are, at which byte they start, and how reports show them."""

    dtype: str
    elements: int
    start: int
    end: int
    shown_dtype: str
    shown_shape: str


@lru_cache(maxsize=1 << 12)
def _atb(head: bytes) -> ElementLayout | None:
    try:
        header = read_header(head)
    except DamagedTensor:
        return None
    if header.dtype is None or header.alias is not None:
        return None
    return _usable(PLAIN.get(header.dtype, ""), header.shape, header.start)


def _usable(dtype: str, shape: tuple[int, ...], start: int) -> ElementLayout | None:
    if dtype not in DTYPES or not prod(shape):
        return None
    end = start + prod(shape) * DTYPES[dtype]
    return ElementLayout(dtype, prod(shape), start, end, f"torch.{dtype}", str(list(shape)))


class _Frame(NamedTuple):
    """All of a torch file that its reader looks at, as pieces of its bytes; files of equal frames are read alike.

    The pieces stand before the elements or behind them; those behind count from the end of the elements on.
    """

    length: int
    head: tuple[Piece, ...]
    tail: tuple[Piece, ...]
    described: ElementLayout

    @property
    def is_short(self) -> bool:
        """Whether it is worth its memory: a view of a large storage has that storage for a frame."""
        return self.length - (self.described.end - self.described.start) <= _LONGEST_FRAME


Piece = tuple[int, int, bytes]


class HeaderCache:
    """What is known of files, by name: one that begins like the last file of its name is not parsed again."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[bytes, ElementLayout]] = {}
        self._frames: dict[str, _Frame] = {}

    def described(self, name: str, view: memoryview, offset: int, length: int) -> ElementLayout | None:
        """What the bytes at a place of the memory are, which were read from a file of this name.

        Of an ATB file only the first bytes have to be there; ``length`` is that of the file.
        """
        last = self._heads.get(name)
        if last is not None and last[1].end <= length and view[offset : offset + len(last[0])].tobytes() == last[0]:
            return last[1]
        frame = self._frames.get(name)
        if frame is not None and _fits(frame, view, offset, length):
            return frame.described
        if name.endswith(".bin"):
            return self._atb(name, view[offset : offset + min(length, HEAD)].tobytes(), length)
        if name.endswith((".pth", ".pt")):
            return self._torch(name, view[offset : offset + length].tobytes())
        return None

    def _atb(self, name: str, head: bytes, length: int) -> ElementLayout | None:
        end = head.find(_END)
        described = _atb(head[: end + len(_END)]) if end > 0 else None
        if described is None or described.end > length:
            return None
        self._heads[name] = head[: end + len(_END)], described
        return described

    def _torch(self, name: str, data: bytes) -> ElementLayout | None:
        frame = _frame_of(data)
        if frame is not None and frame.is_short:
            self._frames[name] = frame
        return None if frame is None else frame.described


def _fits(frame: _Frame, view: memoryview, offset: int, length: int) -> bool:
    if frame.length != length:
        return False
    described = frame.described
    head = view[offset : offset + described.start].tobytes()
    for start, stop, piece in frame.head:
        if head[start:stop] != piece:
            return False
    tail = view[offset + described.end : offset + length].tobytes()
    for start, stop, piece in frame.tail:  # noqa: SIM110  by the million: a generator costs as much as the work
        if tail[start:stop] != piece:
            return False
    return True


_frames: dict[int, list[_Frame]] = {}


def _frame_of(data: bytes) -> _Frame | None:
    view, frames = memoryview(data), _frames.get(len(data), [])
    for frame in frames:
        if _fits(frame, view, 0, len(data)):
            return frame
    try:
        made = _frame(data)
    except (DamagedTensor, StructError):
        return None
    if made is None:
        return None
    if made.is_short:
        if len(_frames) >= _MOST_LENGTHS:
            _frames.clear()
        _frames[len(data)] = [made, *frames][:_MOST_FRAMES]
    return made


def _frame(data: bytes) -> _Frame | None:
    tensor = read_pt(data)
    address = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    start = tensor.data.__array_interface__["data"][0] - address
    in_place = tensor.data.size > 0 and 0 <= start <= len(data) - tensor.data.nbytes
    described = _usable(tensor.dtype, tensor.shape, start) if in_place else None
    if described is None:
        return None
    holes = _unread(data, described)
    head, tail = _pieces(data, holes, 0, described.start), _pieces(data, holes, described.end, len(data))
    return _Frame(len(data), head, tail, described)


def _pieces(data: bytes, holes: list[tuple[int, int]], start: int, stop: int) -> tuple[Piece, ...]:
    """What lies between the holes from one place to another, counted from the first."""
    pieces, offset = [], start
    for first, last in [*sorted(hole for hole in holes if hole[0] < stop), (stop, stop)]:
        if first > offset:
            pieces.append((offset - start, first - start, data[offset:first]))
        offset = max(offset, last)
    return tuple(pieces)


def _unread(data: bytes, described: ElementLayout) -> list[tuple[int, int]]:
    """What may differ between files without their being read differently: checksums of elements, the id of the file."""
    holes = []
    headers = set()
    for name, member in zip_members(data).items():
        is_id = name.endswith("/.data/serialization_id") and not member.deflated
        if not is_id and not member.start <= described.start < member.end:
            continue  # the other members are the same in files of one frame, and so are their checksums
        headers.add(member.header)
        holes.append((member.header + 14, member.header + 18))
        if data[member.end : member.end + 4] == b"PK\7\10":
            holes.append((member.end + 4, member.end + 8))
        if is_id:
            holes.append((member.start, member.end))
    return holes + _directory_checksums(data, headers)


def _directory_checksums(data: bytes, headers: set[int]) -> list[tuple[int, int]]:
    """Where the directory has the checksums of the members with these headers."""
    signature, _, _, _, count, size, _, _ = _LAST_RECORD.unpack(data[-_LAST_RECORD.size :])
    offset, holes = len(data) - _LAST_RECORD.size - size, []
    if signature != b"PK\5\6" or offset < 0:
        return []
    for _ in range(count):
        if data[offset : offset + 4] != b"PK\1\2":
            return []  # a directory of another build: its checksums stay part of the frame
        if _ENTRY_HEADER.unpack(data[offset + 42 : offset + 46])[0] in headers:
            holes.append((offset + 16, offset + 20))
        offset += 46 + sum(_ENTRY_LENGTHS.unpack(data[offset + 28 : offset + 34]))
    return holes


# Elements of still larger files are shared out among threads.
_LARGEST = 64 << 20
FLAGS = READING | getattr(os, "O_NOFOLLOW", 0)


class NotLarge(Exception):
    """The file is not one of those that are read piece by piece, or changes while it is read."""


class LargeFile(AbstractContextManager["LargeFile"]):
    """An ATB file whose elements lie in it as kernels take them; use it in a ``with`` statement."""

    def __init__(self, folder: int, name: str, known: HeaderCache) -> None:
        """Open a file by its name from an open folder on; raises NotLarge for all that has to be read otherwise."""
        try:
            self._handle = os.open(name, FLAGS, dir_fd=folder)
        except (OSError, ValueError):
            raise NotLarge from None
        try:
            self._status = os.fstat(self._handle)
            head = memoryview(os.pread(self._handle, HEAD, 0))
            size = self._status.st_size
            sound = S_ISREG(self._status.st_mode) and size <= _LARGEST and name.endswith(".bin")
            described = known.described(name, head, 0, size) if sound else None
            if described is None:
                raise NotLarge
        except (OSError, NotLarge):
            os.close(self._handle)
            raise NotLarge from None
        self.what = described

    def __exit__(self, *_problem: object) -> None:
        os.close(self._handle)

    def read(self, first: int, count: int, memory: memoryview) -> None:
        """Read elements from one on into memory that is large enough for them."""
        width = DTYPES[self.what.dtype]
        start, size = self.what.start + first * width, count * width
        filled = 0
        while filled < size:
            try:
                got = os.preadv(self._handle, (memory[filled:size],), start + filled)
            except OSError:
                raise NotLarge from None
            if not got:
                raise NotLarge
            filled += got

    def check(self) -> None:
        """Raise NotLarge if the file has changed since it was opened."""
        now = os.fstat(self._handle)
        if (now.st_size, now.st_mtime_ns) != (self._status.st_size, self._status.st_mtime_ns):
            raise NotLarge


# A larger file gains nothing from being read whole.
LARGEST = 4 << 20
# Elements of a larger file that are read and measured at once, while the cache holds them; whole pieces of a kernel.
CHUNK = 1 << 18
# What one system call reads; most files are smaller, so their size need not be asked for.
_AT_ONCE = 64 << 10
# Files are measured together as long as they stay in the second-level cache.
_FULL = 1 << 19
_ALIGNED = 64
_ROOM = _FULL + LARGEST + _AT_ONCE + _ALIGNED

# Fresh memory costs more than reading into it. There are no more pieces than were ever in use at once.
_spare: list[NDArray[np.uint8]] = []


def can_read_small_files() -> bool:
    """Whether this system opens files from their folder on without following links, and reads into given memory."""
    return hasattr(os, "preadv") and os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


class SmallFiles(AbstractContextManager["SmallFiles"]):
    """Reads files of one folder; use it in a ``with`` statement."""

    def __init__(self, folder: str, known: HeaderCache) -> None:
        self._folder = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._known = known
        self.octets: NDArray[np.uint8] = _spare.pop() if _spare else np.empty(_ROOM, np.uint8)
        self._view = self.octets.data
        self.used = 0
        # ATB headers have no padding. Where the last file's elements began, the next one's will.
        self._lead = 0

    def __exit__(self, *_problem: object) -> None:
        os.close(self._folder)
        _spare.append(self.octets)

    @property
    def is_full(self) -> bool:
        """Whether the memory has to be given back, by setting ``used``, before another file is read."""
        return self.used > _FULL

    def read(self, name: str) -> tuple[int, ElementLayout] | None:
        """At which element of its dtype a file begins in memory, and what it is.

        None for files whose elements kernels cannot take as they lie there, damaged ones and links, and for large ones.
        """
        start = self.used + self._lead
        try:
            handle = os.open(name, FLAGS, dir_fd=self._folder)
            try:
                length = os.readv(handle, (self._view[start : start + _AT_ONCE],))
                if length == _AT_ONCE:
                    length = 0 if name.endswith(".bin") else self._rest(handle, start)
            finally:
                os.close(handle)
        except (OSError, ValueError):
            return None
        what = self._known.described(name, self._view, start, length)
        if what is None:
            return None
        self.used = (start + length + _ALIGNED - 1) & -_ALIGNED
        first = start + what.start
        if first % _ALIGNED:
            first = self._aligned(start, first, what)
        return first // DTYPES[what.dtype], what

    def open_large(self, name: str) -> LargeFile:
        """A file to be read piece by piece; raises NotLarge for all others."""
        return LargeFile(self._folder, name, self._known)

    def room(self) -> tuple[int, memoryview]:
        """Where the memory is free, and that memory: enough for a chunk of elements."""
        return self.used, self._view[self.used :]

    def _rest(self, handle: int, start: int) -> int:
        """Read on to the end; the length of the file, or 0 if it is too large or changes while it is read."""
        before = os.fstat(handle)
        size = before.st_size
        if not S_ISREG(before.st_mode) or size > LARGEST:
            return 0
        length = _AT_ONCE
        while length < size:
            count = os.readv(handle, (self._view[start + length : start + size],))
            if not count:
                return 0
            length += count
        after = os.fstat(handle)
        return size if (after.st_size, after.st_mtime_ns) == (size, before.st_mtime_ns) else 0

    def _aligned(self, start: int, first: int, described: ElementLayout) -> int:
        """Move elements to a boundary, which compiled kernels need; the next file's will lie on one."""
        front = start - self._lead
        size = described.end - described.start
        moved = self.octets[first : first + size]
        self.octets[front : front + size] = moved.copy() if first < front + size else moved
        self._lead = -described.start % _ALIGNED
        return front
