"""What is drawn: compare.json, written by hand, remarks included, and the dumps under a folder."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinprobe._align.folders import pair_folders
from twinprobe._compare.layouts.folders import StepRanks, plan_whole
from twinprobe._compare.request import Request
from twinprobe._layout.layout import Layout, Layouts
from twinprobe._runs.run import DUMP, PART, Run, RunFolder, open_run, run_folders
from twinprobe._runs.whole_files import open_file, place, remote
from twinprobe.errors import BadInput

_KEYS = ("npu_path", "bench_path", "is_print_compare_log", "parallel_merge")
_MOST_BYTES = 1 << 20
_STRING = r'"(?:[^"\\]|\\.)*"?'
_STRING_OR_REMARK = re.compile(rf"{_STRING}|#[^\n]*", re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(rf"{_STRING}|,(\s*(?=[}}\]]))", re.DOTALL)
_HINT = '{"npu_path": "./npu_dump", "bench_path": "./bench_dump", "is_print_compare_log": true}'


@dataclass(frozen=True)
class CompareJson:
    """The content of a compare.json."""

    npu_path: Path
    bench_path: Path | None
    is_print_compare_log: bool
    parallel_merge: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def read_compare_json(path: Path) -> CompareJson:
    """Read a compare.json; ``# ...`` to the end of a line is a remark, a comma before a closing bracket is forgiven."""
    document = _load(path)
    npu = document.get("npu_path")
    if not npu:
        raise BadInput('has no "npu_path"', where=path, hint=f"for example {_HINT}")
    log = document.get("is_print_compare_log", True)
    if not isinstance(log, bool):
        raise BadInput(f'"is_print_compare_log" is {log!r}', where=path, hint="expected true or false")
    merge = document.get("parallel_merge") or {}
    if not isinstance(merge, dict):
        raise BadInput('"parallel_merge" is not an object', where=path, hint='expected {"npu": {...}, "bench": {...}}')
    unknown = [key for key in document if key not in _KEYS]
    notes = [f"{path}: {', '.join(map(repr, unknown))} is not a known key and is ignored"] if unknown else []
    bench = document.get("bench_path")
    return CompareJson(
        npu_path=_path(path, "npu_path", npu),
        bench_path=_path(path, "bench_path", bench) if bench else None,
        is_print_compare_log=log,
        parallel_merge=merge,
        notes=notes,
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        with open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BadInput(f"is larger than {_MOST_BYTES >> 20} MiB", where=path, hint=f"for example {_HINT}")
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not text: byte {error.start} is not UTF-8", where=path) from error
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    try:
        document = json.loads(_without_remarks(text))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is not JSON: {error}", where=path, hint=f"for example {_HINT}") from error
    if not isinstance(document, dict):
        raise BadInput("is not an object", where=path, hint=f"for example {_HINT}")
    return document


def _path(file: Path, key: str, value: object) -> Path:
    """A path as the user typed it: from the working folder, else from the folder of the file itself."""
    if not isinstance(value, str):
        raise BadInput(f'"{key}" is not text', where=file)
    try:
        path = place(value)
        if remote(path) is not None:
            return path
        beside = file.parent / path
        return beside if not path.exists() and beside.exists() else path
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f'"{key}" is not a path: {str(error)[:200]}', where=file) from None


def _without_remarks(text: str) -> str:
    """Blank out remarks and commas that end a list, outside strings; every character keeps its place."""
    text = _STRING_OR_REMARK.sub(lambda match: " " * len(match[0]) if match[0][0] == "#" else match[0], text)
    return _STRING_OR_LAST_COMMA.sub(lambda match: f" {match[1]}" if match[1] is not None else match[0], text)


_NEEDED = ("stack.json", "construct.json")
_STEP = re.compile(r"step_?(\d+)$")
_RANK = re.compile(r"rank_?(\d*)$")
_EXPECTED = "expected dump.json, stack.json and construct.json, or only rank* folders, or only step* folders with them"
_KINDS = (("step folders", re.compile(r"step_?\d+$")), ("rank folders", re.compile(r"(rank_?\d*|proc\d+)$")))


