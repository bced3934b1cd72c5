"""Calls that are equal in meaning: a few calls of one run against one or several of the other, at one place.

``x * 0.5`` and ``x / 2``, scaled_dot_product_attention and its parts, a fused norm and a written-out one: what lies
between two paired calls does the same in other steps. Such a group is compared where the values of both runs meet:
what enters it and what leaves it. Nothing inside is paired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

from twinprobe._align.auto.fingerprints import Prints, best_partner, row_values_agree
from twinprobe._align.auto.tree import ROOT, CallTree
from twinprobe._align.calls import Side, dims
from twinprobe._align.links import NONE, CallGroup
from twinprobe._align.turns import fits_shape
from twinprobe._runs.names import FORWARD
from twinprobe._runs.run import STATISTICS, Run
from twinprobe._runs.table import INPUT, OUTPUT

PART = "part of a group equal in meaning"
_MOST_CALLS = 64  # so many calls in which values never meet are no group

Rows = list[tuple[int, int]]
Joined = list[tuple[tuple[int, ...], tuple[int, ...]]]


class Flow:
    """How values flow through one run: equal statistics are one value, in whatever shape."""

    def __init__(self, side: Side, prints: Prints) -> None:
        self.side, self.prints, self.value = side, prints, prints.value
        self._last_use: dict[Hashable, int] = {}
        parents = set(side.parents)
        for op, direction in enumerate(side.direction):
            if direction != FORWARD:
                continue
            rows = prints.rows(op, INPUT)
            if op in parents:  # what a module gives is what some call inside gave
                rows = rows + prints.rows(op, OUTPUT)
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
            for row in self.prints.rows(op, INPUT):
                value = self.value(row)
                key = value if value is not None else row
                if key not in made:
                    found.setdefault(key, row)
            made.update(self.value(row) for row in self.prints.rows(op, OUTPUT))
        return list(found.values())

    def leaving(self, ops: Sequence[int]) -> list[int]:
        """The outputs of these calls that are used after them, each value once, in its last shape."""
        found: dict[Hashable, int] = {}
        for op in ops:
            for row in self.prints.rows(op, OUTPUT):
                value = self.value(row)
                if value is not None and self.used_after(value, op, ops[-1]):
                    found.pop(value, None)
                    found[value] = row
        return list(found.values()) or self.prints.rows(ops[-1], OUTPUT)[:1]


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
    prints = flow.prints
    result = flow.leaving(ops)
    size = prints.numel[result[-1]] if result else 0
    return sum(prints.numel[row] == size and "float" in (prints.dtype[row] or "").lower() for row in flow.entering(ops))


def _same_values(
    flows: tuple[Flow, Flow], mine: list[int], theirs: list[int], given: list[set[Hashable]]
) -> tuple[dict[Hashable, int], dict[Hashable, int]]:
    """A number for each value that both runs make in a piece; values that are given to it count as made outside."""
    made = [
        {value: row for op in ops for row in flow.prints.rows(op, OUTPUT) if (value := flow.value(row)) not in known}
        for flow, ops, known in zip(flows, (mine, theirs), given, strict=True)
    ]
    likes: dict[Hashable, list[Hashable]] = defaultdict(list)
    for value, row in made[1].items():
        for key in _rough(flows[1].prints, row, 0):
            likes[key].append(value)
    numbers: tuple[dict[Hashable, int], dict[Hashable, int]] = ({}, {})
    for value, row in made[0].items():
        near = (one for key in _rough(flows[0].prints, row, 1) for one in likes.get(key, ()))
        free = {made[1][one]: one for one in near if one not in numbers[1]}
        found = best_partner(flows[0].prints, row, flows[1].prints, free)
        if found != NONE:
            numbers[0][value] = numbers[1][free[found]] = len(numbers[0])
    return numbers


def _rough(prints: Prints, row: int, reach: int) -> list[Hashable]:
    """The size and the rough norm of a row, and those beside it: equal for rows that may hold the same."""
    known = prints.rough(row)
    if known is None:
        return [prints.digest[row]]
    return [(known[0], known[1] + step) for step in range(-reach, reach + 1)]


def _live(flow: Flow, ops: list[int], numbers: dict[Hashable, int], given: set[Hashable]) -> list[frozenset[int]]:
    """After each call, the values made so far that are used later; nothing where one of them is this run's alone."""
    alive: dict[Hashable, int] = {}
    found = []
    for op in ops:
        made = (flow.value(row) for row in flow.prints.rows(op, OUTPUT))
        alive.update({value: op for value in made if value not in given})
        alive = {value: made for value, made in alive.items() if flow.used_after(value, made, op)}
        known = [numbers.get(value, NONE) for value in alive]
        found.append(frozenset(known) if NONE not in known else frozenset())
    return found


