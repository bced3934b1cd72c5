"""Many jobs on the engine: results as they finish, large ranks in slices, failures told in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from twinprobe.compare.ranks.slices import Cut, measure_slice
from twinprobe.compare.request import Job, Request
from twinprobe.errors import BadInput, NothingRecorded, TwinProbeError
from twinprobe.scale.engine import EngineOptions, open_stream
from twinprobe.scale.stream import Stream

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

    def told(self) -> list[str]:
        """The failures in the order of their jobs."""
        return [self.failures[at] for at in sorted(self.failures)]


def run_all(
    function: Callable[[Item], Result],
    jobs: Sequence[Item],
    request: Request,
    advance: Callable[[str, int, int], None],
    *,
    size: int | None = None,
    when_interrupted: Callable[[Gathered], None] | None = None,
) -> Gathered:
    """Run every job on the engine; BadInput if not one of them could be done."""
    gathered = Gathered()
    try:
        with open_stream(request.options, _pieces(jobs, request.options), size) as stream:
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
        raise BadInput(f"nothing could be compared: {(gathered.told() + gathered.empty)[0]}", where=request.target)
    return gathered


def _pieces(jobs: Sequence[Any], options: EngineOptions) -> int:
    """How many workers can be busy: one rank alone may become many slices."""
    return len(jobs) if len(jobs) > 1 or not options.wanted else 1 << 30


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
        self._tickets = {stream.add(function, job, _name(job)): at for at, job in enumerate(jobs)}
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
            name = f"{_name(self._jobs[at])} slice {piece.number}".strip()
            self._slices[self._stream.add(measure_slice, piece, name)] = (at, piece.number)

    def _take_slice(self, at: int, number: int, result: Any) -> None:
        job: Job = self._jobs[at]
        if isinstance(result, TwinProbeError):
            self._jobs[at] = job = replace(job, lost=(*job.lost, (number, str(result))))
        self._left[at] -= 1
        self._slices_done += 1
        if not self._left[at]:
            self._tickets[self._stream.add(self._function, job, _name(job))] = at
        self._tell()

    def _tell(self) -> None:
        if len(self._jobs) == 1 and self._slices_in_all:
            self._advance("slices", self._slices_done, self._slices_in_all)
        else:
            self._advance("ranks", self._done, len(self._jobs))


def _name(job: Any) -> str:
    return str(getattr(job, "name", ""))
