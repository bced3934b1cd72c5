"""The compare command's work on kernel dumps: every common rank and step, each compared and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from twinprobe.compare.job import Outcome, Request, run_all
from twinprobe.compare.kernel import KernelPair, compare_kernel_pair, kernel_stem, pair_kernels
from twinprobe.judge.summary import Summary
from twinprobe.report.atomic import prepare_folder
from twinprobe.report.row_log import log_rows
from twinprobe.report.write import write_reports


@dataclass(frozen=True)
class KernelJob:
    """One rank's step and what the user asked for."""

    pair: KernelPair
    request: Request


def run_kernel_request(request: Request, advance: Callable[[str, int, int], None]) -> Outcome:
    """Carry out a compare request on two kernel dumps; ``advance(what, done, total)`` is told of progress."""
    pairs, notes = pair_kernels(request.target, request.golden, ranks=request.ranks, steps=request.steps)
    prepare_folder(request.output)
    if len(pairs) == 1:
        summary = _carry_out(KernelJob(pairs[0], request), lambda done, total: advance("tensors", done, total))
        return Outcome([summary], [], notes)
    jobs = [KernelJob(pair, request) for pair in pairs]
    summaries, failures = run_all(run_kernel_job, jobs, request, advance)
    return Outcome(list(summaries.values()), failures, notes)


def run_kernel_job(job: KernelJob) -> Summary:
    """Compare one rank's step and write its results (in a worker process)."""
    return _carry_out(job, lambda _done, _total: None)


def _carry_out(job: KernelJob, progress: Callable[[int, int], None]) -> Summary:
    request = job.request
    result = compare_kernel_pair(job.pair, request.thresholds, progress)
    summary = replace(result.summary, rank=f"step{result.step}/rank{result.rank}")
    if request.log_rows:
        log_rows(result.table)
    stem = kernel_stem(result.rank, result.step, request.timestamp)
    files = write_reports(result.table, summary, request.output, stem, request.formats)
    return replace(summary, files=[str(file) for file in files])