def group_rows(flows: tuple[Flow, Flow], mine: Sequence[int], theirs: Sequence[int]) -> tuple[Rows, Rows, Joined]:
    """The rows at which two groups of calls are compared: what enters them, what leaves them, what leaves in parts."""
    leaving = flows[0].leaving(mine), flows[1].leaving(theirs)
    found = _together(flows, *leaving)
    prints = flows[0].prints, flows[1].prints
    # Where the same comes out, what goes in otherwise is another way to write it.
    differing = any(row_values_agree(prints[0], row, prints[1], other) is False for row, other in found)
    entering = _together(flows, flows[0].entering(mine), flows[1].entering(theirs), differing=differing)
    # A mask may name what is kept or what is filled: the calls are others, and what they give tells.
    entering = [
        pair for pair in entering
        if not _may_be_turned(flows, *pair) and "bool" not in (prints[0].dtype[pair[0]] or "").lower()
    ]  # fmt: skip
    left = [[row for row in rows if row not in {pair[side] for pair in found}] for side, rows in enumerate(leaving)]
    if found or not all(left):
        return entering, found, []
    # One run makes at once what the other makes in parts: the parts, joined, are compared.
    sizes = [[float(flow.prints.numel[row]) for row in rows] for flow, rows in zip(flows, left, strict=True)]
    for one in (0, 1):
        parts = next((at for at in range(1, len(left[1 - one])) if sum(sizes[1 - one][-at - 1 :]) == sizes[one][-1]), 0)
        if parts:
            both = (left[one][-1],), tuple(left[1 - one][-parts - 1 :])
            return entering, [], [(both[one], both[1 - one])]
    return entering, [], []


def _may_be_turned(flows: tuple[Flow, Flow], row: int, other: int) -> bool:
    """Whether one row may be the other transposed without a shape that shows it; statistics do not mind."""
    shapes = flows[0].prints.shape(row), flows[1].prints.shape(other)
    square = shapes[0] is not None and len(shapes[0]) > 1 and shapes[0][-1] == shapes[0][-2] > 1
    run = flows[0].side.run
    # A run in memory, of a class of its own, has its tensors at hand.
    return square and shapes[0] == shapes[1] and (run.mode != STATISTICS or type(run) is not Run)


def _together(flows: tuple[Flow, Flow], mine: list[int], theirs: list[int], *, differing: bool = True) -> Rows:
    """Rows of equal values; then, where both runs have as many of a size left, in order.

    Without ``differing``, only such whose values nobody knows.
    """
    prints = flows[0].prints, flows[1].prints
    found: Rows = []
    for row in list(mine):
        other = best_partner(prints[0], row, prints[1], theirs)
        if other != NONE:
            found.append((row, other))
            mine = [at for at in mine if at != row]
            theirs = [at for at in theirs if at != other]
    left: list[dict[tuple[float, bool], list[int]]] = [defaultdict(list), defaultdict(list)]
    for rows, known, sizes in zip((mine, theirs), prints, left, strict=True):
        for row in rows:
            sizes[float(known.numel[row]), "float" in (known.dtype[row] or "").lower()].append(row)
    for size, rows in left[0].items():
        others = left[1].get(size, [])
        for row, other in zip(rows, others, strict=True) if len(rows) == len(others) else ():
            one, two = dims(prints[0].shape_text[row]), dims(prints[1].shape_text[other])
            if row_values_agree(prints[0], row, prints[1], other) is None:
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
        if NONE not in gradients and flows[0].prints.numel[gradients[0]] == flows[1].prints.numel[gradients[1]]:
            found.append((gradients[0], gradients[1]))
    return CallGroup(tuple(sorted(back[0])), tuple(sorted(back[1]))), found


def _gradient(flow: Flow, ops: Sequence[int], row: int) -> int:
    """The gradient of an output, where the backward call has one for each."""
    prints = flow.prints
    op = next(op for op in ops if flow.side.starts[op] <= row < flow.side.starts[op + 1])
    rows, gradients = prints.rows(op, OUTPUT), prints.rows(flow.side.backward(op), INPUT)
    if len(rows) != len(gradients) or prints.numel[gradients[rows.index(row)]] != prints.numel[row]:
        return NONE
    return gradients[rows.index(row)]
