"""Rule: layers in the order in which they ran, by kind, weights, sizes, names and values; fused ones too."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import combinations, pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.auto.alignment import FUSED, SAME
from twinprobe._align.auto.fingerprints import Fingerprints, row_values_agree
from twinprobe._align.auto.layer_scores import SAME_NORM, LayerScores, Units, like_sizes, shared_weights
from twinprobe._align.auto.sequence import Floats, Group, Ints, Problem, Step, guess_by_keys, pair_in_order, rising
from twinprobe._align.auto.tree import Facts, Layer, groups_of
from twinprobe._align.auto.words import agreement, class_kind, numbers_of, unnumbered
from twinprobe._align.auto.workspace import GIVEN, Link, Piece, Workspace, by_branch_size, cut, sure
from twinprobe._align.links import NONE
from twinprobe._align.turns import fill_up

# Linear layers that read the same tensor (q, k, v; gate, up): which is which does not follow from their order.
#
# Names, values and what reads their outputs decide; the order in which they were written counts a little.

Scores = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
_MOST = 5
_SAME_READERS, _OTHER_READERS = 1.5, -1.5
_NAMED, _SAME_NAME = frozenset({"q", "k", "v"}), 12.0
# Three are q, k, v nearly always; two may be gate and up in either order.
_IN_ORDER = {2: 0.8, 3: 1.5}


def settle_branches(steps: list[Step], target: list[Layer], golden: list[Layer], scores: Scores) -> list[Step]:
    """The steps with the pairs inside groups chosen anew."""
    groups = _groups(target), _groups(golden)
    met: dict[tuple[int, int], list[Step]] = defaultdict(list)
    result = []
    for step in steps:
        single = step.target[1] - step.target[0] == 1 == step.golden[1] - step.golden[0]
        pair = groups[0].get(step.target[0]), groups[1].get(step.golden[0])
        if single and pair[0] is not None and pair[1] is not None:
            met[pair[0][0], pair[1][0]].append(step)
        else:
            result.append(step)
    taken: set[tuple[bool, int]] = set()
    for (first, other), found in met.items():
        members, others = groups[0][first], groups[1][other]
        # Groups that were torn apart between several others are left as they are.
        if {(False, first), (True, other)} & taken or max(len(members), len(others)) > _MOST:
            result += found
            continue
        taken |= {(False, first), (True, other)}
        chance = max(min(step.confidence for step in found), _between(steps, members, others))
        result += _assign(members, others, chance, target, golden, scores)
    return sorted(result)


def _between(steps: list[Step], members: list[int], others: list[int]) -> float:
    """How sure it is that two groups belong together, by what comes right before and right after both."""
    before = [step for step in steps if step.target[1] == members[0] and step.golden[1] == others[0]]
    after = [step for step in steps if step.target[0] == members[-1] + 1 and step.golden[0] == others[-1] + 1]
    return min(before[0].confidence, after[0].confidence) if before and after else 0.0


def _groups(layers: list[Layer]) -> dict[int, list[int]]:
    """Place of a layer -> the places of all layers of its group, for groups of several."""
    by_branch: dict[object, list[int]] = defaultdict(list)
    for place, layer in enumerate(layers):
        by_branch[layer.branch].append(place)
    return {place: places for places in by_branch.values() if len(places) > 1 for place in places}


def _assign(
    members: list[int], others: list[int], chance: float, target: list[Layer], golden: list[Layer], scores: Scores
) -> list[Step]:
    table = np.asarray(scores(np.array(members)[:, None], np.array(others)[None, :]), dtype=np.float64)
    readers = np.array([[_readers(target[place], golden[other]) for other in others] for place in members])
    if readers.max() > 0:  # else the two sides are written so differently that their readers do not compare
        table += readers
    meanings = [target[place].meaning for place in members], [golden[other].meaning for other in others]
    if sorted(meanings[0]) == sorted(meanings[1]) == sorted(_NAMED.intersection(meanings[0])):
        # Names that leave no doubt outweigh values: q and k may hold each other's weights, which is a finding.
        table += _SAME_NAME * (np.array(meanings[0])[:, None] == np.array(meanings[1]))
    swapped = len(members) > len(others)
    used = table.T if swapped else table
    options = []
    for chosen in permutations(range(used.shape[1]), used.shape[0]):
        pairs = [(row, column) for row, column in enumerate(chosen) if used[row, column] > 0]
        order = _IN_ORDER.get(len(members), 0.8) if list(chosen) == sorted(chosen) else 0.0
        options.append((sum(used[row, column] for row, column in pairs) + order, tuple(pairs)))
    options.sort(reverse=True)
    best = options[0]
    result = []
    for row, column in best[1]:
        rival = next((total for total, pairs in options if (row, column) not in pairs), -np.inf)
        at, to = (column, row) if swapped else (row, column)
        sureness = chance * sure(float(best[0] - rival)) if np.isfinite(rival) else chance
        place, other = members[at], others[to]
        result.append(Step((place, place + 1), (other, other + 1), float(used[row, column]), sureness))
    return result


def _readers(one: Layer, other: Layer) -> float:
    if not one.readers or not other.readers:
        return 0.0
    if one.readers == other.readers:
        return _SAME_READERS
    return 0.0 if one.readers & other.readers else _OTHER_READERS


RULE, FUSED_RULE, BRANCHES = "layers in order", "fused layers", "parallel branches"
_SIZES = (2, 3)
_OUTERMOST = re.compile(r"^.*?\.\d+(?=\.)")  # the path of a block of the outermost stack
_LEAST_SCORE, _EQUAL, _SOME_SHARED, _OF_OTHER_SIZE, _NEARLY_ALL = 0.3, 2.4, 0.2, 0.55, 0.78


def link_layers(work: Workspace) -> None:
    """Pair the layers of both runs; pairs never cross, and never leave modules that are known to belong together."""
    arranged = by_branch_size(work.target), by_branch_size(work.golden)
    target, golden = by_scope(work.target, work.partner), by_scope(work.golden, work.back)
    ways = [target], [golden]
    if arranged[0] is not None or arranged[1] is not None:
        ways[0].append(by_scope(work.target, work.partner, arranged[0]))
        ways[1].append(by_scope(work.golden, work.back, arranged[1]))
    # A module may hold as parts of its own what the other has in two, each of which reads the same tensor: attention
    # beside an MLP. Then layers that read one tensor stand side by side in one run alone, and as they ran in both.
    ran = work.target.as_run(), work.golden.as_run()
    if ran != (work.target.layers, work.golden.layers):
        ways[0].append(by_scope(work.target, work.partner, ran[0]))
        ways[1].append(by_scope(work.golden, work.back, ran[1]))
    for scope in target:
        other = work.partner[scope]
        options = [(one[scope], two.get(other, [])) for one, two in zip(*ways, strict=True)]
        pair_layers(work, options, RULE)
    if not _is_coherent(work):
        work.give_up()
    elif work.share < _SOME_SHARED:
        _note_missing_layers(work)


def by_scope(facts: Facts, linked: list[int], layers: list[Layer] | None = None) -> dict[int, list[Layer]]:
    """The free layers by the nearest linked module around them."""
    found: dict[int, list[Layer]] = defaultdict(list)
    for layer in facts.layers if layers is None else layers:
        if linked[layer.node] == NONE:
            found[linked_scope(facts, linked, layer.node)].append(layer)
    return found


def linked_scope(facts: Facts, linked: list[int], node: int) -> int:
    """The nearest linked module around a node; the run itself where there is none."""
    scope = facts.tree.parent[node]
    while linked[scope] == NONE:
        scope = facts.tree.parent[scope]
    return scope


def _note_missing_layers(work: Workspace) -> None:
    """Of many equal layers some have no partner, and no weight tells which: numbers and order alone decided."""
    for facts, linked, side in ((work.target, work.partner, "target"), (work.golden, work.back, "golden")):
        alone: dict[str, int] = defaultdict(int)
        paired: dict[str, int] = defaultdict(int)
        for layer in facts.layers:
            (paired if linked[layer.node] != NONE else alone)[unnumbered(layer.path)] += 1
        doubtful = [path for path in alone if paired[path]]
        if doubtful:
            work.notes.append(
                f"{len(doubtful)} kinds of layers of the {side} run, such as {doubtful[0]}, occur more often than in "
                "the other run, and no equal weights show which are missing: they were paired by number and order"
            )


def _is_coherent(work: Workspace) -> bool:
    """Any two models have layers of equal shape: much less than all, without equal weights or results, is chance.

    A pair whose outputs differ in size, or of which only one has a bias, counts little more than half.
    """
    if work.share > _SOME_SHARED or any(link.rule == GIVEN for link in work.links):
        return True
    target, golden = work.target, work.golden
    is_one_build = not _cross_blocks(work)
    fewer = min(len(target.layers), len(golden.layers))
    weight, equal = 0.0, 0
    smaller = len(target.layers) <= len(golden.layers)
    for link in work.links:
        rows = target.output_row(link.target[0]), golden.output_row(link.golden[0])
        single = link.one_to_one and NONE not in rows
        differ = single and target.fingerprints.numel[rows[0]] != golden.fingerprints.numel[rows[1]]
        weights = target.weights[link.target[0]], golden.weights[link.golden[0]]
        differ |= all(weights) and len(weights[0]) != len(weights[1])
        weight += len(link.target if smaller else link.golden) * (_OF_OTHER_SIZE if differ else 1.0)
        if single and row_values_agree(target.fingerprints, rows[0], golden.fingerprints, rows[1]):
            norms = float(target.fingerprints.stats[rows[0], 3]), float(golden.fingerprints.stats[rows[1], 3])
            equal += abs(norms[0] - norms[1]) <= SAME_NORM * max(norms)
    return (is_one_build and weight >= _NEARLY_ALL * fewer) or equal > _SOME_SHARED * fewer


def _cross_blocks(work: Workspace) -> bool:
    """Whether pairs of layers regularly lead from one block of a stack into another, or out of the stack.

    The norm that ends a block of one model begins the next block of the other: of the same layers in the same order,
    but another architecture. Two ways to write one model cut the stack at the same places.
    """
    paths = [
        tuple(
            (_OUTERMOST.match(facts.tree.path[nodes[0]]) or [""])[0]
            for facts, nodes in ((work.target, link.target), (work.golden, link.golden))
        )
        for link in work.links
    ]
    crossing = []
    for one, other in ((0, 1), (1, 0)):
        met: dict[str, Counter[str]] = defaultdict(Counter)
        for pair in paths:
            if pair[one]:
                met[pair[one]][pair[other]] += 1
        strays = sum(found.total() - found.most_common(1)[0][1] for found in met.values())
        crossing.append(len(met) > 1 and 2 * strays >= len(met))
    return all(crossing)


def pair_layers(work: Workspace, options: Sequence[tuple[Sequence[Layer], Sequence[Layer]]], rule: str) -> None:
    """Pair two sequences of layers in order; where there is more than one order, in the one in which more fits."""
    found: list[tuple[float, _LayerMatcher, list[Step]]] = []
    for target, golden in options:
        if target and golden:
            matcher = _LayerMatcher(work, list(target), list(golden))
            steps = pair_in_order(matcher.problem(), matcher.guess())
            found.append((sum(step.score for step in steps), matcher, steps))
    if found:
        best = max(found, key=lambda option: option[0])
        _, matcher, steps = best
        settled = matcher.settled(steps)
        crossing = matcher.crossing(settled) if best is not found[0] else set()
        for step, equal in matcher.with_values(matcher.without_moved(settled)):
            matcher.link(step, BRANCHES if step in crossing else rule, equal)


class _LayerMatcher:
    def __init__(self, work: Workspace, target_layers: list[Layer], golden_layers: list[Layer]) -> None:
        self._work = work
        self._target_layers, self._golden_layers = target_layers, golden_layers
        target, golden = work.target, work.golden
        self._units = Units(target_layers, target.fingerprints), Units(golden_layers, golden.fingerprints)
        self._share = shared_weights(*self._units)
        work.share = max(work.share, self._share)
        self.scores = LayerScores(*self._units, self._share)
        self._target_groups = _Groups(target_layers, target, self._units[1], self._share, mirrored=False)
        self._golden_groups = _Groups(golden_layers, golden, self._units[0], self._share, mirrored=True)

    def problem(self) -> Problem:
        edges = _edges(self._target_layers, self._work.target), _edges(self._golden_layers, self._work.golden)
        return Problem((len(self._target_layers), len(self._golden_layers)), self.scores, self._groups, edges)

    def _groups(self, starts: Ints, width: int) -> dict[int, list[Group]]:
        found: dict[int, list[Group]] = defaultdict(list)
        rows, columns, groups, scores = self._target_groups.candidates(starts, width)
        for row, column, group, score in zip(rows, columns, groups, scores, strict=True):
            found[row].append(Group(self._target_groups.size(group), 1, column + 1, score))
        rows, columns, groups, scores = self._golden_groups.candidates(starts, width)
        for row, column, group, score in zip(rows, columns, groups, scores, strict=True):
            found[row].append(Group(1, self._golden_groups.size(group), column + 1, score))
        return found

    def guess(self) -> list[tuple[int, int]]:
        """Layers of which there are as many of one sort on either side belong together in order, roughly."""
        return guess_by_keys(_sorts(self._target_layers), _sorts(self._golden_layers))

    def settled(self, steps: list[Step]) -> list[Step]:
        """The steps with layers that read the same tensor (q, k, v) chosen anew."""
        return settle_branches(steps, self._target_layers, self._golden_layers, self.scores)

    def without_moved(self, steps: list[Step]) -> list[Step]:
        """The steps without layers that were added beside other ones (adapters of k here, of v there): both modules
        around them are in both runs by their names, and what else is inside is paired by them."""
        trees = self._work.target.tree, self._work.golden.tree
        paths = [
            [trees[0].path[self._target_layers[step.target[0]].node] for step in steps],
            [trees[1].path[self._golden_layers[step.golden[0]].node] for step in steps],
        ]
        around = [[path.rpartition(".")[0] for path in found] for found in paths]
        moved = [one != other for one, other in zip(*around, strict=True)]
        if not any(moved):
            return steps
        known = [{tree.path[node] for node in tree.modules} for tree in trees]
        stays = [
            {outer for path, outer, other in zip(paths[side], around[side], paths[1 - side], strict=True)
             if outer == other or other.startswith(f"{outer}.")}
            for side in (0, 1)
        ]  # fmt: skip
        return [
            step
            for step, away, one, other in zip(steps, moved, *around, strict=True)
            if not (away and one in known[1] & stays[0] and other in known[0] & stays[1])
        ]

    def crossing(self, steps: list[Step]) -> set[Step]:
        """The fewest steps without which all ran in the same order on both sides."""
        order = _places(self._work.target), _places(self._work.golden)
        ran = {
            (
                order[0][self._target_layers[step.target[0]].node],
                order[1][self._golden_layers[step.golden[0]].node],
            ): step
            for step in steps
        }
        kept = set(rising(sorted(ran)))
        return {step for pair, step in ran.items() if pair not in kept}

    def with_values(self, steps: list[Step]) -> list[tuple[Step, bool]]:
        """Each step, and whether its first two layers hold equal values."""
        rows = np.array([step.target[0] for step in steps], dtype=np.int64)
        columns = np.array([step.golden[0] for step in steps], dtype=np.int64)
        return list(zip(steps, (self.scores.values(rows, columns) >= _EQUAL).tolist(), strict=True))

    def link(self, step: Step, rule: str, equal: bool) -> None:
        work = self._work
        target, golden = self._target_layers[slice(*step.target)], self._golden_layers[slice(*step.golden)]
        work.best_score = max(work.best_score, step.score)
        confidence = step.confidence * sure(step.score)
        if step.score < _LEAST_SCORE:
            return
        if len(target) == len(golden) == 1:
            reason = _reason(target[0], golden[0], equal)
            if not work.link(Link(target[0].nodes, golden[0].nodes, rule, reason, confidence, SAME)):
                _doubt(work, target[0], golden[0], confidence)
            return
        parts = target if len(target) > 1 else golden
        widths = " + ".join(str(layer.features[1]) for layer in parts if layer.features)
        reason = f"widths {widths} add up, same input width"
        nodes = tuple(layer.node for layer in target), tuple(layer.node for layer in golden)
        if work.link(Link(*nodes, FUSED_RULE, reason, confidence, FUSED, -1)):
            calls = _only_calls(work.target, nodes[0]), _only_calls(work.golden, nodes[1])
            if calls[0] and calls[1]:
                work.link(Link(*calls, FUSED_RULE, reason, confidence, FUSED, -1))


def _places(facts: Facts) -> dict[int, int]:
    """Node of a layer -> when it ran."""
    return {layer.node: at for at, layer in enumerate(facts.as_run())}


def _reason(one: Layer, other: Layer, equal: bool) -> str:
    reasons = ["equal values"] if equal else []
    if one.weights and sorted(map(sorted, one.weights)) == sorted(map(sorted, other.weights)):
        reasons.append(f"weights {' '.join(str(list(shape)) for shape in one.weights)}")
    if one.meaning and agreement(one.meaning, other.meaning) == 1.0:
        reasons.append(f"both {one.meaning}")
    if one.kind and one.kind == other.kind:
        reasons.append(one.kind)
    return ", ".join([*reasons, "order"])


def _doubt(work: Workspace, one: Layer, other: Layer, confidence: float) -> None:
    names = work.target.tree.name[one.node], work.golden.tree.name[other.node]
    for side, layer, name in ((0, one, names[1]), (1, other, names[0])):
        work.why[side][layer.node] = f"too doubtful: {name} fits best, with a confidence of {confidence:.2f}"


def _only_calls(facts: Facts, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """The one call that each of these layers makes; nothing where one makes several."""
    calls = [facts.tree.children[node] for node in nodes]
    return tuple(made[0] for made in calls) if all(len(made) == 1 for made in calls) else ()


_Candidates = tuple[list[int], list[int], list[int], list[float]]


class _Groups:
    """Groups of one side's layers that may be one layer of the other."""

    def __init__(self, layers: list[Layer], facts: Facts, others: Units, share: float, *, mirrored: bool) -> None:
        self._mirrored = mirrored
        widths: dict[object, list[int]] = defaultdict(list)
        for place, layer in enumerate(others.layers):
            if layer.features is not None:
                widths[layer.features].append(place)
        groups = [(end, size, group) for size in _SIZES for end, group in groups_of(layers, facts.tree, size)]
        self._groups = [entry for entry in groups if entry[2].features in widths]
        self._places = {key: np.array(places) for key, places in widths.items()}
        units = Units([group for _, _, group in self._groups], facts.fingerprints)
        sides = (others, units) if mirrored else (units, others)
        self._scores = LayerScores(*sides, share, grouped=True) if self._groups else None

    def size(self, group: int) -> int:
        """How many layers a group has."""
        return self._groups[group][1]

    def candidates(self, starts: Ints, width: int) -> _Candidates:
        """Target layer, golden layer (the last one of a group), group and score of all that may be, inside the band."""
        if self._scores is None:
            return [], [], [], []
        found: list[Ints] = []
        for at, (end, _, group) in enumerate(self._groups):
            places = self._places[group.features]
            if self._mirrored:
                first = starts[places + 1] - 1
                near = places[(end >= first) & (end < first + width)]
                found.append(np.column_stack([near, np.full(len(near), end), np.full(len(near), at)]))
            else:
                first = int(starts[end + 1]) - 1
                near = places[np.searchsorted(places, first) : np.searchsorted(places, first + width)]
                found.append(np.column_stack([np.full(len(near), end), near, np.full(len(near), at)]))
        rows, columns, groups = np.concatenate(found).T
        scores = self._scores(rows, groups) if self._mirrored else self._scores(groups, columns)
        good = scores > 0
        return rows[good].tolist(), columns[good].tolist(), groups[good].tolist(), scores[good].tolist()


