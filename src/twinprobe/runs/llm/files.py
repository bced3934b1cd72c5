"""Which tensor files a token folder holds, and which operator each belongs to."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from twinprobe.runs.places import remote
from twinprobe.runs.scan import expect_all, scan

INPUT, OUTPUT = "input", "output"
_TORCH = re.compile(r"(?P<io>input|output)(?:_(?P<place>.+))?\.(?:pth|pt|npy)")
_ATB = re.compile(r"(?P<io>in|out)tensor(?P<place>\d{1,9})(?:_(?P<label>[^/]*))?\.bin")
_OPERATOR = re.compile(r"\d+_.+")
_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class TensorFile:
    """One tensor of an operator. ``place`` orders its inputs or outputs; ``file`` is under the dump's root."""

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


Files = dict[str, list[TensorFile]]


def torch_files(root: Path, token: str) -> Files:
    """Files of one token by module folder."""
    found: Files = {}
    top = _Folder(root, token)
    for folder in top.listed()[0]:
        files = []
        for name, linked in top.listed(folder)[1]:
            match = _TORCH.fullmatch(name)
            if match is not None:
                files.append(TensorFile(match["io"], _place(match["place"]), f"{token}/{folder}/{name}", linked))
        found[folder] = _sorted(files)
    return found


def atb_files(root: Path, round_folder: str) -> Files:
    """Files of one execution round by operator folder."""
    found: Files = {}
    top = _Folder(root, round_folder)
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        below = top.listed(folder)[0]
        if folder:
            found[folder] = _operator_files(top, round_folder, folder, below)
        if depth < _DEEPEST:
            front = f"{folder}/" if folder else ""
            waiting.extend((front + name, depth + 1) for name in below if _OPERATOR.fullmatch(name))
    return found


def _operator_files(top: _Folder, round_folder: str, folder: str, below: list[str]) -> list[TensorFile]:
    """Inputs from ``before``, outputs from ``after``; what one of them lacks is taken from the other."""
    kept: dict[tuple[str, int], TensorFile] = {}
    for when in ("before", "after"):
        if when not in below:
            continue
        for name, linked in top.listed(f"{folder}/{when}")[1]:
            match = _ATB.fullmatch(name)
            if match is None:
                continue
            io = INPUT if match["io"] == "in" else OUTPUT
            key = (io, int(match["place"]))
            if key not in kept or (io == OUTPUT) == (when == "after"):
                kept[key] = TensorFile(io, (key[1],), f"{round_folder}/{folder}/{when}/{name}", linked)
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


def _sorted(files: list[TensorFile]) -> list[TensorFile]:
    return sorted(files, key=lambda file: (file.io, file.order))


class _Folder:
    """A folder whose subfolders are listed by the thousand: on this machine their paths are put together as texts."""

    def __init__(self, root: Path, name: str) -> None:
        self._path = root / name
        self._text = None if remote(root) is not None else str(self._path)
        expect_all(self._path)

    def listed(self, name: str = "") -> tuple[list[str], list[tuple[str, bool]]]:
        """The folders in a folder, and all else with whether it is a link; links to folders are not followed."""
        folders: list[str] = []
        others: list[tuple[str, bool]] = []
        try:
            with scan(self._path / name) if self._text is None else os.scandir(f"{self._text}/{name}") as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.name)
                        others.append((entry.name, False))  # named like a tensor it is a damaged one
                    else:
                        others.append((entry.name, entry.is_symlink()))
        except OSError:
            return [], []
        return sorted(folders), sorted(others)
