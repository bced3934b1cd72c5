"""The files of one dump folder, written so that a killed process leaves a readable dump."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

PART_SUFFIX = ".part"
TENSOR_FOLDER = "dump_tensor_data"
_LONGEST_NAME = 200
_DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG, errno.ENOTDIR}
)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": "), default=str).encode

SaveTensor = Callable[[Any, IO[bytes]], None]


class DumpFolder:
    """One ``step<N>/rank<R>`` folder. The index grows as ``<index>.json.part``, one JSON object per line, and is
    closed into ``<index>.json``; every file gets a temporary name first. Used by the writer thread only.
    """

    def __init__(self, path: Path, header: dict[str, Any], *, index: str = "dump") -> None:
        self.path = path
        self.header = header
        self.index = index
        self.bytes_written = 0
        self.entries = 0
        self._file: IO[bytes] | None = None
        self._taken: set[str] = set()

    @property
    def part(self) -> Path:
        return self.path / f"{self.index}.json{PART_SUFFIX}"

    def open(self) -> None:
        """Create the folder and the index with its header line."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._file = self.part.open("wb", buffering=1 << 16)
        self._file.write(_line(self.header))
        self._file.flush()

    def add(self, name: str, text: str) -> None:
        """Append one entry, given as JSON text, to the index."""
        if self._file is None:
            self.open()
        assert self._file is not None
        self._file.write(f"{{{_encode(name)}: {text}}}\n".encode("utf-8", "backslashreplace"))
        self.entries += 1

    def reopen(self) -> None:
        """Go on with a closed index: the same step was started again."""
        target = self.path / f"{self.index}.json"
        with target.open("rb") as closed, self.part.open("wb") as part:
            part.write(_line(self.header))
            for line in closed:
                if line.startswith(b"  "):
                    part.write(b"{" + line[2:].rstrip(b"\n").removesuffix(b",") + b"}\n")
        self._file = self.part.open("ab", buffering=1 << 16)

    def flush(self) -> None:
        """Hand what was added to the system, where it outlives this process."""
        if self._file is not None:
            self._file.flush()

    def tensor(self, name: str, suffix: str, payload: Any, save: SaveTensor) -> str:
        """Write one tensor file and return its name inside the tensor folder."""
        file = self.file_name(name, suffix)
        self._tensor_folder()
        target = self.path / TENSOR_FOLDER / file
        with _replacing(target) as stream:
            save(payload, stream)
        self.bytes_written += target.stat().st_size
        return file

    def same_tensor(self, name: str, suffix: str, earlier: str) -> str:
        """The same bytes under another name: a hard link where the file system has them, else a copy."""
        file = self.file_name(name, suffix)
        folder = self.path / TENSOR_FOLDER
        try:
            os.link(folder / earlier, folder / file)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EROFS, errno.EDQUOT}:
                raise
            temporary = folder / f".{file}.tmp"
            shutil.copyfile(folder / earlier, temporary)
            temporary.replace(folder / file)
            self.bytes_written += (folder / file).stat().st_size
        return file

    def close(self, side_files: dict[str, Any]) -> None:
        """Turn the index into its final form and write stack.json and construct.json beside it."""
        if self._file is None:
            self.open()
        assert self._file is not None
        self._file.close()
        for name, content in side_files.items():
            self._side_file(name, content)
        target = self.path / f"{self.index}.json"
        with self.part.open("rb") as lines, _replacing(target) as stream:
            _close_index(lines, stream)
        self.part.unlink()
        self.bytes_written += target.stat().st_size

    def abandon(self) -> None:
        """Close the file handle and leave what is there."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self._file = None

    def file_name(self, name: str, suffix: str) -> str:
        """A file name that every file system takes and that no other tensor of this folder has."""
        safe = "".join("_" if char in '/\\\0:*?"<>|' else char for char in name)
        if len(safe.encode()) > _LONGEST_NAME:
            digest = hashlib.sha1(name.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:12]
            safe = f"{safe.encode()[: _LONGEST_NAME - 13].decode('utf-8', 'ignore')}.{digest}"
        file = f"{safe}{suffix}"
        count = 1
        while file in self._taken:
            file = f"{safe}~{count}{suffix}"
            count += 1
        self._taken.add(file)
        return file

    def _tensor_folder(self) -> None:
        (self.path / TENSOR_FOLDER).mkdir(parents=True, exist_ok=True)

    def _side_file(self, name: str, content: Any) -> None:
        target = self.path / f"{name}.json"
        with _replacing(target) as stream:
            stream.write(_one_per_line(content).encode("utf-8", "backslashreplace"))
        self.bytes_written += target.stat().st_size


class _replacing:  # noqa: N801  used as a function: `with _replacing(target) as stream`
    """Write under a temporary name in the same folder; rename when all went well."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._temporary = target.with_name(f".{target.name}.tmp")

    def __enter__(self) -> IO[bytes]:
        self._stream = self._temporary.open("wb")
        return self._stream

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stream.close()
        if kind is None:
            self._temporary.replace(self._target)
        else:
            self._temporary.unlink(missing_ok=True)


def is_disk_error(error: BaseException) -> bool:
    """Whether the disk is full, read-only or forbidden: recording cannot go on, the training can."""
    return isinstance(error, OSError) and error.errno in _DISK_ERRORS


def _line(content: dict[str, Any]) -> bytes:
    return _encode(content).encode("utf-8", "backslashreplace") + b"\n"


def _one_per_line(content: dict[str, Any]) -> str:
    lines = [f" {_encode(key)}: {_encode(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n" if lines else "{}\n"


def _close_index(lines: IO[bytes], stream: IO[bytes]) -> None:
    header = json.loads(next(lines))
    stream.write(b"{\n")
    for key, value in header.items():
        stream.write(f' "{key}": {_encode(value)},\n'.encode())
    stream.write(b' "data": {')
    separator = b"\n  "
    for line in lines:
        stream.write(separator + line.rstrip(b"\n")[1:-1])
        separator = b",\n  "
    stream.write(b"\n }\n}\n")
