"""Rule: a module that returns its result with the residual added, against one whose caller adds it."""

from __future__ import annotations

from twinprobe.align.auto.alignment import RESIDUAL
from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.prints import NONE, row_values_agree
from twinprobe.align.auto.sketch import Link, Sketch

RULE = "residual added inside"
_BY_VALUES, _BY_PLACE = 0.95, 0.75


def link_residuals(sketch: Sketch) -> None:
    """Where one side adds inside a linked module and the other right after it, link the two additions."""
    for node, other in sketch.matched_modules()[1:]:
        if not _link(sketch, node, other, mirrored=False):
            _link(sketch, node, other, mirrored=True)


def _link(sketch: Sketch, node: int, other: int, *, mirrored: bool) -> bool:
    """With ``mirrored``, the golden side adds inside."""
    inner, outer = (sketch.golden, sketch.target) if mirrored else (sketch.target, sketch.golden)
    inside, outside = (other, node) if mirrored else (node, other)
    linked = (sketch.back, sketch.partner) if mirrored else (sketch.partner, sketch.back)
    adds = _last_add(inner, inside, linked[0])
    after = _add_after(outer, outside, linked[1])
    if NONE in (adds, after) or _last_add(outer, outside, linked[1]) != NONE:
        return False
    equal = row_values_agree(inner.prints, inner.output_row(adds), outer.prints, outer.output_row(after))
    plain = row_values_agree(
        sketch.target.prints, sketch.target.output_row(node), sketch.golden.prints, sketch.golden.output_row(other)
    )
    shapes = inner.prints.shape(inner.output_row(adds)), outer.prints.shape(outer.output_row(after))
    if plain or shapes[0] is None or shapes[1] is None or sorted(shapes[0]) != sorted(shapes[1]):
        return False
    pair = (after, adds) if mirrored else (adds, after)
    reason = "equal values with the residual added" if equal else "adds inside, the other side right after"
    confidence = _BY_VALUES if equal else _BY_PLACE
    inside_of = "golden" if mirrored else "target"
    return sketch.link(Link((pair[0],), (pair[1],), RULE, reason, confidence, RESIDUAL, inside=inside_of))


def _last_add(facts: Facts, node: int, linked: list[int]) -> int:
    """The free addition whose result a module returns."""
    children = facts.tree.children[node]
    if not children or not _is_add(facts, children[-1]) or linked[children[-1]] != NONE:
        return NONE
    return children[-1]


def _add_after(facts: Facts, node: int, linked: list[int]) -> int:
    """The free addition right after a module that takes what the module gives."""
    siblings = facts.tree.children[facts.tree.parent[node]]
    place = facts.tree.place[node] + 1
    after = next((sibling for sibling in siblings[place : place + 3] if _is_add(facts, sibling)), NONE)
    if after == NONE or linked[after] != NONE:
        return NONE
    given = facts.output_row(node)
    takes = [facts.prints.stats[row].tolist() for row in facts.prints.rows(facts.tree.op[after], 0)]
    return after if given != NONE and facts.prints.stats[given].tolist() in takes else NONE


def _is_add(facts: Facts, node: int) -> bool:
    return not facts.tree.is_module[node] and facts.tree.family[node].rpartition(".")[2] == "add"
