"""What the user asked for, cut into jobs: one pair of run files each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from twinprobe.align.matcher import MappingOptions
from twinprobe.compare.ranks.slices import Cut
from twinprobe.judge.culprit import RankFacts
from twinprobe.judge.summary import Summary
from twinprobe.judge.thresholds import Thresholds
from twinprobe.report.dataset import Place
from twinprobe.runs.folders import RunKey
from twinprobe.scale.engine import SLICE_BYTES, EngineOptions
from twinprobe.scale.ledger import Session


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
