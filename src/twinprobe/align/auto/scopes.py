"""What lies directly inside two modules that belong together: pieces between the parts that are linked already."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.prints import NONE
from twinprobe.align.auto.sketch import Sketch


class Piece(NamedTuple):
    """Free calls of either side that ran between the same linked calls."""

    target: list[int]
    golden: list[int]


def pieces(sketch: Sketch, node: int, other: int, *, opened: bool = False) -> Iterator[Piece]:
    """The free calls inside two linked modules, cut at what is linked inside both.

    Modules that enclose other modules are looked through. With ``opened``, so are free modules without inner modules:
    what they call then counts as called where they stand.
    """
    mine = list(_items(sketch.target, node, sketch.partner, opened=opened))
    theirs = list(_items(sketch.golden, other, sketch.back, opened=opened))
    return cut(sketch, mine, theirs)


def cut(sketch: Sketch, mine: list[int], theirs: list[int]) -> Iterator[Piece]:
    """The free ones of two lists of calls, cut at those that are linked with one another."""
    places = {item: at for at, item in enumerate(theirs) if sketch.back[item] != NONE}
    cuts = []
    for at, item in enumerate(mine):
        other_item = sketch.partner[item]
        if other_item in places and sketch.back[other_item] == item:
            cuts.append((at, places[other_item]))
    begin = (-1, -1)
    for cut in [*_uncrossed(cuts), (len(mine), len(theirs))]:
        target = [item for item in mine[begin[0] + 1 : cut[0]] if sketch.partner[item] == NONE]
        golden = [item for item in theirs[begin[1] + 1 : cut[1]] if sketch.back[item] == NONE]
        if target and golden:
            yield Piece(target, golden)
        begin = cut


def _uncrossed(cuts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The cuts that no other cut crosses: parallel branches may have run in another order."""
    lowest = [*accumulate((to for _, to in reversed(cuts)), min)][::-1]
    found, highest = [], -1
    for place, cut in enumerate(cuts):
        if cut[1] > highest and cut[1] == lowest[place]:
            found.append(cut)
        highest = max(highest, cut[1])
    return found


def _items(facts: Facts, node: int, linked: list[int], *, opened: bool) -> Iterator[int]:
    tree = facts.tree
    stack = list(reversed(tree.children[node]))
    while stack:
        item = stack.pop()
        if linked[item] != NONE or not tree.is_module[item]:
            yield item
        elif facts.is_layer[item]:
            continue  # a layer without a partner stays alone, and so does what it calls
        elif (opened and tree.children[item]) or tree.module_children(item):
            stack.extend(reversed(tree.children[item]))
        else:
            yield item
