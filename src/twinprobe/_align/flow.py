"""How values flow through two runs whose implementations differ: other steps to one result.

A group is a few calls of one run against one or several of the other, at one place, that are equal in meaning:
``x * 0.5`` and ``x / 2``, scaled_dot_product_attention and its parts, a fused norm and a written-out one. It is
compared where the values of both runs meet: what enters it and what leaves it. Nothing inside is paired.

Two calls may also belong together while what one of them takes or gives is another thing: a scale inside or outside of
an embedding, a norm inside the layer that follows it, a residual added one call later. That is told from a fault by
what comes after: a fault is carried on, another way ends where both runs hold the same again. So it is with the rows of
a weight in another order (rotary positions by halves or by neighbours, heads side by side or interleaved): such values
are a pair, but for the order of their elements.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from twinprobe._align.auto.fingerprints import APART, Fingerprints, best_partner, reordered, row_values_agree
from twinprobe._align.auto.tree import ROOT, CallTree
from twinprobe._align.calls import RunCalls, dims
from twinprobe._align.links import NONE, CallGroup, Pairs
from twinprobe._align.turns import fits_shape
from twinprobe._measure.pair import measure_pair
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS, LISTS
from twinprobe._runs.run import STATISTICS, Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

PART = "part of a group equal in meaning"
_MOST_CALLS = 64  # so many calls in which values never meet are no group

Rows = list[tuple[int, int]]
Joined = list[tuple[tuple[int, ...], tuple[int, ...]]]


class Flow:
    """How values flow through one run: equal statistics are one value, in whatever shape."""

    def __init__(self, side: RunCalls, fingerprints: Fingerprints) -> None:
        self.side, self.fingerprints, self.value = side, fingerprints, fingerprints.value
        self._last_use: dict[Hashable, int] = {}
        parents = set(side.parents)
        for op, direction in enumerate(side.direction):
            if direction != FORWARD:
                continue
            rows = fingerprints.rows(op, INPUT)
            if op in parents:  # what a module gives is what some call inside gave
                rows = rows + fingerprints.rows(op, OUTPUT)
            for row in rows:
                value = self.value(row)
                if value is not None:
                    self._last_use[value] = op if op > self._last_use.get(value, NONE) else self._last_use[value]

    def used_after(self, value: Hashable, made: int, op: int) -> bool:
        """Whether what call ``made`` gave is taken by a call later than ``op``, or returned by the module around.

        What no recorded call takes is cut or joined by one that is not recorded.
        """
        last = self._last_use.get(value, NONE)
        return last > op or last <= made

    def entering(self, ops: Sequence[int]) -> list[int]:
        """The inputs of these calls that none of them made, each value once."""
        made: set[Hashable] = set()
        found: dict[Hashable, int] = {}
        for op in ops:
            for row in self.fingerprints.rows(op, INPUT):
                value = self.value(row)
                key = value if value is not None else row
                if key not in made:
                    found.setdefault(key, row)
            made.update(self.value(row) for row in self.fingerprints.rows(op, OUTPUT))
        return list(found.values())

    def leaving(self, ops: Sequence[int]) -> list[int]:
        """The outputs of these calls that are used after them, each value once, in its last shape."""
        found: dict[Hashable, int] = {}
        for op in ops:
            for row in self.fingerprints.rows(op, OUTPUT):
                value = self.value(row)
                if value is not None and self.used_after(value, op, ops[-1]):
                    found.pop(value, None)
                    found[value] = row
        return list(found.values()) or self.fingerprints.rows(ops[-1], OUTPUT)[:1]


def free_pieces(
    trees: tuple[CallTree, CallTree], links: tuple[dict[int, int], dict[int, int]], is_layer: tuple[set[int], set[int]]
) -> Iterator[tuple[list[int], list[int]]]:
    """The free calls inside each two linked modules, cut at what is linked inside both. Free modules are looked into.

    A free layer is no part of a piece, unless what is around it is a layer, too: an adapter inside a linear layer.
    """
    for node, other in links[0].items():
        inside = trees[0].children[node], trees[1].children[other]
        if not all(any(one not in link for one in nodes) for nodes, link in zip(inside, links, strict=True)):
            continue
        whole = node in is_layer[0] or other in is_layer[1]
        mine, theirs = (
            _calls_inside(tree, scope, link, set() if whole else layers)
            for tree, scope, link, layers in zip(trees, (node, other), links, is_layer, strict=True)
        )
        yield from _cut(mine, theirs, links)


def _calls_inside(tree: CallTree, scope: int, link: dict[int, int], barred: set[int]) -> list[int]:
    def is_whole(node: int) -> bool:
        return node in link or not tree.children[node]

    nodes = tree.opened(tree.children[scope], lambda node: not is_whole(node) and node not in barred)
    return [node if is_whole(node) else NONE for node in nodes]


def _cut(
    mine: list[int], theirs: list[int], links: tuple[dict[int, int], dict[int, int]]
) -> Iterator[tuple[list[int], list[int]]]:
    places = {node: at for at, node in enumerate(theirs)}
    begin = (0, 0)
    for at in range(len(mine) + 1):
        to = len(theirs) if at == len(mine) else places.get(links[0].get(mine[at], ROOT), NONE)
        if to >= begin[1]:
            piece = mine[begin[0] : at], theirs[begin[1] : to]
            begin = at + 1, to + 1
            apart = [one == NONE or one in link for nodes, link in zip(piece, links, strict=True) for one in nodes]
            if all(piece) and not any(apart):
                yield piece


def where_values_meet(
    flows: tuple[Flow, Flow], mine: list[int], theirs: list[int]
) -> Iterator[tuple[list[int], list[int], bool]]:
    """The calls of a piece in as many parts as both runs have the same values between them; whether they end in such.

    A part ends where what the calls so far have made, and what is used later, is the same in both runs.
    """
    given = [{flow.value(row) for row in flow.entering(ops)} for flow, ops in zip(flows, (mine, theirs), strict=True)]
    numbers = _same_values(flows, mine, theirs, given)
    live = [_live(*side) for side in zip(flows, (mine, theirs), numbers, given, strict=True)]
    meets = {values: at for at, values in enumerate(live[1]) if values}
    begin = (0, 0)
    for at, values in enumerate(live[0]):
        to = meets.get(values, NONE) if values else NONE
        # What only looks at the last of these values in another way goes with it.
        if to >= begin[1] and (at + 1 == len(mine) or live[0][at + 1] != values):
            yield mine[begin[0] : at + 1], theirs[begin[1] : to + 1], True
            begin = at + 1, to + 1
    rest = mine[begin[0] :], theirs[begin[1] :]
    if (
        all(rest)
        and max(map(len, rest)) <= _MOST_CALLS
        and _operands(flows[0], rest[0]) == _operands(flows[1], rest[1])
    ):
        yield *rest, False


def _operands(flow: Flow, ops: Sequence[int]) -> int:
    """How many tensors of the result's size these calls take: a sum does not do what a dropout does."""
    fingerprints = flow.fingerprints
    result = flow.leaving(ops)
    size = fingerprints.numel[result[-1]] if result else 0
    return sum(
        fingerprints.numel[row] == size and "float" in (fingerprints.dtype[row] or "").lower()
        for row in flow.entering(ops)
    )


