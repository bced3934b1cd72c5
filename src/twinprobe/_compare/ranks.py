"""Many jobs on the engine: results as they finish, large ranks in slices, failures reported in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from twinprobe._compare.request import Job, Outcome, RankOutcome, Request
from twinprobe._compare.slices import Cut, measure_slice
from twinprobe._judge.across.ranks import Culprit, Exchanges, Meeting, RankFacts, find_culprits, meetings
from twinprobe._judge.deviation import DIFFERS
from twinprobe._judge.search import BETWEEN, OUTSIDE
from twinprobe._judge.summary import Divergence, Summary, unread_rows
from twinprobe._report.dataset import MEETINGS, Place
from twinprobe._runs.remote.contents import local_copies
from twinprobe._scale.engine import Stream
from twinprobe._scale.ledger import Session
from twinprobe._scale.spread import open_stream
from twinprobe.errors import BadInput, NothingRecorded, TwinProbeError

if TYPE_CHECKING:
    from twinprobe._compare.one import Comparison

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class Gathered:
    """Results and failures by job number, and where nothing was recorded on either side.

    ``finished`` is False for a command that was interrupted.
    """

    results: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    finished: bool = True

    def in_order(self) -> list[Any]:
        """The results in the order of their jobs."""
        return [self.results[at] for at in sorted(self.results)]

    def reasons(self) -> list[str]:
        """The failures in the order of their jobs."""
        return [self.failures[at] for at in sorted(self.failures)]


def run_all(
    function: Callable[[Item], Result],
    jobs: Sequence[Item],
    request: Request,
    advance: Callable[[str, int, int], None],
    *,
    size: int | None = None,
    when_interrupted: Callable[[Gathered], object] | None = None,
) -> Gathered:
    """Run every job on the engine; BadInput if not one of them could be done."""
    gathered = Gathered()
    try:
        # One rank alone may become many slices: as many workers as there are can be busy.
        pieces = len(jobs) if len(jobs) > 1 or not request.engine.wanted else 1 << 30
        with open_stream(request.engine, pieces, size) as stream:
            work = _Work(function, jobs, stream, advance)
            for ticket, result in stream:
                work.take(ticket, result, gathered)
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        gathered.finished = False
        if when_interrupted is not None and gathered.results:
            when_interrupted(gathered)
        raise
    if not gathered.results:
        raise BadInput(f"nothing could be compared: {(gathered.reasons() + gathered.empty)[0]}", where=request.target)
    return gathered


class _Work:
    """Which ticket is which job or slice, and how far all of it is."""

    def __init__(
        self, function: Callable[[Any], Any], jobs: Sequence[Any], stream: Stream,
        advance: Callable[[str, int, int], None],
    ) -> None:  # fmt: skip
        self._function = function
        self._jobs = list(jobs)
        self._stream = stream
        self._advance = advance
        self._tickets = {stream.add(function, job, job.name): at for at, job in enumerate(jobs)}
        self._slices: dict[int, tuple[int, int]] = {}
        self._left: dict[int, int] = {}
        self._done = 0
        self._slices_done = 0
        self._slices_in_all = 0

    def take(self, ticket: int, result: Any, gathered: Gathered) -> None:
        if ticket in self._slices:
            self._take_slice(*self._slices.pop(ticket), result)
            return
        at = self._tickets.pop(ticket)
        if isinstance(result, Cut):
            self._cut(at, result)
            return
        self._done += 1
        if isinstance(result, NothingRecorded):
            gathered.empty.append(str(result))
        elif isinstance(result, TwinProbeError):
            gathered.failures[at] = str(result)
        else:
            gathered.results[at] = result
        self._tell()

    def _cut(self, at: int, cut: Cut) -> None:
        self._jobs[at] = replace(self._jobs[at], cut=cut)
        self._left[at] = len(cut.slices)
        self._slices_in_all += len(cut.slices)
        for piece in cut.slices:
            name = f"{self._jobs[at].name} slice {piece.number}".strip()
            self._slices[self._stream.add(measure_slice, piece, name)] = (at, piece.number)

    def _take_slice(self, at: int, number: int, result: Any) -> None:
        job: Job = self._jobs[at]
        if isinstance(result, TwinProbeError):
            self._jobs[at] = job = replace(job, lost=(*job.lost, (number, str(result))))
        self._left[at] -= 1
        self._slices_done += 1
        if not self._left[at]:
            self._tickets[self._stream.add(self._function, job, job.name)] = at
        self._tell()

    def _tell(self) -> None:
        if len(self._jobs) == 1 and self._slices_in_all:
            self._advance("slices", self._slices_done, self._slices_in_all)
        else:
            self._advance("ranks", self._done, len(self._jobs))


# What can only be said of all ranks together: where the difference began, and the map of verdicts.

_MOST_FINDINGS = 20


def rank_facts(comparison: Comparison, rank: int) -> RankFacts:
    """What the search over ranks needs to know of one."""
    run, calls, judged = comparison.target, comparison.judged.calls, comparison.judged
    received = calls.outputs_differ & calls.collective & ~calls.inputs_differ
    injected = calls.injected.copy()
    for beginning in judged.beginnings:
        # Gradients that only the optimiser sees differ were exchanged by a collective that nobody recorded.
        if judged.flow is not None and judged.flow.updates[beginning.call] and beginning.cause in (OUTSIDE, BETWEEN):
            injected[beginning.call] = False
            received[beginning.call] |= beginning.reaches
    return RankFacts(
        rank=rank,
        meetings=tuple(meetings(run, rank)),
        first_injected=_first(run.ops, injected),
        first_received=_first(run.ops, received),
        differs=bool((judged.state == DIFFERS).any()) if len(judged.state) else False,
    )


def flat(found: Sequence[Meeting]) -> list[tuple[int, str]]:
    """Exchanges as rows of a dataset."""
    return [(meeting.order, key) for meeting in found for key in meeting.keys]


def dataset_exchanges(dataset: Path, places: Sequence[Place]) -> Exchanges:
    """The exchanges of these ranks, of which a dataset holds the texts and memory only numbers."""
    import polars as pl

    files = [file for place in places if (file := dataset / place.folder / MEETINGS).is_file()]
    if not files:
        return Exchanges.of([])
    with local_copies(dataset, files) as here:
        table = (
            pl.scan_parquet(here, hive_partitioning=True)
            .select(pl.col("rank").cast(pl.Int32), "order", pl.col("key").hash().reinterpret(signed=True))
            .collect(engine="streaming")
        )
    return Exchanges(table["rank"].to_numpy(), table["order"].to_numpy(), table["key"].to_numpy())


def words(culprit: Culprit, facts: Sequence[RankFacts], first: Divergence | None) -> str:
    """Where a difference began, in a sentence; ``first`` is what the rank's own comparison says."""
    others = sorted(fact.rank for fact in facts if fact.differs and fact.rank != culprit.rank)
    where = f"rank {culprit.rank}: " if len(facts) > 1 else ""
    if culprit.exchanged:
        return f"{where}{culprit.op} is the first to differ, though every rank gave equal data to it"
    known = first if first is not None and first.op == culprit.op else None
    text = f"{where}the difference begins at {culprit.op}"
    text += f" in {known.module}" if known is not None and known.module and known.module not in culprit.op else ""
    if others and len(facts) > 1:
        named = ", ".join(map(str, others[:8])) + (" ..." if len(others) > 8 else "")
        text += f"; ranks {named} differ as well" if len(others) > 1 else f"; rank {named} differs as well"
    if known is not None:
        text += f"; {known.sentence}" + (f"; at {known.stack_line}" if known.stack_line else "")
    return text


