"""The compare command's work: one pair of files or many ranks, each compared, judged and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._align.folders import FolderPair, pair_folders
from twinprobe._align.matcher import build_matcher
from twinprobe._compare.kernel import refuse_mapping, refuse_option
from twinprobe._compare.one import Comparison, Measurer, Options, compare_paths, silent
from twinprobe._compare.ranks import (
    Gathered,
    arranged,
    conclude,
    dataset_exchanges,
    doubts_of,
    finish,
    flat,
    is_large,
    job_mark,
    job_name,
    no_difference,
    rank_facts,
    run_all,
    unchanged,
    words,
)
from twinprobe._compare.request import Job, Outcome, RankOutcome, Request, once
from twinprobe._compare.slices import Cut, TooLarge, cutting, gathering
from twinprobe._judge.origin import Summary
from twinprobe._judge.ranks import RankFacts, find_culprits
from twinprobe._report.analysis import call_report, write_calls, write_culprits
from twinprobe._report.console import log_rows
from twinprobe._report.dataset import write_part
from twinprobe._report.files import prepare_folder, result_stem
from twinprobe._report.tables import write_reports
from twinprobe._runs.kernel_dump import is_kernel_folder
from twinprobe._runs.run import RUN_FILES, TENSOR_FOLDER, RunKey, find_run
from twinprobe.errors import BadInput, NothingToCompare


def run_request(request: Request, advance: Callable[[str, int, int], None]) -> Outcome:
    """Carry out a compare request; ``advance(what, done, total)`` is told of progress."""
    if is_kernel_folder(request.target) and is_kernel_folder(request.golden):
        from twinprobe._compare.kernel import run_kernel_request

        refuse_mapping(request.mapping)
        return run_kernel_request(request, advance)
    jobs, notes, lost = plan(request)
    prepare_folder(request.output)
    with arranged(request, jobs, "compare") as (jobs, told):
        notes += told
        if not is_large(request, jobs):
            return Outcome([run_job(jobs[0], lambda done, total: advance("tensors", done, total))], lost, notes)

        def interrupted(gathered: Gathered) -> None:
            conclude(request, jobs, gathered, notes, lost)

        gathered = run_all(run_rank, jobs, request, advance, size=work_size(jobs), when_interrupted=interrupted)
        outcome = conclude(request, jobs, gathered, notes, lost)
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
    if request.target.is_dir() != request.golden.is_dir():
        folder, file = sorted((request.target, request.golden), key=lambda path: not path.is_dir())
        raise BadInput(f"is a folder, but {file} is a file", where=folder, hint="give two files or two folders")
    if not request.target.is_dir() or (_holds_run(request.target) and _holds_run(request.golden)):
        return _file_jobs(request, [(request.target, request.golden)], "", RunKey("", -1, -1)), [], []
    pairs, notes, lost = pair_folders(
        request.target, request.golden, ranks=_set(request.ranks), steps=_set(request.steps)
    )
    jobs: list[Job] = []
    for pair in pairs:
        found, left = _rank_jobs(request, pair)
        jobs += found
        lost += left
    if not jobs:
        raise BadInput("no rank holds a dump.json or debug.json on both sides", where=request.target)
    return jobs, notes, lost


def compare_job(job: Job, progress: Callable[[int, int], None] = silent) -> Comparison:
    """Compare one pair as the request asks; TooLarge where it is to be cut into slices first."""
    wanted = replace(job.request.mapping, output=job.output, label=job.label, timestamp=job.request.timestamp)
    match = build_matcher(wanted)
    if job.formats or wanted.layer is not None:
        prepare_folder(job.output)
    options = Options(match, job.request.thresholds, progress, _measurer(job))
    with unchanged(find_run(job.target), find_run(job.golden)):
        comparison = compare_paths(job.target, job.golden, options)
    if not comparison.summary.matched:
        calls = comparison.summary.target.ops
        raise NothingToCompare(
            f"nothing to compare: none of its {calls:,} calls has its like in {job.golden}", where=job.target,
            hint="are these two runs of one model? twinprobe align says what fits, a mapping file pairs other names",
        )  # fmt: skip
    return comparison


def _measurer(job: Job) -> Measurer | None:
    """How the tensors of a job are measured: at once where nothing is spread over workers."""
    if job.cut is not None:
        return gathering(job.cut, dict(job.lost))
    session = job.session
    if session is None:
        return None
    return cutting(lambda: session.work_folder(job_name(job), job_mark(job)), job.slice_bytes)


def run_job(job: Job, progress: Callable[[int, int], None] = silent) -> Summary:
    """Compare one pair and write its results."""
    return _carry_out(job, progress)[0].summary


def run_rank(job: Job) -> RankOutcome | Cut:
    """Compare one of many ranks and write its results (in a worker process), or say how it is to be cut."""
    try:
        return once(job.session, job_name(job), lambda: job_mark(job), RankOutcome, lambda: _carry_out(job, silent))
    except TooLarge as large:
        return large.cut


def _carry_out(job: Job, progress: Callable[[int, int], None]) -> tuple[RankOutcome, list[Path]]:
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
    facts = None
    if job.dataset is not None:
        facts = rank_facts(comparison, job.place.rank)
        files += write_part(job.dataset, job.place, table, flat(facts.meetings), debug=is_debug)
        # The dataset holds them; the search over ranks reads them there.
        facts = None if is_debug else replace(facts, meetings=())
    return RankOutcome(replace(summary, files=[str(path) for path in files]), facts), files


def _holds_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in RUN_FILES)


def _rank_jobs(request: Request, pair: FolderPair) -> tuple[list[Job], list[str]]:
    left = {path.name.partition(".")[0]: path for path in pair.target.files()}
    right = {path.name.partition(".")[0]: path for path in pair.golden.files()}
    common = [(left[kind], right[kind]) for kind in left if kind in right]
    lost = []
    if not common:
        empty = pair.golden.path if left else pair.target.path
        lost.append(f"{empty}: no dump.json or debug.json; this rank is left out")
    else:
        alone = [(left | right)[kind] for kind in left.keys() ^ right.keys()]
        lost += [f"{file}: has no counterpart on the other side; it is left out" for file in alone]
    return _file_jobs(request, common, pair.target.label, pair.target.key), lost


def _file_jobs(request: Request, files: Sequence[tuple[Path, Path]], label: str, key: RunKey) -> list[Job]:
    output = request.output / key.subfolder
    return [Job(target, golden, output, label, key, request) for target, golden in files]


def _set(numbers: frozenset[int] | None) -> set[int] | None:
    return set(numbers) if numbers is not None else None


# The search for the first difference, over one rank or many.


@dataclass
class RankResult:
    """What one rank's comparison gives to the search. ``file`` lists its calls; many ranks have a dataset instead."""

    facts: RankFacts
    reports: dict[int, dict[str, Any]]
    summary: Summary
    file: Path | None