def _same_values(
    flows: tuple[Flow, Flow], mine: list[int], theirs: list[int], given: list[set[Hashable]]
) -> tuple[dict[Hashable, int], dict[Hashable, int]]:
    """A number for each value that both runs make in a piece; values that are given to it count as made outside."""
    made = [
        {
            value: row
            for op in ops
            for row in flow.fingerprints.rows(op, OUTPUT)
            if (value := flow.value(row)) not in known
        }
        for flow, ops, known in zip(flows, (mine, theirs), given, strict=True)
    ]
    likes: dict[Hashable, list[Hashable]] = defaultdict(list)
    for value, row in made[1].items():
        for key in _rough(flows[1].fingerprints, row, 0):
            likes[key].append(value)
    numbers: tuple[dict[Hashable, int], dict[Hashable, int]] = ({}, {})
    for value, row in made[0].items():
        near = (one for key in _rough(flows[0].fingerprints, row, 1) for one in likes.get(key, ()))
        free = {made[1][one]: one for one in near if one not in numbers[1]}
        found = best_partner(flows[0].fingerprints, row, flows[1].fingerprints, free)
        if found != NONE:
            numbers[0][value] = numbers[1][free[found]] = len(numbers[0])
    return numbers


def _rough(fingerprints: Fingerprints, row: int, reach: int) -> list[Hashable]:
    """The size and the rough norm of a row, and those beside it: equal for rows that may hold the same."""
    known = fingerprints.rough(row)
    if known is None:
        return [fingerprints.digest[row]]
    return [(known[0], known[1] + step) for step in range(-reach, reach + 1)]


