"""What the user asked for, cut into jobs: one pair of run files each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from twinprobe._align.matcher import MappingOptions
from twinprobe._compare.slices import Cut
from twinprobe._judge.origin import Summary
from twinprobe._judge.ranks import RankFacts
from twinprobe._judge.verdicts import Thresholds
from twinprobe._report.dataset import Place
from twinprobe._report.files import own_timestamp
from twinprobe._runs.places import place
from twinprobe._runs.run import RunKey
from twinprobe._scale.engine import SLICE_BYTES, EngineOptions
from twinprobe._scale.ledger import Session, earlier_session, new_session


@dataclass(frozen=True)
class Request:
    """What the user asked for. Without formats, few ranks get a workbook each and many become one dataset."""

    target: Path
    golden: Path
    output: Path
    formats: tuple[str, ...] = ()
    timestamp: str = ""
    thresholds: Thresholds = field(default_factory=Thresholds)
    ranks: frozenset[int] | None = None
    steps: frozenset[int] | None = None
    workers: int | None = None
    log_rows: bool = False
    mapping: MappingOptions = field(default_factory=MappingOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    resume: bool = False

    @property
    def options(self) -> EngineOptions:
        """The engine, with the number of workers from either place."""
        return replace(self.engine, workers=self.engine.workers or self.workers)

    def identity(self) -> str:
        """All that decides what the results are, apart from what lies in the files."""
        chosen = (None if numbers is None else sorted(numbers) for numbers in (self.ranks, self.steps))
        mapping = replace(self.mapping, output=None, timestamp="", label="")
        return repr((str(self.target), str(self.golden), self.formats, self.thresholds, *chosen, mapping))


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

    @property
    def name(self) -> str:
        """The rank as people know it: rank0, step1/rank0; empty for two files."""
        return str(self.key.subfolder / self.label) if self.label else ""

    @property
    def place(self) -> Place:
        """Its part of a dataset."""
        return Place(self.key.graph_mode, max(self.key.step, 0), max(self.key.rank, 0))

    def stamped(self, timestamp: str) -> Job:
        """The same job with another timestamp in the names of its results."""
        return replace(self, request=replace(self.request, timestamp=timestamp))


@dataclass
class RankOutcome:
    """One rank, compared; ``facts`` are kept where ranks are looked at together."""

    summary: Summary
    facts: RankFacts | None = None


@dataclass
class Outcome:
    """What was compared; in ``failures``, what was asked for and is not in the result.

    ``findings`` and ``overview`` tell of many ranks together.
    """

    summaries: list[Summary]
    failures: list[str]
    notes: list[str]
    findings: list[str] = field(default_factory=list)
    overview: list[Path] = field(default_factory=list)


# One long command's notes, whichever command it is: what is done is recalled, what is new is kept.

Result = TypeVar("Result")


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
def session_of(command: Command, *, keeps: bool) -> Iterator[tuple[str, Session | None, list[str]]]:
    """The command's timestamp, its notes (new, or those of the command that is resumed), and what to tell the user."""
    notes: list[str] = []
    if command.resume:
        with earlier_session(command.output, command.digest()) as session:
            if session is not None:
                yield session.stamp, session, notes
                return
        notes.append(f"{command.output}: no such command was interrupted here, so there is nothing to resume")
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
    """Do a piece of work, or take what an interrupted command has kept of it."""
    if session is None:
        return work()[0]
    fingerprint = mark()
    kept = session.recall(name, fingerprint)
    if kept is not None:
        return _revived(kind, kept)
    result, files = work()
    keep(session, name, fingerprint, result, files)
    return result


def once_in_folder(
    session: Session, name: str, fingerprint: str, kind: type[Result], work: Callable[[Path], tuple[Result, list[Path]]]
) -> Result:
    """The same for work whose files are of use only to the command itself: they lie in the folder it is given."""
    kept = session.recall(name, fingerprint)
    if kept is not None:
        return _revived(kind, kept)
    result, files = work(session.work_folder(name, fingerprint))
    keep(session, name, fingerprint, result, files)
    return result


def keep(session: Session, name: str, fingerprint: str, result: Any, files: list[Path]) -> None:
    """Note a finished piece: a dataclass of plain values."""
    session.keep(name, fingerprint, json.loads(json.dumps(asdict(result), default=_plain)), files)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def _revived(kind: type[Result], kept: Any) -> Result:
    import msgspec

    return msgspec.convert(kept, type=kind, strict=False, dec_hook=_revived_value)


def _revived_value(wanted: Any, value: Any) -> Any:
    return place(value) if wanted is Path else wanted(value)
