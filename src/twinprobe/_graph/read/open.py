"""The graph files of a folder, ours and others', `.vis` and `.vis.db`, each opened the same way."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from twinprobe._graph.read.db import Config, Graph, GraphFile
from twinprobe._graph.read.json import index_of, write_index
from twinprobe._runs.remote.contents import fetch
from twinprobe._runs.whole_files import remote
from twinprobe.errors import BadInput, TwinProbeError

_GRAPHS = (".vis", ".vis.db")
_DEEPEST, _MOST_ENTRIES = 6, 50_000
_BYTE = re.compile(r"\\u(dc[89a-f][0-9a-f])")
_PART = re.compile(r"^(build|compare)(?:_step(\d{1,9}))?(?:_rank(\d{1,9}))?_(\d+)\.vis$")


@dataclass(frozen=True)
class Source:
    """One thing to open: a `.vis.db`, a `.vis`, or the `.vis` files of all ranks and steps that one command wrote.

    ``id`` is its path in the folder as text: bytes of a name that are no UTF-8 are spelled ``\\udcff``.
    """

    id: str
    paths: dict[tuple[int, int], Path] = field(repr=False)
    modified: float
    size: int

    @property
    def is_db(self) -> bool:
        """Whether this is one database for all ranks and steps."""
        return self.id.endswith(".db")

    @property
    def path(self) -> Path:
        """The file, or the first of the files."""
        return next(iter(self.paths.values()))


class IndexingError(TwinProbeError):
    """A JSON file is being put into a database; ``done`` is the share that is finished."""

    def __init__(self, source: str, done: float) -> None:
        super().__init__("is being indexed", where=source, hint=f"{done:.0%} done")
        self.done = done


def find_graphs(place: Path) -> list[Source]:
    """The graph files under a folder (or the one file given), newest first; nothing outside of the folder."""
    if place.is_file():
        return [_source(_spelled(place.name), {(0, 0): place})]
    return sorted(_grouped(place, _walk(place)), key=lambda source: (-source.modified, source.id))


def find_graph(place: Path, wanted: str) -> Source | None:
    """One of these files by its id, without looking through the other folders."""
    if place.is_file():
        return next((source for source in find_graphs(place) if source.id == wanted), None)
    parts = wanted.split("/")
    if len(parts) > _DEEPEST + 1 or any(not part or part.startswith(".") or "\0" in part for part in parts):
        return None
    root, above = place.resolve(), parts[:-1]
    if not place.joinpath(*above).is_dir():
        above = [_BYTE.sub(lambda match: chr(int(match[1], 16)), part) for part in above]
    folder = place.joinpath(*above)
    if not folder.is_dir() or folder.resolve() != root.joinpath(*above):
        return None
    here = _grouped(place, _walk(place, folder.resolve(), deepest=0))
    return next((source for source in here if source.id == wanted), None)


def has_graphs(place: Path) -> bool:
    """Whether there is anything to show; stops at the first file found."""
    return next(_walk(place), None) is not None if place.is_dir() else place.is_file()


@contextmanager
def open_graph(source: Source, step: int | None = None, rank: int | None = None) -> Iterator[tuple[Config, Graph]]:
    """Open one graph of a source: its configuration and its rows. None takes the first step or rank."""
    if source.is_db:
        with GraphFile(source.path) as file:
            config = file.config()
            yield config, file.graph(_chosen(step, config.steps, "step"), _chosen(rank, config.ranks, "rank"))
        return
    steps, ranks = (sorted({key[part] for key in source.paths}) for part in (0, 1))
    key = (_chosen(step, steps, "step"), _chosen(rank, ranks, "rank"))
    if key not in source.paths:
        raise BadInput(f"there is no file for step {key[0]}, rank {key[1]}", where=source.id)
    path = source.paths[key]
    with GraphFile(_indexed(path), shown=path) as file:
        config = file.config()
        summary = {key: config.summary[0, 0]} if (0, 0) in config.summary else {}
        yield replace(config, steps=steps, ranks=ranks, summary=summary), file.graph(0, 0)


def _chosen(number: int | None, known: list[int], what: str) -> int:
    if number is None:
        return known[0]
    if number not in known:
        raise BadInput(f"there is no {what} {number} in this file", hint=f"it has {', '.join(map(str, known[:20]))}")
    return number


def _grouped(place: Path, paths: Iterable[Path]) -> list[Source]:
    """Files of several ranks and steps that one command wrote are one thing to open."""
    sources: dict[str, dict[tuple[int, int], Path]] = {}
    for path in paths:
        folder = path.parent.relative_to(place).as_posix()
        part = _PART.match(path.name)
        name, key = path.name, (0, 0)
        if part and (part[2] or part[3]):
            name, key = f"{part[1]}_{part[4]}.vis", (int(part[2] or 0), int(part[3] or 0))
        sources.setdefault(_spelled(name if folder == "." else f"{folder}/{name}"), {})[key] = path
    return [_source(id_, ranks) for id_, ranks in sources.items()]


def _spelled(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def _walk(place: Path, start: Path | None = None, *, deepest: int = _DEEPEST) -> Iterator[Path]:
    """Graph files in breadth-first order, bounded: a folder of logs may be huge, and links may lead anywhere."""
    root = place.resolve()
    folders, seen = [(start or root, 0)], 0
    while folders:
        folder, depth = folders.pop(0)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen > _MOST_ENTRIES:
                return
            try:
                if entry.is_dir(follow_symlinks=False):
                    if depth < deepest and not entry.name.startswith("."):
                        folders.append((Path(entry.path), depth + 1))
                elif _is_graph(entry, root):
                    yield place / Path(entry.path).relative_to(root)
            except OSError:
                continue


def _is_graph(entry: os.DirEntry[str], root: Path) -> bool:
    if not entry.name.endswith(_GRAPHS) or entry.name.startswith(".") or not entry.is_file():
        return False
    return not entry.is_symlink() or Path(entry.path).resolve().is_relative_to(root)


def _source(id_: str, paths: dict[tuple[int, int], Path]) -> Source:
    modified, size = 0.0, 0
    for path in paths.values():
        try:
            status = path.stat()
        except OSError:
            continue
        modified, size = max(modified, status.st_mtime), size + status.st_size
    return Source(id_, dict(sorted(paths.items())), modified, size)


_jobs: dict[Path, _Job] = {}
_lock = threading.Lock()
_PATIENCE = 1.0  # seconds: a file that takes no longer is opened without a word


class _Job(threading.Thread):
    """Puts one file into a database, beside the requests that ask how far it is."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True, name=f"index {path.name}")
        self.path = path
        self.done = 0.0
        self.error: TwinProbeError | None = None

    def run(self) -> None:
        try:
            write_index(self.path, partial(setattr, self, "done"))
        except TwinProbeError as error:
            self.error = error
        except Exception as error:
            self.error = BadInput(f"cannot be read: {error!r}", where=self.path)


