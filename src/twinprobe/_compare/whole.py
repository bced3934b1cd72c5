"""Runs in different parallel layouts: which folders of ranks are put together, and how the two wholes are compared."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import numpy as np

from twinprobe._align.calls import bare_path, epsilon
from twinprobe._align.matcher import match_names
from twinprobe._compare.one import Comparison, Options, compare_runs
from twinprobe._compare.request import Job, Request
from twinprobe._judge.deviation import DIFFERS, PRODUCT_PRECISION, product_types
from twinprobe._layout.contents import put_in_order, wrong_shards
from twinprobe._layout.layout import Layout, layout_for, read_sizes
from twinprobe._layout.ranks import (
    LAYOUT_FILE,
    RankDump,
    calls_per_module,
    find_layout,
    open_ranks,
    passes_of,
    recorded_world,
    without_recomputation,
)
from twinprobe._layout.settle import Settler
from twinprobe._layout.whole import Whole, make_whole
from twinprobe._runs.run import DUMP, OPTIMIZER_FILE, PART, RUN_FILES, Run, RunFolder, RunKey, open_run, run_folders
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER
from twinprobe.errors import BadInput, TwinProbeError

_MOST_SUSPECTS = 4  # calls where runs part, of which the ranks are asked for
_FEW_ALIKE = 3  # findings that are listed one by one
_LABELS = {DUMP: "whole", OPTIMIZER_FILE: "optimizer"}


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
        raise BadInput("holds processes without ranks, which cannot be put together", where=folders[0].path.parent)
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
        return side.world != other.world
    return False


def _is_whole(side: StepRanks) -> bool:
    """Whether this is a run of one process: one that is no rank of several."""
    return side.world == 1 and (not side.folders[0][1].name.startswith("rank0") or _is_known(side))


def _is_known(side: StepRanks) -> bool:
    return any((folder / LAYOUT_FILE).is_file() for _, folder in side.folders)


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
        for at, (name, label) in enumerate(_LABELS.items()):
            key = RunKey(mode, step, at)  # two parts of a dataset
            files = target.files(name), golden.files(name)
            if not all(files):
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


def compare_whole(job: Job, options: Options) -> Comparison:
    """Put the ranks of each side together and compare the two wholes."""
    runs, notes, lost = open_wholes(job.ranks, job.target.name, job.request.layouts)
    match = options.match
    if job.target.name == OPTIMIZER_FILE:
        match = match_names  # parameters have one name on every rank, but no order
        runs[0].settings[PRODUCT_PRECISION] = max(map(_product_precision, job.ranks), default=0.0)
    comparison = compare_runs(runs[0], runs[1], replace(options, match=Settler(match), reorder=put_in_order))
    return with_findings(comparison, notes, lost)


def _product_precision(side: StepRanks) -> float:
    """The epsilon of the type in which the ranks of a step compute their matrix products; 0 where it is not known."""
    for file in side.files(DUMP).values():
        with suppress(TwinProbeError):
            table = open_run(file).table
            return max(map(epsilon, product_types(table["name"], table["dtype"])), default=0.0)
    return 0.0


def open_wholes(
    sides: tuple[StepRanks, StepRanks], name: str, texts: tuple[str, ...]
) -> tuple[list[Run], list[str], list[str]]:
    """The run of each side, its ranks put together as far as names go; what is said of them, and what is missing."""
    lost: list[str] = []
    opened = [open_ranks(side.files(name), lost) for side in sides]
    # With checkpointing, backward computes activations once more, which are neither new values nor another batch.
    again = [sum(map(without_recomputation, ranks.values())) for ranks in opened]
    single = [
        next(iter(ranks.values())).run if side.world == 1 else None for ranks, side in zip(opened, sides, strict=True)
    ]
    layouts, notes = _layouts(texts, sides)
    micro = _micro_batches(opened, layouts)
    runs: list[Run] = []
    for at, (side, ranks, layout) in enumerate(zip(sides, opened, layouts, strict=True)):
        alone = single[at]
        # Parameters are paired by names alone, in which wrappers (of compiled modules) are no part.
        wrapped = alone and name == OPTIMIZER_FILE and any(bare_path(op.body) != op.body for op in alone.op_names)
        if alone is not None and micro[at] == 1 and not wrapped:
            runs.append(alone)
            continue
        path = side.root / name if side.world > 1 else side.root.parent / name
        lender = single[1 - at] or (runs[0] if runs else None)
        runs.append(make_whole(ranks, layout, path, micro[at], lender))
    left_out = [f"{('target', 'golden')[at]}: {count:,} calls of functions inside backward "
                "(checkpointing, communication): left out" for at, count in enumerate(again) if count]  # fmt: skip
    return runs, [*notes, *left_out], lost


def _micro_batches(opened: list[dict[int, RankDump]], layouts: list[Layout]) -> list[int]:
    """Of each side, how many calls of a module become one: none where both sides cut the batch alike."""
    passes = [max(passes_of(dump.run) for dump in ranks.values()) for ranks in opened]
    shares = [layout.dp * layout.ep * count for layout, count in zip(layouts, passes, strict=True)]
    if min(passes) > 1 and shares[0] != shares[1]:
        return passes  # the first micro batch of one run holds other samples than the first one of the other
    calls = [max(calls_per_module(dump.run) for dump in ranks.values()) for ranks in opened]
    return [mine // other if mine > other and mine % other == 0 else 1 for mine, other in (calls, calls[::-1])]


def with_findings(comparison: Comparison, notes: list[str], lost: list[str]) -> Comparison:
    """The comparison of two wholes with what was found on single ranks, and what was assumed."""
    findings = _wrong_shards(comparison)
    for name, run in zip(("target", "golden"), (comparison.target, comparison.golden), strict=True):
        if isinstance(run, Whole):
            notes = [*notes, *(f"{name}: {text}" for text in run.assumed)]
            findings += run.findings
            lost = [*lost, *run.lost]
    shown = _grouped(findings)
    first = comparison.summary.first
    said = [text.partition(": ")[2] for text in findings if first is not None and text.startswith(f"{first.op}.")]
    if first is not None and said:
        first = replace(first, sentence=f"{first.sentence}; {said[0]}")
    summary = replace(comparison.summary, first=first, notes=[*shown, *notes, *comparison.summary.notes], lost=lost)
    return replace(comparison, summary=summary)


def _grouped(findings: list[str]) -> list[str]:
    """What is said of many values alike is said once, of the first."""
    names: dict[str, list[str]] = {}
    for finding in findings:
        name, _, said = finding.partition(": ")
        names.setdefault(said, []).append(name)
    shown: list[str] = []
    for said, values in names.items():
        few = len(values) <= _FEW_ALIKE
        shown += (
            [f"{name}: {said}" for name in values] if few else [f"{values[0]} and {len(values) - 1:,} more: {said}"]
        )
    return shown[:20] + ([f"{len(shown) - 20:,} more findings on single ranks"] if len(shown) > 20 else [])


def _wrong_shards(comparison: Comparison) -> list[str]:
    """Whose shard differs, of the calls where the runs part: of their parameters and of what they give."""
    pairs, judged = comparison.evidence.pairs, comparison.judged
    of_row, role, differs = judged.calls.of_row, judged.calls.role, judged.state == DIFFERS
    sides = ((comparison.target, "t", comparison.golden, "g"), (comparison.golden, "g", comparison.target, "t"))
    found = []
    run = comparison.target
    place = {name: at for at, name in enumerate(run.ops)}
    asked: dict[int, bool] = {}  # rows, and whether their calls took a value that was wrong already
    for call in [beginning.call for beginning in judged.beginnings if beginning.reaches][:_MOST_SUSPECTS]:
        own = (of_row == call) & differs
        # A function is given the parameters of the module around it.
        around = place.get(run.parents.get(run.ops[call]) or "", -1) if 0 <= call < len(run.ops) else -1
        rows = (own & np.isin(role, (PARAMETER, OUTPUT))) | ((of_row == around) & differs & (role == PARAMETER))
        asked |= dict.fromkeys(np.flatnonzero(rows).tolist(), bool((own & (role == INPUT)).any()))
    if run.path.name == OPTIMIZER_FILE:  # parameters that differ before a step come first, wherever they stand
        asked |= dict.fromkeys(np.flatnonzero(differs & (role == PARAMETER)).tolist()[:_MOST_SUSPECTS], False)
    for row, inherited in asked.items():
        for whole, side, other, its in sides:
            files = pairs[f"{side}_file"][row], pairs[f"{its}_file"][row]
            # Without tensors, ranks that hold nothing conspicuous may be wrong too if all of them took a wrong value.
            if not isinstance(whole, Whole) or (inherited and role[row] == OUTPUT and None in files):
                continue
            ranks = wrong_shards(whole, pairs[f"{side}_row"][row], other, pairs[f"{its}_row"][row], files)
            if ranks:
                several = f"the shards of ranks {', '.join(map(str, ranks[:8]))} differ"
                words = f"rank {ranks[0]}'s shard differs" if len(ranks) == 1 else several
                found.append(f"{pairs[f'{side}_name'][row]}: {words}")
    return found


@lru_cache(maxsize=64)
def _layouts(texts: tuple[str, ...], sides: tuple[StepRanks, StepRanks]) -> tuple[list[Layout], list[str]]:
    """The layout of each side, and what is said of them. Where it is not given, the dumps of all ranks tell."""
    many = [at for at, side in enumerate(sides) if side.world > 1]
    if len(texts) == 1 and len(many) == 1:
        texts = (texts[0], "") if many == [0] else ("", texts[0])
    layouts, notes = [], []
    for at, side in enumerate(sides):
        text, where = texts[at] if at < len(texts) else "", str(side.root)
        if side.world == 1:
            layouts.append(Layout(1, 1, 1))
            continue
        if text:
            layout, how = layout_for(read_sizes(text), side.world, where), "as given"
        else:
            other = sides[1 - at]
            alone = open_run(next(iter(other.files(DUMP).values()))) if other.world == 1 else None
            layout, how = find_layout(open_ranks(side.files(DUMP), []), alone, side.world, where)
        layouts.append(layout)
        notes.append(f"{('target', 'golden')[at]}: {side.world} ranks, layout {layout} ({how})")
    return layouts, notes


def whole_files(job: Job) -> list[Path]:
    """The files that a job on several ranks reads."""
    return [file for side in job.ranks for file in side.files(job.target.name).values()] if job.ranks else []