def _live(flow: Flow, ops: list[int], numbers: dict[Hashable, int], given: set[Hashable]) -> list[frozenset[int]]:
    """After each call, the values made so far that are used later; nothing where one of them is this run's alone."""
    alive: dict[Hashable, int] = {}
    found = []
    for op in ops:
        made = (flow.value(row) for row in flow.fingerprints.rows(op, OUTPUT))
        alive.update({value: op for value in made if value not in given})
        alive = {value: made for value, made in alive.items() if flow.used_after(value, made, op)}
        known = [numbers.get(value, NONE) for value in alive]
        found.append(frozenset(known) if NONE not in known else frozenset())
    return found


def group_rows(flows: tuple[Flow, Flow], mine: Sequence[int], theirs: Sequence[int]) -> tuple[Rows, Rows, Joined]:
    """The rows at which two groups of calls are compared: what enters them, what leaves them, what leaves in parts."""
    listed = _list_and_loop(flows, mine, theirs)
    if listed is not None:
        return *listed, []
    leaving = flows[0].leaving(mine), flows[1].leaving(theirs)
    found = _together(flows, *leaving)
    fingerprints = flows[0].fingerprints, flows[1].fingerprints
    # Where the same comes out, what goes in otherwise is another way to write it.
    differing = any(row_values_agree(fingerprints[0], row, fingerprints[1], other) is False for row, other in found)
    entering = _together(flows, flows[0].entering(mine), flows[1].entering(theirs), differing=differing)
    # A mask may name what is kept or what is filled: the calls are others, and what they give tells.
    entering = [
        pair for pair in entering
        if not _may_be_turned(flows, *pair) and "bool" not in (fingerprints[0].dtype[pair[0]] or "").lower()
    ]  # fmt: skip
    left = [[row for row in rows if row not in {pair[side] for pair in found}] for side, rows in enumerate(leaving)]
    if found or not all(left):
        return entering, found, []
    # One run makes at once what the other makes in parts: the parts, joined, are compared.
    sizes = [[float(flow.fingerprints.numel[row]) for row in rows] for flow, rows in zip(flows, left, strict=True)]
    for one in (0, 1):
        parts = next((at for at in range(1, len(left[1 - one])) if sum(sizes[1 - one][-at - 1 :]) == sizes[one][-1]), 0)
        if parts:
            both = (left[one][-1],), tuple(left[1 - one][-parts - 1 :])
            return entering, [], [(both[one], both[1 - one])]
    return entering, [], []


def _list_and_loop(flows: tuple[Flow, Flow], mine: Sequence[int], theirs: Sequence[int]) -> tuple[Rows, Rows] | None:
    """The rows that enter and leave, element by element, where one run makes in one call for a list what the other
    makes in a loop: ``_foreach_add_`` and as many ``add_``, as optimizers do on a GPU and on a CPU."""
    turned = len(mine) > 1
    whole, single = (1, 0) if turned else (0, 1)
    (call, *more), calls = (theirs, mine) if turned else (mine, theirs)
    sides = flows[whole].side, flows[single].side
    name = sides[0].callee_of[call].name.rpartition(".")[2]
    looped = {sides[1].callee_of[op].name.rpartition(".")[2].removeprefix("vector_") for op in calls}
    if more or not name.startswith(LISTS) or looped != {name.removeprefix(LISTS)}:
        return None
    rows = dict(zip(sides[0].suffixes(call), sides[0].rows(call), strict=True))
    found: tuple[Rows, Rows] = [], []
    for index, op in enumerate(calls):
        for argument, row in zip(sides[1].suffixes(op), sides[1].rows(op), strict=True):
            # A number that the list shares goes with the first call's.
            listed = rows.get(f"{argument}.{index}", None if index else rows.get(argument))
            if listed is None and sides[1].roles[row] == OUTPUT:  # a list that was made, not written to
                listed = rows.get(f"{argument.rpartition('.')[0]}.{index}")
            if listed is not None:
                pair = (row, listed) if turned else (listed, row)
                found[sides[1].roles[row] == OUTPUT].append(pair)
    return found if len(found[1]) == len(calls) else None