def _indexed(path: Path) -> Path:
    try:
        index = index_of(path)
    except OSError as error:
        raise BadInput(f"cannot be opened: {error.strerror}", where=path) from error
    if index.exists():
        with suppress(OSError):
            os.utime(index)  # still in use: what nobody opens for a month is deleted
        return index
    with _lock:
        job = _jobs.get(index)
        if job is None:
            job = _jobs[index] = _Job(path)
            job.start()
    job.join(_PATIENCE)
    if job.is_alive():
        raise IndexingError(path.name, job.done)
    with _lock:
        _jobs.pop(index, None)
    if job.error is not None:
        raise job.error
    return index


@contextmanager
def graphs_here(place: Path) -> Iterator[Path]:
    """The place itself where it is local; else a copy of its graph files, and nothing else, while it is needed.

    SQLite reads none but local files.
    """
    elsewhere = remote(place)
    if elsewhere is None or not elsewhere.exists():
        yield place
        return
    with TemporaryDirectory(prefix="twinprobe-view-") as folder:
        if elsewhere.is_file():
            copy = Path(folder, elsewhere.name)
            fetch(elsewhere, copy)
            yield copy
            return
        for path in elsewhere.rglob("*"):
            if path.name.endswith(_GRAPHS) and path.is_file():
                copy = Path(folder, *path.relative_to(elsewhere).parts)
                copy.parent.mkdir(parents=True, exist_ok=True)
                fetch(path, copy)
        yield Path(folder)
