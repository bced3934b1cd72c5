"""Over all ranks: where did the difference begin, and who only received it?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twinprobe.judge.messages import Meeting


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What the search needs to know of a rank: its exchanges, and the first calls of either suspicious kind."""

    rank: int
    meetings: tuple[Meeting, ...]
    first_injected: tuple[int, str] | None
    """Order and name of the first call that caused a difference by itself."""
    first_received: tuple[int, str] | None
    """Order and name of the first exchange whose result differs although what the rank gave agrees."""
    differs: bool


@dataclass(frozen=True, slots=True)
class Culprit:
    """A call where a difference began."""

    rank: int
    order: int
    op: str
    exchanged: bool
    """Whether the difference appeared in an exchange to which every rank gave equal data."""


def find_culprits(facts: Sequence[RankFacts]) -> list[Culprit]:
    """The calls where differences began that no other such call can have caused.

    A call of one rank comes before a call of another only through exchanges. Whatever can be reached from another
    rank's first own difference is taken as its consequence.
    """
    injected = [Culprit(f.rank, *f.first_injected, exchanged=False) for f in facts if f.first_injected]
    if injected:
        return _earliest(injected, facts)
    received = [Culprit(f.rank, *f.first_received, exchanged=True) for f in facts if f.first_received]
    return _earliest(received, facts)


def _earliest(candidates: list[Culprit], facts: Sequence[RankFacts]) -> list[Culprit]:
    places = _places(facts)
    reached = {candidate.rank: _reach(candidate, facts, places) for candidate in candidates}
    return [
        one
        for one in candidates
        if not any(
            other.rank != one.rank
            and reached[other.rank].get(one.rank, one.order + 1) <= one.order
            and not reached[one.rank].get(other.rank, other.order + 1) <= other.order
            for other in candidates
        )
    ]


def _places(facts: Iterable[RankFacts]) -> dict[str, list[tuple[int, int]]]:
    """For each exchange, the ranks that took part and where in their order."""
    places: dict[str, list[tuple[int, int]]] = {}
    for fact in facts:
        for meeting in fact.meetings:
            for key in meeting.keys:
                places.setdefault(key, []).append((fact.rank, meeting.order))
    return places


def _reach(start: Culprit, facts: Sequence[RankFacts], places: dict[str, list[tuple[int, int]]]) -> dict[int, int]:
    """The earliest call of every rank that data from the start can have reached."""
    of_rank = {fact.rank: fact.meetings for fact in facts}
    earliest = {start.rank: start.order}
    waiting = [start.rank]
    while waiting:
        rank = waiting.pop()
        for meeting in of_rank.get(rank, ()):
            if meeting.order < earliest[rank]:
                continue
            for key in meeting.keys:
                for other, order in places[key]:
                    if order < earliest.get(other, order + 1):
                        earliest[other] = order
                        waiting.append(other)
    return earliest
