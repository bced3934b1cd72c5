"""Rule: branches that run side by side have no order of their own: a shortcut may run before or after the main path.

Only layers inside two modules that belong together take part, and only where both branches read a tensor that something
else in the module reads too, so that the order of execution says nothing about them.
"""

from __future__ import annotations

from collections import defaultdict

from twinprobe.align.auto.layers import Facts, Layer
from twinprobe.align.auto.prints import NONE
from twinprobe.align.auto.rule_layers import by_scope, pair_layers
from twinprobe.align.auto.sketch import Sketch

RULE = "parallel branches"


def link_branches(sketch: Sketch) -> None:
    """Pair the free layers that branch off inside linked modules."""
    mine = _free_branches(sketch.target, sketch.partner)
    theirs = _free_branches(sketch.golden, sketch.back)
    for scope, layers in mine.items():
        others = theirs.get(sketch.partner[scope])
        if others:
            pair_layers(sketch, layers, others, RULE)


def _free_branches(facts: Facts, linked: list[int]) -> dict[int, list[Layer]]:
    """Free layers by the nearest linked module around them, as far as they branch off inside it."""
    tree = facts.tree
    taken: dict[int, set[object]] = defaultdict(set)
    for layer in facts.layers:
        if linked[layer.node] != NONE:
            scope = tree.parent[layer.node]
            while linked[scope] == NONE:
                scope = tree.parent[scope]
            taken[scope].add(_tensor(facts, layer.input_row))
    found = {}
    for scope, layers in by_scope(facts, linked).items():
        known = taken[scope] | {_tensor(facts, facts.input_row(scope))}
        branching = []
        for layer in layers:
            if _tensor(facts, layer.input_row) in known - {None}:
                branching.append(layer)
                known.add(_tensor(facts, layer.output_rows[0]))
        if branching:
            found[scope] = branching
    return found


def _tensor(facts: Facts, row: int) -> object:
    """What tells one tensor of a run from another: within one run, equal statistics are equal to the last bit."""
    if row == NONE:
        return None
    prints = facts.prints
    if prints.digest[row] is not None:
        return prints.digest[row]
    return (prints.shape_text[row], *prints.stats[row].tolist()) if prints.telling[row] else None