def _edges(layers: list[Layer], facts: Facts) -> Floats:
    """What a gap costs that begins or ends before each layer: little between modules, more inside one."""
    tree = facts.tree
    prices = [0.0]
    for one, after in pairwise(layers):
        mine, theirs = one.node, after.node
        deepest = min(tree.depth[mine], tree.depth[theirs]) - 1
        while tree.depth[mine] > tree.depth[theirs]:
            mine = tree.parent[mine]
        while tree.depth[theirs] > tree.depth[mine]:
            theirs = tree.parent[theirs]
        while mine != theirs:
            mine, theirs = tree.parent[mine], tree.parent[theirs]
        prices.append(0.3 + 0.9 * tree.depth[mine] / max(1, deepest))
    return np.array([*prices, 0.0])


def _sorts(layers: list[Layer]) -> list[Hashable]:
    return [(layer.kind, tuple(sorted(tuple(sorted(shape)) for shape in layer.weights))) for layer in layers]


# Rule: a module that holds its weights itself, against one at the same place that keeps them in modules inside.
#
# Experts as one stacked weight or as a list of small networks: nothing inside has a partner, the whole has; where no
# module is around the list, its layers, put together, are the partner of the stack.

WHOLE_RULE, STACK_RULE = "as many weights in all", "stacked layers"
_BY_VALUES, _BY_SIZE = 0.95, 0.85


