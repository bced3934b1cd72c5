"""A first guess at what belongs together in two long sequences: what occurs as often on either side, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.prints import NONE
from twinprobe.align.auto.rising import rising

_Keys = Sequence[Hashable]
MOST = 0.5
_STEPS = 25  # buckets of a norm, for each factor of e: wider than what rounding moves


def guess_by_keys(mine: _Keys, theirs: _Keys, least: float = 0.0) -> list[tuple[int, int]]:
    """Pairs of places, in order and without crossing: members of one key, where both sides have as many of them.

    Members whose key is None are passed over. Where less than the share ``least`` of all pairs keeps the order, they
    met by chance, and nothing is guessed.
    """
    pairs: list[tuple[int, int]] = []
    others = _places(theirs)
    for key, places in _places(mine).items():
        partners = others.get(key, [])
        if len(places) == len(partners):
            pairs += zip(places, partners, strict=True)
    chain = rising(sorted(pairs))
    return chain if len(chain) >= least * len(pairs) else []


def guess_by_values(target: Facts, mine: Sequence[int], golden: Facts, theirs: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of places in two lists of calls whose results look alike."""
    return guess_by_keys(_value_keys(target, mine), _value_keys(golden, theirs), MOST)


def _value_keys(facts: Facts, nodes: Iterable[int]) -> list[Hashable]:
    """The size and the rough norm of what each call gives; None where they say nothing."""
    found: list[Hashable] = []
    for node in nodes:
        row = facts.output_row(node)
        known = facts.prints.listed[row] if row != NONE else None
        found.append((known[4], int(_STEPS * np.log(known[3]))) if known else None)
    return found


def _places(keys: _Keys) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        if key is not None:
            found[key].append(place)
    return found
