"""Parts of a value that several ranks in a row hold, each the same one.

With fewer heads of keys and values than tensor parallel ranks, so many ranks share a head: what they hold of it are
copies, but each serves other queries, so their gradients are parts of a sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice, product

from twinprobe._layout.pieces import (
    AXES,
    EXACT,
    PLAIN,
    Arithmetic,
    Known,
    Piece,
    Shape,
    Stats,
    Way,
    added_up,
    fitting_way,
    put_together,
    same,
)
from twinprobe._layout.wrong_ranks import NOT_GOLDENS, numbers_of

_TP = AXES.index("tp")
_MOST_CHOICES = 256
_SAME, _APART = 1e-6, 1e-4  # of the largest element: sums in another order, and other values

Group = list[Piece]


def repeats(blocks: Sequence[Piece], goal: Shape, *, weight: bool) -> tuple[int, Way] | None:
    """How many ranks in a row share a part of a value of this shape, and the way in which the parts make it."""
    ranks = len({block.place[_TP] for block in blocks})
    for count in range(2, ranks):
        if ranks % count:
            continue
        firsts = [group[0] for group in groups_of(blocks, count)]
        places = tuple((piece.place, piece.shape) for piece in firsts if piece.shape is not None)
        way = fitting_way(places, goal, (False,) * len(AXES), weight) if len(places) == len(firsts) else None
        if way is not None and way[_TP] >= 0:
            return count, way
    return None


def groups_of(blocks: Sequence[Piece], count: int) -> list[Group]:
    """The pieces of so many ranks in a row, each with the place of its group."""
    found: dict[tuple[int, ...], Group] = defaultdict(list)
    for block in sorted(blocks, key=lambda block: block.place):
        place = (*block.place[:_TP], block.place[_TP] // count, *block.place[_TP + 1 :])
        found[place].append(block._replace(place=place))
    return list(found.values())


def summed(groups: Sequence[Group]) -> tuple[list[Piece], tuple[bool, ...]]:
    """One piece for each group, the sum of what its ranks hold; and which of its statistics are exact."""
    pieces: list[Piece] = []
    exact: tuple[bool, ...] = EXACT
    for group in groups:
        parts = [Known(piece.shape or (), piece.stats, EXACT, piece.file) for piece in group]
        whole = parts[0] if same(group) else added_up(parts)
        if whole is None:
            return [], exact
        pieces.append(group[0]._replace(stats=whole.stats, file=whole.recipe, digest=None))
        exact = tuple(one and other for one, other in zip(exact, whole.exact, strict=True))
    return pieces, exact


def worst_copies(groups: Sequence[Group], way: Way, arithmetic: Arithmetic, goal: Stats) -> tuple[str, list[Piece]]:
    """Copies that should be equal: what is wrong with them, and of each group the one that is judged."""
    choices = list(islice(product(*map(_kinds, groups)), _MOST_CHOICES))
    gaps = [_gap(put_together(choice, way, arithmetic), goal) for choice in choices]
    scale = max((abs(one) for one in goal if one is not None), default=0.0)
    best, worst = choices[gaps.index(min(gaps))], list(choices[gaps.index(max(gaps))])
    odd = [group for group in groups if not same(group)]
    if not odd:
        return "", list(best)
    if min(gaps) <= 1e-5 * scale:
        if sum(gap <= 1e-5 * scale for gap in gaps) > 1:  # parts that changed places: statistics do not tell whose
            return f"the copies of ranks {_ranks(odd)} differ", worst
        wrong = sorted(piece.rank for group, good in zip(groups, best, strict=True)
                       for piece in group if not same([piece, good]))  # fmt: skip
        return f"rank {numbers_of(wrong)}'s replica differs from the others", worst
    parts, _ = summed(groups)
    whole = put_together(parts, way, arithmetic) if parts else None
    if whole is not None and _adds_up(whole, goal, [put_together(one, way, PLAIN) for one in choices]):
        return f"golden's is the sum of what ranks {_ranks(odd)} hold, but nothing adds them up", worst
    return f"the copies of ranks {_ranks(odd)} differ{NOT_GOLDENS}", worst


def _kinds(group: Group) -> Group:
    """One of each of the values that a group has."""
    found: Group = []
    for piece in group:
        if not any(same([piece, one]) for one in found):
            found.append(piece)
    return found


def _ranks(groups: Sequence[Group]) -> str:
    return " and of ranks ".join(numbers_of([piece.rank for piece in group]) for group in groups[:4])


def _gap(whole: Known | None, goal: Stats) -> float:
    if whole is None:
        return float("inf")
    pairs = [
        (one, other) for one, other in zip(whole.stats, goal, strict=True) if one is not None and other is not None
    ]
    return max((abs(one - other) for one, other in pairs), default=0.0)


def _adds_up(whole: Known, goal: Stats, choices: Sequence[Known | None]) -> bool:
    """Whether the mean of sums is golden's, and the mean of no choice of single parts comes near."""
    high, low, mean, _ = goal
    if high is None or low is None or mean is None or whole.stats[2] is None:
        return False
    scale = max(abs(high), abs(low))
    means = [one.stats[2] for one in choices if one is not None]
    apart = all(one is not None and abs(one - mean) > _APART * scale for one in means)
    return apart and abs(whole.stats[2] - mean) <= _SAME * scale


def shared_by(pieces: Sequence[Piece]) -> int:
    """How many ranks in a row hold copies of a part, where not all ranks do: 1 if none."""
    ranks = len({piece.place[_TP] for piece in pieces})
    for count in range(ranks, 1, -1):
        if ranks % count == 0 and all(map(same, groups_of(pieces, count))):
            return count if count < ranks else 1
    return 1
