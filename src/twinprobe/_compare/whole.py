"""Runs in different parallel layouts: which folders of ranks are put together, and how the two wholes are compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import isclose, prod
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._align.calls import bare_path, dims, epsilon
from twinprobe._align.matcher import match_names
from twinprobe._compare.one import Comparison, Options, compare_runs, not_compared
from twinprobe._compare.rank_gradients import (
    BEFORE,
    SAME_NORM,
    before_the_gradients,
    behind_the_scale,
    held_otherwise,
    loss_begins,
    not_given,
    not_shared,
    not_updated,
    odd_multiple,
    of_own_batch,
    of_ranks,
    one_multiple,
    scales_the_loss,
    unlike_multiples,
    with_effect,
)
from twinprobe._compare.request import Job, Request
from twinprobe._compare.updates import SCALE_OF_LOSS, adaptive_rate, micro_mean, noise_of_steps, silent_parts
from twinprobe._judge.describe import size_words
from twinprobe._judge.deviation import ADAPTIVE_RATE, COARSE, DIFFERS, PRODUCT_PRECISION, SILENT
from twinprobe._judge.flow import NONE
from twinprobe._judge.results import LOSS, PARAMETER_GRADIENTS
from twinprobe._judge.search import ARGUMENT, BETWEEN, MISSING, OUTSIDE, PARAMETER_DIFFERS
from twinprobe._judge.summary import Divergence
from twinprobe._layout.contents import put_in_order
from twinprobe._layout.found_layout import (
    AS_MEANT,
    GIVEN,
    Beside,
    contradictions,
    find_layout,
    recorded_sizes,
    unlike_types,
)
from twinprobe._layout.layout import Layout, fitting_layout, read_sizes
from twinprobe._layout.ranks import (
    LAYOUT_FILE,
    RankDump,
    calls_per_module,
    gradient_precision,
    holds_shards,
    open_ranks,
    passes_of,
    read_layout,
    recorded_world,
    without_functions,
    without_own_calls,
)
from twinprobe._layout.settle import SETTING, Settler
from twinprobe._layout.shared import OWN_NORMS, own_norms
from twinprobe._layout.sketched.earlier import ODD, ON_RANKS, cut_through, earlier_value, odd_ranks
from twinprobe._layout.sketched.updates import odd_updates
from twinprobe._layout.sums import bias_too_often
from twinprobe._layout.whole import Whole, call_head, make_whole
from twinprobe._layout.wrong_ranks import NO_REPLICA, only_on, whose
from twinprobe._runs.names import BACKWARD, GRADIENTS, OPTIMIZER, READ_BY_OPTIMIZER, TOTAL_NORM, parse_op
from twinprobe._runs.run import DUMP, OPTIMIZER_FILE, PART, RUN_FILES, Run, RunFolder, RunKey, open_run, run_folders
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER
from twinprobe.errors import BadInput, TwinProbeError

_OTHER_SHARE = 1.5  # of the parameters: two ranks that share them have half of them each
_MOST_SUSPECTS = 4  # calls where runs part, of which the ranks are asked for
_MOST = 0.5  # of the gradients of a step
_FEW_ALIKE = 3  # findings that are listed one by one
_NAMES_RANKS = re.compile(r"\branks? \d")
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
        for at, (name, label) in enumerate(_LABELS.items()):
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


def compare_whole(job: Job, options: Options) -> Comparison:
    """Put the ranks of each side together and compare the two wholes."""
    found = _compared(job, options)
    if not all(side.files(file) for side in job.ranks for file in _LABELS):
        return found
    if job.target.name != DUMP:
        return _without_noise(found, job, options)
    found = _by_ranks(_other_weight(_without_scale(found, job, options), job, options), job, options)
    if found.summary.first is None:  # nothing shows in a result of the pass
        update = _compared(_updates_of(job), replace(options, noise=None)).summary.first
        first = with_effect(found, update) if update is not None else None
        said = f"{first.row} differs more" if first is not None else "\n"
        kept = [note for note in found.summary.notes if not note.startswith(said)]
        found = replace(found, summary=replace(found.summary, first=first, notes=kept))
    return _held_by(_update_before(found, job, options), job, options)


def _held_by(comparison: Comparison, job: Job, options: Options) -> Comparison:
    """The comparison with the ranks that hold the wrong part of a parameter, if the optimizer's table alone tells: it
    has what each rank holds, and calls have what it gathered."""
    import polars as pl

    first, whole = comparison.summary.first, comparison.target
    if (
        first is None
        or whole.step != 0
        or not isinstance(whole, Whole)
        or _NAMES_RANKS.search(first.sentence)
        or (first.begins != PARAMETER_DIFFERS and not first.argument.startswith("parameters."))
    ):
        return comparison
    row = int(np.flatnonzero((comparison.evidence.pairs["t_name"] == first.row).fill_null(value=False).to_numpy())[0])
    norm = comparison.evidence.pairs["t_norm"][row]
    updates = _compared(_updates_of(job), replace(options, noise=None))
    norms = dict(updates.evidence.pairs.filter(pl.col("t_name").is_not_null()).select("t_name", "t_norm").iter_rows())
    for path, name in held_otherwise(updates).items():
        inside = path.rpartition(".")[0] == bare_path(first.module or "") and None not in (norm, norms[name])
        said = of_ranks(updates.summary.notes, name) if inside and isclose(norm, norms[name], rel_tol=SAME_NORM) else ""
        if said:
            first = replace(first, sentence=f"{first.sentence}; {said}")
            return replace(comparison, summary=replace(comparison.summary, first=first))
    return comparison


def _compared(job: Job, options: Options) -> Comparison:
    runs, notes, lost = open_wholes(job.ranks, job.target.name, job.request.layouts)
    match = options.match
    if job.target.name == OPTIMIZER_FILE:
        match = match_names  # parameters have one name on every rank, but no order
        precisions = [gradient_precision(side.files(DUMP).values()) for side in job.ranks]
        runs[0].settings[PRODUCT_PRECISION] = max(precision for precision, _ in precisions)
        runs[0].settings[SILENT] = silent_parts(next(iter(job.ranks[1].files(DUMP).values()), Path()))
        if precisions[0][1] != precisions[1][1]:
            words = [f"{side}: gradients are reduced in {dtype}, and judged by its precision"
                     for side, (_, dtype) in zip(("target", "golden"), precisions, strict=True) if dtype]  # fmt: skip
            notes = [*words, *notes]
    else:
        runs[0].settings[ADAPTIVE_RATE] = adaptive_rate(job.ranks[0].files(OPTIMIZER_FILE).values())
    seen = [bool(side.files(OPTIMIZER_FILE)) for side in job.ranks]
    if seen[0] != seen[1]:
        notes = [*notes, not_compared(job.ranks[seen.index(False)].root)]
    comparison = compare_runs(runs[0], runs[1], replace(options, match=Settler(match), reorder=put_in_order))
    for run, side in zip((comparison.target, comparison.golden), job.ranks, strict=True):
        if isinstance(run, Whole) and job.target.name == OPTIMIZER_FILE:
            run.findings = [of_own_batch(text, run, side.files(DUMP)) for text in run.findings]
            run.findings += not_given(run, side.files(DUMP))
    updates = _odd_updates(comparison, job) if job.target.name == OPTIMIZER_FILE else []
    return with_findings(comparison, notes, lost, updates)


def _odd_updates(comparison: Comparison, job: Job) -> list[str]:
    """Whose gradients and parameters differ, of the first ones that optimizers read: the calls of all ranks tell."""
    whole, pairs, dumps = comparison.target, comparison.evidence.pairs, [side.files(DUMP) for side in job.ranks]
    if not isinstance(whole, Whole) or isinstance(comparison.golden, Whole) or not all(dumps):
        return []
    read = (
        (pairs["t_name"].str.contains(READ_BY_OPTIMIZER) & pairs["g_row"].is_not_null())
        .fill_null(value=False)
        .to_numpy()
    )
    differ = np.flatnonzero((comparison.judged.state == DIFFERS) & read).tolist()
    rows = [row for row in differ if not pairs["t_name"][row].startswith(TOTAL_NORM)]
    rows = sorted(rows, key=lambda row: pairs["t_name"][row].endswith(".input.0"))[:_MOST_SUSPECTS]  # causes first
    asked = [(pairs["t_row"][row], pairs["g_row"][row]) for row in rows]
    return odd_updates(whole, comparison.golden, asked, dumps[0], next(iter(dumps[1].values())))


def _without_noise(comparison: Comparison, job: Job, options: Options) -> Comparison:
    """The comparison of updates without gradients that are as far off in a backward pass that agrees: only calls tell
    what Adam makes of rounding, and 16 bits of a gradient of few words."""
    summary, step, dtypes = comparison.summary, comparison.target.step, comparison.evidence.pairs["g_dtype"]
    own = epsilon(dtypes[summary.first.order]) if summary.first else 0.0
    coarse = max(own, comparison.target.settings.get(PRODUCT_PRECISION, 0.0)) > COARSE
    rate = adaptive_rate(job.ranks[0].files(OPTIMIZER_FILE).values())
    if summary.first is None or not (rate if step else coarse):
        return comparison
    calls = replace(job, target=job.target.with_name(DUMP), golden=job.golden.with_name(DUMP))
    passes = _compared(calls, replace(options, noise=None))
    (names, updates), (ops, back) = ((one.evidence.pairs["t_name"], one.judged) for one in (comparison, passes))
    note = noise_of_steps(names, updates, ops, back, step) if passes.summary.first is None else ""
    kept = replace(summary, first=None, others=[], results=[], notes=[*summary.notes, note])
    return replace(comparison, summary=kept) if note else comparison


def _without_scale(comparison: Comparison, job: Job, options: Options) -> Comparison:
    """The comparison without a first divergence that only scales the loss, where optimizers read what golden's do.

    Layouts need such scales: a mean over all tokens is multiplied by the ranks that will be averaged over, the loss of
    a micro batch is divided by their number, in the program or in a library that calls backward.
    """
    summary, first = comparison.summary, comparison.summary.first
    if first is None or not (scales_the_loss(comparison, first) or loss_begins(first)):
        return comparison
    read = _compared(_updates_of(job), replace(options, noise=None))
    given, gradients = read.summary, int(read.evidence.pairs["t_name"].str.ends_with(".input.0").sum())
    agree = given.first is None and bool(given.results) and all(result.agrees for result in given.results)
    agree |= 0 < len(read.judged.beginnings) < _MOST * gradients  # a scale that stays is in all of them
    micro = [run.micro if isinstance(run, Whole) else 1 for run in (comparison.target, comparison.golden)]
    if not agree and not micro_mean(comparison.evidence.pairs, first.op, micro):
        return comparison
    kept = [result for result in summary.results if result.name not in (LOSS, PARAMETER_GRADIENTS)]
    said = SCALE_OF_LOSS if agree else " by the number of micro batches"
    said = said.replace("gradients that agree", "gradients most of which agree") if given.first is not None else said
    notes = [*summary.notes, f"{first.row} is scaled{said}"]
    others = [] if agree else summary.others
    left = next(iter(others), None) or (behind_the_scale(comparison, first) if given.first is not None else None)
    return replace(comparison, summary=replace(summary, first=left, others=others[1:], results=kept, notes=notes))


def _other_weight(comparison: Comparison, job: Job, options: Options) -> Comparison:
    """The comparison with a parameter that differs before the first step, if optimizers tell it, or if some ranks alone
    have another one: in 16 bits no result of the pass itself may be farther off than noise. Nothing was rounded yet."""
    summary, pairs, judged = comparison.summary, comparison.evidence.pairs, comparison.judged
    held = np.flatnonzero(judged.calls.role == PARAMETER).tolist() if summary.first is None else []
    own = {row: of_ranks(summary.notes, pairs["t_name"][row]) for row in held}
    asked = [row for row in held if judged.state[row] == DIFFERS or own[row].endswith(NO_REPLICA)]
    if comparison.target.step != 0 or not asked:
        return comparison
    updates = _compared(_updates_of(job), replace(options, noise=None))
    update, otherwise = updates.summary.first, held_otherwise(updates)
    for row in asked:
        op, _, name = (pairs["t_name"][row] or "").rpartition(".parameters.")
        module, argument = bare_path(parse_op(op).body) if op else "", f"parameters.{name}"
        there, differs = otherwise.get(f"{module}.{name}"), judged.state[row] == DIFFERS
        told = update.sentence.partition("; ")[0] if update is not None and differs and update.row == there else ""
        if there and (told or own[row]):
            said = [told.replace(BEFORE, argument) or f"{argument}: the parameter differs", *filter(None, [own[row]])]
            first = Divergence(op, f"{op}.{argument}", pairs["g_name"][row], "", {}, {}, None, "; ".join(said),
                               "injected", row, module, argument, OUTSIDE)  # fmt: skip
            notes = [note for note in summary.notes if not note.startswith(f"{pairs['t_name'][row]} differs more")]
            return replace(comparison, summary=replace(summary, first=first, notes=notes))
    return comparison


def _update_before(comparison: Comparison, job: Job, options: Options) -> Comparison:
    """The comparison with what optimizers tell of an earlier time than the first divergence.

    A parameter that is read once something came back may have been written to within the step (by the optimizer of a
    discriminator, by a moving average): what that optimizer was given comes first. So does a parameter that no recorded
    call reads, if it differs before the first step of all.
    """
    summary, first, target = comparison.summary, comparison.summary.first, comparison.target
    parameter = first is not None and (first.argument.startswith("parameters.") or first.begins == PARAMETER_DIFFERS)
    if first is None or not (parameter or target.step == 0):
        return comparison
    back = next((at for at, op in enumerate(target.op_names) if op.direction in (BACKWARD, GRADIENTS)), 0)
    if parameter and first.op in target.ops[:back]:
        return comparison
    update = _compared(_updates_of(job), replace(options, noise=None)).summary.first
    if update is None or parameter == (update.argument == BEFORE):
        return comparison
    others = [first, *summary.others]
    return replace(comparison, summary=replace(summary, first=replace(update, order=NONE), others=others))


def _by_ranks(comparison: Comparison, job: Job, options: Options) -> Comparison:
    """The comparison with what some ranks alone have wrong within the noise of 16 bits, if optimizers differ, too."""
    summary, whole = comparison.summary, comparison.target
    if not isinstance(whole, Whole) or isinstance(comparison.golden, Whole):
        return comparison

    def differ() -> bool:
        return bool(summary.first or _compared(_updates_of(job), replace(options, noise=None)).summary.first)

    texts = (text.partition(": ") for text in (*whole.findings, *summary.notes))
    said = {name: words for name, _, words in texts if words.endswith(ODD)}
    pairs, first = comparison.evidence.pairs, summary.first
    found = odd_ranks(whole, comparison.golden, pairs, first.order if first else pairs.height, said, differ)
    notes = [note for note in summary.notes if found is None or not note.startswith(f"{found.row} differs more")]
    return replace(comparison, summary=replace(summary, first=found or summary.first, notes=notes))


def _updates_of(job: Job) -> Job:
    """The same ranks, and what their optimizers saw."""
    return replace(job, target=job.target.with_name(OPTIMIZER_FILE), golden=job.golden.with_name(OPTIMIZER_FILE))


def open_wholes(
    sides: tuple[StepRanks, StepRanks], name: str, texts: tuple[str, ...]
) -> tuple[list[Run], list[str], list[str]]:
    """The run of each side, its ranks put together as far as names go; what is said of them, and what is missing."""
    lost: list[str] = []
    opened = [open_ranks(side.files(name), lost) for side in sides]
    layouts, hows, wrong = _layouts(texts, sides)
    left_out = without_own_calls(opened, [layout.cp > 1 for layout in layouts])
    single = [next(iter(ranks.values())).run if side.world == 1 else None
              for ranks, side in zip(opened, sides, strict=True)]  # fmt: skip
    known = zip(("target", "golden"), sides, layouts, hows, strict=True)
    notes = [f"{word}: {side.world} ranks, layout {layout} ({how})" for word, side, layout, how in known if how]
    lost += wrong if name == DUMP else []
    for at, side in enumerate(sides):
        if name == DUMP:
            facts = contradictions(layouts[at], opened[at], single[1 - at]) if hows[at] in (GIVEN, AS_MEANT) else []
            lost += [f"{side.root}: layout {layouts[at]}: {fact}" for fact in facts]
            notes += unlike_types(opened[at], layouts[at], single[1 - at])
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
        beside = next(iter(opened[1 - at].values())).run
        runs.append(make_whole(ranks, layout, path, micro[at], lender, beside))
    for at, run in enumerate(runs):
        other = runs[1 - at]
        if isinstance(run, Whole) and run.own_words and not isinstance(other, Whole):
            runs[1 - at] = without_functions(other, run.own_words, call_head)
    return runs, [*notes, *left_out], lost


def _micro_batches(opened: list[dict[int, RankDump]], layouts: list[Layout]) -> list[int]:
    """Of each side, how many calls of a module become one: none where both sides cut the batch alike."""
    passes = [max(passes_of(dump.run) for dump in ranks.values()) for ranks in opened]
    shares = [layout.dp * layout.ep * count for layout, count in zip(layouts, passes, strict=True)]
    if min(passes) > 1 and shares[0] != shares[1]:
        return passes  # the first micro batch of one run holds other samples than the first one of the other
    calls = [max(calls_per_module(dump.run) for dump in ranks.values()) for ranks in opened]
    return [mine // other if mine > other and mine % other == 0 else 1 for mine, other in (calls, calls[::-1])]


def with_findings(comparison: Comparison, notes: list[str], lost: list[str], updates: Sequence[str] = ()) -> Comparison:
    """The comparison of two wholes with what was found on single ranks (``updates``: of what optimizers read), and
    what was assumed."""
    findings = [*updates, *_wrong_shards(comparison)]
    for name, run in zip(("target", "golden"), (comparison.target, comparison.golden), strict=True):
        if isinstance(run, Whole):
            notes = [*notes, *(f"{name}: {text}" for text in run.assumed)]
            findings += run.findings
            lost = [*lost, *run.lost]
    shown = _grouped(findings)
    updated = comparison.target.path.name == OPTIMIZER_FILE and comparison.summary.first is not None
    factor = unlike_multiples(comparison) if updated else []
    factor = factor or (one_multiple(comparison) if comparison.target.path.name == OPTIMIZER_FILE else [])
    if factor == [] and isinstance(comparison.target, Whole):
        factor = own_norms(comparison.target)
    first = not_updated(comparison, findings) or before_the_gradients(comparison) or not_shared(comparison, findings)
    runs = comparison.target, comparison.golden
    first = first or earlier_value(comparison.summary.first, *runs, comparison.evidence.pairs)
    first = first or comparison.summary.first
    if first is not None and first.begins == MISSING and isinstance(runs[0], Whole):
        inside = runs[1].parents.get(first.op) or ""
        if inside and call_head(inside) in runs[0].exchanging:  # there the target's functions were left out
            words = f"{first.row}: the difference begins in this module's own code{size_words(first)}"
            first = replace(first, op=inside, sentence=words, begins=BETWEEN, kinds=[])
    said: list[str] = []
    if first is not None:
        # What is said of its values comes before what is said of the module that it is called in.
        around = comparison.target.parents.get(first.op)
        if first.begins == ARGUMENT:
            said += [text.partition(": ")[2] for text in findings
                     if text.startswith(f"{first.op}.") and SETTING in text][:1]  # fmt: skip
        of_call = (f"{first.op}.{first.argument}: ", f"{first.op}.", f"{first.op}: ")
        for start in (f"{first.row}: ", *of_call, f"{around}: ", f"{around}.parameters."):
            said += [text.partition(": ")[2] for text in findings if text.startswith(start)][: 1 - len(said)]
        if first.begins == PARAMETER_DIFFERS:  # whose shard, rather than who gathered it
            pairs = comparison.evidence.pairs
            norms = dict(pairs.filter(pairs["t_name"].is_not_null()).select("t_name", "t_norm").iter_rows())
            told = ([text.partition(": ")[0], text.partition(": ")[2]] for text in findings)
            said = [words for name, words in told if name.startswith(f"{around}.parameters.")
                    and norms.get(name) == norms.get(first.row)][:1] or said  # fmt: skip
        said = [text for text in said if ON_RANKS not in first.sentence]  # the ranks are named already
        alone = only_on(comparison.target, first.op) if isinstance(comparison.target, Whole) else ""
        verb = "held" if first.op.startswith(OPTIMIZER) else "made"
        said += [f"{verb} by {alone} alone"] if alone and not factor and first.begins != MISSING else []
        said = said or (odd_multiple(comparison, first) if updated else [])
        said += [*factor, *_biases(comparison, first)]
        said = said or [text for text in [cut_through(first, *runs, comparison.evidence.pairs)] if text]
        said += [text.partition(": ")[2] for text in findings if OWN_NORMS in text][:1]
    if first is not None and said:
        first = replace(first, sentence="; ".join([first.sentence, *said]))
    summary = replace(comparison.summary, first=first, notes=[*shown, *notes, *comparison.summary.notes], lost=lost)
    return replace(comparison, summary=summary)


def _biases(comparison: Comparison, first: Divergence) -> list[str]:
    """Whether an output is off by the bias of its module, as often as ranks could have added it before a sum."""
    whole, pairs = comparison.target, comparison.evidence.pairs
    row = pairs.filter(pairs["t_name"] == first.row)
    if not isinstance(whole, Whole) or not first.argument.startswith("output") or not row.height:
        return []
    scale = max(abs(row["g_max"][0] or 0.0), abs(row["g_min"][0] or 0.0))
    return bias_too_often(whole, first.op, row["t_mean"][0], row["g_mean"][0], scale)


def _grouped(findings: list[str]) -> list[str]:
    """What is said of many values alike is said once, of the first."""
    names: dict[str, list[str]] = {}
    for finding in findings:
        name, _, said = finding.partition(": ")
        names.setdefault(said, []).append(name)
    shown: list[str] = []
    for said, values in names.items():
        told = values if len(values) <= _FEW_ALIKE else [f"{values[0]} and {len(values) - 1:,} more"]
        shown += [f"{name}: {said}" for name in told]
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
    suspects = [beginning.call for beginning in judged.beginnings if beginning.reaches][:_MOST_SUSPECTS]
    first = suspects[0] if suspects else -1
    for call in suspects:
        own = (of_row == call) & differs
        # A function is given the parameters of the module around it.
        around = place.get(run.parents.get(run.ops[call]) or "", -1) if 0 <= call < len(run.ops) else -1
        rows = (own & np.isin(role, (PARAMETER, OUTPUT))) | ((of_row == around) & differs & (role == PARAMETER))
        # What came from outside: the gradients of an optimizer do not, and are wrong on all ranks if one was.
        if call == first and run.path.name != OPTIMIZER_FILE and not (rows & (role == PARAMETER)).any():
            rows |= own & (role == INPUT)
        asked |= dict.fromkeys(np.flatnonzero(rows).tolist(), bool((own & (role == INPUT)).any()))
    at = comparison.summary.first.order if comparison.summary.first is not None else -1
    if at >= 0 and differs[at] and run.path.name != OPTIMIZER_FILE:  # what a module's own code gives to another call
        asked.setdefault(at, False)
    if comparison.summary.first is not None:  # what a call of golden's own would have made
        read = (pairs["t_name"] == comparison.summary.first.row).fill_null(value=False).to_numpy()
        asked |= {row: False for row in np.flatnonzero(read & differs).tolist() if row not in asked}
    # Parameters that differ before a step come first; before the first one of all, nothing has made noise of them.
    if run.path.name == OPTIMIZER_FILE or (not suspects and run.step == 0):
        asked |= dict.fromkeys(np.flatnonzero(differs & (role == PARAMETER)).tolist()[:_MOST_SUSPECTS], False)
    for row, inherited in asked.items():
        for whole, side, other, its in sides:
            files = pairs[f"{side}_file"][row], pairs[f"{its}_file"][row]
            # Without tensors, ranks that hold nothing conspicuous may be wrong too if all of them took a wrong value.
            if not isinstance(whole, Whole) or (inherited and role[row] == OUTPUT and None in files):
                continue
            later = role[row] == OUTPUT and of_row[row] != first
            words = whose(whole, pairs[f"{side}_row"][row], other, pairs[f"{its}_row"][row], files, inherited=later)
            words = f"in the golden run, {words}" if words and side == "g" and isinstance(run, Whole) else words
            found += [f"{pairs[f'{side}_name'][row]}: {words}"] if words else []
    return found


@lru_cache(maxsize=64)
def _layouts(texts: tuple[str, ...], sides: tuple[StepRanks, StepRanks]) -> tuple[list[Layout], list[str], list[str]]:
    """The layout of each side, how it is known (the dumps of all ranks tell if it was not given), and what is wrong."""
    many = [at for at, side in enumerate(sides) if side.world > 1]
    if len(texts) == 1 and len(many) == 1:
        texts = (texts[0], "") if many == [0] else ("", texts[0])
    layouts, hows, wrong = list[Layout](), [], []
    for at, side in enumerate(sides):
        text, other = texts[at] if at < len(texts) else "", sides[1 - at]
        layout, how, mistake = fitting_layout(text, side.world), GIVEN if side.world > 1 else "", None
        if layout is None or layout.ep > 1:
            near = _readable(other)
            beside = Beside(near, other.world) if near is not None and other.world > 1 else None
            ranks, alone = open_ranks(side.files(DUMP), []), near if beside is None else None
            layout, how, mistake = find_layout(ranks, alone, side.world, str(side.root), beside, text)
        layouts.append(layout)
        hows.append(how)
        told = how if not layout.known else f"compared as {layout}{f' ({how})' * bool(how)}"
        wrong += [f"{mistake}; {told}"] if mistake else []
    return layouts, hows, wrong


def _readable(side: StepRanks) -> Run | None:
    """The run of the first rank whose dump can be read."""
    for file in side.files(DUMP).values():
        with suppress(TwinProbeError):
            return open_run(file)
    return None
