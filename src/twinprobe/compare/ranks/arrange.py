"""Before the work: names that are ours alone, where results go, and what an interrupted command has finished."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from twinprobe import __version__
from twinprobe.align.matcher import MappingOptions
from twinprobe.compare.ranks.many import Gathered
from twinprobe.compare.request import Job, Request
from twinprobe.compare.resume import Command, session_of
from twinprobe.errors import BadInput
from twinprobe.report.dataset import dataset_folder
from twinprobe.runs.fingerprint import run_fingerprint, state_of
from twinprobe.scale.ledger import Session

DATASET = "dataset"
# So many ranks get a workbook each, unless the user says otherwise; more become a dataset.
FEW_RANKS = 16


@contextmanager
def arranged(request: Request, jobs: list[Job], kind: str) -> Iterator[tuple[list[Job], list[str]]]:
    """The jobs with their timestamp, formats, dataset and notes of what is done; and what to tell the user."""
    with opened_session(request, kind, keeps=is_large(request, jobs)) as (stamp, session, notes):
        ranks = len({job.name.rpartition("/")[2] for job in jobs})
        many = ranks > FEW_RANKS or DATASET in request.formats
        formats = tuple(name for name in request.formats if name != DATASET) or (() if many else ("xlsx",))
        dataset = dataset_folder(request.output, stamp) if many else None
        size = request.options.slice_of(len(jobs))
        made = [
            replace(job.stamped(stamp), formats=formats, dataset=dataset, session=session, slice_bytes=size)
            for job in jobs
        ]
        yield made, notes


def is_large(request: Request, jobs: Sequence[object]) -> bool:
    """Whether the work goes to the engine, rather than being done at once in this process."""
    return len(jobs) > 1 or request.options.wanted or request.resume


@contextmanager
def opened_session(request: Request, kind: str, *, keeps: bool) -> Iterator[tuple[str, Session | None, list[str]]]:
    """The command's timestamp, its notes (new, or those of the command that is resumed), and what to tell the user."""
    command = Command(kind, request.identity(), request.output, request.timestamp, request.resume)
    with session_of(command, keeps=keeps) as opened:
        yield opened


def finish(session: Session | None, gathered: Gathered, *, keep: bool) -> None:
    """After the work: notes are needed only where something is left to do, or where doing it again would be long."""
    if session is not None and gathered.finished and not gathered.failures:
        session.end(keep=keep)


def job_mark(job: Job) -> str:
    """What decides a job's result: the content of both runs and of the mapping files, the options, our version."""
    digest = hashlib.sha256(repr((__version__, job.request.identity(), job.name, job.formats)).encode())
    digest.update(mapping_mark(job.request.mapping))
    for run in (job.target, job.golden):
        digest.update(run_fingerprint(run).encode())
    return digest.hexdigest()


def mapping_mark(mapping: MappingOptions) -> bytes:
    """The content of the mapping files."""
    named = (mapping.api, mapping.cell, mapping.data, mapping.layer, mapping.alignment)
    files = [path.read_bytes() if path and path is not True and path.is_file() else b"" for path in named]
    return b"".join(hashlib.sha256(part).digest() for part in files)


def job_name(job: Job) -> str:
    """The name of a job's record."""
    return f"{job.name or 'pair'} {job.target.name}"


@contextmanager
def unchanged(*paths: Path) -> Iterator[None]:
    """Raise BadInput if one of these files changes meanwhile: its recorder is still at work."""
    before = [state_of(path) for path in paths]
    yield
    for path, state in zip(paths, before, strict=True):
        if state_of(path) != state:
            raise BadInput(
                "changed while it was read: it is still being written",
                where=path, hint="compare this rank when its recorder has ended; --resume does only what is missing",
            )  # fmt: skip