def conclude(
    request: Request, jobs: Sequence[Job], gathered: Gathered, notes: Sequence[str], lost: Sequence[str]
) -> Outcome:
    """Everything that was found; with a dataset also the summary over all ranks and steps.

    ``lost`` is what was asked for and could not even be tried.
    """
    results: list[RankOutcome] = gathered.in_order()
    outcome = Outcome(
        [result.summary for result in results],
        [*lost, *(text for result in results for text in result.summary.lost), *gathered.reasons()],
        [*notes, *sorted(gathered.empty)],
    )
    dataset, pages = jobs[0].dataset, "html" in jobs[0].formats
    if dataset is None and not pages:
        return outcome
    from twinprobe._report.overview import Cell, Overview, write_overview

    if dataset is not None:
        doubts = doubts_of(outcome.summaries, outcome.failures)
        outcome.findings = [*_first_step(dataset, jobs, gathered.results, agree=not doubts), *doubts]
    found = {at: (result.summary, "", result.times) for at, result in gathered.results.items()}
    found |= {at: (None, failure, None) for at, failure in gathered.failures.items()}
    cells = sorted(
        (Cell(jobs[at].place, jobs[at].name, *found[at]) for at in sorted(found)), key=lambda cell: cell.place
    )
    outcome.overview = write_overview(
        Overview(
            target=str(request.target), golden=str(request.golden), timestamp=jobs[0].request.timestamp,
            dataset=dataset.name if dataset is not None else "", cells=cells, findings=outcome.findings,
            notes=outcome.notes, lost=lost, finished=gathered.finished,
        ),
        request.output,
    )  # fmt: skip
    return outcome


