"""The compare command's work on kernel dumps: every common rank and step, each compared and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from twinprobe import __version__
from twinprobe.compare.kernel.pairs import KernelPair, compare_kernel_pair, kernel_stem, pair_kernels
from twinprobe.compare.ranks.arrange import finish, is_large, opened_session
from twinprobe.compare.ranks.many import run_all
from twinprobe.compare.request import Outcome, Request
from twinprobe.compare.resume import once
from twinprobe.judge.summary import Summary
from twinprobe.report.atomic import prepare_folder
from twinprobe.report.row_log import log_rows
from twinprobe.report.write import write_reports
from twinprobe.runs.fingerprint import files_below, files_fingerprint
from twinprobe.runs.places import place
from twinprobe.scale.ledger import Session


@dataclass(frozen=True)
class KernelJob:
    """One rank's step and what the user asked for."""

    pair: KernelPair
    request: Request
    session: Session | None = None

    @property
    def name(self) -> str:
        """The step and rank as people know them."""
        return f"step{self.pair.step}/rank{self.pair.rank}"


def run_kernel_request(request: Request, advance: Callable[[str, int, int], None]) -> Outcome:
    """Carry out a compare request on two kernel dumps; ``advance(what, done, total)`` is told of progress."""
    pairs, lost = pair_kernels(request.target, request.golden, ranks=request.ranks, steps=request.steps)
    prepare_folder(request.output)
    with opened_session(request, "kernel", keeps=is_large(request, pairs)) as (stamp, session, notes):
        stamped = replace(request, timestamp=stamp, formats=request.formats or ("xlsx",))
        jobs = [KernelJob(pair, stamped, session) for pair in pairs]
        if not is_large(request, jobs):
            summary = _carry_out(jobs[0], lambda done, total: advance("tensors", done, total))
            return Outcome([summary], lost, notes)
        gathered = run_all(run_kernel_job, jobs, request, advance)
        finish(session, gathered, keep=False)
    return Outcome(gathered.in_order(), lost + gathered.told(), notes)


def run_kernel_job(job: KernelJob) -> Summary:
    """Compare one rank's step and write its results (in a worker process)."""

    def work() -> tuple[Summary, list[Path]]:
        summary = _carry_out(job, lambda _done, _total: None)
        return summary, [place(file) for file in summary.files]

    return once(job.session, job.name, lambda: _mark(job), Summary, work)


def _mark(job: KernelJob) -> str:
    pair = job.pair
    sides = ((pair.target_root, pair.target), (pair.golden_root, pair.golden))
    parts = [files_fingerprint(root, [file for one in folders for file in files_below(one.path)])
             for root, folders in sides]  # fmt: skip
    return " ".join([__version__, job.request.identity(), *parts])


def _carry_out(job: KernelJob, progress: Callable[[int, int], None]) -> Summary:
    request = job.request
    result = compare_kernel_pair(job.pair, request.thresholds, progress)
    summary = replace(result.summary, rank=f"step{result.step}/rank{result.rank}")
    if request.log_rows:
        log_rows(result.table)
    stem = kernel_stem(result.rank, result.step, request.timestamp)
    files = write_reports(result.table, summary, request.output, stem, request.formats)
    return replace(summary, files=[str(file) for file in files])
