"""Automatic alignment: the rules in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twinprobe.align.auto.alignment import Alignment, Relation, mirrored
from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.prints import NONE
from twinprobe.align.auto.rule_branches import link_branches
from twinprobe.align.auto.rule_calls import link_calls
from twinprobe.align.auto.rule_containers import link_containers
from twinprobe.align.auto.rule_layers import link_layers
from twinprobe.align.auto.rule_residual import link_residuals
from twinprobe.align.auto.rule_results import link_results
from twinprobe.align.auto.rule_wholes import link_wholes
from twinprobe.align.auto.sketch import GIVEN, Link, Sketch
from twinprobe.align.auto.tree import CallTree, call_tree
from twinprobe.align.auto.why import left_alone
from twinprobe.align.side import Side
from twinprobe.runs.run import Run

Rule = Callable[[Sketch], None]
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
)


def align_runs(target: Run, golden: Run) -> Alignment:
    """Find out which call of one run belongs to which call of the other."""
    return align_sides(Side(target), Side(golden))


def align_sides(
    target: Side, golden: Side, known: Sequence[tuple[str, str]] = (), *, by_results: bool = True
) -> Alignment:
    """The same for two sides that are taken apart already. ``known`` pairs of calls are given and not questioned.

    ``by_results`` says whether calls of other names may be paired because they give the same.
    """
    # Where two ways are equally good, the first found wins: so that swapped runs give the mirrored answer, one of the
    # two orders is always taken.
    if _order(golden) < _order(target):
        turned = [(other, one) for one, other in known]
        return mirrored(align_sides(golden, target, turned, by_results=by_results))
    trees = call_tree(target), call_tree(golden)
    sketch = Sketch(Facts(trees[0]), Facts(trees[1]))
    _give(sketch, known)
    _note_gaps(sketch, trees)
    for rule in RULES:
        if not sketch.hopeless and (by_results or rule is not link_results):
            rule(sketch)
    _forget_chance_hits(sketch)
    return _alignment(sketch)


def _order(side: Side) -> tuple[int, str, list[str]]:
    return len(side.ops), side.run.framework, side.ops[:64]


def _give(sketch: Sketch, known: Sequence[tuple[str, str]]) -> None:
    if not known:
        return
    numbers = [{name: node for node, name in enumerate(facts.tree.name)} for facts in (sketch.target, sketch.golden)]
    for one, other in known:
        if one in numbers[0] and other in numbers[1]:
            sketch.link(Link((numbers[0][one],), (numbers[1][other],), GIVEN, "", 1.0))


def _note_gaps(sketch: Sketch, trees: tuple[CallTree, CallTree]) -> None:
    for tree, facts in zip(trees, (sketch.target, sketch.golden), strict=True):
        path = tree.side.run.path
        if not tree.has_hierarchy:
            what = "modules are nested by their paths" if tree.modules else "API calls are aligned in their order"
            sketch.notes.append(f"{path}: no construct.json tells what encloses what; {what}")
        if not facts.prints.telling.any():
            sketch.notes.append(f"{path}: no statistics were recorded; names, shapes and order decide alone")


def _forget_chance_hits(sketch: Sketch) -> None:
    """Two models that have nothing in common still have calls of one name: without modules these mean nothing."""
    trees = sketch.target.tree, sketch.golden.tree
    if all(tree.modules for tree in trees) and not any(
        trees[0].is_module[link.target[0]] and trees[1].is_module[link.golden[0]] for link in sketch.links
    ):
        sketch.give_up()


def _alignment(sketch: Sketch) -> Alignment:
    modules = sketch.target.tree.modules, sketch.golden.tree.modules
    links = sorted((link for link in sketch.links if link.rule != GIVEN), key=lambda link: link.target)
    return Alignment(
        relations=[_relation(sketch, link) for link in links],
        target_alone=left_alone(sketch, golden=False),
        golden_alone=left_alone(sketch, golden=True),
        modules=(len(modules[0]), len(modules[1])),
        matched_modules=(
            sum(sketch.partner[node] != NONE for node in modules[0]),
            sum(sketch.back[node] != NONE for node in modules[1]),
        ),
        best_score=sketch.best_score,
        notes=sketch.notes,
    )


def _relation(sketch: Sketch, link: Link) -> Relation:
    target, golden = sketch.target.tree.name, sketch.golden.tree.name
    return Relation(
        tuple(target[node] for node in link.target), tuple(golden[node] for node in link.golden),
        link.rule, link.reason, round(link.confidence, 4), link.kind, link.axis, link.inside,
    )  # fmt: skip
