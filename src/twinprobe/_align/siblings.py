"""What two paired module calls enclose: two sequences of calls, aligned from the cheap evidence to the dear."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from twinprobe._align.auto.fingerprints import Fingerprints, row_values_agree
from twinprobe._align.auto.sequence import rising
from twinprobe._align.auto.tree import ROOT, CallTree, call_tree
from twinprobe._align.calls import RunCalls, bare_path, dims, renumbered
from twinprobe._align.links import NONE, best_in_order
from twinprobe._runs.table import INPUT, OUTPUT

NodePairs = list[tuple[int, int]]

_MOST_CELLS = 20_000  # so many combinations are scored one by one
_MOST_EDITS = 1_500
# What speaks for a pair. Values outweigh a second pair without them: a wrong pair is worse than none.
# Gradients only settle what is equal otherwise: they are what one wants to find wrong.
_SAME_KEY, _SAME_NAME, _SAME_DTYPES, _SAME_WAY_BACK, _SAME_INPUTS, _SAME_OUTPUTS = 30, 1, 3, 4, 20, 30
_SAME_GRADIENTS = 2
_MAY_BE_SAME = 2  # whole numbers have no norm: equal limits say little, unlike ones enough
_EXACT = 4
_MOST_ROWS = 4  # so many values of a call are looked at


class Calls:
    """One run's forward calls by place. Modules that only wrap another are seen through."""

    def __init__(self, side: RunCalls, *, nested: bool) -> None:
        self.side = side
        self.tree = tree = call_tree(side, nested=nested)
        self.fingerprints = Fingerprints(side)
        self._bare = bare = _bare_paths(tree)
        self.key: list[Hashable] = [
            ("", bare[tree.path[node]]) if tree.is_module[node] else tree.family[node] for node in range(len(tree))
        ]
        self.children = [list(inside) for inside in tree.children]
        self.around = list(tree.parent)
        self.wrapper: dict[int, int] = {}
        self.models: list[int] = []  # calls of the whole model, without its wrappers
        for node in reversed(tree.in_order):
            if node != ROOT and tree.is_module[node]:
                self._see_through(node, bare)
        self._facts: dict[int, tuple[object, object, bool]] = {}
        self.node_of = {op: node for node, op in enumerate(tree.op)}

    def _see_through(self, node: int, bare: dict[str, str]) -> None:
        path = bare[self.tree.path[node]]
        inner = [one for one in self.children[node] if self.tree.is_module[one] and bare[self.tree.path[one]] == path]
        if path and not inner:
            return
        if not path and not inner:
            self.models.insert(0, node)
        around = self.around[node]
        place = self.children[around].index(node)
        self.children[around][place : place + 1] = self.children[node]
        for child in self.children[node]:
            self.around[child] = around
        if len(inner) == 1:
            self.wrapper[inner[0]] = node

    def layers(self) -> dict[str, dict[int, list[int]]]:
        """The modules inside each layer of each outermost list, by the list's path and the layer's number."""
        found: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for node in self.tree.modules:
            layer = _LAYER.match(self._bare[self.tree.path[node]])
            if layer is not None:
                found[layer[1]][int(layer[2])].append(node)
        return found

    def layer_weights(self, nodes: list[int]) -> set[Hashable]:
        """What these modules of one layer hold: where in the layer, and which values."""
        found: set[Hashable] = set()
        for node in nodes:
            path = _LAYER.sub("", self._bare[self.tree.path[node]])
            name = self.side.ops[self.tree.op[node]]
            for row in self.fingerprints.parameters(self.tree.op[node]):
                listed = self.fingerprints.listed[row]
                if listed is not None:
                    seen = tuple(f"{number:.5e}" for number in listed)
                    found.add((path, self.side.names[row].removeprefix(name), seen))
        return found

    def renumber(self, shifts: dict[str, int]) -> None:
        """Give the layers of these lists the numbers that the other run has for them."""
        for node in self.tree.modules:
            self.key[node] = ("", renumbered(self._bare[self.tree.path[node]], shifts))

    def shapes(self, node: int, role: int) -> list[str | None]:
        """The shapes of what a call takes or gives."""
        fingerprints, op = self.fingerprints, self.tree.op[node]
        return [fingerprints.shape_text[row] for row in fingerprints.rows(op, role)]

    def facts(self, node: int) -> tuple[object, object, bool]:
        """Shapes and dtypes of a call's outputs, and whether it has a backward call."""
        found = self._facts.get(node)
        if found is None:
            rows = self.fingerprints.rows(self.tree.op[node], OUTPUT)
            shapes = tuple(self.fingerprints.shape_text[row] for row in rows)
            dtypes = tuple(self.fingerprints.dtype[row] for row in rows)
            found = self._facts[node] = shapes, dtypes, self.backward(node) != NONE
        return found

    def backward(self, node: int) -> int:
        """The backward call of a forward call; -1 where there is none."""
        op = self.tree.op[node]
        return self.side.backward(op) if op != NONE else NONE

    def recomputed_in(self, node: int) -> int:
        """The module call in whose backward pass this call was made; -1 where it is none of a recomputation."""
        around = self.side.parents[self.tree.op[node]]
        return self.node_of.get(self.side.forward(around), NONE) if around != NONE else NONE

    def weights(self, node: int) -> dict[str, str | None]:
        """The shapes of a module's parameters by name."""
        op, side = self.tree.op[node], self.side
        name = side.ops[op] if op != NONE else ""
        return {side.names[row].removeprefix(name): side.shapes[row] for row in self.fingerprints.parameters(op)}

    def signature(self, node: int) -> Hashable:
        """What a call does and gives, in three digits: equal for the same call of two runs before they part."""
        op, fingerprints = self.tree.op[node], self.fingerprints
        rows = (int(fingerprints.first_input[op]), int(fingerprints.first_output[op])) if op != NONE else ()
        known = (fingerprints.listed[row] if row != NONE else None for row in rows)
        seen = tuple(f"{values[3]:.2e}" if values else "" for values in known)
        return self.key[node], self.facts(node)[0], seen


