"""The compare command's work: one pair of files or many ranks, each compared, judged and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from twinprobe.align.folders import FolderPair, pair_folders
from twinprobe.align.matcher import build_matcher
from twinprobe.compare.kernel.pairs import is_kernel_folder, refuse_mapping
from twinprobe.compare.one import Comparison, Measurer, Options, compare_paths, silent
from twinprobe.compare.ranks.arrange import arranged, finish, is_large, job_mark, job_name, unchanged
from twinprobe.compare.ranks.many import Gathered, run_all
from twinprobe.compare.ranks.over_ranks import conclude, flat, rank_facts
from twinprobe.compare.ranks.slices import Cut, TooLarge, cutting, gathering
from twinprobe.compare.request import Job, Outcome, RankOutcome, Request
from twinprobe.compare.resume import once
from twinprobe.errors import BadInput
from twinprobe.judge.summary import Summary
from twinprobe.report.atomic import prepare_folder
from twinprobe.report.dataset import write_part
from twinprobe.report.names import result_stem
from twinprobe.report.row_log import log_rows
from twinprobe.report.write import write_reports
from twinprobe.runs.folders import RunKey
from twinprobe.runs.run import RUN_FILES, TENSOR_FOLDER, find_run

__all__ = ["Job", "Outcome", "Request", "compare_job", "plan", "run_all", "run_job", "run_request", "work_size"]


def run_request(request: Request, advance: Callable[[str, int, int], None]) -> Outcome:
    """Carry out a compare request; ``advance(what, done, total)`` is told of progress."""
    if is_kernel_folder(request.target) and is_kernel_folder(request.golden):
        from twinprobe.compare.kernel.job import run_kernel_request

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
        return compare_paths(job.target, job.golden, options)


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
