"""The working state of an alignment: what the rules have linked so far. A rule only links what is still free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from twinprobe._align.auto.alignment import FUSED, Relation
from twinprobe._align.auto.fingerprints import row_values_agree
from twinprobe._align.auto.tree import ROOT, Facts, Layer
from twinprobe._align.auto.words import LINEAR
from twinprobe._align.links import NONE
from twinprobe._runs.table import INPUT

ACCEPTED = 0.55
GIVEN = "given"  # the rule of links that were there before


Link = Relation[int]


class Workspace:
    """Two runs and the links between their nodes. The runs themselves (the roots) belong together."""

    def __init__(self, target: Facts, golden: Facts) -> None:
        self.target, self.golden = target, golden
        self.partner = [NONE] * len(target.tree)
        self.back = [NONE] * len(golden.tree)
        self.partner[ROOT] = self.back[ROOT] = ROOT
        self.links: list[Link] = []
        self.why: tuple[dict[int, str], dict[int, str]] = ({}, {})
        self.hopeless = False
        self.best_score = float("-inf")
        self.share = 0.0  # of the weights that occur on both sides
        self.notes: list[str] = []
        self._in_parts: set[int] = set()  # target nodes that are linked as one of several

    def is_free(self, targets: Sequence[int], goldens: Sequence[int]) -> bool:
        """Whether no rule has linked any of these."""
        return all(self.partner[node] == NONE for node in targets) and all(self.back[node] == NONE for node in goldens)

    def link(self, link: Link) -> bool:
        """Take over a rule's link if it is sure enough and all its nodes are free."""
        if link.confidence < ACCEPTED or not self.is_free(link.target, link.golden):
            return False
        # Of several calls the first of a split layer, but the last of a chain that computes one thing, is the partner.
        place = 0 if link.kind == FUSED else -1
        for node in link.target:
            self.partner[node] = link.golden[place]
        for node in link.golden:
            self.back[node] = link.target[place]
        self.links.append(link)
        if not link.one_to_one:
            self._in_parts.update(link.target)
        return True

    def give_up(self) -> None:
        """Forget all links but the given ones: the two runs have too little in common."""
        self.hopeless = True
        self.links = [link for link in self.links if link.rule == GIVEN]
        for linked in (self.partner, self.back):
            linked[ROOT + 1 :] = [NONE] * (len(linked) - 1)
        for link in self.links:
            self.partner[link.target[0]], self.back[link.golden[0]] = link.golden[0], link.target[0]

    def outputs_agree(self, node: int, other: int) -> bool | None:
        """Whether what two calls give first is the same as far as statistics tell; None where they do not tell."""
        rows = self.target.output_row(node), self.golden.output_row(other)
        return row_values_agree(self.target.fingerprints, rows[0], self.golden.fingerprints, rows[1])

    def matched_modules(self) -> list[tuple[int, int]]:
        """All pairs of single modules, the runs themselves first, outer ones before inner ones."""
        tree, others = self.target.tree, self.golden.tree
        found = []
        for node in tree.in_order:
            other = self.partner[node]
            if other != NONE and tree.is_module[node] and others.is_module[other] and node not in self._in_parts:
                found.append((node, other))
        return found


def sure(score: float) -> float:
    """From a score (evidence in natural units) to a confidence between 0 and 1."""
    return float(1.0 / (1.0 + np.exp(-score)))


# What lies directly inside two modules that belong together: pieces between the parts that are linked already.


class Piece(NamedTuple):
    """Free calls of either side that ran between the same linked calls."""

    target: list[int]
    golden: list[int]


def pieces(work: Workspace, node: int, other: int, *, opened: bool = False) -> Iterator[Piece]:
    """The free calls inside two linked modules, cut at what is linked inside both.

    Modules that enclose other modules are looked through. With ``opened``, so are free modules without inner modules:
    what they call then counts as called where they stand.
    """
    target = list(_items(work.target, node, work.partner, opened=opened))
    golden = list(_items(work.golden, other, work.back, opened=opened))
    return cut(work, target, golden)


def cut(work: Workspace, target_items: list[int], golden_items: list[int]) -> Iterator[Piece]:
    """The free ones of two lists of calls, cut at those that are linked with one another."""
    places = {item: at for at, item in enumerate(golden_items) if work.back[item] != NONE}
    cuts = []
    for at, item in enumerate(target_items):
        other_item = work.partner[item]
        if other_item in places and work.back[other_item] == item:
            cuts.append((at, places[other_item]))
    begin = (-1, -1)
    for cut in [*_uncrossed(cuts), (len(target_items), len(golden_items))]:
        target = [item for item in target_items[begin[0] + 1 : cut[0]] if work.partner[item] == NONE]
        golden = [item for item in golden_items[begin[1] + 1 : cut[1]] if work.back[item] == NONE]
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

    def opens(item: int) -> bool:
        if linked[item] != NONE or not tree.is_module[item] or facts.is_layer[item]:
            return False
        return bool((opened and tree.children[item]) or tree.module_children(item))

    for item in tree.opened(tree.children[node], opens):
        # An unmatched layer leaves the calls inside it unmatched.
        if linked[item] != NONE or not tree.is_module[item] or not facts.is_layer[item]:
            yield item


# Branches that run side by side in one order on both sides: attention and feed-forward that read the same tensor.
#
# A branch begins where a part of a module reads a tensor that an earlier part has read; all branches end where a call
# takes what an earlier one gave. Which of them runs first is the writer's taste, so they are put in the order of
# their sizes, which do not depend on names, on splitting or on how a weight is stored.


def by_branch_size(facts: Facts) -> list[Layer] | None:
    """All layers, of branches the smallest first; None where nothing runs side by side."""
    return _Arranger(facts).layers()


class _Arranger:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._tree = facts.tree
        self._layer = {layer.node: layer for layer in facts.layers}
        own = [0.0] * len(facts.tree)
        for layer in facts.layers:
            own[layer.node] = sum(float(facts.fingerprints.numel[row]) for row in facts.weights[layer.node])
        self._size = self._tree.totals(own)  # elements of all weights inside

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
        reads = [self._facts.fingerprints.tensor(self._facts.input_row(children[at])) for at in parts]
        starts = _first_fork(reads)
        layers = [self._layer.get(children[parts[at]]) for at in starts]
        if all(layer is not None and layer.kind == LINEAR for layer in layers):
            return None
        first, last = parts[starts[0]], parts[starts[-1]]
        end = self._join(children, first, last)
        bounds = [*(parts[at] for at in starts), end]
        branches = [children[begin:stop] for begin, stop in pairwise(bounds)]
        ordered = sorted(branches, key=lambda branch: sum(self._size[child] for child in branch))
        if ordered == branches:
            return None
        return [*children[:first], *(child for branch in ordered for child in branch), *children[end:]]

    def _join(self, children: list[int], first: int, last: int) -> int:
        """The place of the call, after the last branch began, that takes what an earlier branch gave."""
        given = {self._facts.fingerprints.tensor(self._facts.output_row(child)) for child in children[first:last]} - {
            None
        }
        for at in range(last + 1, len(children)):
            rows = self._facts.fingerprints.rows(self._tree.op[children[at]], INPUT)
            if not self._size[children[at]] and any(self._facts.fingerprints.tensor(row) in given for row in rows):
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
