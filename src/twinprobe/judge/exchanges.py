"""The exchanges of all ranks in columns: who took part in what, and what can have reached whom."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
