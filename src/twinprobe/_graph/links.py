"""Which node of one tree belongs to which node of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.links import RULE, Pairs, from_partners
from twinprobe._graph.tree import COLLECTION, Tree
from twinprobe._runs.run import Run

NONE = -1
Matcher = Callable[[Run, Run], Pairs]


class TreeMatcher:
    """Pairs values by a rule of ``align``, and from their calls links the nodes of two trees.

    ``same_ancestors``: two calls that nothing but their equal name joins belong together only inside modules that do.
    """

    def __init__(self, target: Tree, golden: Tree, match: Matcher, *, same_ancestors: bool) -> None:
        self._target = target
        self._golden = golden
        self._match = match
        self._same_ancestors = same_ancestors
        self.link: list[int] = []

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """The pairs of values whose nodes are linked."""
        pairs = self._match(target, golden)
        rows = target.table.height
        t_op = target.table["op"].to_numpy()
        partner_row = pairs.golden[:rows]
        g_op = np.where(partner_row >= 0, golden.table["op"].to_numpy()[partner_row], NONE)
        partners = _majority(t_op, g_op, len(target.ops), len(golden.ops))
        by_name = self._paired_by_name(pairs, t_op, len(target.ops))
        self.link = _link_nodes(self._target, self._golden, partners, by_name)
        if not any(by_name):
            return pairs
        linked_op = self._linked_ops(len(target.ops))
        keep = (g_op >= 0) & (linked_op[t_op] == g_op)
        kept = np.where(keep, partner_row, NONE).tolist()
        rules = [rule if at >= 0 else "" for rule, at in zip(pairs.rule[:rows], kept, strict=True)]
        return from_partners(kept, golden.table.height, rules, pairs.notes)

    def _paired_by_name(self, pairs: Pairs, t_op: NDArray[np.int32], count: int) -> bytearray:
        """Which calls were paired by nothing but their equal names."""
        marks = bytearray(count)
        if self._same_ancestors:
            for op, rule in zip(t_op.tolist(), pairs.rule, strict=False):
                if rule == RULE:
                    marks[op] = 1
        return marks

    def _linked_ops(self, count: int) -> NDArray[np.int64]:
        linked = np.full(count, NONE, dtype=np.int64)
        for node, other in enumerate(self.link):
            if other >= 0 and self._target.ops[node] >= 0:
                linked[self._target.ops[node]] = self._golden.ops[other]
        return linked


def reverse_links(link: list[int], count: int) -> list[int]:
    """The links seen from the other side."""
    back = [NONE] * count
    for node, other in enumerate(link):
        if other >= 0:
            back[other] = node
    return back


def _majority(t_op: NDArray[np.int32], g_op: NDArray[np.int32], t_count: int, g_count: int) -> list[int]:
    """For each target call the golden call that most of its values were paired with."""
    paired = g_op >= 0
    keys, counts = np.unique(t_op[paired].astype(np.int64) * g_count + g_op[paired], return_counts=True)
    best = np.full(t_count, NONE, dtype=np.int64)
    in_order = np.argsort(counts, kind="stable")
    best[keys[in_order] // g_count] = keys[in_order] % g_count
    found: list[int] = best.tolist()
    return found


def _link_nodes(target: Tree, golden: Tree, partners: list[int], paired_by_name: bytearray) -> list[int]:
    link = [NONE] * len(target)
    taken = bytearray(len(golden))
    link[0], taken[0] = 0, 1
    node_of_op = {op: node for node, op in enumerate(golden.ops) if op >= 0}
    spoken_for = {node_of_op[op] for op in partners if op >= 0}
    for node in target.pre_order()[1:]:
        if target.kinds[node] == COLLECTION:
            continue
        op = target.ops[node]
        other = node_of_op[partners[op]] if op >= 0 and partners[op] >= 0 else NONE
        by_name = other == NONE or paired_by_name[op]
        if other == NONE:
            # A call whose values found no partner has none; a name alone speaks only for what holds no values.
            other = golden.index.get(target.names[node], NONE) if op < 0 else NONE
            if other == NONE or other in spoken_for:
                continue
        if taken[other] or golden.kinds[other] == COLLECTION:
            continue
        if by_name and link[_module_above(target, node)] != _module_above(golden, other):
            continue
        link[node], taken[other] = other, 1
    _link_by_children(target, golden, link, taken)
    return link


def _module_above(tree: Tree, node: int) -> int:
    """The parent, collections not counted: they are no part of the model."""
    above = tree.parents[node]
    return tree.parents[above] if above > 0 and tree.kinds[above] == COLLECTION else above


def _link_by_children(target: Tree, golden: Tree, link: list[int], taken: bytearray) -> None:
    """Link collections, and modules without values of their own, with what holds their children's partners."""
    for node in target.post_order():
        if link[node] != NONE or not target.children[node] or target.ops[node] >= 0:
            continue
        above = Counter(golden.parents[link[child]] for child in target.children[node] if link[child] > 0)
        for other, _ in above.most_common():
            fits = golden.kinds[other] == target.kinds[node] and golden.ops[other] < 0
            if fits and not taken[other]:
                link[node], taken[other] = other, 1
                break
        else:
            other = golden.index.get(target.names[node], NONE)
            if target.kinds[node] == COLLECTION and other > 0 and not taken[other] and not above:
                link[node], taken[other] = other, 1