@dataclass(frozen=True)
class Place:
    """One rank's dump, or two that are compared; ``label`` is its part of a file's name."""

    target: Path
    golden: Path | None
    step: int
    rank: int
    label: str
    ranks: tuple[dict[int, Path], dict[int, Path]] | None = None
    """Where the ranks of a parallel layout are merged: their folders on both sides; ``rank`` is the replica then."""
    sides: tuple[StepRanks, StepRanks] | None = None
    """Where ranks are put together as ``compare`` does it: those of both runs at one step."""


def find_places(target: Path, golden: Path | None) -> tuple[list[Place], list[str], list[str]]:
    """All dumps to draw, by step and rank; notes; and what has no counterpart."""
    target, golden = _dynamic_part(target), _dynamic_part(golden) if golden is not None else None
    kinds = [folder_kind(path) for path in (target, golden) if path is not None]
    if golden is not None and kinds[0] != kinds[1]:
        raise BadInput(
            f"holds {kinds[0]}, but {golden} holds {kinds[1]}",
            where=target, hint="both sides must be one dump, or rank folders, or step folders with rank folders",
        )  # fmt: skip
    if kinds[0] == "a dump":
        resolved = target.resolve()  # the folders that a single dump lies in may tell its step and rank
        rank, step = _RANK.match(resolved.name), _STEP.match(resolved.parent.name)
        numbers = int(step[1]) if step else 0, int(rank[1]) if rank and rank[1] else 0
        return [Place(target, golden, *numbers, "")], [], []
    if golden is None:
        return _places([(folder, None) for folder in run_folders(target)], target), [], []
    try:
        pairs, notes, lost = pair_folders(target, golden)
    except BadInput as error:
        raise BadInput(
            f"{error.what}; the step and rank folders of both sides must correspond one to one", where=error.where
        ) from error
    return _places([(pair.target, pair.golden) for pair in pairs], target), notes, lost


def find_wholes(request: Request) -> tuple[list[Place], list[str], list[str]]:
    """The steps of two runs in different parallel layouts, whose ranks are put together."""
    jobs, notes, lost = plan_whole(request)
    places = []
    for job in jobs:
        if job.target.name == DUMP:
            step = job.place.step
            for side in job.ranks:
                for _, folder in side.folders:
                    check_dump(folder)
            label = f"step{step}_whole" if step >= 0 else "whole"
            places.append(Place(job.ranks[0].root, job.ranks[1].root, max(step, 0), 0, label, sides=job.ranks))
    return places, notes, lost


def find_replicas(target: Path, golden: Path | None, layouts: Layouts) -> tuple[list[Place], list[str], list[str]]:
    """The same for steps and replicas, where the ranks of a parallel layout are merged."""
    sides = [(path, layout) for path, layout in zip((target, golden), layouts, strict=True) if path and layout]
    if len({layout.dp for _, layout in sides}) > 1:
        counts = " and ".join(str(layout.dp) for _, layout in sides)
        raise BadInput(
            f"the data parallel sizes differ: {counts}", hint="both layouts need the same number of replicas"
        )
    ranks_of = [_ranks_by_step(_dynamic_part(path), layout) for path, layout in sides]
    steps = sorted(set.intersection(*(set(side) for side in ranks_of)))
    if not steps:
        raise BadInput("no step in common with the golden run", where=target)
    left_out = sorted(set.union(*(set(side) for side in ranks_of)) - set(steps))
    lost = [f"step {step} is not on both sides: left out" for step in left_out]
    places = []
    for step in steps:
        for dp in range(sides[0][1].dp):
            chosen = [
                {rank: side[step][rank] for rank in range(layout.rank_size) if layout.place(rank).dp == dp}
                for side, (_, layout) in zip(ranks_of, sides, strict=True)
            ]
            label = f"step{step}_rank{dp}" if step >= 0 else f"rank{dp}"
            both = (chosen[0], chosen[1] if len(chosen) > 1 else {})
            places.append(Place(target, golden, max(step, 0), dp, label, both))
    return places, [], lost