def link_wholes(work: Workspace) -> None:
    """Link a free layer with a free container where they alone hold weights between the same linked calls."""
    sides = _Weights(work.target, work.partner), _Weights(work.golden, work.back)
    for node, other in work.matched_modules():
        units = list(sides[0].units(node)), list(sides[1].units(other))
        for piece in list(cut(work, *units)):
            if len(piece.target) == len(piece.golden) == 1:
                _link(work, sides, piece.target[0], piece.golden[0])
            elif 1 in (len(piece.target), len(piece.golden)):
                _link_stack(work, sides, piece)


def _link(work: Workspace, sides: tuple[_Weights, _Weights], one: int, other: int) -> None:
    target, golden = work.target, work.golden
    count = sides[0].count[one]
    if target.is_layer[one] == golden.is_layer[other] or count != sides[1].count[other]:
        return
    rows = (target.input_row(one), golden.input_row(other)), (target.output_row(one), golden.output_row(other))
    if any(
        like_sizes(target.fingerprints.shape(target_row), golden.fingerprints.shape(golden_row)) < 0
        for target_row, golden_row in rows
    ):
        return
    equal = work.outputs_agree(one, other)
    reason = f"alone at this place, {count:.0f} weights in all" + (", equal values" if equal else "")
    work.link(Link((one,), (other,), WHOLE_RULE, reason, _BY_VALUES if equal else _BY_SIZE))