@dataclass
class Analysis:
    """Where the difference began, per step, in words and as files."""

    summaries: list[Summary]
    files: list[Path]
    findings: list[str]
    reports: list[Path]
    failures: list[str]
    notes: list[str]


def analyze(request: Request, advance: Callable[[str, int, int], None]) -> Analysis:
    """Compare every rank, then find the calls where the differences began."""
    if is_kernel_folder(request.target):
        refuse_option("-da (--diff_analyze)")
    jobs, notes, lost = plan(request)
    prepare_folder(request.output)
    with arranged(request, jobs, "diff_analyze") as (jobs, told):
        notes += told

        def interrupted(gathered: Gathered) -> None:
            conclude(request, jobs, gathered, notes, lost)

        gathered = run_all(analyze_job, jobs, request, advance, size=work_size(jobs), when_interrupted=interrupted)
        analysis = Analysis([], [], [], [], lost + gathered.told(), notes + gathered.empty)
        doubts = doubts_of([result.summary for result in gathered.in_order()], analysis.failures)
        for output in dict.fromkeys(job.output for job in jobs):
            _conclude(output, [at for at in sorted(gathered.results) if jobs[at].output == output],
                      jobs, gathered.results, analysis, agree=not doubts)  # fmt: skip
        analysis.findings += doubts
        analysis.reports += conclude(request, jobs, gathered, notes, lost).overview
        finish(jobs[0].session, gathered, keep=jobs[0].dataset is not None)
    return analysis


def analyze_job(job: Job) -> RankResult | Cut:
    """Compare one rank, write its calls, and keep what the search over ranks needs (in a worker process)."""
    try:
        return once(job.session, job_name(job), lambda: job_mark(job), RankResult, lambda: _analyze_rank(job))
    except TooLarge as large:
        return large.cut


def _analyze_rank(job: Job) -> tuple[RankResult, list[Path]]:
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
        write_calls(path, run.ops, pairs, table, _differing(comparison))
    suspects = {first[0] for first in (facts.first_injected, facts.first_received) if first}
    reports = {at: call_report(run.ops, at, pairs, table, run.stacks[run.ops[at]]) for at in suspects}
    summary = replace(comparison.summary, rank=job.name, files=[str(file) for file in files])
    return RankResult(facts, reports, summary, path), files


def _differing(comparison: Comparison) -> set[int]:
    """The calls of which an output differs (a saved value counts as its own output)."""
    calls = comparison.judged.calls
    return set(np.flatnonzero(calls.outputs_differ).tolist())


def _conclude(
    output: Path,
    chosen: Sequence[int],
    jobs: Sequence[Job],
    found: dict[int, RankResult],
    analysis: Analysis,
    *,
    agree: bool,
) -> None:
    results = [found[at] for at in chosen]
    analysis.summaries += [result.summary for result in results]
    analysis.files += [result.file for result in results if result.file is not None]
    by_rank = {result.facts.rank: result for result in results}
    facts = [result.facts for result in results]
    dataset = jobs[0].dataset
    exchanges = None
    if dataset is not None and chosen:
        exchanges = dataset_exchanges(dataset, [jobs[at].place for at in chosen])
    culprits = find_culprits(facts, exchanges)
    if not culprits:
        analysis.findings.append(no_difference(agree=agree) + (f" ({output.name})" if len(results) > 1 else ""))
        return
    reports: dict[str, list[dict[str, Any]]] = {}
    for culprit in culprits:
        reports.setdefault(f"rank_{culprit.rank}", []).append(by_rank[culprit.rank].reports[culprit.order])
        analysis.findings.append(words(culprit, facts))
    prepare_folder(output)
    path = output / f"diff_analyze_{jobs[0].request.timestamp}.json"
    write_culprits(path, reports)
    analysis.reports.append(path)