def _ranks_by_step(root: Path, layout: Layout) -> dict[int, dict[int, Path]]:
    steps: dict[int, dict[int, Path]] = {}
    if folder_kind(root) == "a dump":
        steps[-1] = {0: root}
    else:
        for folder in run_folders(root):
            ranks = steps.setdefault(folder.key.step, {})
            ranks[len(ranks) if folder.by_process or folder.key.rank < 0 else folder.key.rank] = folder.path
    for step, ranks in steps.items():
        missing = sorted(set(range(layout.rank_size)) - ranks.keys())
        if missing:
            where = root / f"step{step}" if step >= 0 else root
            raise BadInput(f"rank {missing[0]} of {layout.rank_size} is missing", where=where, hint="all are needed")
    return steps


def folder_kind(path: Path) -> str:
    """What a path is: a dump, rank folders or step folders; BadInput for anything else."""
    if not path.exists():
        raise BadInput("does not exist", where=path)
    if not path.is_dir():
        raise BadInput("is a file, not a folder with a dump", where=path)
    if (path / DUMP).is_file() or (path / PART).is_file() or (path / "dump_tensor_data").is_dir():
        return "a dump"
    children = [child.name for child in sorted(path.iterdir()) if child.is_dir()]
    if not children:
        return "a dump"  # what is missing in it will be named
    held = [kind for kind, name in _KINDS if any(name.match(child) for child in children)]
    strange = [child for child in children if not any(name.match(child) for _, name in _KINDS)]
    strange = [child for child in strange if not child.startswith(".")]
    if len(held) > 1 or (held and strange):
        other = strange[0] if strange else held[1]
        raise BadInput(f"mixes kinds: {held[0]} and {other}", where=path, hint=_EXPECTED)
    if not held:
        raise BadInput("is neither a dump nor a folder of ranks or steps", where=path, hint=_EXPECTED)
    return held[0]


def check_dump(folder: Path) -> None:
    """Name the file that a dump lacks."""
    missing = [] if (folder / DUMP).is_file() or (folder / PART).is_file() else [DUMP]
    missing += [name for name in _NEEDED if not (folder / name).is_file()]
    if missing:
        hint = "a graph needs dump.json, stack.json and construct.json of one rank"
        verb = "is" if len(missing) == 1 else "are"
        raise BadInput(f"{', '.join(missing)} {verb} missing", where=folder, hint=hint)


def _dynamic_part(root: Path) -> Path:
    """Dumps of jitted MindSpore models keep the part that has a hierarchy under pynative/."""
    return root / "pynative" if (root / "pynative").is_dir() else root


def _places(pairs: list[tuple[RunFolder, RunFolder | None]], root: Path) -> list[Place]:
    places = []
    alone = len(pairs) == 1
    position: dict[int, int] = {}
    above = _STEP.search(root.resolve().name)
    for folder, partner in pairs:
        index = position[folder.key.step] = position.get(folder.key.step, -1) + 1
        step = folder.key.step if folder.key.step >= 0 else int(above[1]) if above else 0
        rank = index if folder.by_process or folder.key.rank < 0 else folder.key.rank
        named = [f"step{folder.key.step}"] if folder.key.step >= 0 else []
        if not (alone and folder.by_process and not named):
            named.append(f"rank{rank}")
        places.append(Place(folder.path, partner.path if partner else None, step, rank, "_".join(named)))
    return places


def open_dump(folder: Path) -> Run:
    """Open one rank's dump and make sure that it says how its calls are nested."""
    check_dump(folder)
    return nested(open_run(folder))


def nested(run: Run) -> Run:
    """The run itself, if it says how its calls are nested."""
    if not run.parents:
        damaged = [note for note in run.notes if "construct.json" in note]
        raise BadInput(
            damaged[0] if damaged else "construct.json is empty: the hierarchy was not recorded",
            where=run.folder, hint="record with level L0 or mix",
        )  # fmt: skip
    return run