def _link_stack(work: Workspace, sides: tuple[_Weights, _Weights], piece: Piece) -> None:
    """Link a module that holds the weights of several networks, stacked, with all layers of these."""
    turned = len(piece.target) > 1
    whole, several = (piece.golden[0], piece.target) if turned else (piece.target[0], piece.golden)
    held, parted = (work.golden, work.target) if turned else (work.target, work.golden)
    counts = sides[turned].count[whole], sum(sides[not turned].count[node] for node in several)
    layers = list(parted.tree.opened(several, lambda node: not parted.is_layer[node]))
    if not held.is_layer[whole] or counts[0] != counts[1] or not all(parted.tree.is_module[node] for node in layers):
        return
    rows = [row for node in layers for row in parted.weights[node]]
    stacks = stacked_rows(held.fingerprints, held.weights[whole], parted.fingerprints, rows)
    if sum(map(len, stacks.values())) == len(rows):
        reason = f"{len(layers)} layers, stacked: {counts[0]:.0f} weights in all"
        target, golden = (tuple(layers), (whole,)) if turned else ((whole,), tuple(layers))
        work.link(Link(target, golden, STACK_RULE, reason, _BY_SIZE, FUSED))


def stacked_rows(
    whole: Fingerprints, stacked: list[int], parts: Fingerprints, rows: list[int]
) -> dict[int, tuple[int, ...]]:
    """Of which rows each stacked weight is made: [E, 2I, H] of E times [I, H] and [I, H], in whatever order."""
    names: dict[str, list[int]] = defaultdict(list)
    order: dict[int, tuple[tuple[int, ...], int]] = {}  # by number, whichever ran first
    for row in rows:
        path = parts.side.callee_of[bisect_right(parts.side.starts, row) - 1].body
        order[row] = numbers_of(path), row
        names[f"{path.rpartition('.')[2]} {parts.side.names[row].rpartition('.')[2]}"].append(row)
    found: dict[int, tuple[int, ...]] = {}
    for row in stacked:
        shape = whole.shape(row) or (0,)
        taken = {one for way in found.values() for one in way}
        free = [name for name, own in names.items() if len(own) == shape[0] and own[0] not in taken]
        ways = {
            tuple(sorted((one for name in chosen for one in names[name]), key=order.__getitem__)): turned
            for turned in (True, False)
            for size in range(1, len(free) + 1)
            for chosen in combinations(free, size)
            if fill_up([(parts.shape(names[name][0]) or ())[:: -1 if turned else 1] for name in chosen], shape[1:])
        }
        # As they are before transposed; square ones fit in several ways, then only equal values tell.
        ways = {way: turned for way, turned in ways.items() if turned == min(ways.values())}
        if len(ways) > 1:
            ways = {way: turned for way, turned in ways.items() if _holds(whole, row, parts, way)}
        if len(ways) == 1:
            found[row] = next(iter(ways))
    return found


