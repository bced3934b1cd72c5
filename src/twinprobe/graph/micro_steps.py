"""Micro steps: the rounds of forward and backward inside one recorded step."""

from __future__ import annotations

from pathlib import Path

from twinprobe.graph.tree import MODULE, Tree
from twinprobe.runs.construct import read_micro_steps


def assign_micro_steps(tree: Tree, construct: Path) -> int:
    """Give every node its micro step and return how many there are.

    A forward module after any other module begins the next round; APIs belong to the round they stand in. Megatron
    dumps say it themselves.
    """
    said = read_micro_steps(construct)
    tree.micro_steps = [0] * len(tree)
    current, others_seen = 0, False
    for node in tree.children[0]:
        name = tree.names[node]
        if tree.kinds[node] == MODULE:
            if ".forward" not in name:
                others_seen = True
            elif others_seen:
                current, others_seen = current + 1, False
        tree.micro_steps[node] = said.get(name, current)
    for node in tree.pre_order()[1:]:
        parent = tree.parents[node]
        if parent > 0:
            tree.micro_steps[node] = said.get(tree.names[node], tree.micro_steps[parent])
    return max(tree.micro_steps) + 1
