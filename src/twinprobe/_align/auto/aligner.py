"""Automatic alignment: the rules in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twinprobe._align.auto.alignment import Alignment, Relation, Unmatched, mirrored
from twinprobe._align.auto.rule_calls import link_calls, link_results
from twinprobe._align.auto.rule_containers import link_branches, link_containers, link_residuals
from twinprobe._align.auto.rule_layers import link_layers, link_only_ones, link_wholes
from twinprobe._align.auto.tree import ROOT, Facts, call_tree
from twinprobe._align.auto.workspace import GIVEN, Link, Workspace
from twinprobe._align.calls import RunCalls
from twinprobe._align.links import NONE
from twinprobe._runs.run import Run

# Why a call is unmatched, in words.


def unmatched_nodes(work: Workspace, *, golden: bool) -> list[Unmatched]:
    """All calls of one side that no rule has linked, each with a reason."""
    facts, linked = (work.golden, work.back) if golden else (work.target, work.partner)
    other = work.target if golden else work.golden
    reasons = _Reasons(facts, linked, other, work.why[golden])
    return [
        Unmatched(facts.tree.name[node], reasons.why(node))
        for node in range(len(facts.tree))
        if node != ROOT and linked[node] == NONE
    ]


class _Reasons:
    def __init__(self, facts: Facts, linked: list[int], other: Facts, known: dict[int, str]) -> None:
        self._facts, self._linked, self._other, self._known = facts, linked, other, known
        self._families = set(other.tree.family)
        links = [int(partner != NONE) for partner in linked]
        self._encloses = [inside > own for inside, own in zip(facts.tree.totals(links), links, strict=True)]

    def why(self, node: int) -> str:
        tree = self._facts.tree
        if node in self._known:
            return self._known[node]
        if not tree.is_module[node]:
            return self._why_call(node)
        if self._facts.is_layer[node]:
            shapes = " ".join(str(self._facts.fingerprints.shape_text[row]) for row in self._facts.weights[node])
            return "no free layer at this place fits" + (f" its weights {shapes}" if shapes else "")
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


Rule = Callable[[Workspace], None]
# Each rule links what is still free; none undoes what an earlier one did.
RULES: tuple[Rule, ...] = (
    link_layers,  # what holds parameters, in the order of execution
    link_containers,  # what encloses the same layers
    link_branches,  # what runs side by side, in whatever order
    link_containers,  # what encloses the same branches
    link_wholes,  # what holds as many weights in one module as the other side in several
    link_calls,  # what ran between linked calls
    link_containers,  # what encloses the same calls
    link_residuals,  # what adds inside or outside
    link_results,  # what gives the same result at the same place
    link_only_ones,  # what has but one like, wherever it is
)


def align_runs(target: Run, golden: Run) -> Alignment:
    """Find out which call of one run belongs to which call of the other."""
    return align_sides(RunCalls(target), RunCalls(golden))


def align_sides(
    target: RunCalls, golden: RunCalls, known: Sequence[tuple[str, str]] = (), *, by_results: bool = True
) -> Alignment:
    """The same for two sides that are taken apart already. ``known`` pairs of calls are given and not questioned.

    ``by_results`` says whether calls of other names may be paired because they give the same.
    """
    # Where two ways are equally good, the first found wins: so that swapped runs give the mirrored answer, one of the
    # two orders is always taken.
    if _order(golden) < _order(target):
        turned = [(other, one) for one, other in known]
        return mirrored(align_sides(golden, target, turned, by_results=by_results))
    work = Workspace(Facts(call_tree(target)), Facts(call_tree(golden)))
    _give(work, known)
    _note_gaps(work)
    for rule in RULES:
        if not work.hopeless and (by_results or rule is not link_results):
            rule(work)
    _forget_chance_hits(work)
    return _alignment(work)


def _order(side: RunCalls) -> tuple[int, str, list[str]]:
    return len(side.ops), side.run.framework, side.ops[:64]


def _give(work: Workspace, known: Sequence[tuple[str, str]]) -> None:
    numbers = [{name: node for node, name in enumerate(facts.tree.name)} for facts in (work.target, work.golden)]
    for one, other in known:
        if one in numbers[0] and other in numbers[1]:
            work.link(Link((numbers[0][one],), (numbers[1][other],), GIVEN, "", 1.0))


def _note_gaps(work: Workspace) -> None:
    for facts in (work.target, work.golden):
        tree, path = facts.tree, facts.tree.side.run.path
        if not tree.has_hierarchy:
            what = "modules are nested by their paths" if tree.modules else "API calls are aligned in order"
            work.notes.append(f"{path}: there is no construct.json with the hierarchy; {what}")
        if not facts.fingerprints.telling.any():
            work.notes.append(f"{path}: no statistics were recorded; only names, shapes and order are used")


def _forget_chance_hits(work: Workspace) -> None:
    """Two models that have nothing in common still have calls of one name, and an optimizer: without modules these mean
    nothing."""
    trees = work.target.tree, work.golden.tree
    if all(tree.modules for tree in trees) and not any(
        all(tree.is_module[one] and tree.cls[one] for tree, one in zip(trees, (target[0], golden[0]), strict=True))
        for target, golden in ((link.target, link.golden) for link in work.links)
    ):
        work.give_up()


def _alignment(work: Workspace) -> Alignment:
    modules = work.target.tree.modules, work.golden.tree.modules
    links = sorted((link for link in work.links if link.rule != GIVEN), key=lambda link: link.target)
    return Alignment(
        relations=[_relation(work, link) for link in links],
        target_unmatched=unmatched_nodes(work, golden=False),
        golden_unmatched=unmatched_nodes(work, golden=True),
        modules=(len(modules[0]), len(modules[1])),
        matched_modules=(
            sum(work.partner[node] != NONE for node in modules[0]),
            sum(work.back[node] != NONE for node in modules[1]),
        ),
        best_score=work.best_score,
        notes=work.notes,
    )


def _relation(work: Workspace, link: Link) -> Relation[str]:
    target, golden = work.target.tree.name, work.golden.tree.name
    return Relation(
        tuple(target[node] for node in link.target), tuple(golden[node] for node in link.golden),
        link.rule, link.reason, round(link.confidence, 4), link.kind, link.axis, link.inside,
    )  # fmt: skip
