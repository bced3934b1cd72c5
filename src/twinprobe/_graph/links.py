"""Which node of one tree belongs to which node of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import cast

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
    ``linked`` is told the partner of each target node as soon as all are known.
    """

    def __init__(
        self, target: Tree, golden: Tree, match: Matcher, linked: Callable[[list[int]], None], *, same_ancestors: bool
    ) -> None:
        self._target, self._golden = target, golden
        self._match, self._linked, self._same_ancestors = match, linked, same_ancestors

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """The pairs of values whose nodes are linked."""
        pairs = self._match(target, golden)
        rows = target.table.height
        t_op = target.table["op"].to_numpy()
        partner_row = pairs.golden[:rows]
        g_op = np.where(partner_row >= 0, golden.table["op"].to_numpy()[partner_row], NONE)
        by_name = bytearray(len(target.ops))  # calls that were paired by nothing but their equal names
        if self._same_ancestors:
            for op, rule in zip(t_op.tolist(), pairs.rule, strict=False):
                if rule == RULE:
                    by_name[op] = 1
        link = self._link_nodes(_majority(t_op, g_op, len(target.ops), len(golden.ops)), by_name)
        self._linked(link)
        if not any(by_name):
            return pairs
        linked_op = np.full(len(target.ops), NONE, dtype=np.int64)
        for node, partner in enumerate(link):
            if partner >= 0 and self._target.ops[node] >= 0:
                linked_op[self._target.ops[node]] = self._golden.ops[partner]
        keep = (g_op >= 0) & (linked_op[t_op] == g_op)
        kept = np.where(keep, partner_row, NONE).tolist()
        rules = [rule if row >= 0 else "" for rule, row in zip(pairs.rule[:rows], kept, strict=True)]
        return from_partners(kept, golden.table.height, rules, pairs.notes)

    def _link_nodes(self, partners: list[int], paired_by_name: bytearray) -> list[int]:
        target, golden = self._target, self._golden
        link = [NONE] * len(target)
        taken = bytearray(len(golden))
        link[0], taken[0] = 0, 1
        node_of_op = {op: node for node, op in enumerate(golden.ops) if op >= 0}
        spoken_for = {node_of_op[op] for op in partners if op >= 0}
        for node in target.pre_order()[1:]:
            if target.kinds[node] == COLLECTION:
                continue
            op = target.ops[node]
            partner = node_of_op[partners[op]] if op >= 0 and partners[op] >= 0 else NONE
            by_name = partner == NONE or paired_by_name[op]
            if partner == NONE:
                # A call whose values found no partner has none; a name alone speaks only for what holds no values.
                partner = golden.index.get(target.names[node], NONE) if op < 0 else NONE
                if partner == NONE or partner in spoken_for:
                    continue
            if taken[partner] or golden.kinds[partner] == COLLECTION:
                continue
            if by_name and link[_module_above(target, node)] != _module_above(golden, partner):
                continue
            link[node], taken[partner] = partner, 1
        self._link_by_children(link, taken)
        return link

    def _link_by_children(self, link: list[int], taken: bytearray) -> None:
        """Link collections, and modules without values of their own, with what holds their children's partners."""
        target, golden = self._target, self._golden
        for node in target.order:
            if link[node] != NONE or not target.children[node] or target.ops[node] >= 0:
                continue
            above = Counter(golden.parents[link[child]] for child in target.children[node] if link[child] > 0)
            for partner, _ in above.most_common():
                fits = golden.kinds[partner] == target.kinds[node] and golden.ops[partner] < 0
                if fits and not taken[partner]:
                    link[node], taken[partner] = partner, 1
                    break
            else:
                partner = golden.index.get(target.names[node], NONE)
                if target.kinds[node] == COLLECTION and partner > 0 and not taken[partner] and not above:
                    link[node], taken[partner] = partner, 1


def _majority(t_op: NDArray[np.int32], g_op: NDArray[np.int32], t_count: int, g_count: int) -> list[int]:
    """For each target call the golden call that most of its values were paired with."""
    paired = g_op >= 0
    keys, counts = np.unique(t_op[paired].astype(np.int64) * g_count + g_op[paired], return_counts=True)
    best = np.full(t_count, NONE, dtype=np.int64)
    in_order = np.argsort(counts, kind="stable")
    # Of several values for one place numpy keeps the last: the golden call with the most pairs.
    best[keys[in_order] // g_count] = keys[in_order] % g_count
    return cast("list[int]", best.tolist())


def _module_above(tree: Tree, node: int) -> int:
    """The parent, collections not counted: they are no part of the model."""
    above = tree.parents[node]
    return tree.parents[above] if above > 0 and tree.kinds[above] == COLLECTION else above
