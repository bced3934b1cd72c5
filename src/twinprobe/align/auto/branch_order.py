"""Branches that run side by side in one order on both sides: attention and feed-forward that read the same tensor.

A branch begins where a part of a module reads a tensor that an earlier part has read; all branches end where a call
takes what an earlier one gave. Which of them runs first is the writer's taste, so they are put in the order of their
sizes, which do not depend on names, on splitting or on how a weight is stored.
"""

from __future__ import annotations

from itertools import pairwise

from twinprobe.align.auto.kinds import LINEAR
from twinprobe.align.auto.layers import Facts, Layer
from twinprobe.align.auto.prints import NONE
from twinprobe.align.auto.tree import ROOT
from twinprobe.runs.table import INPUT


def tensor(facts: Facts, row: int) -> object:
    """What tells one tensor of a run from another: within one run, equal statistics are equal to the last bit."""
    if row == NONE:
        return None
    prints = facts.prints
    if prints.digest[row] is not None:
        return prints.digest[row]
    return (prints.shape_text[row], *prints.stats[row].tolist()) if prints.telling[row] else None


def by_branch_size(facts: Facts) -> list[Layer] | None:
    """All layers, of branches the smallest first; None where nothing runs side by side."""
    return _Arranger(facts).layers()


class _Arranger:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._tree = facts.tree
        self._layer = {layer.node: layer for layer in facts.layers}
        self._size = [0.0] * len(facts.tree)  # elements of all weights inside
        for layer in facts.layers:
            self._size[layer.node] = sum(float(facts.prints.numel[row]) for row in facts.weights[layer.node])
        for node in reversed(self._tree.in_order):
            if node != ROOT:
                self._size[self._tree.parent[node]] += self._size[node]

    def layers(self) -> list[Layer] | None:
        """The layers in their new order."""
        orders = {}
        for node in self._tree.in_order:
            if self._size[node] and node not in self._layer:
                arranged = self._arranged(node)
                if arranged is not None:
                    orders[node] = arranged
        if not orders:
            return None
        found, stack = [], [ROOT]
        while stack:
            node = stack.pop()
            found.append(node)
            stack.extend(reversed(orders.get(node, self._tree.children[node])))
        places = {node: at for at, node in enumerate(found)}
        # Layers that read one tensor (q, k, v) stand in an order of their own already, which is kept.
        heads: dict[object, int] = {}
        for layer in self._facts.layers:
            place = places[layer.node]
            heads[layer.branch] = min(heads.get(layer.branch, place), place)
        return sorted(self._facts.layers, key=lambda layer: heads[layer.branch])

    def _arranged(self, node: int) -> list[int] | None:
        """The parts of a module with its branches in order of size; None where it has none, or all are in order."""
        children = self._tree.children[node]
        parts = [at for at, child in enumerate(children) if self._size[child]]
        reads = [tensor(self._facts, self._facts.input_row(children[at])) for at in parts]
        starts = _first_fork(reads)
        if not starts or all(self._is_linear(children[parts[at]]) for at in starts):
            return None
        first, last = parts[starts[0]], parts[starts[-1]]
        end = self._join(children, first, last)
        bounds = [*(parts[at] for at in starts), end]
        branches = [children[begin:stop] for begin, stop in pairwise(bounds)]
        ordered = sorted(branches, key=lambda branch: sum(self._size[child] for child in branch))
        if ordered == branches:
            return None
        return [*children[:first], *(child for branch in ordered for child in branch), *children[end:]]

    def _is_linear(self, node: int) -> bool:
        return node in self._layer and self._layer[node].kind == LINEAR

    def _join(self, children: list[int], first: int, last: int) -> int:
        """The place of the call, after the last branch began, that takes what an earlier branch gave."""
        given = {tensor(self._facts, self._facts.output_row(child)) for child in children[first:last]} - {None}
        for at in range(last + 1, len(children)):
            rows = self._facts.prints.rows(self._tree.op[children[at]], INPUT)
            if not self._size[children[at]] and any(tensor(self._facts, row) in given for row in rows):
                return at
        return len(children)


def _first_fork(reads: list[object]) -> list[int]:
    """The places of all parts that read the first tensor that several parts read."""
    for at, one in enumerate(reads):
        if one is not None:
            same = [place for place in range(at, len(reads)) if reads[place] == one]
            if len(same) > 1:
                return same
    return []
