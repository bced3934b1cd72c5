"""Two runs of many steps, watched or fully recorded: read, paired step by step, judged and written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isnan
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.rows import spelled
from twinprobe._compare.one import Comparison
from twinprobe._compare.ranks import Gathered
from twinprobe._compare.request import Job, Outcome, RankOutcome, Request
from twinprobe._judge.across.steps import (
    APART,
    KINDS,
    StepsComparison,
    Trend,
    calls_parting,
    differences,
    expected_noise,
    find_parting,
)
from twinprobe._judge.search import PARAMETER_DIFFERS
from twinprobe._judge.summary import Divergence
from twinprobe._measure.sketch import estimate
from twinprobe._report.files import own_timestamp, prepare_folder
from twinprobe._report.overview import write_steps
from twinprobe._runs.names import FORWARD, parse_op, updated_parameter
from twinprobe._runs.run import OPTIMIZER_FILE, Run, RunFolder, open_run, run_folders
from twinprobe._runs.sketches import ROW, Rows
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER, TENSOR, VALUE
from twinprobe._runs.watch import MISSING, Watched, read_watch, watch_files
from twinprobe.errors import BadInput, NothingToCompare

Compared = TypeVar("Compared", RankOutcome, Comparison)


def compare_steps(
    target: Path,
    golden: Path,
    *,
    ranks: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    differing: Mapping[int, Mapping[int, str]] | None = None,
) -> StepsComparison:
    """Find the first step in which two runs differ. Each side is a watched run or a recording of many steps.

    ``ranks`` and ``steps`` limit what is compared. ``differing``: for recordings that were judged step by step, where
    each step that differs begins, by rank; what the judge takes for noise is noise here too.
    """
    sides = [read_steps(path, steps) for path in (target, golden)]
    common = sorted(sides[0].keys() & sides[1].keys())
    if not common and len(sides[0]) == len(sides[1]) == 1:  # processes have numbers that mean nothing
        (left,), (right,) = sides
        sides[1] = {left: sides[1][right]}
        common = [left]
    if ranks is not None:
        common = [rank for rank in common if rank in ranks]
    if not common:
        raise NothingToCompare(f"has no rank in common with {golden}", where=target)
    trends = [pair_steps(rank, sides[0][rank], sides[1][rank]) for rank in common]
    if differing is not None and len(common) == 1:  # whatever number its process had
        differing = {common[0]: dict(pair for one in differing.values() for pair in one.items())}
    found = [find_parting(trend, None if differing is None else differing.get(trend.rank, {})) for trend in trends]
    parted = [one for one in found if one]
    first = min(parted, key=lambda one: (one.step or 0, one.rank)) if parted else found[0]
    if parted and len(trends) > 1:
        others = ", ".join(str(one.rank) for one in parted if one is not first)
        more = f"; rank {others} differs as well" if others else ""
        first = replace(first, sentence=f"rank {first.rank}: {first.sentence}{more}")
    notes = [note for side in sides for rank in common for note in side[rank].notes]
    return StepsComparison(str(target), str(golden), first, trends, [*notes, *(n for one in trends for n in one.notes)])


def follow_steps(jobs: Sequence[Job], results: dict[int, Compared], compare: Callable[[Job], Compared]) -> None:
    """Compare those steps again, in their order, that begin with parameters that differ after a step that agrees.

    Noise of a step stays in the parameters, however large it is: TF32 against float32, say. Known by what the step
    before wrote, it is inherited. ``results`` are replaced, by the numbers of their jobs.
    """
    order = sorted(results, key=lambda at: (jobs[at].key.graph_mode, jobs[at].key.rank, jobs[at].key.step))
    for before, at in pairwise(order):
        earlier, job = jobs[before], jobs[at]
        if (earlier.key.rank, earlier.key.graph_mode) != (job.key.rank, job.key.graph_mode) or job.ranks or job.steps:
            continue
        agreed, first = results[before].summary.first is None, results[at].summary.first
        if agreed and first is not None and first.begins == PARAMETER_DIFFERS and earlier.key.step < job.key.step:
            results[at] = compare(replace(job, before=(earlier.target, earlier.golden), session=None))


def run_watched(request: Request) -> Outcome:
    """Compare two watched runs, or a watched one with a recording of many steps, and write the table and the page."""
    for path in (request.target, request.golden):
        if not path.exists():
            raise BadInput("does not exist", where=path)
    found = compare_steps(request.target, request.golden, ranks=request.ranks, steps=request.steps)
    prepare_folder(request.output)
    with own_timestamp(request.output, request.timestamp) as stamp:
        files = write_steps(found, request.output, stamp, request.formats)
    return Outcome([], [], found.notes, [found.parting.sentence], overview=files, steps=found)


def add_steps(request: Request, jobs: Sequence[Job], gathered: Gathered, outcome: Outcome) -> None:
    """Say of recordings of several steps, each compared by now, where they part.

    Ranks put together have no curves, nor have the many ranks of a dataset: a sentence has to do for these.
    """
    firsts = [(jobs[at], result.summary.first) for at, result in sorted(gathered.results.items())]
    found = steps_of(request, firsts, outcome.notes, curves=jobs[0].dataset is None)
    if found is not None and not found.trends:
        outcome.findings = [found.parting.sentence, *outcome.findings]
        return
    outcome.steps = found
    if outcome.steps is not None:
        stamp = jobs[0].request.timestamp
        outcome.overview = [*outcome.overview, *write_steps(outcome.steps, request.output, stamp, request.formats)]


def steps_of(
    request: Request, firsts: Sequence[tuple[Job, Divergence | None]], notes: list[str], *, curves: bool = True
) -> StepsComparison | None:
    """Where recordings of several steps part, given where each step begins to differ; None where that says nothing."""
    numbers = sorted({job.key.step for job, _ in firsts})
    if len(numbers) < 2 or any(job.key.graph_mode for job, _ in firsts):
        return None
    by_rank: dict[int, dict[int, str]] = {}
    for job, first in sorted(firsts, key=lambda one: one[0].key):
        if first is not None:
            where = f" on rank {job.key.rank}" if job.key.rank >= 0 and not job.ranks and not curves else ""
            inside = f" in {first.module}" if first.module and first.module not in first.op else ""
            told = f"{first.op}{inside}{where}: {first.sentence}"
            by_rank.setdefault(max(job.key.rank, 0), {}).setdefault(job.key.step, told)
    if not curves or any(job.ranks for job, _ in firsts):
        differing: dict[int, str] = {}
        for _, one in sorted(by_rank.items()):
            differing = one | differing  # of several ranks the first is named
        parting = calls_parting(numbers, differing)
        return StepsComparison(str(request.target), str(request.golden), parting, [], [])
    try:
        found = compare_steps(
            request.target, request.golden, ranks=request.ranks, steps=request.steps, differing=by_rank
        )
    except BadInput as error:  # single points, or names that only a mapping file pairs
        notes.append(f"the steps are compared one by one only: {error}")
        return None
    notes += found.notes
    return found


def step_shift(target: Path, golden: Path) -> int:
    """How far the golden run counts its steps ahead of the target, where the numbers do not fit but the data do."""
    folders = [run_folders(path) for path in (target, golden)]
    numbers = [{found.key.step for found in side} for side in folders]
    if numbers[0] == numbers[1] or min(map(len, numbers)) < 2 or any(one.key.graph_mode for one in folders[0]):
        return 0
    try:
        trend = compare_steps(target, golden).trends[0]
    except BadInput:
        return 0
    return int(trend.golden_steps[0] - trend.steps[0]) if trend.order == "data" else 0


# Reading: the numbers of each step, whoever recorded them.


def read_steps(folder: Path, steps: Collection[int] | None = None) -> dict[int, Watched]:
    """The steps of each rank, or these of them."""
    streams = watch_files(folder)
    if streams:
        read = {rank: read_watch(path) for rank, path in streams.items()}
        return read if steps is None else {rank: one.only(steps) for rank, one in read.items()}
    by_rank: dict[int, list[RunFolder]] = {}
    for found in run_folders(folder):
        if steps is None or found.key.step in steps:
            by_rank.setdefault(found.key.rank, []).append(found)
    return {max(rank, 0): _read_recorded(folder, found) for rank, found in by_rank.items()}


def _read_recorded(folder: Path, steps: Sequence[RunFolder]) -> Watched:
    rows: list[dict[str, float]] = []
    sketches: dict[str, Rows] = {}
    for at, step in enumerate(steps):
        row: dict[str, float] = {}
        for file in step.files()[:1]:
            for series, sketch in _take_calls(open_run(file), row):
                sketches.setdefault(series, np.zeros(len(steps), ROW))[at] = sketch
        update = step.path / OPTIMIZER_FILE
        if update.is_file():
            _take_updates(open_run(update), row)
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    place = {name: at for at, name in enumerate(names)}
    values = np.full((len(rows), len(names)), MISSING, dtype=np.float32)
    for at, row in enumerate(rows):
        values[at, [place[name] for name in row]] = list(row.values())
    known = values.view(np.uint32) != np.float32(MISSING).view(np.uint32)
    numbers = np.array([step.key.step for step in steps], dtype=np.int64)
    return Watched(folder, numbers, names, values, known, sketches=sketches)


def _take_calls(run: Run, row: dict[str, float]) -> list[tuple[str, Rows]]:
    """What modules gave in their first forward call, what the first call took, and the loss; the sketches of these."""
    outputs: dict[str, str] = {}
    # The first call in the model: a program may clear gradients or touch the optimizer's state before it.
    inside = (at for at, name in enumerate(run.ops) if parse_op(name).is_module or run.parents.get(name) is not None)
    first = next(inside, 0)
    sketched: dict[str, int] = {}

    def take(series: str, place: int, numbers: Mapping[str, float | None]) -> None:
        row.update(_numbers(series, numbers))
        if run.sketches is not None and run.sketches.index[place] >= 0:
            row[f"{series}.{APART}"] = 0.0  # until there is another run
            sketched[f"{series}.{APART}"] = place

    columns = ("op", "role", "name", "kind", "norm", "mean", "max", "min", "shape")
    for at, (op, role, name, kind, norm, mean, high, low, shape) in enumerate(run.table.select(columns).iter_rows()):
        if kind != TENSOR or role not in (INPUT, OUTPUT):
            continue
        call = parse_op(run.ops[op])
        if call.direction != FORWARD:
            continue
        numbers = {"norm": norm, "mean": mean, "max": max(abs(high or 0.0), abs(low or 0.0))}
        if role == INPUT:
            # A function takes weights as well: only its first argument is data.
            if op == first and (call.is_module or name.endswith(".input.0")):
                take(f"input.{name.rpartition('.input.')[2]}", at, numbers | {"min": low})
            continue
        title = call.body if call.is_module else f"{call.prefix}.{call.body}.{call.call}"
        if outputs.setdefault(title, name) == name:
            take(f"output.{title}", at, numbers)
            if "dropout" in (call.cls or call.body).lower():
                row[f"output.{title}.drops"] = 1.0
        if shape in ("[]", "()", "") and re.search("loss|cross_entropy", name, re.IGNORECASE) and mean is not None:
            row["loss"] = float(mean)
    places = np.array(list(sketched.values()), dtype=np.int64)
    return list(zip(sketched, run.sketches.of(places), strict=True)) if run.sketches is not None else []


def _take_updates(run: Run, row: dict[str, float]) -> None:
    """What the optimizer saw: gradients, parameters, and the settings of each group of parameters."""
    settings: dict[str, dict[str, float]] = {}
    columns = ("op", "role", "name", "kind", "norm", "mean", "max", "min")
    for op, role, name, kind, norm, mean, high, low in run.table.select(columns).iter_rows():
        title = updated_parameter(run.ops[op])
        if title == "total_norm":
            if role == OUTPUT and norm is not None:
                row["grad_norm"] = float(norm)
        elif kind == TENSOR and role in (INPUT, PARAMETER):
            numbers = {"norm": norm, "max": max(abs(high or 0.0), abs(low or 0.0))}
            row.update(_numbers(f"{'gradient' if role == INPUT else 'parameter'}.{title}", numbers))
        elif kind == VALUE and role == INPUT and mean is not None:
            settings.setdefault(title, {})[name.rpartition(".forward.input.")[2]] = float(mean)
    groups: dict[tuple[tuple[str, float], ...], int] = {}
    for one in settings.values():
        at = groups.setdefault(tuple(sorted(one.items())), len(groups))
        row.update({f"group.{at}.{key}": value for key, value in one.items()})


def _numbers(title: str, numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {f"{title}.{key}": float(value) for key, value in numbers.items() if value is not None and not isnan(value)}


# Pairing steps, and how far apart two of them may be.


def pair_steps(rank: int, target: Watched, golden: Watched) -> Trend:
    """Pair the steps of one rank: by their numbers, or by the data they took where the numbers do not fit."""
    target, golden = _renamed(target, golden), _renamed(golden, target)
    shared = set(golden.names)
    names = [name for name in target.names if name in shared]
    if not any(name.partition(".")[0] in KINDS for name in names):
        raise NothingToCompare(f"has no series in common with {golden.path}", where=target.path)
    places = [np.array([side.names.index(name) for name in names], dtype=np.int64) for side in (target, golden)]
    keys = [_data_keys(side, names, place) for side, place in zip((target, golden), places, strict=True)]
    rows, order = _rows(target.steps, golden.steps, *keys)
    if not len(rows[0]):
        raise NothingToCompare(
            f"has no step in common with {golden.path}: {_span(target.steps)} here, {_span(golden.steps)} there",
            where=target.path, hint="neither the numbers of the steps nor the data they took fit",
        )  # fmt: skip
    cut = [np.ix_(row, place) for row, place in zip(rows, places, strict=True)]
    target_values, golden_values = (
        side.values[one].astype(np.float64) for side, one in zip((target, golden), cut, strict=True)
    )
    known = target.known[cut[0]] & golden.known[cut[1]]
    for at, name in enumerate(names):
        if name in target.sketches and name in golden.sketches:
            found = estimate(target.sketches[name][rows[0]], golden.sketches[name][rows[1]])
            known[:, at] = found.comparable
            target_values[:, at] = np.where(found.lower > 0, found.relative, 0.0)
    difference = differences(names, target_values, golden_values, known)
    noise = expected_noise(names, golden_values, known, difference)
    notes = []
    if order != "step numbers":
        shift = int(golden.steps[rows[1][0]] - target.steps[rows[0][0]])
        notes.append(f"steps are paired by {order}: step N of {target.path} is step N{shift:+d} of {golden.path}")
    for side, row in ((target, rows[0]), (golden, rows[1])):
        if len(row) < len(side.steps):
            notes.append(f"{side.path}: {len(side.steps) - len(row)} of {len(side.steps)} steps have no counterpart")
    numbers = target.steps[rows[0]], golden.steps[rows[1]]
    return Trend(rank, *numbers, names, target_values, golden_values, known, difference, noise, order, notes)


def _renamed(side: Watched, other: Watched) -> Watched:
    """A side with the names that the other run, of another framework, has for the same parameters."""
    known, names = set(other.names), []
    for name in side.names:
        title, word, kind = (*name.rsplit(".", 2), "", "")[:3]
        there = f"{title}.{spelled(word)}.{kind}"
        names.append(there if name not in known and there in known else name)
    return replace(side, names=names)


def _data_keys(side: Watched, names: Sequence[str], places: NDArray[np.int64]) -> list[tuple[float, ...] | None]:
    """What each step took, in a few numbers: digests, or statistics where a recording has no digests."""
    digests = [at for at, name in enumerate(names) if name.startswith("input.") and name.endswith(".digest")]
    chosen = digests or [at for at, name in enumerate(names) if name.startswith("input.")]
    if not chosen:
        return [None] * len(side.steps)
    columns = places[chosen]
    known = np.all(side.known[:, columns], axis=1).tolist()
    return [tuple(row) if one else None for row, one in zip(side.values[:, columns].tolist(), known, strict=True)]


_ENOUGH = 3  # steps in a row that took the same data


def _rows(
    target: NDArray[np.int64], golden: NDArray[np.int64],
    taken: Sequence[tuple[float, ...] | None], there: Sequence[tuple[float, ...] | None],
) -> tuple[list[NDArray[np.int64]], str]:  # fmt: skip
    numbered = np.intersect1d(target, golden, return_indices=True)[1:]
    first = [(taken[a], there[b]) for a, b in zip(*(side[:_ENOUGH].tolist() for side in numbered), strict=True)]
    if first and any(a is None or b is None or a == b for a, b in first):
        return list(numbered), "step numbers"
    by_data: dict[tuple[float, ...], list[int]] = {}
    for at, key in enumerate(there):
        if key is not None:
            by_data.setdefault(key, []).append(int(golden[at]))
    shifts = Counter(
        number - int(step) for step, key in zip(target, taken, strict=True) if key is not None
        for number in by_data.get(key, ())[:8]
    )  # fmt: skip
    for shift, _ in shifts.most_common(8):
        _, left, right = np.intersect1d(target + shift, golden, return_indices=True)
        run = [taken[a] == there[b] for a, b in zip(left[:_ENOUGH].tolist(), right[:_ENOUGH].tolist(), strict=True)]
        if all(run) and (len(run) == _ENOUGH or len(run) == min(len(target), len(golden))):
            return [left, right], "data"
    if not len(numbered[0]) or (len(target) == len(golden) and target[0] != golden[0] and taken[0] is None):
        if len(target) == len(golden) and taken[0] is None:
            return [np.arange(len(target)), np.arange(len(golden))], "place"
        return [np.arange(0), np.arange(0)], "place"
    return list(numbered), "step numbers"


def _span(steps: NDArray[np.int64]) -> str:
    return f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
