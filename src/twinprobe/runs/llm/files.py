"""Which tensor files a token folder holds, and which operator each belongs to."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from twinprobe.runs.places import remote
from twinprobe.runs.scan import Entry, expect_all, scan

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


def under(folder: str, file: TensorFile) -> str:
    """The path of a file from the dump's root on, by the folder of its token."""
    return f"{folder}/{file.file}" if folder else file.file


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
