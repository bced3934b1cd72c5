"""A Run: one execution of one model on one rank at one step, as it lies on disk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinprobe.errors import BadInput, NothingToCompare
from twinprobe.runs.construct import read_parents
from twinprobe.runs.dump_json import read_entries
from twinprobe.runs.stacks import Stacks, read_stacks
from twinprobe.runs.walk import build_table

if TYPE_CHECKING:
    import polars as pl

DUMP, DEBUG, PART = "dump.json", "debug.json", "dump.json.part"
DEBUG_PART = "debug.json.part"
RUN_FILES = (DUMP, PART, DEBUG, DEBUG_PART)
TENSOR_FOLDER = "dump_tensor_data"

# The three ways two runs can be measured against each other.
STATISTICS, TENSORS, DIGESTS = "statistics", "tensor", "md5"


@dataclass
class Run:
    """What one dump.json or debug.json holds. No tensor is read until it is measured."""

    path: Path
    task: str
    level: str
    framework: str
    ops: list[str]
    table: pl.DataFrame
    notes: list[str]

    @property
    def folder(self) -> Path:
        """Where the dump lies."""
        return self.path.parent

    @property
    def tensor_folder(self) -> Path:
        """Where the dump's tensor files lie, whatever path the recorder wrote into the header."""
        return self.folder / TENSOR_FOLDER

    @property
    def single_points(self) -> bool:
        """Whether this is a debug.json: values saved by hand, not calls."""
        return self.path.name.startswith("debug")

    @cached_property
    def mode(self) -> str:
        """How the run was recorded: statistics, tensor or md5 (any checksum)."""
        if self.task == TENSORS:
            return TENSORS
        has_digest = self.table["digest"].null_count() < self.table.height
        return DIGESTS if has_digest else STATISTICS

    @cached_property
    def stacks(self) -> Stacks:
        """Call sites of the calls; empty where none were recorded."""
        stacks, note = read_stacks(self.folder / "stack.json")
        if note:
            self.notes.append(note)
        return stacks

    @cached_property
    def parents(self) -> dict[str, str | None]:
        """The enclosing module call of each call; empty where no hierarchy was recorded."""
        parents, note = read_parents(self.folder / "construct.json")
        if note:
            self.notes.append(note)
        return parents


def open_run(path: Path) -> Run:
    """Read a dump.json, debug.json or dump.json.part, or the one that lies in a folder."""
    path = find_run(path)
    entries = read_entries(path)
    task = entries.header["task"]
    if not task:
        raise BadInput('has no "task"', where=path, hint='expected "statistics" or "tensor"')
    if task not in (STATISTICS, TENSORS, "structure"):
        raise BadInput(f'"task" is {task!r}', where=path, hint="statistics and tensor runs can be compared")
    if task == "structure":
        raise NothingToCompare("holds no values: nothing to compare", where=path)
    ops, table, left_out = build_table(path, entries, single_points=path.name.startswith("debug"))
    notes = list(entries.notes)
    framework: Any = entries.header["framework"]
    if not framework:
        notes.append(f"{path}: no framework is named; pytorch is assumed")
        framework = "pytorch"
    if not table.height:
        raise NothingToCompare("holds no values: nothing to compare", where=path)
    return Run(path, task, entries.header["level"] or "", framework, ops, table, notes + left_out)


def find_run(path: Path) -> Path:
    """The file of a run: the path itself, or the dump that lies in this folder."""
    if path.is_dir():
        for name in RUN_FILES:
            if (path / name).is_file():
                return path / name
        raise BadInput("holds neither dump.json nor debug.json", where=path)
    if not path.exists():
        raise BadInput("does not exist", where=path)
    if path.name not in RUN_FILES:
        raise BadInput("is neither dump.json nor debug.json", where=path, hint="name the dump.json of a run")
    return path
