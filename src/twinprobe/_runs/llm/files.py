"""The tensor files of one token: which operator each belongs to, opened one by one or read many at a time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.llm.atb_file import AtbHeader
from twinprobe._runs.llm.tensor import DTYPES, HEAD, Described, Known, open_llm_header, open_llm_tensor
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.whole_files import READING, Entry, expect_all, remote, scan

TORCH, ATB = "torch", "atb"
INPUT, OUTPUT = "input", "output"
_TORCH = re.compile(r"(?P<io>input|output)(?:_(?P<place>.+))?\.(?:pth|pt|npy)")
_ATB = re.compile(r"(?P<io>in|out)tensor(?P<place>\d{1,9})(?:_(?P<label>[^/]*))?\.bin")
_OPERATOR = re.compile(r"\d+_.+")
_DEEPEST = 64

# The kinds of a folder's entries. A folder that is named like a tensor is a damaged one.
_FOLDER, _FILE, _LINK = "folder", "file", "link"
Entries = tuple[tuple[str, str], ...]


class TensorFile(NamedTuple):
    """One tensor of an operator. ``place`` orders its inputs or outputs; ``file`` is under the token's folder."""

    io: str
    place: tuple[int | str, ...]
    file: str
    linked: bool = False
    """Whether it is a symbolic link, which has to be checked before it is followed."""

    @property
    def is_nested(self) -> bool:
        """Whether it comes from a container inside the outputs, such as a key/value cache."""
        return len(self.place) > 1

    @property
    def order(self) -> tuple[tuple[int, int, str], ...]:
        return tuple((0, part, "") if isinstance(part, int) else (1, 0, part) for part in self.place)


# By operator. Tokens whose folders hold the same names share the tuples.
Files = dict[str, tuple[TensorFile, ...]]


@dataclass(frozen=True)
class TokenFolder:
    """One token on one device: the dump's kind and root, the token's folder, and its folders on all cards."""

    kind: str
    root: Path
    folder: str
    cards: tuple[str, ...] = ()

    @cached_property
    def files(self) -> Files:
        """The tensor files by operator; none where their names are given and not listed."""
        list_files = {TORCH: torch_files, ATB: atb_files}.get(self.kind)
        return list_files(self.root, self.folder) if list_files is not None else {}

    @property
    def base(self) -> str:
        """What stands before the names of the files."""
        return f"{self.root}/{self.folder}/" if self.folder else f"{self.root}/"

    def name(self, file: TensorFile) -> str:
        """The path of a file from the dump's root on."""
        return f"{self.folder}/{file.file}" if self.folder else file.file

    def names(self, files: Iterable[TensorFile]) -> str:
        """The paths of several."""
        return ";".join(map(self.name, files))

    def open(self, file: TensorFile, *, enough: int | None = None) -> HostTensor:
        """One tensor; ``enough`` is how many bytes of it will be looked at."""
        return open_llm_tensor(self.root, self.name(file), linked=file.linked, enough=enough)

    def shape(self, file: TensorFile) -> tuple[int, ...]:
        """The shape of a tensor, without its elements."""
        return self.header(file).shape if file.file.endswith(".bin") else self.open(file, enough=0).shape

    def header(self, file: TensorFile) -> AtbHeader:
        """What an ATB file says of its tensor."""
        return open_llm_header(self.root, self.name(file), linked=file.linked)

    def shards(self, file: TensorFile) -> list[HostTensor]:
        """The tensor of every card, in their order."""
        return [open_llm_tensor(self.root, f"{folder}/{file.file}") for folder in self.cards]

    def cut_widths(self, file: TensorFile, width: int) -> list[int]:
        """How an operator beside this tensor's own cuts a tensor of this width: fused q, k and v have three widths."""
        operator = file.file.rsplit("/", 2)[0]
        parent = operator.rpartition("/")[0]
        for folder, files in self.files.items():
            if folder.rpartition("/")[0] == parent and "split" in folder.rpartition("/")[2].lower():
                outputs = [file for file in files if file.io == OUTPUT] if len(files) > 1 else []
                widths = [shape[-1] for shape in (self.open(output).shape for output in outputs) if shape]
                if len(widths) > 1 and sum(widths) == width:
                    return widths
        return []


def torch_files(root: Path, token: str) -> Files:
    """Files of one token by module folder."""
    top = _Folder(root, token)
    return {name: _module_files(name, top.listed(name)) for name, kind in top.listed() if kind == _FOLDER}


@lru_cache(maxsize=1 << 16)
def _module_files(folder: str, entries: Entries) -> tuple[TensorFile, ...]:
    files = []
    for name, kind in entries:
        match = _TORCH.fullmatch(name)
        if match is not None:
            files.append(TensorFile(match["io"], _place(match["place"]), f"{folder}/{name}", kind == _LINK))
    return _sorted(files)


def atb_files(root: Path, round_folder: str) -> Files:
    """Files of one execution round by operator folder."""
    found: Files = {}
    top = _Folder(root, round_folder)
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        before, after, below = _parts(top.listed(folder))
        if folder:
            taken = top.listed(f"{folder}/before") if before else ()
            given = top.listed(f"{folder}/after") if after else ()
            found[folder] = _operator_files(folder, taken, given)
        if depth < _DEEPEST and below:
            front = f"{folder}/" if folder else ""
            waiting += [(front + name, depth + 1) for name in below]
    return found