def _bare_paths(tree: CallTree) -> dict[str, str]:
    """Each path without wrappers; where that would make two modules one, with them."""
    owner: dict[str, str] = {}
    bare: dict[str, str] = {}
    for path in dict.fromkeys(tree.path[node] for node in range(len(tree)) if tree.is_module[node]):
        short = bare_path(path)
        known = owner.setdefault(short, path)
        nested = known == path or path.startswith(f"{known}.") or known.startswith(f"{path}.") or not short
        bare[path] = short if nested else path
    return bare


_LAYER = re.compile(r"^(.*?)\.(\d{1,9})(?=\.|$)")  # the outermost list that a path leads through


def shifted_layers(one: Calls, other: Calls) -> dict[str, int]:
    """How far the numbers of layers are apart where one run has but some of the other's, counted from 0 again.

    A stage of a pipeline. Told by weights, which must be those of the layer so far on, and of none of the same number.
    """
    layers = [calls.layers() for calls in (one, other)]
    shifts = {}
    for path in layers[0].keys() & layers[1].keys():
        mine, theirs = layers[0][path], layers[1][path]
        if len(mine) == len(theirs):
            continue
        numbers = defaultdict(list)
        for number, nodes in theirs.items():
            for weight in other.layer_weights(nodes):
                numbers[weight].append(number)
        weights = [(number, weight) for number, nodes in mine.items() for weight in one.layer_weights(nodes)]
        equal = Counter(there - number for number, weight in weights for there in numbers.get(weight, ()))
        shift, count = equal.most_common(1)[0] if equal else (0, 0)
        if shift and not equal[0] and 2 * count > min(len(weights), sum(map(len, numbers.values()))):
            shifts[path] = shift
    return shifts


