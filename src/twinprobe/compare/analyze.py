"""The search for the first difference, over one rank or many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe.compare.job import Job, Request, compare_job, plan, run_all
from twinprobe.compare.kernel import is_kernel_folder, refuse_option
from twinprobe.compare.one import Comparison
from twinprobe.judge.culprit import Culprit, RankFacts, find_culprits
from twinprobe.judge.deviation import DIFFERS
from twinprobe.judge.messages import meetings
from twinprobe.judge.summary import Summary
from twinprobe.report.analysis import call_report, write_calls, write_culprits
from twinprobe.report.atomic import prepare_folder
from twinprobe.report.names import result_stem


@dataclass
class RankResult:
    """What one rank's comparison gives to the search."""

    facts: RankFacts
    reports: dict[int, dict[str, Any]]
    summary: Summary
    file: Path


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
    jobs, notes = plan(request)
    prepare_folder(request.output)
    results, failures = run_all(analyze_job, jobs, request, advance)
    analysis = Analysis([], [], [], [], failures, notes)
    for output in dict.fromkeys(job.output for job in jobs):
        _conclude(output, request, [result for at, result in results.items() if jobs[at].output == output], analysis)
    return analysis


def analyze_job(job: Job) -> RankResult:
    """Compare one rank, write its calls, and keep what the search over ranks needs (in a worker process)."""
    comparison = compare_job(job)
    table = comparison.table()
    pairs = comparison.evidence.pairs
    prepare_folder(job.output)
    stem = result_stem(job.request.timestamp, job.label, debug=comparison.target.single_points)
    path = job.output / f"{stem}.json"
    differs = _differing(comparison)
    write_calls(path, comparison.target.ops, pairs, table, differs)
    facts = _facts(comparison, max(job.key.rank, 0))
    run = comparison.target
    suspects = {first[0] for first in (facts.first_injected, facts.first_received) if first}
    reports = {at: call_report(run.ops, at, pairs, table, run.stacks[run.ops[at]]) for at in suspects}
    summary = replace(comparison.summary, rank=job.name, files=[str(path)])
    return RankResult(facts, reports, summary, path)


def _differing(comparison: Comparison) -> set[int]:
    """The calls of which an output differs (a saved value counts as its own output)."""
    calls = comparison.judged.calls
    return set(np.flatnonzero(calls.outputs_differ).tolist())


def _facts(comparison: Comparison, rank: int) -> RankFacts:
    run, calls = comparison.target, comparison.judged.calls
    received = calls.outputs_differ & calls.collective & ~calls.inputs_differ
    return RankFacts(
        rank=rank,
        meetings=tuple(meetings(run, rank)),
        first_injected=_first(run.ops, calls.injected),
        first_received=_first(run.ops, received),
        differs=bool((comparison.evidence.deviation.state == DIFFERS).any()),
    )


def _first(ops: list[str], mask: np.ndarray) -> tuple[int, str] | None:
    found = np.flatnonzero(mask)
    return (int(found[0]), ops[int(found[0])]) if len(found) else None


def _conclude(output: Path, request: Request, results: list[RankResult], analysis: Analysis) -> None:
    analysis.summaries += [result.summary for result in results]
    analysis.files += [result.file for result in results]
    by_rank = {result.facts.rank: result for result in results}
    culprits = find_culprits([result.facts for result in results])
    if not culprits:
        analysis.findings.append("no call differs: the runs agree" + (f" ({output.name})" if len(results) > 1 else ""))
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for culprit in culprits:
        found.setdefault(f"rank_{culprit.rank}", []).append(by_rank[culprit.rank].reports[culprit.order])
        analysis.findings.append(_words(culprit, results))
    path = output / f"diff_analyze_{request.timestamp}.json"
    write_culprits(path, found)
    analysis.reports.append(path)


def _words(culprit: Culprit, results: list[RankResult]) -> str:
    others = sorted(r.facts.rank for r in results if r.facts.differs and r.facts.rank != culprit.rank)
    where = f"rank {culprit.rank}: " if len(results) > 1 else ""
    if culprit.exchanged:
        return f"{where}{culprit.op} is the first to differ, though every rank gave equal data to it"
    text = f"{where}the difference begins at {culprit.op}"
    if others and len(results) > 1:
        text += f"; rank {', '.join(map(str, others[:8]))}{' ...' if len(others) > 8 else ''} differ as well"
    return text
