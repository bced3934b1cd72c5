"""The compare command's work: one pair of files or many ranks, each compared, judged and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._align.folders import FolderPair, pair_folders
from twinprobe._align.matcher import build_matcher
from twinprobe._compare.one import Comparison, Measurer, Options, compare_runs, open_both, silent
from twinprobe._compare.ranks import (
    conclude,
    dataset_exchanges,
    doubts_of,
    finish,
    flat,
    no_difference,
    rank_facts,
    run_all,
    words,
)
from twinprobe._compare.request import Job, Outcome, RankOutcome, Request, arranged, job_mark, job_name, once
from twinprobe._compare.slices import Cut, TooLarge, cutting, gathering
from twinprobe._judge.across.ranks import find_culprits
from twinprobe._lazy import polars as pl
from twinprobe._report.analysis import call_report, write_calls, write_culprits
from twinprobe._report.console import log_rows
from twinprobe._report.dataset import write_part
from twinprobe._report.files import prepare_folder, result_stem
from twinprobe._report.tables import write_reports
from twinprobe._runs.dump_json import REST_LOST
from twinprobe._runs.kernel_dump import is_kernel_folder
from twinprobe._runs.names import LOOKED_UP
from twinprobe._runs.run import (
    OPTIMIZER_FILE,
    RUN_FILES,
    TENSOR_FOLDER,
    Run,
    RunKey,
    find_run,
    open_run,
    run_folders,
    unchanged,
)
from twinprobe._runs.table import INPUT
from twinprobe._runs.watch import watch_files
from twinprobe.errors import BadInput, NothingToCompare, TwinProbeError


def run_request(request: Request, advance: Callable[[str, int, int], None]) -> Outcome:
    """Carry out a compare request; ``advance(what, done, total)`` reports progress."""
    if request.target.is_dir() and is_kernel_folder(request.target) and is_kernel_folder(request.golden):
        from twinprobe._compare.kernel import refuse_mapping, run_kernel_request

        refuse_mapping(request.mapping)
        return run_kernel_request(request, advance)
    are_run_files = request.target.name in RUN_FILES and request.golden.name in RUN_FILES
    if not are_run_files and (watch_files(request.target) or watch_files(request.golden)):
        from twinprobe._compare.steps import run_watched

        return run_watched(request)
    jobs, notes, lost = plan(request)
    prepare_folder(request.output)
    with arranged(request, jobs, "compare") as (jobs, remarks):
        notes += remarks
        if jobs[0].session is None:  # one pair, done at once in this process
            summary = _carry_out(jobs[0], lambda done, total: advance("MiB", done, total))[0].summary
            return Outcome([summary], [*lost, *summary.lost], notes)
        from twinprobe._compare.steps import add_steps, follow_steps

        conclusion = partial(conclude, request, jobs, notes=notes, lost=lost)
        gathered = run_all(run_rank, jobs, request, advance, size=work_size(jobs), when_interrupted=conclusion)
        follow_steps(jobs, gathered.results, lambda job: _carry_out(job)[0])
        outcome = conclusion(gathered)
        add_steps(request, jobs, gathered, outcome)
        finish(jobs[0].session, gathered, keep=jobs[0].dataset is not None)
    return outcome


def work_size(jobs: Sequence[Job]) -> int | None:
    """About how many bytes are to be read; None where tensors make that hard to say."""
    total = 0
    for job in jobs:
        if (job.target.parent / TENSOR_FOLDER).is_dir():
            return None
        for path in (job.target, job.golden):
            try:
                total += path.stat().st_size
            except OSError:
                continue
    return total


def plan(request: Request) -> tuple[list[Job], list[str], list[str]]:
    """Which files are compared with which; notes; and what was asked for but cannot be compared."""
    for path in (request.target, request.golden):
        if not path.exists():
            raise BadInput("does not exist", where=path)
    runs = all(_holds_run(path) for path in (request.target, request.golden))
    if request.layouts or ((request.target.is_dir() or request.golden.is_dir()) and not runs):
        from twinprobe._compare.layouts.folders import plan_whole, puts_together

        if puts_together(request):
            return plan_whole(request)
        as_one = _steps_as_one(request)
        if as_one:
            return as_one, [], []
    whole = _file_jobs(request, [(request.target, request.golden)], "", RunKey("", -1, -1)), list[str](), list[str]()
    if request.target.is_dir() != request.golden.is_dir():
        from twinprobe._runs.other_tools import is_foreign

        if is_foreign(request.target) and is_foreign(request.golden):  # a checkpoint in one file, and one in many
            return whole
        folder, file = sorted((request.target, request.golden), key=lambda path: not path.is_dir())
        raise BadInput(f"is a folder, but {file} is a file", where=folder, hint="give two files or two folders")
    if not request.target.is_dir() or runs:
        return whole
    from twinprobe._compare.steps import step_shift
    from twinprobe._runs.other_tools import is_foreign

    ranks, steps = (None if asked is None else set(asked) for asked in (request.ranks, request.steps))
    try:
        shift = step_shift(request.target, request.golden) if steps is None else 0
        pairs, notes, lost = pair_folders(request.target, request.golden, ranks=ranks, steps=steps, shift=shift)
    except BadInput:
        if is_foreign(request.target) and is_foreign(request.golden):
            return whole
        raise
    jobs: list[Job] = []
    for pair in pairs:
        found, left = _rank_jobs(request, pair)
        jobs += found
        lost += left
    if not jobs:
        raise BadInput("no rank holds a dump.json or debug.json on both sides", where=request.target)
    return jobs, notes, lost


def _steps_as_one(request: Request) -> list[Job]:
    """One job for all steps of each rank, where one side spreads its tokens over more steps than the other."""
    if request.tokens == "off":
        return []
    sides: list[dict[int, list[tuple[int, str, Path]]]] = []
    for root in (request.target, request.golden):
        ranks: dict[int, list[tuple[int, str, Path]]] = {}
        if root.is_file() or _holds_run(root):
            ranks[-1] = [(-1, "", find_run(root))]
        else:
            try:
                folders = run_folders(root)
            except BadInput:
                return []
            for folder in folders:
                rank, step = folder.key.rank, folder.key.step
                if rank in (request.ranks or {rank}) and step in (request.steps or {step}):
                    found = [(step, folder.label, file) for file in folder.files() if file.name.startswith("dump")]
                    ranks.setdefault(rank, []).extend(found)
        sides.append(ranks)
    steps = [max((len(runs) for runs in side.values()), default=0) for side in sides]
    alike = steps[0] == steps[1] and request.tokens != "on"
    twice = any(len({step for step, *_ in runs}) < len(runs) for side in sides for runs in side.values())
    if alike or twice or len(sides[0]) != len(sides[1]) or max(steps) < 2 or not all(steps):
        return []
    jobs = []
    for (rank, target), golden in zip(sides[0].items(), sides[1].values(), strict=True):
        files = tuple(file for *_, file in target), tuple(file for *_, file in golden)
        label = target[0][1] if len(sides[0]) > 1 else ""
        jobs.append(Job(files[0][0], files[1][0], request.output, label, RunKey("", -1, rank), request, steps=files))
    longest = max((job.steps[side] for job in jobs[:1] for side in (0, 1) if job.steps), key=len)
    return jobs if request.tokens == "on" or _goes_on(longest) else []


def _goes_on(steps: Sequence[Path]) -> bool:
    """Whether the second step goes on with the tokens of the first.

    Trainings of different lengths have the same tokens in their first steps, and are no matter of tokens.
    """
    from twinprobe._align.token_cuts import cut_of

    try:
        cut = cut_of([open_run(run) for run in steps[:2]])
    except TwinProbeError:
        return False
    if cut is None or len(cut.passes) < 2:
        return False
    first, second = cut.passes[:2]
    narrower = second.shape[0] == first.shape[0] and second.shape[1] < first.shape[1]
    return narrower or bool(second.past.any())


def compare_job(job: Job, progress: Callable[[int, int], None] = silent) -> Comparison:
    """Compare one pair as the request asks; TooLarge where it is to be cut into slices first."""
    wanted = replace(job.request.mapping, output=job.output, label=job.label, timestamp=job.request.timestamp)
    match = build_matcher(wanted)
    if job.output != job.request.output and (job.formats or wanted.layer is not None):
        prepare_folder(job.output)  # the folder of one step; that of the whole request is prepared already
    measure: Measurer | None = None  # at once, where nothing is spread over workers
    session = job.session
    if job.cut is not None:
        measure = gathering(job.cut, dict(job.lost))
    elif session is not None:
        measure = cutting(lambda: session.work_folder(job_name(job), job_mark(job)), job.slice_bytes)
    request = job.request
    options = Options(match, request.thresholds, progress, measure, _noise_run(job), request.isolate, job.before)
    if job.ranks is not None:
        from twinprobe._compare.layouts.whole import compare_whole

        with unchanged(*job.files):
            comparison = compare_whole(job, options)
    else:
        tokens = job.request.tokens
        with unchanged(*(run for side in job.steps or ((job.target,), (job.golden,)) for run in side)):
            target, golden = open_both(job.target, job.golden)
            if job.steps is None and (tokens == "off" or (tokens == "auto" and not _ids_differ(target, golden))):
                comparison = compare_runs(target, golden, options)
            else:
                from twinprobe._compare.tokens import compare_cut

                comparison = compare_cut(job, (target, golden), options)
    if not comparison.summary.matched:
        calls = comparison.summary.target.ops
        raise NothingToCompare(
            f"nothing to compare: none of its {calls:,} calls has a counterpart in {job.golden}", where=job.target,
            hint="are these runs of the same model? twinprobe align shows what fits; a mapping file pairs other names",
        )  # fmt: skip
    broken = [note for note in comparison.summary.notes if note.endswith(REST_LOST)]
    if broken:  # what is missing was asked for: its absence is no agreement
        lost = [*comparison.summary.lost, *broken]
        comparison = replace(comparison, summary=replace(comparison.summary, lost=lost))
    return comparison


def _ids_differ(target: Run, golden: Run) -> bool:
    """Whether the tables of tokens are not asked for the same ids in the same calls: then a look at tokens pays."""
    asked = []
    for run in (target, golden):
        looked_up = pl.col("name").str.contains(LOOKED_UP) & pl.col("dtype").str.contains("(?i)int")
        asked.append(run.table.with_row_index("row").filter((pl.col("role") == INPUT) & looked_up))
    columns = ["shape", "max", "min"]
    if asked[0].is_empty() or not asked[0].select(columns).equals(asked[1].select(columns)):
        return not asked[0].is_empty() and not asked[1].is_empty()
    files = [rows["file"].drop_nulls().to_list() for rows in asked]
    known = [(one, rows["row"].to_numpy()) for one, rows in zip((target.sketches, golden.sketches), asked, strict=True)]
    if not any(files):  # the same ids in other places have other sketches
        sums = [one.of(rows)["sums"] for one, rows in known if one is not None]
        return len(sums) == 2 and not np.array_equal(sums[0], sums[1])
    from twinprobe._runs.tensors.tensor_files import open_named

    try:
        return any(
            not np.array_equal(
                open_named(target.tensor_folder, target_file).data, open_named(golden.tensor_folder, golden_file).data
            )
            for target_file, golden_file in zip(*files, strict=False)
        )
    except (TwinProbeError, OSError):
        return False


def _noise_run(job: Job) -> Path | None:
    """The run that shows the noise of this pair: the one named, or the same rank and step below the folder named."""
    named = job.request.noise
    if named is None or not named.is_dir() or _holds_run(named):
        return named
    try:
        beside = named / job.golden.parent.relative_to(job.request.golden)
    except ValueError:
        beside = named
    if not _holds_run(beside):
        raise BadInput(
            f"holds no run for {job.golden}", where=named, hint="record the noise on the same ranks and steps"
        )
    return beside


def run_rank(job: Job) -> RankOutcome | Cut:
    """Compare one of many ranks and write its results (in a worker process), or say how it is to be cut."""
    return _noted(job, _carry_out)


def _noted(job: Job, work: Callable[[Job], tuple[RankOutcome, list[Path]]]) -> RankOutcome | Cut:
    try:
        return once(job.session, job_name(job), lambda: job_mark(job), RankOutcome, lambda: work(job))
    except TooLarge as large:
        return large.cut


def _carry_out(job: Job, progress: Callable[[int, int], None] = silent) -> tuple[RankOutcome, list[Path]]:
    comparison = compare_job(job, progress)
    is_debug = comparison.target.single_points
    summary = replace(comparison.summary, rank=job.name)
    table = comparison.table()
    if job.request.log_rows:
        log_rows(table)
    files: list[Path] = []
    if job.formats:
        stem = result_stem(job.request.timestamp, job.label, debug=is_debug)
        files += write_reports(table, summary, job.output, stem, job.formats)
        if comparison.tokens is not None:
            files += comparison.tokens.write(job.output, stem, job.formats)
    facts, times = None, None
    if job.name:
        times = _times_noise(table)
    if job.dataset is not None:
        facts = rank_facts(comparison, job.place.rank)
        files += write_part(job.dataset, job.place, table, flat(facts.meetings), debug=is_debug)
        # The dataset holds them; the search over ranks reads them there.
        facts = None if is_debug else replace(facts, meetings=())
    return RankOutcome(replace(summary, files=[str(path) for path in files]), facts, times=times), files


def _times_noise(table: pl.DataFrame) -> float | None:
    if "Times noise" not in table.columns:
        return None
    worst = table.filter(pl.col("Result") != "pass")["Times noise"].max()
    return worst if isinstance(worst, float) else None


def _holds_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in RUN_FILES)


def _rank_jobs(request: Request, pair: FolderPair) -> tuple[list[Job], list[str]]:
    left = {path.name.partition(".")[0]: path for path in pair.target.files()}
    right = {path.name.partition(".")[0]: path for path in pair.golden.files()}
    common = [(left[kind], right[kind]) for kind in left if kind in right]
    lost = []
    if not common:
        empty = pair.golden.path if left else pair.target.path
        lost.append(f"{empty}: no dump.json or debug.json here; this rank is left out")
    else:
        alone = [(left | right)[kind] for kind in left.keys() ^ right.keys()]
        lost += [f"{file}: has no counterpart on the other side; it is left out" for file in alone]
    return _file_jobs(request, common, pair.target.label, pair.target.key), lost


def _file_jobs(request: Request, files: Sequence[tuple[Path, Path]], label: str, key: RunKey) -> list[Job]:
    output = request.output / key.subfolder
    return [Job(target, golden, output, label, key, request) for target, golden in files]


# The search for the first difference, over one rank or many.


def analyze(request: Request, advance: Callable[[str, int, int], None]) -> Outcome:
    """Compare every rank, then find the calls where the differences began."""
    if is_kernel_folder(request.target):
        from twinprobe._compare.kernel import refuse_option

        refuse_option("-da (--diff_analyze)")
    jobs, notes, lost = plan(request)
    jobs = [job for job in jobs if job.target.name != OPTIMIZER_FILE]  # which is no rank of its own
    prepare_folder(request.output)
    from twinprobe._compare.steps import follow_steps

    with arranged(request, jobs, "diff_analyze") as (jobs, remarks):
        notes += remarks
        conclusion = partial(conclude, request, jobs, notes=notes, lost=lost)
        gathered = run_all(analyze_rank, jobs, request, advance, size=work_size(jobs), when_interrupted=conclusion)
        follow_steps(jobs, gathered.results, lambda job: _analyze(job)[0])
        outcome = conclusion(gathered)
        outcome.findings = []  # each step has its own here
        outcome.calls = [result.file for result in gathered.in_order() if result.file is not None]
        doubts = doubts_of(outcome.summaries, outcome.failures)
        for output in dict.fromkeys(job.output for job in jobs):
            found = [(jobs[at], gathered.results[at]) for at in sorted(gathered.results) if jobs[at].output == output]
            _find_first(output, found, outcome, agree=not doubts)
        outcome.findings += doubts
        outcome.reports += outcome.overview
        finish(jobs[0].session, gathered, keep=jobs[0].dataset is not None)
    return outcome


def analyze_rank(job: Job) -> RankOutcome | Cut:
    """Compare one rank, write its calls, and keep what the search over ranks needs (in a worker process)."""
    return _noted(job, _analyze)


def _analyze(job: Job) -> tuple[RankOutcome, list[Path]]:
    comparison = compare_job(job)
    table = comparison.table()
    pairs, run = comparison.evidence.pairs, comparison.target
    facts = rank_facts(comparison, job.place.rank)
    path = None
    if job.dataset is not None:
        files = write_part(job.dataset, job.place, table, flat(facts.meetings), debug=run.single_points)
        facts = replace(facts, meetings=())
    else:
        prepare_folder(job.output)
        stem = result_stem(job.request.timestamp, job.label, debug=run.single_points)
        files = [path := job.output / f"{stem}.json"]
        # A saved value counts as its own output.
        write_calls(path, run.ops, pairs, table, set(np.flatnonzero(comparison.judged.calls.outputs_differ).tolist()))
    suspects = {first[0] for first in (facts.first_injected, facts.first_received) if first}
    reports = {at: call_report(run.ops, at, pairs, table, run.stacks[run.ops[at]]) for at in suspects}
    summary = replace(comparison.summary, rank=job.name, files=[str(file) for file in files])
    return RankOutcome(summary, facts, reports, path, _times_noise(table)), files


def _find_first(output: Path, found: list[tuple[Job, RankOutcome]], outcome: Outcome, *, agree: bool) -> None:
    """Add where the difference began on the ranks that write to one folder, which are those of one step."""
    facts = [result.facts for _, result in found if result.facts is not None]
    result_of = {job.place.rank: result for job, result in found}
    exchanges = None
    dataset = found[0][0].dataset if found else None
    if dataset is not None:
        exchanges = dataset_exchanges(dataset, [job.place for job, _ in found])
    culprits = find_culprits(facts, exchanges)
    if not culprits:
        outcome.findings.append(no_difference(agree=agree) + (f" ({output.name})" if len(found) > 1 else ""))
        return
    reports: dict[str, list[dict[str, Any]]] = {}
    for culprit in culprits:
        reports.setdefault(f"rank_{culprit.rank}", []).append(result_of[culprit.rank].reports[culprit.order])
        outcome.findings.append(words(culprit, facts, result_of[culprit.rank].summary.first))
    prepare_folder(output)
    path = output / f"diff_analyze_{found[0][0].request.timestamp}.json"
    write_culprits(path, reports)
    outcome.reports.append(path)
