"""Rule: branches that run side by side have no order of their own: a shortcut may run before or after the main path.

Only layers inside two modules that belong together take part, and only where both branches read a tensor that something
else in the module reads too, so that the order of execution says nothing about them.
"""

from __future__ import annotations

from collections import defaultdict

from twinprobe.align.auto.branch_order import tensor
from twinprobe.align.auto.layers import Facts, Layer
from twinprobe.align.auto.prints import NONE
from twinprobe.align.auto.rule_layers import BRANCHES, by_scope, pair_layers
from twinprobe.align.auto.sketch import Sketch


def link_branches(sketch: Sketch) -> None:
    """Pair the free layers that branch off inside linked modules."""
    mine = _free_branches(sketch.target, sketch.partner)
    theirs = _free_branches(sketch.golden, sketch.back)
    for scope, layers in mine.items():
        others = theirs.get(sketch.partner[scope])
        if others:
            pair_layers(sketch, layers, others, BRANCHES)


def _free_branches(facts: Facts, linked: list[int]) -> dict[int, list[Layer]]:
    """Free layers by the nearest linked module around them, as far as they branch off inside it."""
    tree = facts.tree
    taken: dict[int, set[object]] = defaultdict(set)
    for layer in facts.layers:
        if linked[layer.node] != NONE:
            scope = tree.parent[layer.node]
            while linked[scope] == NONE:
                scope = tree.parent[scope]
            taken[scope].add(tensor(facts, layer.input_row))
    found = {}
    for scope, layers in by_scope(facts, linked).items():
        known = taken[scope] | {tensor(facts, facts.input_row(scope))}
        branching = []
        for layer in layers:
            if tensor(facts, layer.input_row) in known - {None}:
                branching.append(layer)
                known.add(tensor(facts, layer.output_rows[0]))
        if branching:
            found[scope] = branching
    return found
