"""Which order of axes turns one side's tensor into the other's layout: [S, B, H] into [B, S, H], a weight transposed.

Shapes tell where all sizes differ. Where they do not, what the others of the same sort say comes first: it settles a
square weight, and is the first to be tried for the inputs and outputs of a layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import prod

from twinprobe._align.calls import Shape

Axes = tuple[int, ...]
VIEW: Axes = ()  # the same elements in the same order, cut into other axes
REORDERED = ", elements in another order"  # how a rule ends that pairs such tensors
_MOST_AXES, _MOST_WAYS, _MOST_CUT = 6, 6, 5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair whose layouts may differ. ``marked``: a recorder has said that they do; ``sort``: who may speak for it."""

    place: int
    target: Shape
    golden: Shape
    is_weight: bool
    marked: bool
    sort: Hashable


def find_turns(candidates: Iterable[Candidate]) -> dict[int, list[Axes]]:
    """Place of a pair -> the orders of the target's axes that give the golden layout, for all pairs that need one.

    The likeliest comes first; there is one alone for weights. Where the two have a different number of axes, the axes
    are those of the longer shape without its axes of length 1; what it is cut into, or put together from, follows.
    """
    found = list(candidates)
    ways = {one.place: _ways(one.target, one.golden) for one in found}
    votes: dict[Hashable, Counter[Axes]] = defaultdict(Counter)
    for one in found:
        if len(ways[one.place]) == 1:
            votes[one.sort][ways[one.place][0]] += 1
    turns = {}
    for one in found:
        chosen = _by_likelihood(one, ways[one.place], votes[one.sort])
        if chosen and (chosen[0] != tuple(range(len(chosen[0]))) or one.target != one.golden):
            turns[one.place] = chosen[: 1 if one.is_weight else _MOST_WAYS]
    return turns


def fits_shape(target: Shape, golden: Shape) -> bool:
    """Whether one shape is the other in some layout."""
    return target == golden or bool(_ways(target, golden))


def fill_up(parts: Iterable[Shape], whole: Shape) -> bool:
    """Whether tensors of these shapes, side by side along one axis, are as large as the whole."""
    shapes = list(parts)
    return all(len(part) == len(whole) for part in shapes) and any(
        sum(part[axis] for part in shapes) == size
        and {part[:axis] + part[axis + 1 :] for part in shapes} == {whole[:axis] + whole[axis + 1 :]}
        for axis, size in enumerate(whole)
    )


def _ways(target: Shape, golden: Shape) -> list[Axes]:
    if len(target) != len(golden):
        plain = [tuple(size for size in shape if size != 1) for shape in (target, golden)]
        if len(plain[0]) != len(plain[1]):
            few, many = sorted(plain, key=len)
            # Neighbouring axes of the longer shape may make up each axis of the shorter one.
            return [VIEW] if _cuts(few, tuple(range(len(many))), many) else _turned_and_cut(few, many)
        target, golden = plain
    if len(target) > _MOST_AXES or sorted(target) != sorted(golden):
        return []
    everything = permutations(range(len(target)))
    return [axes for axes in everything if tuple(target[axis] for axis in axes) == golden]


def _turned_and_cut(few: Shape, many: Shape) -> list[Axes]:
    """Orders of the longer shape's axes that make up the shorter one: [N, C, H, W] and [N, H * W, C].

    Only neighbours become one axis, apart from an axis between them that is moved away as a whole ([N * H * W, C]):
    windows of an image would fit its shape in other orders, and are none of them.
    """
    if len(many) > _MOST_CUT or prod(few) != prod(many):
        return []
    found = []
    for axes in permutations(range(len(many))):
        groups = _cuts(few, axes, many)
        joined = sorted(axis for group in groups if len(group) > 1 for axis in group)
        following = dict(pairwise(joined))
        if groups and all(following.get(one) == other for group in groups for one, other in pairwise(group)):
            found.append(axes)
    return found


def _cuts(few: Shape, axes: Axes, sizes: Shape) -> list[list[int]]:
    """Which axes, in this order, make up each axis of the shorter shape; nothing where they do not."""
    rest = list(axes)
    groups = []
    for size in few:
        taken: list[int] = []
        while rest and prod(sizes[axis] for axis in taken) < size:
            taken.append(rest.pop(0))
        if prod(sizes[axis] for axis in taken) != size:
            return []
        groups.append(taken)
    return groups if not rest else []


def _by_likelihood(one: Candidate, ways: list[Axes], votes: Counter[Axes]) -> list[Axes]:
    def rank(axes: Axes) -> tuple[int, bool, int]:
        moved = sum(axis != place for place, axis in enumerate(axes))
        last_two = axes == (*range(len(axes) - 2), len(axes) - 1, len(axes) - 2)
        return -votes[axes], not (one.marked and last_two), moved

    return sorted(ways, key=rank)