@dataclass
class Siblings:
    """Aligns calls of one run with calls of the other."""

    one: Calls
    other: Calls

    def aligned(self, mine: list[int], theirs: list[int], scope: tuple[int, int]) -> NodePairs:
        """Pairs among what the two calls of ``scope`` enclose, in order."""
        if not mine or not theirs:
            return []
        keys = [self.one.key[node] for node in mine], [self.other.key[node] for node in theirs]
        if keys[0] == keys[1]:
            return [pair for pair in zip(mine, theirs, strict=True) if self._same_layer(*pair, strict=False)]
        found = self._in_pieces(mine, theirs)
        if not self._meet_again(found, scope):
            return found
        # The two do something else inside and come to the same: what has no like there stays alone.
        return [
            (one, other)
            for one, other in found
            if self.one.tree.is_module[one]
            or (self._agree(one, other, OUTPUT) is not False and self._agree(one, other, INPUT) is not False)
        ]

    def _meet_again(self, found: NodePairs, scope: tuple[int, int]) -> bool:
        if scope == (ROOT, ROOT) and found:
            # Parameters after an update are much the same whatever was computed before: the loss tells.
            scope = ([pair for pair in found if self.one.backward(pair[0]) != NONE] or found)[-1]
        return bool(self._agree(*scope, OUTPUT))

    def _in_pieces(self, mine: list[int], theirs: list[int]) -> NodePairs:
        """What is surely the same at both ends, and in between what scores best."""
        head = _common(mine, theirs, self._surely)
        found = list(zip(mine[:head], theirs[:head], strict=True))
        mine, theirs = mine[head:], theirs[head:]
        tail = _common(mine[::-1], theirs[::-1], self._surely)
        ends = list(zip(mine[len(mine) - tail :], theirs[len(theirs) - tail :], strict=True))
        mine, theirs = mine[: len(mine) - tail], theirs[: len(theirs) - tail]
        if len(mine) * len(theirs) <= _MOST_CELLS:
            return [*found, *self.by_score(mine, theirs), *ends]
        anchors = _anchors([self.one.signature(node) for node in mine], [self.other.signature(node) for node in theirs])
        if not anchors:
            return [*found, *self._by_edits(mine, theirs), *ends]
        at, to = 0, 0
        for anchor, other in [*anchors, (len(mine), len(theirs))]:
            found += self._in_pieces(mine[at:anchor], theirs[to:other])
            if anchor < len(mine):
                found.append((mine[anchor], theirs[other]))
            at, to = anchor + 1, other + 1
        return found + ends

    def _by_edits(self, mine: list[int], theirs: list[int]) -> NodePairs:
        """Very many calls and nothing that tells one from another: as few as possible stay alone."""
        tokens: list[list[Hashable]] = [
            [(calls.key[node], calls.facts(node)[0]) for node in nodes]
            for calls, nodes in ((self.one, mine), (self.other, theirs))
        ]
        return [(mine[at], theirs[to]) for at, to in _fewest_edits(*tokens)]

    def by_score(self, mine: list[int], theirs: list[int]) -> NodePairs:
        """The pairs in order whose scores add up to most."""
        places: dict[Hashable, list[int]] = defaultdict(list)
        for to, node in enumerate(theirs):
            places[self.other.key[node]].append(to)
        scores = [
            {to: score for to in places.get(self.one.key[one], ()) if (score := self._score(one, theirs[to]))}
            for one in mine
        ]
        return [(mine[at], theirs[to]) for at, to in best_in_order(scores)[0]]

    def _surely(self, one: int, other: int) -> bool:
        return (
            self.one.key[one] == self.other.key[other]
            and self.one.facts(one) == self.other.facts(other)
            and self._same_layer(one, other, strict=True)
            and self._agree(one, other, INPUT) is not False
            and self._agree(one, other, OUTPUT) is not False
            and self._agree_on_the_way_back(one, other) is not False
        )

    def _score(self, one: int, other: int) -> int:
        """How much speaks for a pair of one key; 0 where it must not be."""
        mine, theirs = self.one.facts(one), self.other.facts(other)
        # Another shape is a finding only where the same went in.
        if mine[0] != theirs[0] and self.one.shapes(one, INPUT) != self.other.shapes(other, INPUT):
            return 0
        if not self._same_layer(one, other, strict=True):
            return 0
        ops = self.one.tree.op[one], self.other.tree.op[other]
        agree = [self._agree(one, other, role) for role in (INPUT, OUTPUT)]
        counts = len(self.one.shapes(one, INPUT)), len(self.other.shapes(other, INPUT))
        if agree == [False, False] and counts[0] != counts[1] and not self.one.tree.is_module[one]:
            return 0  # a square of a gradient, and a moment times a number: a function's name alone makes no pair
        score = _SAME_KEY + _SAME_DTYPES * (mine[1] == theirs[1]) + _SAME_WAY_BACK * (mine[2] == theirs[2])
        if NONE not in ops:
            score += _SAME_NAME * (self.one.side.callee_of[ops[0]].name == self.other.side.callee_of[ops[1]].name)
        for role, same, weight in zip((INPUT, OUTPUT), agree, (_SAME_INPUTS, _SAME_OUTPUTS), strict=True):
            if same:
                score += weight + _EXACT * self._equal(one, other, role)
            score += _MAY_BE_SAME * (same is None)
        return score + _SAME_GRADIENTS * bool(self._agree_on_the_way_back(one, other))

    def _same_layer(self, one: int, other: int, *, strict: bool) -> bool:
        """Whether two module calls hold parameters of the same shapes; one padded axis is allowed in a sure place."""
        if not self.one.tree.is_module[one]:
            return True
        mine, theirs = self.one.weights(one), self.other.weights(other)
        for name in mine.keys() & theirs.keys():
            if mine[name] == theirs[name]:
                continue
            sizes = dims(mine[name]), dims(theirs[name])
            if strict or None in sizes or len(sizes[0]) != len(sizes[1]):  # type: ignore[arg-type]
                return False
            if sum(size != partner for size, partner in zip(*sizes, strict=True)) > 1:  # type: ignore[arg-type]
                return False
        return True

    def _agree_on_the_way_back(self, one: int, other: int) -> bool | None:
        ops = self.one.backward(one), self.other.backward(other)
        if NONE in ops:
            return None
        mine, theirs = self.one.fingerprints, self.other.fingerprints
        for row, partner in self._rows(*ops, INPUT):
            flat = mine.listed[row] is None, theirs.listed[partner] is None
            # Nothing comes back from a result that nobody used.
            if flat[0] != flat[1] and not np.isnan([mine.stats[row, 3], theirs.stats[partner, 3]]).any():
                return False
        return self._ops_agree(*ops, INPUT)

    def _rows(self, op: int, other: int, role: int) -> NodePairs:
        rows = self.one.fingerprints.rows(op, role)[:_MOST_ROWS], self.other.fingerprints.rows(other, role)[:_MOST_ROWS]
        return list(zip(*rows, strict=False))

    def _agree(self, one: int, other: int, role: int) -> bool | None:
        """Whether what two calls take or give is the same within tolerance; None where nothing tells."""
        return self._ops_agree(self.one.tree.op[one], self.other.tree.op[other], role)

    def _ops_agree(self, op: int, other: int, role: int) -> bool | None:
        agree = None
        for row, partner in self._rows(op, other, role):
            same = row_values_agree(self.one.fingerprints, row, self.other.fingerprints, partner)
            if same is False:
                return False
            agree = agree or same
        return agree

    def _equal(self, one: int, other: int, role: int) -> bool:
        mine, theirs = self.one.fingerprints.listed, self.other.fingerprints.listed
        rows = self._rows(self.one.tree.op[one], self.other.tree.op[other], role)
        return all(mine[row] == theirs[partner] for row, partner in rows)


