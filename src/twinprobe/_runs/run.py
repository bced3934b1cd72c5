"""A Run: one execution of one model on one rank at one step, as it lies on disk."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from twinprobe._lazy import polars as pl
from twinprobe._notebook import card
from twinprobe._runs.dump_json import REST_LOST, Stacks, read_document, read_entries, read_parents, read_stacks
from twinprobe._runs.names import NAMES_KEPT, OpName, parse_op
from twinprobe._runs.remote.path import marks_below, version_of
from twinprobe._runs.sketches import SUFFIX, SUMMARIES, Sketches, read_file, sketches_of
from twinprobe._runs.table import build_table
from twinprobe._runs.whole_files import open_file, remote
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from twinprobe._runs.tensors.elements import HostTensor
    from twinprobe._runs.tensors.foreign import Content


DUMP, DEBUG, PART = "dump.json", "debug.json", "dump.json.part"
DEBUG_PART = "debug.json.part"
RUN_FILES = (DUMP, PART, DEBUG, DEBUG_PART)
OPTIMIZER_FILE = "optimizer.json"  # what optimizers saw and did, in the same grammar
TENSOR_FOLDER = "dump_tensor_data"
WHOLE = "[whole]"  # what stands for a tensor's file begins so where the pieces of several ranks make the tensor

# The three ways two runs can be measured against each other.
STATISTICS, TENSORS, DIGESTS = "statistics", "tensor", "md5"


@dataclass(repr=False)
class Run:
    """What one dump.json or debug.json holds. No tensor is read until it is measured."""

    path: Path
    task: str
    level: str
    framework: str
    ops: list[str]
    table: pl.DataFrame
    notes: list[str]
    sketch_file: Path | None = field(default=None, kw_only=True)
    """Where the sketches of its tensors are; None for a run that was put together from others."""
    recorded: Run | None = field(default=None, kw_only=True)
    """The run as its file has it, where calls were left out or renamed: its values have the same names."""
    kept: NDArray[np.int64] | None = field(default=None, kw_only=True)
    """The rows that its table has of the recorded one's, where calls were left out; None for all."""
    settings: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """What changes the rounding of results, as far as the recorder wrote it down: ``tf32_matmul``, ``threads``, ..."""
    # Of data that no recorder of TwinProbe wrote: a checkpoint, arrays, another tool's dump.
    content: Content | None = field(default=None, kw_only=True)
    arrangement: str = field(default="", kw_only=True)
    """How its ranks are laid out, where it is made of the runs of several."""

    def __repr__(self) -> str:
        facts = (self.framework, self.task, self.level, f"{len(self.ops):,} calls", f"{self.table.height:,} values")
        return f"<Run {self.path}: {', '.join(fact for fact in facts if fact)}>"

    def _repr_html_(self) -> str:
        facts = {"framework": self.framework, "task": self.task, "level": self.level, "calls": f"{len(self.ops):,}",
                 "values": f"{self.table.height:,}"}  # fmt: skip
        return card(f"run {self.path}", [*facts.items(), *(("note", note) for note in self.notes[:3])])

    @property
    def folder(self) -> Path:
        """Where the dump lies."""
        return self.path.parent

    @cached_property
    def step(self) -> int:
        """The number of its step, by the folders it lies in; -1 where they do not say."""
        numbers = (match[1] for part in reversed(self.path.parts[:-1]) if (match := _STEP.fullmatch(part)))
        return int(next(numbers, -1))

    @property
    def tensor_folder(self) -> Path:
        """Where the dump's tensor files lie, whatever path the recorder wrote into the header."""
        return self.folder / TENSOR_FOLDER if self.content is None else self.content.tensors

    @property
    def in_memory(self) -> bool:
        """Whether its tensors lie in memory, and in no folder."""
        return False

    def load(self, name: str) -> HostTensor:
        """The tensor that the column ``file`` of the table names."""
        from twinprobe._runs.tensors.tensor_files import open_named

        return open_named(self.tensor_folder, name)

    @cached_property
    def single_points(self) -> bool:
        """Whether these are values without calls: a debug.json, a checkpoint, or sketches of one."""
        without_calls = self.content is not None and not self.content.has_calls
        return self.path.name.startswith("debug") or self.path.suffix == SUFFIX or without_calls

    @cached_property
    def mode(self) -> str:
        """How the run was recorded: statistics, tensor or md5 (any checksum)."""
        if self.task == TENSORS:
            return TENSORS
        has_digest = self.table["digest"].null_count() < self.table.height
        return DIGESTS if has_digest else STATISTICS

    @cached_property
    def op_names(self) -> list[OpName]:
        """The names of its calls, taken apart."""
        parse = parse_op if len(self.ops) <= NAMES_KEPT else parse_op.__wrapped__  # remembering so many costs only
        return [parse(name) for name in self.ops]

    @cached_property
    def stacks(self) -> Stacks:
        """Call sites of the calls; empty where none were recorded."""
        if self.content is not None:
            return Stacks()
        stacks, note = read_stacks(self.folder / "stack.json")
        if note:
            self.notes.append(note)
        return stacks

    @cached_property
    def parents(self) -> dict[str, str | None]:
        """The enclosing module call of each call; empty where no hierarchy was recorded."""
        if self.content is not None:
            return self.content.parents
        parents, note = read_parents(self.folder / "construct.json")
        if note:
            self.notes.append(note)
        return parents

    @cached_property
    def sketches(self) -> Sketches | None:
        """The sketches of its tensors, by the rows of the table; None where none were recorded."""
        if self.sketch_file is None:
            return None
        if self.kept is not None and self.recorded is not None:
            found = self.recorded.sketches
            return None if found is None else Sketches(found.rows, found.index[self.kept])
        damaged = any(note.endswith(REST_LOST) for note in self.notes)
        return sketches_of(self.sketch_file, self.table, damaged=damaged)


