"""Which folders of ranks are put together, and the jobs that compare them as wholes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

from twinprobe._align.calls import dims
from twinprobe._compare.request import Job, Request
from twinprobe._layout.found_layout import recorded_sizes
from twinprobe._layout.layout import read_sizes
from twinprobe._layout.ranks import LAYOUT_FILE, holds_shards, passes_of, read_layout, recorded_world
from twinprobe._runs.run import DUMP, OPTIMIZER_FILE, PART, RUN_FILES, RunFolder, RunKey, open_run, run_folders
from twinprobe.errors import BadInput, TwinProbeError

_OTHER_SHARE = 1.5  # of the parameters: two ranks that share them have half of them each
LABELS = {DUMP: "whole", OPTIMIZER_FILE: "optimizer"}


@dataclass(frozen=True)
class StepRanks:
    """The ranks of one run at one step: their folders by number. One that stands alone has the number 0."""

    root: Path
    folders: tuple[tuple[int, Path], ...]
    world: int

    def files(self, name: str) -> dict[int, Path]:
        """The dumps (or another file of that name) of all ranks that have one."""
        found = {}
        for rank, folder in self.folders:
            names = (DUMP, PART) if name == DUMP else (name,)
            file = next((folder / one for one in names if (folder / one).is_file()), None)
            if file is not None:
                found[rank] = file
        return found


def sides_of(root: Path, request: Request) -> dict[tuple[str, int], StepRanks]:
    """The ranks of a run by graph mode and step; those of a file have neither."""
    if root.is_file() or any((root / name).is_file() for name in RUN_FILES):
        folder = root.parent if root.is_file() else root
        return {("", -1): StepRanks(folder, ((0, folder),), 1)}
    folders = run_folders(root)
    if request.steps is not None:
        folders = [folder for folder in folders if folder.key.step in request.steps]
    keyed = groupby(folders, key=lambda folder: (folder.key.graph_mode, folder.key.step))
    return {key: _side(list(group)) for key, group in keyed}


def _side(folders: list[RunFolder]) -> StepRanks:
    if len(folders) == 1 and (folders[0].key.rank < 0 or folders[0].by_process):
        return StepRanks(folders[0].path, ((0, folders[0].path),), 1)
    if folders[0].by_process:
        raise BadInput("holds processes without ranks, which cannot be merged", where=folders[0].path.parent)
    world = max((recorded_world(folder.path / LAYOUT_FILE) for folder in folders), default=0)
    found = tuple((max(folder.key.rank, 0), folder.path) for folder in folders)
    return StepRanks(folders[0].path.parent, found, max(world, *(rank + 1 for rank, _ in found)))


def puts_together(request: Request) -> bool:
    """Whether the ranks of a side are to be put together: asked for, or the sides' layouts are known to differ."""
    if request.layouts:
        return True
    if request.ranks is not None or not (request.target.is_dir() or request.golden.is_dir()):
        return False
    try:
        target, golden = (sides_of(root, request) for root in (request.target, request.golden))
    except BadInput:
        return False
    for side, other in zip(target.values(), golden.values(), strict=False):
        if not (_is_whole(side) or _is_whole(other)) and not (_is_known(side) and _is_known(other)):
            return False
        return side.world != other.world or (side.world > 1 and _unlike(side, other))
    return False


def _is_whole(side: StepRanks) -> bool:
    """Whether this is a run of one process: one that is no rank of several."""
    return side.world == 1 and (not side.folders[0][1].name.startswith("rank0") or _is_known(side))


def _is_known(side: StepRanks) -> bool:
    return any((folder / LAYOUT_FILE).is_file() for _, folder in side.folders)


def _unlike(target: StepRanks, golden: StepRanks) -> bool:
    """Whether a rank of one side is none of the other: its optimizer has pieces of parameters, or another share of
    them, the sizes of its layout differ, or it cuts its part of the batch into other micro batches."""
    sides: list[tuple[Any, ...]] = []
    held: list[float] = []
    for side in (target, golden):
        folder = side.folders[0][1]
        header = read_layout(folder / LAYOUT_FILE)[0]
        sizes = {name: size for name, size in recorded_sizes([header]).items() if size != 1}
        sides.append((holds_shards(header), header.get("pipeline") or {}, sizes))
        with suppress(TwinProbeError, OSError):
            table = open_run(folder / OPTIMIZER_FILE).table
            shapes = table.filter(table["name"].str.ends_with(".before"))["shape"].to_list()
            held.append(sum(prod(dims(shape) or ()) for shape in shapes))
            sides[-1] = (*sides[-1], passes_of(open_run(folder)))
    return sides[0] != sides[1] or (len(held) == 2 and max(held) > _OTHER_SHARE * min(held))


def plan_whole(request: Request) -> tuple[list[Job], list[str], list[str]]:
    """One job for each step that both runs have, and one for what optimizers saw there; and what is missing."""
    if len(request.layouts) > 2:
        raise BadInput(f"--layout has {len(request.layouts)} values", hint="give one for the target, one for golden")
    for text in request.layouts:
        read_sizes(text)
    sides = [sides_of(root, request) for root in (request.target, request.golden)]
    lost: list[str] = []
    keys = [key for key in sides[0] if key in sides[1]]
    pairs = [(key, sides[0][key], sides[1][key]) for key in keys]
    if not pairs and len(sides[0]) == len(sides[1]) == 1:
        pairs = [(next(iter(sides[0])), next(iter(sides[0].values())), next(iter(sides[1].values())))]
    for root, side in zip((request.target, request.golden), sides, strict=True):
        alone = [f"step{step}" for mode, step in side if (mode, step) not in keys and pairs and len(side) > 1]
        lost += [f"only {root} has {', '.join(alone)}: left out"] if alone else []
    if not pairs:
        raise BadInput(f"no step in common with {request.golden}", where=request.target)
    jobs = []
    for (mode, step), target, golden in pairs:
        for at, (name, label) in enumerate(LABELS.items()):
            key = RunKey(mode, step, at)  # two parts of a dataset
            if not all(files := (target.files(name), golden.files(name))):
                continue
            if name == DUMP:
                for one, found in zip((target, golden), files, strict=True):
                    lost += [f"{one.root}: rank {rank} is missing" for rank in range(one.world) if rank not in found]
            output = request.output / key.subfolder
            ranks = target, golden
            jobs.append(Job(target.root / name, golden.root / name, output, label, key, request, ranks=ranks))
    if not jobs:
        raise BadInput("no rank holds a dump.json on both sides", where=request.target)
    return jobs, [], lost