def _common(mine: Sequence[int], theirs: Sequence[int], same: Callable[[int, int], bool]) -> int:
    return sum(1 for _ in takewhile(lambda pair: same(*pair), zip(mine, theirs, strict=False)))


def _anchors(mine: list[Hashable], theirs: list[Hashable]) -> NodePairs:
    """Places of what occurs once on both sides, in the longest order that both share."""
    counts = Counter(mine), Counter(theirs)
    places = {token: to for to, token in enumerate(theirs) if counts[1][token] == 1}
    once = [(at, places[token]) for at, token in enumerate(mine) if counts[0][token] == 1 and token in places]
    return rising(once)


def _fewest_edits(mine: list[Hashable], theirs: list[Hashable]) -> NodePairs:
    """Myers' greedy walk: equal tokens in order, as few as possible left out; what lies too far off stays alone."""
    rows, columns = len(mine), len(theirs)
    furthest = {1: 0}
    history: list[dict[int, int]] = []
    edits, diagonal = 0, 0
    done = False
    while not done and edits <= _MOST_EDITS:
        history.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
            )
            at = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            to = at - diagonal
            while at < rows and to < columns and mine[at] == theirs[to]:
                at, to = at + 1, to + 1
            furthest[diagonal] = at
            if at >= rows and to >= columns:
                done = True
                break
        edits += 1
    if not done:
        return []
    found: NodePairs = []
    at, to = rows, columns
    for step in range(len(history) - 1, -1, -1):
        known, diagonal = history[step], at - to
        down = diagonal == -step or (diagonal != step and known.get(diagonal - 1, -1) < known.get(diagonal + 1, -1))
        previous = diagonal + 1 if down else diagonal - 1
        start = known[previous] if step else 0
        begin = (start, start - previous) if step else (0, 0)
        while at > begin[0] and to > begin[1] and mine[at - 1] == theirs[to - 1]:
            at, to = at - 1, to - 1
            found.append((at, to))
        at, to = begin
    return found[::-1]