def _may_be_turned(flows: tuple[Flow, Flow], row: int, other: int) -> bool:
    """Whether one row may be the other transposed without a shape that shows it; statistics do not mind."""
    shapes = flows[0].fingerprints.shape(row), flows[1].fingerprints.shape(other)
    square = shapes[0] is not None and len(shapes[0]) > 1 and shapes[0][-1] == shapes[0][-2] > 1
    run = flows[0].side.run
    # A run in memory, of a class of its own, has its tensors at hand.
    return square and shapes[0] == shapes[1] and (run.mode != STATISTICS or type(run) is not Run)


def _together(flows: tuple[Flow, Flow], mine: list[int], theirs: list[int], *, differing: bool = True) -> Rows:
    """Rows of equal values; then, where both runs have as many of a size left, in order.

    Without ``differing``, only such whose values nobody knows.
    """
    fingerprints = flows[0].fingerprints, flows[1].fingerprints
    found: Rows = []
    for row in list(mine):
        other = best_partner(fingerprints[0], row, fingerprints[1], theirs)
        if other != NONE:
            found.append((row, other))
            mine = [at for at in mine if at != row]
            theirs = [at for at in theirs if at != other]
    left: list[dict[tuple[float, bool], list[int]]] = [defaultdict(list), defaultdict(list)]
    for rows, known, sizes in zip((mine, theirs), fingerprints, left, strict=True):
        for row in rows:
            sizes[float(known.numel[row]), "float" in (known.dtype[row] or "").lower()].append(row)
    for size, rows in left[0].items():
        others = left[1].get(size, [])
        for row, other in zip(rows, others, strict=True) if len(rows) == len(others) else ():
            one, two = dims(fingerprints[0].shape_text[row]), dims(fingerprints[1].shape_text[other])
            if row_values_agree(fingerprints[0], row, fingerprints[1], other) is None:
                fits = one == two
            else:
                fits = differing and size[1] and one is not None and two is not None and fits_shape(one, two)
            if fits:
                found.append((row, other))
    return found


def backward_rows(
    flows: tuple[Flow, Flow], mine: Sequence[int], theirs: Sequence[int], leaving: Rows
) -> tuple[CallGroup | None, Rows]:
    """The way back through two groups, and the gradients of what left them.

    Those of what entered are compared where they arrive: in a softmax they cancel, and other steps round otherwise.
    """
    back = [
        [op for call in ops if (op := flow.side.backward(call)) != NONE]
        for flow, ops in zip(flows, (mine, theirs), strict=True)
    ]
    if not all(back):
        return None, []
    found: Rows = []
    for row, other in leaving:
        gradients = [
            _gradient(flow, ops, at) for flow, ops, at in zip(flows, (mine, theirs), (row, other), strict=True)
        ]
        if (
            NONE not in gradients
            and flows[0].fingerprints.numel[gradients[0]] == flows[1].fingerprints.numel[gradients[1]]
        ):
            found.append((gradients[0], gradients[1]))
    return CallGroup(tuple(sorted(back[0])), tuple(sorted(back[1]))), found


def _gradient(flow: Flow, ops: Sequence[int], row: int) -> int:
    """The gradient of an output, where the backward call has one for each."""
    fingerprints = flow.fingerprints
    op = next(op for op in ops if flow.side.starts[op] <= row < flow.side.starts[op + 1])
    rows, gradients = fingerprints.rows(op, OUTPUT), fingerprints.rows(flow.side.backward(op), INPUT)
    if len(rows) != len(gradients) or fingerprints.numel[gradients[rows.index(row)]] != fingerprints.numel[row]:
        return NONE
    return gradients[rows.index(row)]


OTHER_WAY = "another way to the same result"
# Two implementations differ by rounding alone; a fault in a part that adds little to a residual sum moves it more.
_CLOSE, _CLOSE_OF_COARSE = 1e-5, 1e-4
_CLEARLY = (
    10.0  # later steps drift: what is just too far apart to agree is not another thing, when a call makes less of it
)
_ANOTHER = 1e3  # nearer than so many times, a value is the same thing with an error, which later calls may dilute
_FINE = ("float32", "float64")
_MOST_STEPS = 64
_NUMBER = re.compile(r"\d+")


