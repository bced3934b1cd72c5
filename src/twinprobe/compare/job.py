"""The compare command's work: one pair of files or many ranks, each compared, judged and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from twinprobe.align.folders import FolderPair, pair_folders
from twinprobe.align.matcher import MappingOptions, build_matcher
from twinprobe.compare.kernel import is_kernel_folder, refuse_mapping
from twinprobe.compare.one import Comparison, Options, compare_paths, silent
from twinprobe.errors import BadInput, TwinProbeError
from twinprobe.judge.summary import Summary
from twinprobe.judge.thresholds import Thresholds
from twinprobe.report.atomic import prepare_folder
from twinprobe.report.names import result_stem
from twinprobe.report.row_log import log_rows
from twinprobe.report.write import write_reports
from twinprobe.runs.folders import RunKey
from twinprobe.runs.run import RUN_FILES
from twinprobe.scale.engine import spread

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    target: Path
    golden: Path
    output: Path
    formats: tuple[str, ...] = ("xlsx",)
    timestamp: str = ""
    thresholds: Thresholds = field(default_factory=Thresholds)
    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    workers: int | None = None
    log_rows: bool = False
    mapping: MappingOptions = field(default_factory=MappingOptions)


@dataclass(frozen=True)
class Job:
    """One pair of run files and where its results go."""

    target: Path
    golden: Path
    output: Path
    label: str
    key: RunKey
    request: Request

    @property
    def name(self) -> str:
        """The rank as people know it: rank0, step1/rank0; empty for two files."""
        return str(self.key.subfolder / self.label) if self.label else ""


@dataclass
class Outcome:
    """What was compared and what could not be."""

    summaries: list[Summary]
    failures: list[str]
    notes: list[str]


def run_request(request: Request, advance: Callable[[str, int, int], None]) -> Outcome:
    """Carry out a compare request; ``advance(what, done, total)`` is told of progress."""
    if is_kernel_folder(request.target) and is_kernel_folder(request.golden):
        from twinprobe.compare.kernel_job import run_kernel_request

        refuse_mapping(request.mapping)
        return run_kernel_request(request, advance)
    jobs, notes = plan(request)
    prepare_folder(request.output)
    if len(jobs) == 1:
        return Outcome([run_job(jobs[0], lambda done, total: advance("tensors", done, total))], [], notes)
    summaries, failures = run_all(run_job, jobs, request, advance)
    return Outcome(list(summaries.values()), failures, notes)


def run_all(
    function: Callable[[Item], Result],
    jobs: Sequence[Item],
    request: Request,
    advance: Callable[[str, int, int], None],
) -> tuple[dict[int, Result], list[str]]:
    """Run every job on the workers; return results by job number, in order, and what failed in words."""
    results: dict[int, Result] = {}
    failures: list[str] = []
    for done, (at, result) in enumerate(spread(function, jobs, workers=request.workers), start=1):
        advance("ranks", done, len(jobs))
        if isinstance(result, TwinProbeError):
            failures.append(str(result))
        else:
            results[at] = result
    if not results:
        raise BadInput(f"nothing could be compared: {failures[0]}", where=request.target)
    return dict(sorted(results.items())), failures


def plan(request: Request) -> tuple[list[Job], list[str]]:
    """Which files are compared with which."""
    for path in (request.target, request.golden):
        if not path.exists():
            raise BadInput("does not exist", where=path)
    if request.target.is_dir() != request.golden.is_dir():
        folder, file = sorted((request.target, request.golden), key=lambda path: not path.is_dir())
        raise BadInput(f"is a folder, but {file} is a file", where=folder, hint="give two files or two folders")
    if not request.target.is_dir() or (_holds_run(request.target) and _holds_run(request.golden)):
        return _file_jobs(request, [(request.target, request.golden)], "", RunKey("", -1, -1)), []
    pairs, notes = pair_folders(request.target, request.golden, ranks=_set(request.ranks), steps=_set(request.steps))
    jobs: list[Job] = []
    for pair in pairs:
        found, more = _rank_jobs(request, pair)
        jobs += found
        notes += more
    if not jobs:
        raise BadInput("no rank holds a dump.json or debug.json on both sides", where=request.target)
    return jobs, notes


def compare_job(job: Job, progress: Callable[[int, int], None] = silent) -> Comparison:
    """Compare one pair as the request asks."""
    wanted = replace(job.request.mapping, output=job.output, label=job.label, timestamp=job.request.timestamp)
    match = build_matcher(wanted)
    prepare_folder(job.output)
    options = Options(match, job.request.thresholds, progress)
    return compare_paths(job.target, job.golden, options)


def run_job(job: Job, progress: Callable[[int, int], None] = silent) -> Summary:
    """Compare one pair and write its results (in a worker process, where there are many)."""
    comparison = compare_job(job, progress)
    prepare_folder(job.output)
    stem = result_stem(job.request.timestamp, job.label, debug=comparison.target.single_points)
    summary = replace(comparison.summary, rank=job.name)
    table = comparison.table()
    if job.request.log_rows:
        log_rows(table)
    files = write_reports(table, summary, job.output, stem, job.request.formats)
    return replace(summary, files=[str(path) for path in files])


def _holds_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in RUN_FILES)


def _rank_jobs(request: Request, pair: FolderPair) -> tuple[list[Job], list[str]]:
    left = {path.name.partition(".")[0]: path for path in pair.target.files()}
    right = {path.name.partition(".")[0]: path for path in pair.golden.files()}
    common = [(left[kind], right[kind]) for kind in left if kind in right]
    notes = []
    if not common:
        empty = pair.golden.path if left else pair.target.path
        notes.append(f"{empty}: no dump.json or debug.json; this rank is left out")
    return _file_jobs(request, common, pair.target.label, pair.target.key), notes


def _file_jobs(request: Request, files: Sequence[tuple[Path, Path]], label: str, key: RunKey) -> list[Job]:
    output = request.output / key.subfolder
    return [Job(target, golden, output, label, key, request) for target, golden in files]


def _set(numbers: frozenset[int] | None) -> set[int] | None:
    return set(numbers) if numbers is not None else None
