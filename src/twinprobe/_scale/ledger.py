"""What a long command has finished, so that ``--resume`` goes on from there. Recognised by content, not by date."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from twinprobe._runs.whole_files import open_file, place, remove_tree, whole_file, write_whole

FOLDER = ".twinprobe"
_COMMAND = "command.json"
_STAMP = re.compile(r"\d{14}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]")

_held: list[IO[bytes]] = []  # the locks of this process


@dataclass(frozen=True)
class Session:
    """One command's notes: a record per finished piece, under the command's timestamp."""

    folder: Path
    stamp: str
    resumed: bool = False

    def recall(self, name: str, fingerprint: str) -> Any | None:
        """What was kept of a piece, if its inputs are the same and its files are still there."""
        if not self.resumed:
            return None
        try:
            record = json.loads(whole_file(self._record(name)))
            same = record["fingerprint"] == fingerprint
            whole = all(place(path).stat().st_size == size for path, size in record["files"])
            return record["kept"] if same and whole else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, name: str, fingerprint: str, kept: Any, files: list[Path]) -> None:
        """Note that a piece is finished and which files it wrote."""
        sizes = [(str(file), file.stat().st_size) for file in files]
        record = {"fingerprint": fingerprint, "files": sizes, "kept": kept}
        _write(self._record(name), json.dumps(record))

    def work_folder(self, name: str, fingerprint: str) -> Path:
        """A folder for what a piece has half done; other inputs have another folder."""
        folder = self.folder / "work" / f"{_safe(name)}-{fingerprint[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def end(self, *, keep: bool) -> None:
        """Remove what is half done, which nobody needs any more; without ``keep`` the records as well."""
        remove_tree(self.folder / "work" if keep else self.folder)
        if not keep:
            with suppress(OSError):
                self.folder.parent.rmdir()  # stays where other commands have notes in it

    def _record(self, name: str) -> Path:
        return self.folder / "done" / f"{_safe(name)}.json"


@contextmanager
def new_session(output: Path, stamp: str, command: str) -> Iterator[Session]:
    """Begin a command's notes in its output folder."""
    folder = output / FOLDER / stamp
    for _ in range(3):  # another command may be clearing its own notes away at this moment
        with suppress(FileNotFoundError):
            (folder / "done").mkdir(parents=True, exist_ok=True)
            break
    _write(folder / _COMMAND, json.dumps({"command": command}))
    with _locked(folder / _COMMAND):
        yield Session(folder, stamp)


@contextmanager
def earlier_session(output: Path, command: str) -> Iterator[Session | None]:
    """The newest notes that the same command has left here and that no running command uses; None where none are."""
    for folder in sorted(_sessions(output), reverse=True):
        try:
            same = json.loads(whole_file(folder / _COMMAND))["command"] == command
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if same:
            with _locked(folder / _COMMAND) as free:
                if free:
                    yield Session(folder, folder.name, resumed=True)
                    return
    yield None


def _sessions(output: Path) -> list[Path]:
    try:
        return [path for path in (output / FOLDER).iterdir() if _STAMP.fullmatch(path.name)]
    except OSError:
        return []


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a lock as long as the command runs; False where another one holds it. The system frees a dead one's."""
    try:
        import fcntl

        handle = open_file(path)
    except (ImportError, OSError):
        yield True
        return
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except (OSError, ValueError, AttributeError):  # a store without locks
            yield True
            return
        _held.append(handle)
        try:
            yield True
        finally:
            _held.remove(handle)


def _let_go() -> None:
    """In a forked worker: only the command itself keeps its lock."""
    while _held:
        _held.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda place: place.write_text(text, encoding="utf-8"))


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)[:150]
