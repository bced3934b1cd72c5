"""Linear layers that read the same tensor (q, k, v; gate, up): which is which does not follow from their order.

Names, values and what reads their outputs decide; the order in which they were written counts a little.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from twinprobe.align.auto.layers import Layer
from twinprobe.align.auto.sequence import Step
from twinprobe.align.auto.sketch import sure

Scores = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
_MOST = 5
_SAME_READERS, _OTHER_READERS = 1.5, -1.5
# Three are q, k, v nearly always; two may be gate and up in either order.
_IN_ORDER = {2: 0.8, 3: 1.5}


def settle_branches(steps: list[Step], mine: list[Layer], theirs: list[Layer], scores: Scores) -> list[Step]:
    """The steps with the pairs inside groups chosen anew."""
    groups = _groups(mine), _groups(theirs)
    met: dict[tuple[int, int], list[Step]] = defaultdict(list)
    result = []
    for step in steps:
        single = step.target[1] - step.target[0] == 1 == step.golden[1] - step.golden[0]
        pair = groups[0].get(step.target[0]), groups[1].get(step.golden[0])
        if single and pair[0] is not None and pair[1] is not None:
            met[pair[0][0], pair[1][0]].append(step)
        else:
            result.append(step)
    taken: set[tuple[bool, int]] = set()
    for (first, other), found in met.items():
        members, others = groups[0][first], groups[1][other]
        # Groups that were torn apart between several others are left as they are.
        if {(False, first), (True, other)} & taken or max(len(members), len(others)) > _MOST:
            result += found
            continue
        taken |= {(False, first), (True, other)}
        chance = max(min(step.confidence for step in found), _between(steps, members, others))
        result += _assign(members, others, chance, mine, theirs, scores)
    return sorted(result)


def _between(steps: list[Step], members: list[int], others: list[int]) -> float:
    """How sure it is that two groups belong together, by what comes right before and right after both."""
    before = [step for step in steps if step.target[1] == members[0] and step.golden[1] == others[0]]
    after = [step for step in steps if step.target[0] == members[-1] + 1 and step.golden[0] == others[-1] + 1]
    return min(before[0].confidence, after[0].confidence) if before and after else 0.0


def _groups(layers: list[Layer]) -> dict[int, list[int]]:
    """Place of a layer -> the places of all layers of its group, for groups of several."""
    by_branch: dict[object, list[int]] = defaultdict(list)
    for place, layer in enumerate(layers):
        by_branch[layer.branch].append(place)
    return {place: places for places in by_branch.values() if len(places) > 1 for place in places}


def _assign(
    members: list[int], others: list[int], chance: float, mine: list[Layer], theirs: list[Layer], scores: Scores
) -> list[Step]:
    table = np.asarray(scores(np.array(members)[:, None], np.array(others)[None, :]), dtype=np.float64)
    readers = np.array([[_readers(mine[place], theirs[other]) for other in others] for place in members])
    if readers.max() > 0:  # else the two sides are written so differently that their readers do not compare
        table += readers
    swapped = len(members) > len(others)
    used = table.T if swapped else table
    options = []
    for chosen in permutations(range(used.shape[1]), used.shape[0]):
        pairs = [(row, column) for row, column in enumerate(chosen) if used[row, column] > 0]
        order = _IN_ORDER.get(len(members), 0.8) if list(chosen) == sorted(chosen) else 0.0
        options.append((sum(used[row, column] for row, column in pairs) + order, tuple(pairs)))
    options.sort(reverse=True)
    best = options[0]
    result = []
    for row, column in best[1]:
        rival = next((total for total, pairs in options if (row, column) not in pairs), -np.inf)
        at, to = (column, row) if swapped else (row, column)
        sureness = chance * sure(float(best[0] - rival)) if np.isfinite(rival) else chance
        place, other = members[at], others[to]
        result.append(Step((place, place + 1), (other, other + 1), float(used[row, column]), sureness))
    return result


def _readers(one: Layer, other: Layer) -> float:
    if not one.readers or not other.readers:
        return 0.0
    if one.readers == other.readers:
        return _SAME_READERS
    return 0.0 if one.readers & other.readers else _OTHER_READERS