def open_run(path: Path) -> Run:
    """Read a dump.json, debug.json or dump.json.part, or the one that lies in a folder."""
    path = find_run(path)
    alone = path.suffix == SUFFIX  # sketches with the names of their tensors
    if alone:
        document = read_file(path)[2]
        if not document:
            raise BadInput("names no tensors", where=path, hint="give the dump.json next to it instead")
        entries = read_document(path, document)
    elif path.name not in (*RUN_FILES, OPTIMIZER_FILE):
        return _open_foreign(path)
    else:
        entries = read_entries(path)
    task = entries.header["task"]
    if not task:
        raise BadInput('has no "task"', where=path, hint='expected "statistics" or "tensor"')
    if task not in (STATISTICS, TENSORS, "structure"):
        raise BadInput(f'"task" is {task!r}', where=path, hint="statistics and tensor runs can be compared")
    if task == "structure":
        raise NothingToCompare("holds no values: nothing to compare", where=path)
    ops, table, left_out = build_table(path, entries, single_points=alone or path.name.startswith("debug"))
    notes = list(entries.notes)
    framework: Any = entries.header["framework"]
    if not framework:
        notes.append(f"{path}: no framework is named; pytorch is assumed")
        framework = "pytorch"
    if not table.height:
        raise NothingToCompare("holds no values: nothing to compare", where=path)
    level = entries.header["level"] or ""
    # dump.json has dump.sketch beside it, and dump.json.part of a killed process dump.sketch.part
    beside = path if alone else path.with_name(path.name.replace(".json", SUFFIX))
    sketches = beside if alone or beside.is_file() else None
    settings = entries.header["settings"]
    return Run(path, task, level, framework, ops, table, notes + left_out, sketch_file=sketches, settings=settings)


def _open_foreign(path: Path) -> Run:
    from twinprobe._runs.other_tools import read_foreign

    try:
        content = read_foreign(path)
    except DamagedTensor as error:
        raise BadInput(error.what, where=error.where or path, hint=error.hint) from error
    facts = content.task, content.level, content.framework
    return Run(path, *facts, content.ops, content.table, content.notes, content=content)


def find_run(path: Path) -> Path:
    """The file of a run: the path itself, or the dump that lies in this folder."""
    if path.is_dir():
        for name in RUN_FILES:
            if (path / name).is_file():
                return path / name
    elif not path.exists():
        raise BadInput("does not exist", where=path)
    elif path.name in (*RUN_FILES, OPTIMIZER_FILE) or path.suffix == SUFFIX:
        return path
    from twinprobe._runs.other_tools import is_foreign

    if is_foreign(path):
        return path
    if path.is_dir():
        raise BadInput("holds neither dump.json nor debug.json", where=path)
    raise BadInput(
        "is neither dump.json nor debug.json", where=path, hint="give the dump.json of a run, or a folder above it"
    )


# A RunSet: the runs under a folder, keyed by graph mode, step and rank.

# step0/rank0, or step_0/rank_0 as PaDiff has them.
_STEP = re.compile(r"step_?(0|[1-9]\d*)")
_RANK = re.compile(r"rank_?(0|[1-9]\d*)?")
_PROC = re.compile(r"proc(\d+)")
GRAPH_MODES = ("graph", "pynative")


