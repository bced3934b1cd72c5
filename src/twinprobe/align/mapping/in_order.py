"""Two ordered lists of unequal length: which of one belongs to which of the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

# Above this many cells the table costs more than it tells.
_MAX_CELLS = 4096


def in_order(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pair places in order so that as many signs as possible agree; without any agreement, place by place."""
    if len(target) * len(golden) <= _MAX_CELLS:
        # The shorter list leads, so that swapped runs give the mirrored answer.
        if len(target) > len(golden):
            pairs = [(at, to) for to, at in _longest_common(golden, target)]
        else:
            pairs = _longest_common(target, golden)
        if pairs:
            return pairs
    shared = min(len(target), len(golden))
    return list(zip(range(shared), range(shared), strict=True))


def _longest_common(target: Sequence[Hashable], golden: Sequence[Hashable]) -> list[tuple[int, int]]:
    rows, columns = len(target), len(golden)
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for at in range(rows - 1, -1, -1):
        for to in range(columns - 1, -1, -1):
            if target[at] == golden[to]:
                best[at][to] = best[at + 1][to + 1] + 1
            else:
                best[at][to] = max(best[at + 1][to], best[at][to + 1])
    pairs, at, to = [], 0, 0
    while at < rows and to < columns:
        if target[at] == golden[to]:
            pairs.append((at, to))
            at, to = at + 1, to + 1
        elif best[at + 1][to] >= best[at][to + 1]:
            at += 1
        else:
            to += 1
    return pairs
