"""Why a call stays alone, in words."""

from __future__ import annotations

from twinprobe.align.auto.alignment import Alone
from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.prints import NONE
from twinprobe.align.auto.sketch import Sketch
from twinprobe.align.auto.tree import ROOT


def left_alone(sketch: Sketch, *, golden: bool) -> list[Alone]:
    """All calls of one side that no rule has linked, each with a reason."""
    facts, linked = (sketch.golden, sketch.back) if golden else (sketch.target, sketch.partner)
    other = sketch.target if golden else sketch.golden
    teller = _Teller(facts, linked, other, sketch.why[golden])
    return [
        Alone(facts.tree.name[node], teller.why(node))
        for node in range(len(facts.tree))
        if node != ROOT and linked[node] == NONE
    ]


class _Teller:
    def __init__(self, facts: Facts, linked: list[int], other: Facts, known: dict[int, str]) -> None:
        self._facts, self._linked, self._other, self._known = facts, linked, other, known
        self._families = set(other.tree.family)
        self._encloses = [False] * len(facts.tree)
        for node in reversed(facts.tree.in_order):
            parent = facts.tree.parent[node]
            if parent != NONE and (linked[node] != NONE or self._encloses[node]):
                self._encloses[parent] = True

    def why(self, node: int) -> str:
        tree = self._facts.tree
        if node in self._known:
            return self._known[node]
        if not tree.is_module[node]:
            return self._why_call(node)
        if self._facts.is_layer[node]:
            return f"no free layer at this place fits{self._weights(node)}"
        if self._encloses[node]:
            return "a level of its own: no module of the other run encloses the same layers"
        return "nothing of the kind ran at this place"

    def _why_call(self, node: int) -> str:
        tree = self._facts.tree
        parent = tree.parent[node]
        family = tree.family[node].rpartition(".")[2]
        if parent != ROOT and self._linked[parent] == NONE:
            return "inside a module that has no partner"
        if tree.family[node] not in self._families:
            return f"the other run has no call of {family}"
        partner = self._linked[parent]
        if parent != ROOT and not self._other.tree.is_module[partner]:
            return "inside a module that is paired with one call of the other run"
        return f"no free call of {family} at this place"

    def _weights(self, node: int) -> str:
        shapes = [self._facts.prints.shape_text[row] for row in self._facts.weights[node]]
        return f" its weights {' '.join(str(shape) for shape in shapes)}" if shapes else ""