@lru_cache(maxsize=1 << 10)
def _parts(entries: Entries) -> tuple[bool, bool, tuple[str, ...]]:
    """What an operator's folder holds: inputs, outputs, and the folders of inner operators."""
    folders = [name for name, kind in entries if kind == _FOLDER]
    return "before" in folders, "after" in folders, tuple(name for name in folders if _OPERATOR.fullmatch(name))


@lru_cache(maxsize=1 << 16)
def _operator_files(folder: str, before: Entries, after: Entries) -> tuple[TensorFile, ...]:
    """Inputs from ``before``, outputs from ``after``; what one of them lacks is taken from the other."""
    kept: dict[tuple[str, int], TensorFile] = {}
    for when, entries in (("before", before), ("after", after)):
        for name, kind in entries:
            match = _ATB.fullmatch(name)
            if match is None:
                continue
            io = INPUT if match["io"] == "in" else OUTPUT
            key = (io, int(match["place"]))
            if key not in kept or (io == OUTPUT) == (when == "after"):
                kept[key] = TensorFile(io, (key[1],), f"{folder}/{when}/{name}", kind == _LINK)
    return _sorted(list(kept.values()))


def _place(text: str | None) -> tuple[int | str, ...]:
    """``1_0`` is (1, 0); a keyword or a dict's key stays a text: ``past_key_values_0`` is (past_key_values, 0)."""
    if text is None:
        return ()
    parts: list[int | str] = []
    for part in text.split("_"):
        if part.isdecimal() and len(part) < 10:
            parts.append(int(part))
        elif parts and isinstance(parts[-1], str):
            parts[-1] = f"{parts[-1]}_{part}"
        else:
            parts.append(part)
    return tuple(parts)


def _sorted(files: list[TensorFile]) -> tuple[TensorFile, ...]:
    return tuple(sorted(files, key=lambda file: (file.io, file.order)))


class _Folder:
    """A folder whose subfolders are listed by the thousand: on this machine their paths are put together as texts."""

    def __init__(self, root: Path, name: str) -> None:
        self._path = root / name
        self._text = None if remote(root) is not None else str(self._path)
        expect_all(self._path)

    def listed(self, name: str = "") -> Entries:
        """What a folder holds, in the order of the names; links to folders are not followed."""
        try:
            with scan(self._path / name) if self._text is None else os.scandir(f"{self._text}/{name}") as entries:
                found = [(entry.name, _kind(entry)) for entry in entries]
        except OSError:
            return ()
        if len(found) > 1:
            found.sort()
        return tuple(found)


def _kind(entry: Entry | os.DirEntry[str]) -> str:
    if entry.is_dir(follow_symlinks=False):
        return _FOLDER
    return _LINK if entry.is_symlink() else _FILE


# Elements of still larger files are shared out among threads.
_LARGEST = 64 << 20
FLAGS = READING | getattr(os, "O_NOFOLLOW", 0)


class NotLarge(Exception):
    """The file is not one of those that are read piece by piece, or changes under our eyes."""


class LargeFile(AbstractContextManager["LargeFile"]):
    """An ATB file whose elements lie in it as kernels take them; use it in a ``with`` statement."""

    def __init__(self, folder: int, name: str, known: Known) -> None:
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
            what = known.described(name, head, 0, size) if sound else None
            if what is None:
                raise NotLarge
        except (OSError, NotLarge):
            os.close(self._handle)
            raise NotLarge from None
        self.what = what

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
# What one call of the system reads; most files are smaller, and nobody has to ask for their size.
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

    def __init__(self, folder: str, known: Known) -> None:
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

    def read(self, name: str) -> tuple[int, Described] | None:
        """At which element of its dtype a file begins in memory, and what it is.

        None for files whose elements kernels cannot take as they lie there, damaged ones and links, and for large ones.
        """
        at = self.used + self._lead
        try:
            handle = os.open(name, FLAGS, dir_fd=self._folder)
            try:
                length = os.readv(handle, (self._view[at : at + _AT_ONCE],))
                if length == _AT_ONCE:
                    length = 0 if name.endswith(".bin") else self._rest(handle, at)
            finally:
                os.close(handle)
        except (OSError, ValueError):
            return None
        what = self._known.described(name, self._view, at, length)
        if what is None:
            return None
        self.used = (at + length + _ALIGNED - 1) & -_ALIGNED
        first = at + what.start
        if first % _ALIGNED:
            first = self._aligned(at, first, what)
        return first // DTYPES[what.dtype], what

    def open_large(self, name: str) -> LargeFile:
        """A file to be read piece by piece; raises NotLarge for all others."""
        return LargeFile(self._folder, name, self._known)

    def room(self) -> tuple[int, memoryview]:
        """Where the memory is free, and that memory: enough for a chunk of elements."""
        return self.used, self._view[self.used :]

    def _rest(self, handle: int, at: int) -> int:
        """Read on to the end; the length of the file, or 0 if it is too large or changes under our eyes."""
        before = os.fstat(handle)
        size = before.st_size
        if not S_ISREG(before.st_mode) or size > LARGEST:
            return 0
        length = _AT_ONCE
        while length < size:
            count = os.readv(handle, (self._view[at + length : at + size],))
            if not count:
                return 0
            length += count
        after = os.fstat(handle)
        return size if (after.st_size, after.st_mtime_ns) == (size, before.st_mtime_ns) else 0

    def _aligned(self, at: int, first: int, what: Described) -> int:
        """Move elements to a boundary, which compiled kernels need; the next file's will lie on one."""
        front = at - self._lead
        size = what.end - what.start
        moved = self.octets[first : first + size]
        self.octets[front : front + size] = moved.copy() if first < front + size else moved
        self._lead = -what.start % _ALIGNED
        return front
