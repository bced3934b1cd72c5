"""Over all ranks: where did the difference begin, and who only received it?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twinprobe.judge.exchanges import Exchanges, Spreading
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


def find_culprits(facts: Sequence[RankFacts], exchanges: Exchanges | None = None) -> list[Culprit]:
    """The calls where differences began that no other such call can have caused.

    A call of one rank comes before a call of another only through exchanges. Whatever can be reached from another
    rank's first own difference is taken as its consequence. ``exchanges`` are those of all ranks, where the facts do
    not hold them.
    """
    injected = [Culprit(f.rank, *f.first_injected, exchanged=False) for f in facts if f.first_injected]
    received = [Culprit(f.rank, *f.first_received, exchanged=True) for f in facts if f.first_received]
    candidates = injected or received
    if len(candidates) < 2:
        return candidates
    return _earliest(candidates, exchanges if exchanges is not None else _exchanges(facts))


def _exchanges(facts: Iterable[RankFacts]) -> Exchanges:
    return Exchanges.of(
        (fact.rank, meeting.order, key) for fact in facts for meeting in fact.meetings for key in meeting.keys
    )


def _earliest(candidates: list[Culprit], exchanges: Exchanges) -> list[Culprit]:
    spreading = Spreading(exchanges)
    sources = _sources(candidates, spreading)
    spreading.spread((one.rank, one.order, source) for one, source in zip(candidates, sources, strict=True))
    first = [
        one
        for one, source in zip(candidates, sources, strict=True)
        if not spreading.reached_from_elsewhere(one.rank, one.order, source)
    ]
    return first or candidates  # in a circle nobody is the first


def _sources(candidates: list[Culprit], spreading: Spreading) -> list[int]:
    """Candidates that are the same exchange on several ranks are one beginning."""
    known: dict[int, int] = {}
    sources = []
    for number, one in enumerate(candidates):
        keys = spreading.keys_at(one.rank, one.order)
        source = next((known[key] for key in keys if key in known), number)
        known.update(dict.fromkeys(keys, source))
        sources.append(source)
    return sources