@dataclass(frozen=True, slots=True, order=True)
class RunKey:
    """Which run of a set: the graph mode ("" where there is none), the step, the rank; -1 where not numbered."""

    graph_mode: str
    step: int
    rank: int

    @property
    def subfolder(self) -> Path:
        """Where results of this step go, below the output folder."""
        return Path(self.graph_mode, f"step{self.step}" if self.step >= 0 else "")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One rank's (or process's) folder and the run files in it."""

    key: RunKey
    path: Path
    by_process: bool

    @property
    def label(self) -> str:
        """The name that results carry: rank0, rank or proc1234."""
        return self.path.name.replace("rank_", "rank")

    def files(self) -> list[Path]:
        """dump.json and debug.json of this rank, or the unfinished form where only that exists."""
        kinds = ((DUMP, PART), (DEBUG, DEBUG_PART))
        paths = (next((self.path / name for name in names if (self.path / name).is_file()), None) for names in kinds)
        return [path for path in paths if path is not None]


def run_folders(root: Path) -> list[RunFolder]:
    """All runs under a step folder, a dump folder with steps, or a folder with graph/ and pynative/."""
    folders = sorted(_walk(root), key=lambda folder: (folder.key, folder.path.name))
    if not folders:
        raise BadInput(
            "holds no recorded run",
            where=root, hint="expected dump.json, or rank*/proc* folders, or step* folders with them",
        )  # fmt: skip
    return folders


def _walk(root: Path) -> Iterator[RunFolder]:
    for mode in [mode for mode in GRAPH_MODES if (root / mode).is_dir()] or [""]:
        children = _folders(root / mode)
        steps = [(int(match[1]), child) for child in children if (match := _STEP.fullmatch(child.name))]
        if not steps:
            yield from _ranks(children, mode, -1)
        for number, step in sorted(steps):
            yield from _ranks(_folders(step), mode, number)


def _ranks(children: list[Path], mode: str, step: int) -> Iterator[RunFolder]:
    """The folders of ranks; where there is none, those of processes."""
    for pattern in (_RANK, _PROC):
        matches = [(match, child) for child in children if (match := pattern.fullmatch(child.name))]
        for match, child in matches:
            yield RunFolder(RunKey(mode, step, int(match[1] or -1)), child, by_process=pattern is _PROC)
        if matches:
            return


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(child for child in root.iterdir() if child.is_dir())
    except OSError as error:
        raise BadInput(f"cannot be listed: {error.strerror}", where=root) from error


# What a recorded run holds, in a few bytes: equal fingerprints mean equal content, whatever the dates say.

_CHUNK = 1 << 20
# A larger tensor file counts with its size, its beginning, its middle and its end. The end of a .pt file is its zip
# directory with the checksum of the data, and the statistics of every tensor stand in dump.json, which counts whole.
_SAMPLE = 4096
_WHOLE = 16 * _SAMPLE
_BESIDE = ("stack.json", "construct.json", OPTIMIZER_FILE, f"dump{SUFFIX}", f"debug{SUFFIX}")
_SUMMARIES = tuple(f"{name}{SUMMARIES}" for name in ("dump", "debug"))


def run_fingerprint(path: Path) -> str:
    """The fingerprint of the run whose dump.json, debug.json or ``.part`` this is, with its tensor files."""
    elsewhere = remote(path)
    if elsewhere is not None:
        marks, counted = marks_below(elsewhere.parent), (path.name, *_BESIDE, *_SUMMARIES, TENSOR_FOLDER)
        return _of_marks(marks, [name for name in marks if name.partition("/")[0] in counted])
    if path.is_dir():
        return files_fingerprint(path, files_below(path))
    digest = hashlib.sha256()
    for file in (path, *(path.parent / name for name in _BESIDE)):
        digest.update(_whole(file))
    for file in (*(path.parent / name for name in _SUMMARIES), *files_below(path.parent / TENSOR_FOLDER)):
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
        status = path.stat()
    except OSError:
        return None
    return status.st_size, getattr(status, "st_mtime_ns", 0)


@contextmanager
def unchanged(*runs: Path) -> Iterator[None]:
    """Raise BadInput if the file of one of these runs changes meanwhile: its recorder is still at work."""
    files = [find_run(run) if run.is_dir() else run for run in runs]
    before = [state_of(file) for file in files]
    yield
    for file, state in zip(files, before, strict=True):
        if state_of(file) != state:
            raise BadInput(
                "changed while it was read: it is still being written",
                where=file, hint="compare this rank once its recorder has ended; --resume adds what is missing",
            )  # fmt: skip


def _of_marks(marks: dict[str, str], names: list[str]) -> str:
    """A fingerprint of what a storage reports about these files: checksums, or times where it has none."""
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
                for start in (0, size // 2, size - _SAMPLE):
                    file.seek(start)
                    digest.update(file.read(_SAMPLE))
    except OSError:
        return b"missing"
    return size.to_bytes(8, "little") + digest.digest()


# A run that one process has read, handed over to another without reading it again.


def hand_over(run: Run, file: IO[bytes]) -> None:
    """Write a run for ``take_over``; the file lives no longer than the two processes."""
    blob = pickle.dumps(replace(run, table=run.table.clear()))
    file.write(len(blob).to_bytes(8, "little") + blob)
    run.table.write_ipc(file, compression="uncompressed")


def take_over(file: IO[bytes]) -> Run:
    """The run that ``hand_over`` wrote."""
    run: Run = pickle.loads(file.read(int.from_bytes(file.read(8), "little")))
    run.table = pl.read_ipc(file.read())
    return run
