"""Rule: modules that enclose the same layers belong together; chains of wrappers by names, sizes and values."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from twinprobe._align.auto.alignment import RESIDUAL, SAME
from twinprobe._align.auto.fingerprints import row_values_agree
from twinprobe._align.auto.layer_scores import names_fit, values_fit
from twinprobe._align.auto.rule_layers import BRANCHES, by_scope, linked_scope, pair_layers
from twinprobe._align.auto.tree import ROOT, Facts, Layer
from twinprobe._align.auto.words import words_of
from twinprobe._align.auto.workspace import Link, Workspace, sure
from twinprobe._align.links import NONE, best_in_order

RULE = "same layers inside"
_SAME_INSIDE, _ALIKE = 1.0, 1.5
_ONE_BY_ONE = 4.0  # outweighs equal values where sizes agree: wrappers hand values on, and levels may hold equal ones
_Content = tuple[int, int]  # how many links end inside, and a number that only this set of links has
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def link_containers(work: Workspace) -> None:
    """Link free modules whose linked contents are the same; where there is a choice, as their likes were linked."""
    target = _free_by_content(work.target, work.partner, _contents(work, golden=False))
    golden = _free_by_content(work.golden, work.back, _contents(work, golden=True))
    chains = [(chain, golden[content]) for content, chain in target.items() if content in golden]
    chains.sort(key=lambda both: len(both[0]) * len(both[1]))
    votes: Counter[tuple[str, str]] = Counter()
    inside = _mean_confidence(work)
    for chain, others in chains:
        _link_chain(work, chain, others, votes, inside[chain[0]])


def _mean_confidence(work: Workspace) -> list[float]:
    """How sure the links inside each target node are, on average: a module is no surer than what it encloses."""
    tree = work.target.tree
    count, total = [0] * len(tree), [0.0] * len(tree)
    for link in work.links:
        count[link.target[0]] += 1
        total[link.target[0]] += link.confidence
    return [found / max(1, links) for found, links in zip(tree.totals(total), tree.totals(count), strict=True)]


def _contents(work: Workspace, *, golden: bool) -> list[_Content]:
    """What lies inside each node, as links: equal for two nodes whose linked contents are the same."""
    tree = (work.golden if golden else work.target).tree
    count, mixed = [0] * len(tree), [0] * len(tree)
    for number, link in enumerate(work.links):
        node = (link.golden if golden else link.target)[0]  # several nodes are still one link
        count[node] += 1
        mixed[node] += _hash(number)
    return [(links, hashes & _MASK) for links, hashes in zip(tree.totals(count), tree.totals(mixed), strict=True)]


def _hash(number: int) -> int:
    value = (number + 1) * _MIX & _MASK
    value ^= value >> 29
    value = value * 0xBF58476D1CE4E5B9 & _MASK
    return value ^ (value >> 32)


def _free_by_content(facts: Facts, linked: list[int], contents: list[_Content]) -> dict[_Content, list[int]]:
    """Free modules that enclose something linked, the outermost of each chain first."""
    tree = facts.tree
    found: dict[_Content, list[int]] = defaultdict(list)
    for node in tree.in_order:
        if node != ROOT and tree.is_module[node] and linked[node] == NONE and contents[node][0]:
            found[contents[node]].append(node)
    return found


def _link_chain(
    work: Workspace, chain: list[int], others: list[int], votes: Counter[tuple[str, str]], inside: float
) -> None:
    classes = work.target.tree.cls, work.golden.tree.cls
    choice = len(chain) * len(others) > 1
    scores = [{to: score_pair(work, node, other) for to, other in enumerate(others)} for node in chain]
    if choice:
        for at, node in enumerate(chain):
            for to, other in enumerate(others):
                scores[at][to] += _ALIKE * bool(votes[classes[0][node], classes[1][other]])
        for at, to in _named_alike([classes[0][node] for node in chain], [classes[1][other] for other in others]):
            scores[at][to] += _ONE_BY_ONE
    pairs, total = best_in_order(scores)
    alike = _wrapped(work.target, chain), _wrapped(work.golden, others)
    for at, to in pairs:
        margin = scores[at][to]
        if choice:
            without = _without_likes(scores, alike, at, to)
            margin = min(margin, total - best_in_order(without)[1])
        reason = "encloses the same layers"
        if len(chain) != len(others):
            reason += f", best of {max(len(chain), len(others))} levels"
        if work.link(Link((chain[at],), (others[to],), RULE, reason, min(inside, sure(margin)), SAME)):
            votes[classes[0][chain[at]], classes[1][others[to]]] += 1


def _named_alike(classes: list[str], others: list[str]) -> list[tuple[int, int]]:
    """Which wrappers belong together where the class of each one of the shorter chain tells, in order.

    Told by words that only one class of either chain has: Float16Module, GPTModel and FloatModule, GPT2Model.
    """
    places: list[dict[str, int]] = []
    for chain in (classes, others):
        words = [(word, at) for at, cls in enumerate(chain) for word in set(words_of(cls))]
        counts = Counter(word for word, _ in words)
        places.append({word: at for word, at in words if counts[word] == 1})
    pairs = sorted({(places[0][word], places[1][word]) for word in places[0].keys() & places[1].keys()})
    rising = all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(pairs))
    return pairs if rising and len(pairs) == min(len(classes), len(others)) > 1 else []


def _wrapped(facts: Facts, chain: list[int]) -> list[object]:
    """Equal for modules of a chain with the very same input and output tensors: either stands for the other."""
    found: list[object] = []
    for at, node in enumerate(chain):
        tensors = tuple(facts.fingerprints.tensor(row) for row in (facts.input_row(node), facts.output_row(node)))
        found.append(tensors if None not in tensors else at)
    return found


def _without_likes(
    scores: list[dict[int, float]], alike: tuple[list[object], list[object]], at: int, to: int
) -> list[dict[int, float]]:
    """The scores without a pair and all that would say the same."""
    target, golden = alike
    return [
        {column: score for column, score in line.items() if target[row] != target[at] or golden[column] != golden[to]}
        for row, line in enumerate(scores)
    ]


def score_pair(work: Workspace, node: int, other: int) -> float:
    """How well two modules fit that enclose the same."""
    target, golden = work.target, work.golden
    names = names_fit(target.tree.path[node], target.tree.cls[node], golden.tree.path[other], golden.tree.cls[other])
    return _SAME_INSIDE + names + values_fit(target, node, golden, other)[0]


# Rule: a module that returns its result with the residual added, against one whose caller adds it.

RESIDUAL_RULE = "residual added inside"
_BY_VALUES, _BY_PLACE = 0.95, 0.75


def link_residuals(work: Workspace) -> None:
    """Where one side adds inside a linked module and the other right after it, link the two additions."""
    for node, other in work.matched_modules()[1:]:
        if not _link(work, node, other, mirrored=False):
            _link(work, node, other, mirrored=True)


def _link(work: Workspace, node: int, other: int, *, mirrored: bool) -> bool:
    """With ``mirrored``, the golden side adds inside."""
    inner, outer = (work.golden, work.target) if mirrored else (work.target, work.golden)
    inside, outside = (other, node) if mirrored else (node, other)
    linked = (work.back, work.partner) if mirrored else (work.partner, work.back)
    adds = _last_add(inner, inside, linked[0])
    after = _add_after(outer, outside, linked[1])
    if NONE in (adds, after) or _last_add(outer, outside, linked[1]) != NONE:
        return False
    equal = row_values_agree(inner.fingerprints, inner.output_row(adds), outer.fingerprints, outer.output_row(after))
    shapes = inner.fingerprints.shape(inner.output_row(adds)), outer.fingerprints.shape(outer.output_row(after))
    if (
        work.outputs_agree(node, other)
        or shapes[0] is None
        or shapes[1] is None
        or sorted(shapes[0]) != sorted(shapes[1])
    ):
        return False
    pair = (after, adds) if mirrored else (adds, after)
    reason = "equal values with the residual added" if equal else "adds inside, the other side right after"
    confidence = _BY_VALUES if equal else _BY_PLACE
    inside_of = "golden" if mirrored else "target"
    return work.link(Link((pair[0],), (pair[1],), RESIDUAL_RULE, reason, confidence, RESIDUAL, inside=inside_of))


def _last_add(facts: Facts, node: int, linked: list[int]) -> int:
    """The free addition whose result a module returns."""
    children = facts.tree.children[node]
    if not children or not _is_add(facts, children[-1]) or linked[children[-1]] != NONE:
        return NONE
    return children[-1]


def _add_after(facts: Facts, node: int, linked: list[int]) -> int:
    """The free addition right after a module that takes what the module gives."""
    siblings = facts.tree.children[facts.tree.parent[node]]
    place = facts.tree.place[node] + 1
    after = next((sibling for sibling in siblings[place : place + 3] if _is_add(facts, sibling)), NONE)
    if after == NONE or linked[after] != NONE:
        return NONE
    given = facts.output_row(node)
    takes = [facts.fingerprints.stats[row].tolist() for row in facts.fingerprints.rows(facts.tree.op[after], 0)]
    return after if given != NONE and facts.fingerprints.stats[given].tolist() in takes else NONE


def _is_add(facts: Facts, node: int) -> bool:
    return not facts.tree.is_module[node] and facts.tree.family[node].rpartition(".")[2] == "add"


# Rule: branches that run side by side have no order of their own: a shortcut may run before or after the main path.
#
# Only layers inside two modules that belong together take part, and only where both branches read a tensor that
# something else in the module reads too, so that the order of execution says nothing about them.


def link_branches(work: Workspace) -> None:
    """Pair the free layers that branch off inside linked modules."""
    target = _free_branches(work.target, work.partner)
    golden = _free_branches(work.golden, work.back)
    for scope, layers in target.items():
        others = golden.get(work.partner[scope])
        if others:
            pair_layers(work, [(layers, others)], BRANCHES)


def _free_branches(facts: Facts, linked: list[int]) -> dict[int, list[Layer]]:
    """Free layers by the nearest linked module around them, as far as they branch off inside it."""
    taken: dict[int, set[object]] = defaultdict(set)
    for layer in facts.layers:
        if linked[layer.node] != NONE:
            taken[linked_scope(facts, linked, layer.node)].add(facts.fingerprints.tensor(layer.input_row))
    found = {}
    for scope, layers in by_scope(facts, linked).items():
        known = taken[scope] | {facts.fingerprints.tensor(facts.input_row(scope))}
        branching = []
        for layer in layers:
            if facts.fingerprints.tensor(layer.input_row) in known - {None}:
                branching.append(layer)
                known.add(facts.fingerprints.tensor(layer.output_rows[0]))
        if branching:
            found[scope] = branching
    return found
