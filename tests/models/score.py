"""How good an alignment is against what is known to be right."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinprobe._align.auto.alignment import Alignment
from twinprobe._align.auto.tree import CallTree, call_tree
from twinprobe._align.calls import RunCalls
from twinprobe._runs.run import Run


@dataclass
class Score:
    """Pairs found and missed. ``wrong`` and ``missed`` name them."""

    right: int
    wrong: list[tuple[str, str]] = field(default_factory=list)
    missed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """The share of found pairs that are right."""
        found = self.right + len(self.wrong)
        return self.right / found if found else 1.0

    @property
    def recall(self) -> float:
        """The share of right pairs that were found."""
        known = self.right + len(self.missed)
        return self.right / known if known else 1.0


def score(alignment: Alignment, target: Run, golden: Run, truth: set[tuple[str, str]]) -> Score:
    """Count module pairs (and pairs of a module with a call); pairs of two API calls are not judged here."""
    mine, theirs = labels(target), labels(golden)
    found = set()
    for relation in alignment.relations:
        for one in relation.target:
            for other in relation.golden:
                if ":" not in mine[one] or ":" not in theirs[other]:
                    found.add((mine[one], theirs[other]))
    known = {pair for pair in truth if pair[0] in mine.values() and pair[1] in theirs.values()}
    return Score(len(found & known), sorted(found - known), sorted(known - found))


def labels(run: Run) -> dict[str, str]:
    """Name of a call -> its module path, or ``path:function`` for an API call."""
    tree = call_tree(RunCalls(run))
    return {tree.name[node]: _label(tree, node) for node in range(1, len(tree))}


def _label(tree: CallTree, node: int) -> str:
    if tree.is_module[node]:
        return tree.path[node]
    return f"{tree.path[tree.parent[node]]}:{tree.family[node].rpartition('.')[2]}"
