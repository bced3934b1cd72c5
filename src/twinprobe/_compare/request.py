"""What the user asked for, cut into jobs: one pair of run files each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from twinprobe import __version__
from twinprobe._align.matcher import MappingOptions
from twinprobe._compare.one import Isolate
from twinprobe._compare.slices import Cut
from twinprobe._judge.across.ranks import RankFacts
from twinprobe._judge.rules import Thresholds
from twinprobe._judge.summary import Summary
from twinprobe._report.dataset import Place, dataset_folder
from twinprobe._report.files import own_timestamp, timestamp_now
from twinprobe._runs.run import RunKey, run_fingerprint
from twinprobe._runs.whole_files import place
from twinprobe._scale.engine import SLICE_BYTES, EngineOptions
from twinprobe._scale.ledger import Session, earlier_session, new_session

if TYPE_CHECKING:
    from twinprobe._judge.across.steps import StepsComparison


@dataclass(frozen=True)
class Request:
    """What the user asked for. Without formats, few ranks get a workbook each and many become one dataset."""

    target: Path
    golden: Path
    output: Path
    formats: tuple[str, ...] = ()
    timestamp: str = field(default_factory=timestamp_now)
    thresholds: Thresholds = field(default_factory=Thresholds)
    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    log_rows: bool = False
    mapping: MappingOptions = field(default_factory=MappingOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    resume: bool = False
    noise: Path | None = None
    """A third recording that shows how far healthy runs of the golden program are apart."""
    isolate: Isolate | None = None
    """Runs suspects again from their own inputs."""
    layouts: tuple[str, ...] = ()
    """How the ranks of the target, and of the golden run, are laid out, e.g. ``tp=2,pp=2``."""
    tokens: str = "auto"
    """Whether runs are compared token by token: where they are cut otherwise (auto), on, or off."""

    def identity(self) -> str:
        """All that decides what the results are, apart from what lies in the files."""
        chosen = (None if numbers is None else sorted(numbers) for numbers in (self.ranks, self.steps))
        mapping = replace(self.mapping, output=None, timestamp="", label="")
        return repr((str(self.target), str(self.golden), self.formats, self.thresholds, *chosen, mapping, self.layouts,
                     self.noise, self.isolate is not None, self.tokens))  # fmt: skip

    def session(
        self, kind: str, jobs: Sequence[object]
    ) -> AbstractContextManager[tuple[str, Session | None, list[str]]]:
        """The command's notes; none are kept of work that is done at once in this process and not by the engine."""
        keeps = len(jobs) > 1 or self.engine.wanted or self.resume
        return session_of(Command(kind, self.identity(), self.output, self.timestamp, self.resume), keeps=keeps)


@dataclass(frozen=True)
class Job:
    """One pair of run files and where its results go."""

    target: Path
    golden: Path
    output: Path
    label: str
    key: RunKey
    request: Request
    formats: tuple[str, ...] = ("xlsx",)
    dataset: Path | None = None
    session: Session | None = None
    cut: Cut | None = None
    lost: tuple[tuple[int, str], ...] = ()
    """Slices that could not be measured, with the reason."""
    slice_bytes: int = SLICE_BYTES
    ranks: Any = None
    """The ranks of both sides, where they are put together: then the two paths name no files of their own."""
    steps: tuple[tuple[Path, ...], tuple[Path, ...]] | None = None
    """The runs of all steps of both sides, where their tokens are compared as one."""
    before: tuple[Path, Path] | None = None
    """The runs of the step before, where these agree: what it left in the parameters is no difference of this one."""

    @property
    def name(self) -> str:
        """The rank as people know it: rank0, step1/rank0; empty for two files."""
        return str(self.key.subfolder / self.label) if self.label else ""

    @property
    def files(self) -> list[Path]:
        """The run files of both sides."""
        if self.ranks is None:
            return [self.target, self.golden]
        return [file for side in self.ranks for file in side.files(self.target.name).values()]

    @property
    def place(self) -> Place:
        """Its part of a dataset."""
        return Place(self.key.graph_mode, max(self.key.step, 0), max(self.key.rank, 0))


@dataclass
class RankOutcome:
    """One rank, compared; ``facts`` are kept where ranks are looked at together.

    The search for the first difference adds ``reports`` of the suspected calls, by their order, and the ``file`` that
    lists all calls (many ranks have a dataset instead).
    """

    summary: Summary
    facts: RankFacts | None = None
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    file: Path | None = None
    times: float | None = None
    """The worst error of the rows that do not pass, in multiples of the noise that is to be expected."""


