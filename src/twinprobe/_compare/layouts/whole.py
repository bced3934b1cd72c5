"""Runs in different parallel layouts: the ranks of each side are put together, and the two wholes are compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from math import isclose
from pathlib import Path

import numpy as np

from twinprobe._align.calls import bare_path, epsilon
from twinprobe._align.matcher import match_names
from twinprobe._compare.layouts.findings import MOST_SUSPECTS, with_findings
from twinprobe._compare.layouts.folders import LABELS, StepRanks
from twinprobe._compare.layouts.gradients import (
    SAME_NORM,
    behind_the_scale,
    held_otherwise,
    loss_begins,
    not_given,
    of_own_batch,
    of_ranks,
    scales_the_loss,
    with_effect,
)
from twinprobe._compare.one import Comparison, Options, compare_runs, not_compared
from twinprobe._compare.request import Job
from twinprobe._compare.updates import SCALE_OF_LOSS, adaptive_rate, micro_mean, noise_of_steps, silent_parts
from twinprobe._judge.deviation import ADAPTIVE_RATE, COARSE, DIFFERS, PRODUCT_PRECISION, SILENT, bools
from twinprobe._judge.flow import NONE
from twinprobe._judge.results import LOSS, PARAMETER_GRADIENTS
from twinprobe._judge.search import OUTSIDE, PARAMETER_DIFFERS
from twinprobe._judge.summary import Divergence
from twinprobe._layout.contents import put_in_order
from twinprobe._layout.found_layout import AS_MEANT, GIVEN, Beside, contradictions, find_layout, unlike_types
from twinprobe._layout.layout import Layout, fitting_layout
from twinprobe._layout.ranks import (
    RankDump,
    calls_per_module,
    gradient_precision,
    open_ranks,
    passes_of,
    without_functions,
    without_own_calls,
)
from twinprobe._layout.settle import Settler
from twinprobe._layout.sketched.earlier import ODD, odd_ranks
from twinprobe._layout.sketched.updates import odd_updates
from twinprobe._layout.whole import Whole, call_head, make_whole
from twinprobe._layout.wrong_ranks import NO_REPLICA
from twinprobe._runs.names import BACKWARD, BEFORE, GRADIENTS, READ_BY_OPTIMIZER, TOTAL_NORM, parse_op
from twinprobe._runs.run import DUMP, OPTIMIZER_FILE, Run, open_run
from twinprobe._runs.table import PARAMETER
from twinprobe.errors import TwinProbeError

_MOST = 0.5  # of the gradients of a step
_NAMES_RANKS = re.compile(r"\branks? \d")
_Updates = Callable[[], Comparison]  # of what the optimizers of the same ranks saw: compared once, when first asked for


def compare_whole(job: Job, options: Options) -> Comparison:
    """Put the ranks of each side together and compare the two wholes."""
    found = _compared(job, options)
    if not all(side.files(file) for side in job.ranks for file in LABELS):
        return found
    if job.target.name != DUMP:
        return _without_noise(found, job, options)
    seen = replace(job, target=job.target.with_name(OPTIMIZER_FILE), golden=job.golden.with_name(OPTIMIZER_FILE))
    updates = cache(lambda: _compared(seen, replace(options, noise=None)))
    found = _by_ranks(_other_weight(_without_scale(found, updates), updates), updates)
    if found.summary.first is None:  # nothing shows in a result of the pass
        update = updates().summary.first
        first = with_effect(found, update) if update is not None else None
        said = f"{first.row} differs more" if first is not None else "\n"
        kept = [note for note in found.summary.notes if not note.startswith(said)]
        found = replace(found, summary=replace(found.summary, first=first, notes=kept))
    return _held_by(_update_before(found, updates), updates)


def _held_by(comparison: Comparison, updates: _Updates) -> Comparison:
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
    pairs, seen = comparison.evidence.pairs, updates()
    norm = pairs["t_norm"][int(np.argmax(bools(pairs["t_name"] == first.row)))]
    norms = dict(seen.evidence.pairs.filter(pl.col("t_name").is_not_null()).select("t_name", "t_norm").iter_rows())
    for path, name in held_otherwise(seen).items():
        inside = path.rpartition(".")[0] == bare_path(first.module or "") and None not in (norm, norms[name])
        said = of_ranks(seen.summary.notes, name) if inside and isclose(norm, norms[name], rel_tol=SAME_NORM) else ""
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
    read = bools(pairs["t_name"].str.contains(READ_BY_OPTIMIZER) & pairs["g_row"].is_not_null())
    differ = np.flatnonzero((comparison.judged.state == DIFFERS) & read).tolist()
    rows = [row for row in differ if not pairs["t_name"][row].startswith(TOTAL_NORM)]
    rows = sorted(rows, key=lambda row: pairs["t_name"][row].endswith(".input.0"))[:MOST_SUSPECTS]  # causes first
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


def _without_scale(comparison: Comparison, updates: _Updates) -> Comparison:
    """The comparison without a first divergence that only scales the loss, where optimizers read what golden's do.

    Layouts need such scales: a mean over all tokens is multiplied by the ranks that will be averaged over, the loss of
    a micro batch is divided by their number, in the program or in a library that calls backward.
    """
    summary, first = comparison.summary, comparison.summary.first
    if first is None or not (scales_the_loss(comparison, first) or loss_begins(first)):
        return comparison
    read = updates()
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


def _other_weight(comparison: Comparison, updates: _Updates) -> Comparison:
    """The comparison with a parameter that differs before the first step, if optimizers tell it, or if some ranks alone
    have another one: in 16 bits no result of the pass itself may be farther off than noise. Nothing was rounded yet."""
    summary, pairs, judged = comparison.summary, comparison.evidence.pairs, comparison.judged
    held = np.flatnonzero(judged.calls.role == PARAMETER).tolist() if summary.first is None else []
    own = {row: of_ranks(summary.notes, pairs["t_name"][row]) for row in held}
    asked = [row for row in held if judged.state[row] == DIFFERS or own[row].endswith(NO_REPLICA)]
    if comparison.target.step != 0 or not asked:
        return comparison
    update, otherwise = updates().summary.first, held_otherwise(updates())
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


def _update_before(comparison: Comparison, updates: _Updates) -> Comparison:
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
    update = updates().summary.first
    if update is None or parameter == (update.argument == BEFORE):
        return comparison
    others = [first, *summary.others]
    return replace(comparison, summary=replace(summary, first=replace(update, order=NONE), others=others))


def _by_ranks(comparison: Comparison, updates: _Updates) -> Comparison:
    """The comparison with what some ranks alone have wrong within the noise of 16 bits, if optimizers differ, too."""
    summary, whole = comparison.summary, comparison.target
    if not isinstance(whole, Whole) or isinstance(comparison.golden, Whole):
        return comparison
    texts = (text.partition(": ") for text in (*whole.findings, *summary.notes))
    said = {name: words for name, _, words in texts if words.endswith(ODD)}
    pairs, first = comparison.evidence.pairs, summary.first
    until = first.order if first else pairs.height
    found = odd_ranks(whole, comparison.golden, pairs, until, said, lambda: bool(first or updates().summary.first))
    notes = [note for note in summary.notes if found is None or not note.startswith(f"{found.row} differs more")]
    return replace(comparison, summary=replace(summary, first=found or first, notes=notes))


def open_wholes(
    sides: tuple[StepRanks, StepRanks], name: str, texts: tuple[str, ...]
) -> tuple[list[Run], list[str], list[str]]:
    """The run of each side, its ranks put together as far as names go; what is said of them, and what is missing."""
    lost: list[str] = []
    opened = [open_ranks(side.files(name), lost) for side in sides]
    layouts, hows, wrong = _layouts(texts, sides)
    left_out = without_own_calls(opened, [layout.cp * layout.tp > 1 for layout in layouts])
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
