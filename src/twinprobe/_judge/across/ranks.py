"""Over all ranks: where did the difference begin, and who only received it?"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.names import COLLECTIVE_PREFIXES, FORWARD, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import INPUT

# The exchanges of all ranks in columns: who took part in what, and what can have reached whom.

Source = int


@dataclass(frozen=True)
class Exchanges:
    """One row per rank and exchange: the rank, the call's place in its order, and the number of the exchange."""

    rank: NDArray[np.int32]
    order: NDArray[np.int32]
    key: NDArray[np.int64]

    @staticmethod
    def of(rows: Iterable[tuple[int, int, str]]) -> Exchanges:
        """From (rank, order, key) rows; equal keys are one exchange."""
        numbers: dict[str, int] = {}
        table = [(rank, order, numbers.setdefault(key, len(numbers))) for rank, order, key in rows]
        columns: Any = np.array(table, dtype=np.int64).reshape(-1, 3).T
        return Exchanges(columns[0].astype(np.int32), columns[1].astype(np.int32), columns[2])


class Spreading:
    """Where differences can have come from: the two first foreign beginnings that can have reached each rank.

    Two are enough to tell whether anything but a rank's own beginning has reached it, so the work is linear in the
    number of exchanges, however many ranks and beginnings there are.
    """

    def __init__(self, exchanges: Exchanges) -> None:
        by_rank = np.lexsort((exchanges.order, exchanges.rank))
        ranks, starts = np.unique(exchanges.rank[by_rank], return_index=True)
        self._spans = _spans(ranks, starts, len(by_rank))
        self._orders: list[int] = exchanges.order[by_rank].tolist()
        self._keys: list[int] = exchanges.key[by_rank].tolist()
        by_key = np.argsort(exchanges.key, kind="stable")
        self._members = list(zip(exchanges.rank[by_key].tolist(), exchanges.order[by_key].tolist(), strict=True))
        keys, firsts = np.unique(exchanges.key[by_key], return_index=True)
        self._of_key = _spans(keys, firsts, len(by_key))
        self._passed: dict[int, list[Source]] = {}
        self._arrived: dict[int, dict[Source, int]] = {}
        self._scanned: dict[tuple[int, Source], int] = {}

    def keys_at(self, rank: int, order: int) -> list[int]:
        """The exchanges of one call."""
        start, stop = self._spans.get(rank, (0, 0))
        first = bisect_left(self._orders, order, start, stop)
        last = bisect_left(self._orders, order + 1, first, stop)
        return self._keys[first:last]

    def spread(self, beginnings: Iterable[tuple[int, int, Source]]) -> None:
        """Let the differences that begin at (rank, order) go wherever exchanges can carry them."""
        waiting = deque(beginnings)
        while waiting:
            rank, order, source = waiting.popleft()
            for key in self._still_ahead(rank, order, source):
                passed = self._passed.setdefault(key, [])
                if source in passed or len(passed) == 2:
                    continue
                passed.append(source)
                first, last = self._of_key[key]
                for other, when in self._members[first:last]:
                    if self._arrives(other, when, source):
                        waiting.append((other, when, source))

    def reached_from_elsewhere(self, rank: int, order: int, source: Source) -> bool:
        """Whether a difference with another beginning can have come to this rank by this call."""
        return any(other != source and when <= order for other, when in self._arrived.get(rank, {}).items())

    def _still_ahead(self, rank: int, order: int, source: Source) -> list[int]:
        start, stop = self._spans.get(rank, (0, 0))
        done = self._scanned.get((rank, source), stop)
        first = bisect_left(self._orders, order, start, stop)
        if first >= done:
            return []
        self._scanned[rank, source] = first
        return self._keys[first:done]

    def _arrives(self, rank: int, order: int, source: Source) -> bool:
        known = self._arrived.setdefault(rank, {})
        if source in known:
            if order >= known[source]:
                return False
        elif len(known) == 2:
            worst = max(known, key=known.__getitem__)
            if order >= known[worst]:
                return False
            del known[worst]
        known[source] = order
        return True


def _spans(values: NDArray[Any], starts: NDArray[np.intp], stop: int) -> dict[int, tuple[int, int]]:
    """Where the rows of each value begin and end."""
    ends = np.append(starts[1:], stop)[: len(starts)]
    return dict(zip(values.tolist(), zip(starts.tolist(), ends.tolist(), strict=True), strict=True))


# Which collective or point-to-point call of one rank belongs to which call of another.

_SEND = {"send", "isend", "send_object_list"}
_RECEIVE = {"recv", "irecv", "recv_object_list"}
_EVERYONE = "all"
_RANK_LIST = re.compile(r"\[[\d\s,]*\]")


@dataclass(frozen=True, slots=True)
class Meeting:
    """A call at which ranks exchange data: its place in the rank's order and the keys it shares with its partners."""

    order: int
    op: str
    keys: tuple[str, ...]


def meetings(run: Run, rank: int) -> list[Meeting]:
    """All exchanges of a rank in order. Equal keys on two ranks mean that they took part in the same exchange."""
    wanted = [(at, parse_op(name)) for at, name in enumerate(run.ops) if name.split(".", 1)[0] in COLLECTIVE_PREFIXES]
    wanted = [(at, op) for at, op in wanted if op.direction == FORWARD]
    if not wanted:
        return []
    rows: dict[int, list[tuple[str, str | None, str | None]]] = {}
    chosen = run.table.filter(run.table["role"] == INPUT).select("op", "name", "max_text", "peer")
    for called, name, text, peer in chosen.iter_rows():
        rows.setdefault(called, []).append((name, text, peer))
    seen: Counter[str] = Counter()
    result = []
    for at, op in wanted:
        keys = []
        for key in _keys(op.body, rows.get(at, []), rank):
            keys.append(f"{key} #{seen[key]}")
            seen[key] += 1
        result.append(Meeting(at, op.text, tuple(keys)))
    return result


def _keys(api: str, rows: list[tuple[str, str | None, str | None]], rank: int) -> list[str]:
    arguments = {name.rpartition(".")[2]: text for name, text, _ in rows if text is not None}
    peers = [peer for _, _, peer in rows if peer]
    if peers:
        sides = [(operation, other) for operation, _, other in (peer.partition(":") for peer in peers)]
        return [f"message {other}->{rank}" if "recv" in op else f"message {rank}->{other}" for op, other in sides]
    if api in _SEND and (other := arguments.get("dst") or arguments.get("group_dst")):
        return [f"message {rank}->{other}"]
    if api in _RECEIVE and (other := arguments.get("src") or arguments.get("group_src")):
        return [f"message {other}->{rank}"]
    return [f"{api} {_group(arguments.get('group'))}"]


def _group(text: str | None) -> str:
    """The ranks of a group, however it is written: [0, 1] or tp-0-1."""
    if not text:
        return _EVERYONE
    if text.startswith("[") and not _RANK_LIST.fullmatch(text):
        return text
    ranks = [int(part) for part in re.findall(r"\d{1,18}", text)]
    return str(sorted(ranks)) if ranks else text


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
    if exchanges is None:
        exchanges = Exchanges.of(
            (fact.rank, meeting.order, key) for fact in facts for meeting in fact.meetings for key in meeting.keys
        )
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
