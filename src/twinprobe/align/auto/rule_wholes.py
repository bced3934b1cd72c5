"""Rule: a module that holds its weights itself, against one at the same place that keeps them in modules inside.

Experts as one stacked weight or as a list of small networks: nothing inside has a partner, the whole has.
"""

from __future__ import annotations

from collections.abc import Iterator

from twinprobe.align.auto.layer_scores import _like_sizes
from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.prints import NONE, row_values_agree
from twinprobe.align.auto.scopes import cut
from twinprobe.align.auto.sketch import Link, Sketch

RULE = "as many weights in all"
_BY_VALUES, _BY_SIZE = 0.95, 0.85


def link_wholes(sketch: Sketch) -> None:
    """Link a free layer with a free container where they alone hold weights between the same linked calls."""
    sides = _Weights(sketch.target, sketch.partner), _Weights(sketch.golden, sketch.back)
    for node, other in sketch.matched_modules():
        units = list(sides[0].units(node)), list(sides[1].units(other))
        for piece in list(cut(sketch, *units)):
            if len(piece.target) == len(piece.golden) == 1:
                _link(sketch, sides, piece.target[0], piece.golden[0])


def _link(sketch: Sketch, sides: tuple[_Weights, _Weights], one: int, other: int) -> None:
    target, golden = sketch.target, sketch.golden
    count = sides[0].count[one]
    if target.is_layer[one] == golden.is_layer[other] or count != sides[1].count[other]:
        return
    rows = (target.input_row(one), golden.input_row(other)), (target.output_row(one), golden.output_row(other))
    if any(_like_sizes(target.prints.shape(mine), golden.prints.shape(theirs)) < 0 for mine, theirs in rows):
        return
    equal = row_values_agree(target.prints, rows[1][0], golden.prints, rows[1][1])
    reason = f"alone at this place, {count:.0f} weights in all" + (", equal values" if equal else "")
    sketch.link(Link((one,), (other,), RULE, reason, _BY_VALUES if equal else _BY_SIZE))


class _Weights:
    """How many elements the weights inside each node have, and whether anything inside is linked."""

    def __init__(self, facts: Facts, linked: list[int]) -> None:
        self._facts, self._linked = facts, linked
        tree = facts.tree
        self.count = [0.0] * len(tree)
        self._holds_links = [False] * len(tree)
        for node in reversed(tree.in_order):
            if facts.is_layer[node]:
                self.count[node] = sum(float(facts.prints.numel[row]) for row in facts.weights[node])
            parent = tree.parent[node]
            if parent != NONE:
                self.count[parent] += self.count[node]
                self._holds_links[parent] |= self._holds_links[node] or linked[node] != NONE

    def units(self, node: int) -> Iterator[int]:
        """What lies inside a module: linked calls, and the outermost free ones that hold weights but no links."""
        tree = self._facts.tree
        stack = list(reversed(tree.children[node]))
        while stack:
            item = stack.pop()
            if self._linked[item] != NONE:
                yield item
            elif self._holds_links[item]:
                stack.extend(reversed(tree.children[item]))
            elif self.count[item]:
                yield item
