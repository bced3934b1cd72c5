"""The working state of an alignment: what the rules have linked so far. A rule only links what is still free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twinprobe.align.auto.alignment import FUSED, SAME
from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.prints import NONE
from twinprobe.align.auto.tree import ROOT

ACCEPTED = 0.55
GIVEN = "given"  # the rule of links that were there before


@dataclass(slots=True)
class Link:
    """Nodes that belong together, as a rule has found."""

    target: tuple[int, ...]
    golden: tuple[int, ...]
    rule: str
    reason: str
    confidence: float
    kind: str = SAME
    axis: int | None = None
    inside: str = ""


class Sketch:
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
        if len(link.target) != 1 or len(link.golden) != 1:
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
