"""The search for the first difference, over one rank or many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe.compare.job import Job, Request, compare_job, plan, run_all, work_size
from twinprobe.compare.kernel.pairs import is_kernel_folder, refuse_option
from twinprobe.compare.one import Comparison
from twinprobe.compare.ranks.arrange import arranged, finish, job_mark, job_name
from twinprobe.compare.ranks.many import Gathered
from twinprobe.compare.ranks.over_ranks import (
    conclude,
    dataset_exchanges,
    doubts_of,
    flat,
    no_difference,
    rank_facts,
    words,
)
from twinprobe.compare.ranks.slices import Cut, TooLarge
from twinprobe.compare.resume import once
from twinprobe.judge.culprit import RankFacts, find_culprits
from twinprobe.judge.summary import Summary
from twinprobe.report.analysis import call_report, write_calls, write_culprits
from twinprobe.report.atomic import prepare_folder
from twinprobe.report.dataset import write_part
from twinprobe.report.names import result_stem


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
        return once(job.session, job_name(job), lambda: job_mark(job), RankResult, lambda: _carry_out(job))
    except TooLarge as large:
        return large.cut


def _carry_out(job: Job) -> tuple[RankResult, list[Path]]:
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
