"""A RunSet: the runs under a folder, keyed by graph mode, step and rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twinprobe.errors import BadInput
from twinprobe.runs.run import DEBUG, DEBUG_PART, DUMP, PART

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
        found = (next((self.path / name for name in names if (self.path / name).is_file()), None) for names in kinds)
        return [path for path in found if path is not None]


def run_folders(root: Path) -> list[RunFolder]:
    """All runs under a step folder, a dump folder with steps, or a folder with graph/ and pynative/."""
    found = sorted(_walk(root), key=lambda folder: (folder.key, folder.path.name))
    if not found:
        raise BadInput(
            "holds no recorded run",
            where=root, hint="expected dump.json, or rank*/proc* folders, or step* folders with them",
        )  # fmt: skip
    return found


def _walk(root: Path) -> Iterator[RunFolder]:
    modes = [mode for mode in GRAPH_MODES if (root / mode).is_dir()]
    if modes:
        for mode in modes:
            yield from _steps(root / mode, mode)
        return
    yield from _steps(root, "")


def _steps(root: Path, mode: str) -> Iterator[RunFolder]:
    children = _folders(root)
    steps = [(int(match[1]), child) for child in children if (match := _STEP.fullmatch(child.name))]
    if not steps:
        yield from _ranks(children, mode, -1)
        return
    for number, step in sorted(steps):
        yield from _ranks(_folders(step), mode, number)


def _ranks(children: list[Path], mode: str, step: int) -> Iterator[RunFolder]:
    ranks = [(match, child) for child in children if (match := _RANK.fullmatch(child.name))]
    if ranks:
        for match, child in ranks:
            yield RunFolder(RunKey(mode, step, int(match[1]) if match[1] else -1), child, by_process=False)
        return
    for child in children:
        if match := _PROC.fullmatch(child.name):
            yield RunFolder(RunKey(mode, step, int(match[1])), child, by_process=True)


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(child for child in root.iterdir() if child.is_dir())
    except OSError as error:
        raise BadInput(f"cannot be listed: {error.strerror}", where=root) from error