def _holds(whole: Fingerprints, row: int, parts: Fingerprints, rows: tuple[int, ...]) -> bool:
    norm = float(np.sqrt((parts.stats[list(rows), 3] ** 2).sum()))
    return abs(norm - float(whole.stats[row, 3])) <= SAME_NORM * norm


class _Weights:
    """How many elements the weights inside each node have, and whether anything inside is linked."""

    def __init__(self, facts: Facts, linked: list[int]) -> None:
        self._facts, self._linked = facts, linked
        tree = facts.tree
        own, links = [0.0] * len(tree), [int(partner != NONE) for partner in linked]
        for node in range(len(tree)):
            if facts.is_layer[node]:
                own[node] = sum(float(facts.fingerprints.numel[row]) for row in facts.weights[node])
                if class_kind(tree.cls[node]) == "attention":
                    # nn.MultiheadAttention never calls its output projection: a third of what it holds for q, k and v.
                    own[node] *= 4 / 3
        self.count = tree.totals(own)
        self._holds_links = [inside > own for inside, own in zip(tree.totals(links), links, strict=True)]

    def units(self, node: int) -> Iterator[int]:
        """What lies inside a module: linked calls, and the outermost free ones that hold weights but no links."""
        tree, linked = self._facts.tree, self._linked
        for item in tree.opened(tree.children[node], lambda item: linked[item] == NONE and self._holds_links[item]):
            if linked[item] != NONE or self.count[item]:
                yield item