def other_ways(
    flows: tuple[Flow, Flow], pairs: Pairs, among: Iterable[int] | None = None
) -> tuple[list[int], list[int]]:
    """Places of pairs whose values are not the same thing, and of those in another order, as what follows shows.

    ``among``: the target's calls that may go another way, where names have paired the rest; without it, all that were
    aligned.
    """
    return _OtherWays(flows, pairs, among).places()


class _OtherWays:
    def __init__(self, flows: tuple[Flow, Flow], pairs: Pairs, among: Iterable[int] | None) -> None:
        self._flow, self._fingerprints = flows[0], (flows[0].fingerprints, flows[1].fingerprints)
        self._side = flows[0].side
        self._ops = self._side.run.table["op"].to_list()
        self._partner = {
            row: (other, place)
            for place, (row, other) in enumerate(zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True))
            if NONE not in (row, other) and place not in pairs.groups
            and (among is not None or pairs.rule[place].startswith("auto"))
        }  # fmt: skip
        # What tells a value; a single number tells itself, so that a loss is followed to what is made of it.
        alone = (self._fingerprints[0].numel == 1) & (self._fingerprints[0].stats[:, 3] > 0)
        self._value: Callable[[int], Hashable] = lambda row: (
            float(flows[0].fingerprints.stats[row, 0]) if alone[row] else flows[0].value(row)
        )
        # Value -> calls that take it, and as what.
        self._takers: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        self._inside: dict[int, list[int]] = defaultdict(list)
        self._number: dict[int, int] = {}
        for op, direction in enumerate(self._side.direction):
            if direction == FORWARD:
                siblings = self._inside[self._side.parents[op]]
                self._number[op] = len(siblings)
                siblings.append(op)
                for row in flows[0].fingerprints.rows(op, INPUT):
                    self._takers[self._value(row)].append((op, row))
        self._backward = [op for op, direction in enumerate(self._side.direction) if direction == BACKWARD]
        self._among = list(self._number) if among is None else [op for op in among if op in self._number]
        self._by_name = among is not None
        # A call that takes nothing else takes no part in what unrecorded code makes of a value: it is another branch.
        self._made = {self._value(row) for op in self._number for row in flows[0].fingerprints.rows(op, OUTPUT)}
        runs = flows[0].side.run, flows[1].side.run
        self._apart: set[int] = set()
        self._in_memory: tuple[Any, ...] = ()
        if None not in (runs[0].sketch_file, runs[1].sketch_file) and self._partner:
            others = [other for other, _ in self._partner.values()]
            apart = reordered(self._fingerprints[0], list(self._partner), self._fingerprints[1], others)
            self._apart = {row for row, is_apart in zip(self._partner, apart.tolist(), strict=True) if is_apart}
        elif all(type(run) is not Run and not run.arrangement for run in runs):
            self._in_memory = runs
            # Asked only where matrices are so stored.
            shapes = ((row, self._side.shapes[row] or "") for row in self._partner)
            weights = [row for row, shape in shapes if self._side.roles[row] == PARAMETER and "," in shape]
            if any(self._is_moved(row) for row in weights):
                self._apart = {row for row in self._partner if self._is_moved(row)}

    def _is_moved(self, row: int) -> bool:
        """Whether a row holds its partner's values in another order: two runs in memory have their tensors at hand."""
        if row in self._apart or not self._in_memory or not self._agree(row, in_order=False):
            return row in self._apart
        one, other = self._in_memory[0].tensor(row), self._in_memory[1].tensor(self._partner[row][0])
        if one is None or other is None or one.shape != other.shape:
            return False
        return (measure_pair(one, other).relative_norm or 0.0) > APART

    def places(self) -> tuple[list[int], list[int]]:
        found: set[int] = set()
        reordered: set[int] = set()  # rows
        holders = {self._side.parents[op] for op, callee in enumerate(self._side.callee_of) if callee.is_module}
        for op in self._among:
            outputs = self._fingerprints[0].rows(op, OUTPUT)
            inputs = self._fingerprints[0].rows(op, INPUT)
            given = self._agree(outputs[0]) if outputs else None
            if given and op not in holders and np.diff(abs(self._fingerprints[0].stats[outputs[0], :2])) == 0:
                given = not self._is_moved(outputs[0])  # -x may have the extremes of x
            back = self._side.backward(op)
            # Weights that differ are a finding, even where a later norm hides what they do.
            parameters = self._fingerprints[0].parameters(op)
            weights = any(self._agree(row, in_order=False) is False for row in parameters)
            # An activation in the place of another, with the same input, is a difference and not another way.
            if self._by_name and given is False and not parameters and op not in holders and self._same(inputs):
                continue
            meets = given is False and not weights
            meets = meets and (self._is_moved(outputs[0]) or self._agree(outputs[0], times=_ANOTHER) is False)
            meets = meets and self._meets_again(op)
            if not given and not meets:
                continue
            returned, passed = self._fingerprints[0].rows(back, INPUT), self._fingerprints[0].rows(back, OUTPUT)
            if self._apart:
                rows = [*outputs, *inputs, *parameters, *returned, *passed, *self._gradients(op)]
                reordered |= {row for row in rows if row in self._apart and self._agree(row, in_order=False)}
            if meets:
                found |= self._taken(row for row in (*outputs, *returned) if row not in reordered)
            unlike = [row for row in inputs if self._agree(row, in_order=False, times=_CLEARLY) is False]
            if meets:  # i - j in place of j - i: its extremes and its norm are the same
                unlike += [row for row in inputs if self._is_moved(row)]
            if unlike:
                found |= self._taken([*unlike, *passed])
            elif given:  # one added to the weights of a norm, say
                found |= self._taken(row for row in parameters if self._agree(row, in_order=False) is False)
        if reordered:
            # Other layers store the same weight alike, even where an earlier fault hides that the values agree again.
            labels = {self._label(row) for row in reordered}
            reordered |= {row for row in self._partner if self._label(row) in labels}
        if not self._by_name:
            found |= self._of_shared_weights()
        return sorted(found), sorted(self._taken(reordered) - found)

    def _gradients(self, op: int) -> list[int]:
        calls = self._side.callee_of[op].calls.get(GRADIENTS, {})
        return [row for call in calls.values() for row in self._fingerprints[0].rows(call, GRADIENT)]

    def _label(self, row: int) -> tuple[str, int, str, str]:
        """What the like row of another layer has, too: the module without numbers, the turn inside it, the argument."""
        op = self._ops[row]
        callee, direction = self._side.callee_of[op], self._side.direction[op]
        name = self._side.names[row].removeprefix(self._side.ops[op])
        if callee.is_module:
            return _NUMBER.sub("", callee.name), NONE, direction, name
        forward = self._side.forward(op)
        around = self._side.parents[forward] if forward != NONE else NONE
        module = self._side.callee_of[around].name if around != NONE else ""
        return _NUMBER.sub("", module), self._number.get(forward, NONE), direction, name

    def _of_shared_weights(self) -> set[int]:
        """Gradients of a weight that two modules hold: the sum of both where it is one tensor."""
        holders: dict[Hashable, set[str]] = defaultdict(set)
        weights: dict[str, Hashable] = {}
        for op, callee in enumerate(self._side.callee_of):
            for row in self._fingerprints[0].rows(op, PARAMETER) if callee.is_module else ():
                value = self._flow.value(row)
                holders[value].add(callee.name)
                weights[f"{callee.name}.{self._side.names[row].rpartition('.')[2]}"] = value
        found = set()
        for row in self._partner:
            if self._side.roles[row] != GRADIENT or self._agree(row, in_order=False) is not False:
                continue
            name = f"{self._side.callee_of[self._ops[row]].name}.{self._side.names[row].rpartition('.')[2]}"
            value = weights.get(name)
            if value is not None and len(holders[value]) > 1:
                found.add(self._partner[row][1])
        return found

    def _taken(self, rows: Iterable[int]) -> set[int]:
        return {self._partner[row][1] for row in rows if row in self._partner}

    def _agree(self, row: int, *, in_order: bool = True, times: float = 1.0) -> bool | None:
        """Whether a row and its partner hold the same but for rounding; None where nothing tells."""
        if row not in self._partner:
            return None
        if in_order and row in self._apart:
            return False
        return same_but_rounding(self._fingerprints[0], row, self._fingerprints[1], self._partner[row][0], times)

    def _meets_again(self, op: int) -> bool:
        """Whether everything that goes on from a call leads to a call whose values agree."""
        given = (op, *self._side.around(op))
        read = {self._value(row) for call in given for row in self._fingerprints[0].rows(call, INPUT)}
        todo, seen, met = [op], {op}, False
        while todo:
            call = todo.pop()
            taken = self._takers_of(call)
            after = [taker for taker, _ in taken]
            agree = [self._same([row]) or self._same(self._fingerprints[0].rows(taker, OUTPUT)) for taker, row in taken]
            if not after:
                after = self._next(call, read)
                is_parent = after == [self._side.parents[call]]
                role = OUTPUT if is_parent else INPUT
                agree = [self._same(self._fingerprints[0].rows(taker, role)) for taker in after]
            if not after or len(seen) > _MOST_STEPS:
                return False
            for taker, same in zip(after, agree, strict=True):
                met |= same
                if not same and taker not in seen:
                    seen.add(taker)
                    todo.append(taker)
                    read.update(self._value(row) for row in self._fingerprints[0].rows(taker, INPUT))
        return met

    def _same(self, rows: Sequence[int]) -> bool:
        """Of what a norm gives, mean and norm say nothing, and the extremes may be those of other channels."""
        return len(rows) > 0 and bool(self._agree(rows[0])) and not self._is_moved(rows[0])

    def _takers_of(self, op: int) -> list[tuple[int, int]]:
        # What agrees is not what goes on: a mask or a bias that is handed through.
        rows = [row for row in self._fingerprints[0].rows(op, OUTPUT) if not self._agree(row)]
        values = {self._value(row) for row in rows} - {None}
        around = self._side.around(op)
        found = [taker for value in values for taker in self._takers.get(value, ())]
        found = [taker for taker in found if taker[0] > op and taker[0] not in around]
        # A module without a partner passes the value on to what it calls.
        inner = [taker for taker in found if taker[0] not in self._inside or self._agree(taker[1]) is not None]
        return inner or found

    def _next(self, op: int, read: set[Hashable]) -> list[int]:
        """What runs next and reads something else: what no recorded call takes goes on through one that is not.

        After a backward pass gradients are read, and parameters, which agree whatever went before.
        """
        parent = self._side.parents[op]
        if op not in self._number:  # a backward pass, around calls that code of its own makes there
            return [parent] if parent != NONE else []
        back = bisect_right(self._backward, op)
        until = self._backward[back] if back < len(self._backward) else len(self._ops)
        for sibling in self._inside[parent][self._number[op] + 1 :]:
            if sibling > until:
                break
            values = {self._value(row) for row in self._fingerprints[0].rows(sibling, INPUT)}
            if not values <= read | self._made:
                return [sibling]
        return [parent] if parent != NONE else []


def same_but_rounding(
    one: Fingerprints, row: int, other: Fingerprints, partner: int, times: float = 1.0
) -> bool | None:
    """Whether two rows hold the same but for so many times what rounding moves; None where nothing tells."""
    mine, theirs = one.listed[row], other.listed[partner]
    fine = all((fingerprints.dtype[at] or "").endswith(_FINE) for fingerprints, at in ((one, row), (other, partner)))
    close = times * (_CLOSE if fine else _CLOSE_OF_COARSE)
    if mine is None or theirs is None:
        if one.is_integer(row) != other.is_integer(partner):
            return False
        limits = one.stats[row, :2], other.stats[partner, :2]
        if np.isnan(limits).any():
            return None
        with np.errstate(invalid="ignore"):
            gap = abs(limits[0] - limits[1])
        return False if bool((gap > close * np.maximum(abs(limits[0]), abs(limits[1]))).any()) else None
    size = max(abs(mine[0]), abs(mine[1]), abs(theirs[0]), abs(theirs[1]))
    return (
        mine[4] == theirs[4]
        and abs(mine[3] - theirs[3]) <= close * max(mine[3], theirs[3])
        and all(abs(mine[at] - theirs[at]) <= close * size for at in range(3))
    )