@dataclass
class Outcome:
    """What was compared; in ``failures``, what was asked for and is not in the result.

    ``findings`` and ``overview`` tell of many ranks together; ``calls`` and ``reports`` are the files of the search for
    the first difference.
    """

    summaries: list[Summary]
    failures: list[str]
    notes: list[str]
    findings: list[str] = field(default_factory=list)
    overview: list[Path] = field(default_factory=list)
    calls: list[Path] = field(default_factory=list)
    reports: list[Path] = field(default_factory=list)
    steps: StepsComparison | None = None
    """Where runs of many steps part. Of a watched run this is all there is: it has no summaries."""


# One long command's notes, whichever command it is: what is done is recalled, what is new is kept.

Result = TypeVar("Result")
Begun = tuple[str, Session | None, list[str]]  # the timestamp, the notes, what to tell the user


@dataclass(frozen=True)
class Command:
    """What makes two commands the same one: ``identity`` tells all that decides the results, but not the inputs."""

    kind: str
    identity: str
    output: Path
    timestamp: str
    resume: bool

    def digest(self) -> str:
        """The command in the notes."""
        return hashlib.sha256(f"{self.kind} {self.identity}".encode("utf-8", "surrogateescape")).hexdigest()


@contextmanager
def session_of(command: Command, *, keeps: bool) -> Iterator[Begun]:
    """The command's timestamp, its notes (new, or those of the command that is resumed), and what to tell the user."""
    notes: list[str] = []
    if command.resume:
        with earlier_session(command.output, command.digest()) as session:
            if session is not None:
                yield session.stamp, session, notes
                return
        notes.append(
            f"{command.output}: no interrupted run of this command was found here: starting from the beginning"
        )
    with own_timestamp(command.output, command.timestamp) as stamp:
        if not keeps:
            yield stamp, None, notes
            return
        with new_session(command.output, stamp, command.digest()) as session:
            yield stamp, session, notes


def once(
    session: Session | None,
    name: str,
    mark: Callable[[], str],
    kind: type[Result],
    work: Callable[[], tuple[Result, list[Path]]],
) -> Result:
    """Do a piece of work, whose result is a dataclass of plain values, or take what an interrupted command has kept."""
    if session is None:
        return work()[0]
    fingerprint = mark()
    kept = session.recall(name, fingerprint)
    if kept is not None:
        import msgspec

        def revived(wanted: Any, value: Any) -> Any:
            return place(value) if wanted is Path else wanted(value)

        return msgspec.convert(kept, type=kind, strict=False, dec_hook=revived)
    result, files = work()

    def plain(value: Any) -> Any:
        return sorted(value) if isinstance(value, set | frozenset) else str(value)

    document: Any = result
    session.keep(name, fingerprint, json.loads(json.dumps(asdict(document), default=plain)), files)
    return result


def once_in_folder(
    session: Session, name: str, fingerprint: str, kind: type[Result], work: Callable[[Path], tuple[Result, list[Path]]]
) -> Result:
    """The same for work whose files are of use only to the command itself: they lie in the folder it is given."""
    return once(session, name, lambda: fingerprint, kind, lambda: work(session.work_folder(name, fingerprint)))


# Before the work: names that are ours alone, where results go, and what an interrupted command has finished.

DATASET = "dataset"
# So many ranks get a workbook each, unless the user says otherwise; more become a dataset.
FEW_RANKS = 16


@contextmanager
def arranged(request: Request, jobs: list[Job], kind: str) -> Iterator[tuple[list[Job], list[str]]]:
    """The jobs with their timestamp, formats, dataset and notes of what is done; and what to tell the user."""
    with request.session(kind, jobs) as (stamp, session, notes):
        ranks = len({job.name.rpartition("/")[2] for job in jobs})
        many = ranks > FEW_RANKS or DATASET in request.formats
        formats = tuple(name for name in request.formats if name != DATASET) or (() if many else ("xlsx",))
        dataset = dataset_folder(request.output, stamp) if many else None
        given: dict[str, Any] = {"formats": formats, "dataset": dataset, "session": session}
        if session is not None:  # only the work of an engine is cut into slices
            given["slice_bytes"] = request.engine.slice_of(len(jobs))
        stamped = replace(request, timestamp=stamp)
        yield [replace(job, request=stamped, **given) for job in jobs], notes


def job_mark(job: Job) -> str:
    """What decides a job's result: the content of both runs and of the mapping files, the options, our version."""
    digest = hashlib.sha256(repr((__version__, job.request.identity(), job.name, job.formats)).encode())
    digest.update(mapping_mark(job.request.mapping))
    for run in job.files if job.steps is None else (run for side in job.steps for run in side):
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
