"""The longest chain of pairs that do not cross."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from twinprobe.align.auto.prints import NONE


def rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest chain of pairs (sorted by their first number) that rises in both numbers."""
    ends: list[int] = []
    tails: list[int] = []
    before = [NONE] * len(pairs)
    for at, (_, second) in enumerate(pairs):
        place = bisect_left(ends, second)
        if place == len(ends):
            ends.append(second)
            tails.append(at)
        else:
            ends[place], tails[place] = second, at
        before[at] = tails[place - 1] if place else NONE
    chain, at = [], tails[-1] if tails else NONE
    while at != NONE:
        chain.append(pairs[at])
        at = before[at]
    strict: list[tuple[int, int]] = []
    for pair in reversed(chain):
        if not strict or (pair[0] > strict[-1][0] and pair[1] > strict[-1][1]):
            strict.append(pair)
    return strict
