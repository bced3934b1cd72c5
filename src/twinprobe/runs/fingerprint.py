"""What a recorded run holds, in a few bytes: equal fingerprints mean equal content, whatever the dates say."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from twinprobe.runs.places import remote
from twinprobe.runs.remote.marks import marks_below, version_of
from twinprobe.runs.whole_file import open_file

_CHUNK = 1 << 20
# A larger tensor file counts with its size, its beginning, its middle and its end. The end of a .pt file is its zip
# directory with the checksum of the data, and the statistics of every tensor stand in dump.json, which counts whole.
_SAMPLE = 4096
_WHOLE = 16 * _SAMPLE
_BESIDE = ("stack.json", "construct.json")
_TENSORS = "dump_tensor_data"


def run_fingerprint(path: Path) -> str:
    """The fingerprint of the run whose dump.json, debug.json or ``.part`` this is, with its tensor files."""
    elsewhere = remote(path)
    if elsewhere is not None:
        marks = marks_below(elsewhere.parent)
        return _of_marks(marks, [name for name in marks if name.partition("/")[0] in (path.name, *_BESIDE, _TENSORS)])
    digest = hashlib.sha256()
    for file in (path, *(path.parent / name for name in _BESIDE)):
        digest.update(_whole(file))
    for file in files_below(path.parent / _TENSORS):
        digest.update(f"{file.name}\0".encode("utf-8", "surrogateescape") + _sampled(file))
    return digest.hexdigest()


def whole_fingerprint(files: Sequence[Path]) -> str:
    """The fingerprint of these files, in their order; every byte counts."""
    digest = hashlib.sha256()
    for file in files:
        elsewhere = remote(file)
        digest.update(_whole(file) if elsewhere is None else repr(version_of(elsewhere)).encode())
    return digest.hexdigest()


def files_fingerprint(folder: Path, files: Iterator[Path] | list[Path]) -> str:
    """The fingerprint of these files, named relative to a folder; the large ones count by samples."""
    elsewhere = remote(folder)
    if elsewhere is not None:
        return _of_marks(marks_below(elsewhere), [file.relative_to(folder).as_posix() for file in files])
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.fsencode(str(file.relative_to(folder))) + b"\0" + _sampled(file))
    return digest.hexdigest()


def files_below(folder: Path) -> list[Path]:
    """The files of a folder and of those in it, in the order of their names; none where there is no such folder."""
    try:
        return sorted(path for path in folder.rglob("*") if path.is_file())
    except OSError:
        return []


def state_of(path: Path) -> tuple[int, int] | None:
    """Size and time of a file: whether it changes while it is read. None where it is not there."""
    elsewhere = remote(path)
    if elsewhere is not None:
        return version_of(elsewhere)
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, getattr(found, "st_mtime_ns", 0)


def _of_marks(marks: dict[str, str], names: list[str]) -> str:
    """What a storage says about these files stands for their content: checksums, or times where it has none."""
    return hashlib.sha256(repr([(name, marks.get(name)) for name in names]).encode()).hexdigest()


def _whole(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        with open_file(path) as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
    except OSError:
        return b"missing"
    return digest.digest()


def _sampled(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        size = path.stat().st_size
        with open_file(path) as file:
            if size <= _WHOLE:
                digest.update(file.read(_WHOLE))
            else:
                for at in (0, size // 2, size - _SAMPLE):
                    file.seek(at)
                    digest.update(file.read(_SAMPLE))
    except OSError:
        return b"missing"
    return size.to_bytes(8, "little") + digest.digest()