def doubts_of(summaries: Sequence[Summary], failures: Sequence[str]) -> list[str]:
    """What keeps a first difference from being certain: rows that were not read, ranks that were not compared."""
    unread = sum(summary.unread for summary in summaries)
    doubts = [f"{unread_rows(unread)}: a difference may begin earlier"] if unread else []
    if failures:
        doubts.append(f"not everything was compared: a difference may begin there ({failures[0]}"
                      + (f", and {len(failures) - 1} more)" if len(failures) > 1 else ")"))  # fmt: skip
    return doubts


def no_difference(*, agree: bool) -> str:
    """What is said where no call differs."""
    return "no call differs: the runs agree" if agree else "no call differs in what could be compared"


def _first_step(dataset: Path, jobs: Sequence[Job], results: dict[int, RankOutcome], *, agree: bool) -> list[str]:
    """Where the difference began in the first step that has one."""
    by_step: dict[tuple[str, int], dict[Place, RankFacts]] = {}
    firsts: dict[Place, Divergence | None] = {}
    for at in sorted(results):
        known, place = results[at].facts, jobs[at].place
        if known is not None:
            by_step.setdefault((place.mode, place.step), {})[place] = known
            firsts[place] = results[at].summary.first
    for (mode, step), facts_of in sorted(by_step.items()):
        facts = list(facts_of.values())
        if not any(fact.first_injected or fact.first_received for fact in facts):
            continue
        culprits = find_culprits(facts, dataset_exchanges(dataset, list(facts_of)))
        where = ", ".join(part for part in (mode, f"step {step}" if len(by_step) > 1 else "") if part)
        found = [
            (f"{where}, " if where else "") + text
            for text in _grouped(culprits, facts, {place.rank: firsts[place] for place in facts_of})
        ]
        more = len(found) - _MOST_FINDINGS
        return [*found[:_MOST_FINDINGS], f"{more} more calls differ by themselves"] if more > 0 else found
    return [no_difference(agree=agree)]


def _grouped(
    culprits: Sequence[Culprit], facts: Sequence[RankFacts], firsts: Mapping[int, Divergence | None]
) -> list[str]:
    """The beginnings in words, the same call of several ranks as one; most ranks first."""
    by_call: dict[tuple[str, bool], list[Culprit]] = {}
    for culprit in culprits:
        by_call.setdefault((culprit.op, culprit.exchanged), []).append(culprit)
    told = []
    for (op, exchanged), same in sorted(by_call.items(), key=lambda entry: -len(entry[1])):
        if len(same) == 1:
            told.append(words(same[0], facts, firsts[same[0].rank]))
            continue
        ranks = ", ".join(str(one.rank) for one in same[:8]) + (" ..." if len(same) > 8 else "")
        what = "is the first to differ, though every rank gave equal data to it" if exchanged else "differs by itself"
        told.append(f"{op} {what} on {len(same)} ranks: {ranks}")
    return told


def _first(ops: list[str], mask: np.ndarray[Any, Any]) -> tuple[int, str] | None:
    found = np.flatnonzero(mask)
    return (int(found[0]), ops[int(found[0])]) if len(found) else None


def finish(session: Session | None, gathered: Gathered, *, keep: bool) -> None:
    """After the work: notes are needed only where something is left to do, or where doing it again would be long."""
    if session is not None and gathered.finished and not gathered.failures:
        session.end(keep=keep)
