"""Where a difference began over many ranks: the quick search finds what the plain definition says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._judge.across.ranks import Culprit, Meeting, RankFacts, find_culprits

RANKS = 5
# What happens one after the other: a call on one rank, or an exchange between some.
events = st.lists(st.sets(st.integers(0, RANKS - 1), min_size=1, max_size=RANKS), min_size=1, max_size=30)
beginnings = st.lists(st.none() | st.integers(0, 29), min_size=RANKS, max_size=RANKS)


def facts_of(happened: list[set[int]], began: list[int | None]) -> list[RankFacts]:
    orders = [0] * RANKS
    meetings: list[list[Meeting]] = [[] for _ in range(RANKS)]
    for number, members in enumerate(happened):
        for rank in sorted(members):
            if len(members) > 1:
                meetings[rank].append(Meeting(orders[rank], f"x{number}", (f"exchange {number}",)))
            orders[rank] += 1
    return [
        RankFacts(
            rank, tuple(meetings[rank]),
            (at, f"call {at}") if at is not None and at < orders[rank] else None, None, differs=True,
        )
        for rank, at in enumerate(began)
    ]  # fmt: skip


def reach(rank: int, order: int, facts: list[RankFacts]) -> dict[int, int]:
    """The earliest call of every rank that data of this call can have come to, by following every exchange."""
    earliest = {rank: order}
    while True:
        known = dict(earliest)
        for fact in facts:
            for meeting in fact.meetings:
                if meeting.order < earliest.get(fact.rank, 1 << 30):
                    continue
                for other in facts:
                    for theirs in other.meetings:
                        if theirs.keys == meeting.keys:
                            earliest[other.rank] = min(theirs.order, earliest.get(other.rank, 1 << 30))
        if earliest == known:
            return earliest


def by_definition(facts: list[RankFacts]) -> set[int]:
    """Ranks whose first own difference can be the consequence of no other rank's, unless each is of the other."""
    first = {fact.rank: fact.first_injected[0] for fact in facts if fact.first_injected}
    reached = {rank: reach(rank, order, facts) for rank, order in first.items()}

    def comes_before(one: int, other: int) -> bool:
        return reached[one].get(other, 1 << 30) <= first[other]

    return {
        rank
        for rank in first
        if not any(other != rank and comes_before(other, rank) and not comes_before(rank, other) for other in first)
    }


@settings(deadline=None, max_examples=150)
@given(events, beginnings)
def test_the_quick_search_agrees_with_the_definition(happened: list[set[int]], began: list[int | None]) -> None:
    facts = facts_of(happened, began)
    assert {culprit.rank for culprit in find_culprits(facts)} == by_definition(facts)


def test_thousands_of_beginnings_are_searched_in_linear_work() -> None:
    ranks, rounds = 2_000, 25
    facts = []
    for rank in range(ranks):
        own = tuple(Meeting(2 * at + 1, f"x{at}", (f"all {at}",)) for at in range(rounds))
        facts.append(RankFacts(rank, own, (0 if rank == 77 else 2, "call"), None, differs=True))
    assert find_culprits(facts) == [Culprit(77, 0, "call", exchanged=False)]


def test_one_exchange_that_goes_wrong_on_all_ranks_is_one_beginning() -> None:
    facts = [
        RankFacts(rank, (Meeting(3, "all_reduce", ("all 0",)),), (3, "all_reduce"), None, differs=True)
        for rank in range(4)
    ]
    assert [culprit.rank for culprit in find_culprits(facts)] == [0, 1, 2, 3]