# Rule: a layer that is the only one of its kind and shapes in its run, wherever it was called from.

ONLY_RULE = "the only layer of its shapes"


def link_only_ones(work: Workspace) -> None:
    """Link free layers that nesting keeps apart: a table of positions inside the first layer, or beside all of them.

    Only where most layers have met: any two models may hold a table of one size.
    """
    facts, linked = (work.target, work.golden), (work.partner, work.back)
    sorts: list[dict[Hashable, list[int]]] = [defaultdict(list), defaultdict(list)]
    for one, by_sort in zip(facts, sorts, strict=True):
        for node in one.tree.modules:
            if one.is_layer[node] and one.weights[node]:
                shapes = tuple(str(one.fingerprints.shape_text[row]) for row in one.weights[node])
                by_sort[class_kind(one.tree.cls[node]), shapes].append(node)
    layers = [[node for nodes in by_sort.values() for node in nodes] for by_sort in sorts]
    met = [sum(link[node] != NONE for node in nodes) for link, nodes in zip(linked, layers, strict=True)]
    if any(2 * count < len(nodes) for count, nodes in zip(met, layers, strict=True)):
        return
    for sort, nodes in sorts[0].items():
        others = sorts[1].get(sort, [])
        if len(nodes) == len(others) == 1 and work.partner[nodes[0]] == work.back[others[0]] == NONE:
            equal = work.outputs_agree(nodes[0], others[0])
            reason = "no other holds weights like these" + (", equal values" if equal else "")
            work.link(Link((nodes[0],), (others[0],), ONLY_RULE, reason, _BY_VALUES if equal else _BY_SIZE))
