"""Rule: what ran between the same linked calls, in order: modules without parameters, API calls, or one of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.auto.alignment import COMPOSITE, MODULE_CALL, SAME
from twinprobe._align.auto.fingerprints import ValueCells, same_values
from twinprobe._align.auto.layer_scores import NEVER, WIDEST, KindCells, distinct, kinds_fit, like_sizes, names_fit
from twinprobe._align.auto.sequence import (
    MOST,
    Ints,
    Score,
    Step,
    guess_by_keys,
    guess_by_values,
    is_large,
    pair_by_cells,
    pair_by_table,
)
from twinprobe._align.auto.tree import Facts
from twinprobe._align.auto.words import function_of, unnumbered
from twinprobe._align.auto.workspace import Link, Piece, Workspace, pieces, sure
from twinprobe._align.calls import Shape
from twinprobe._align.flow import Flow, group_rows, where_values_meet
from twinprobe._align.links import NONE

# How well two calls fit that stand at the same place: APIs of one family, modules of one function, or one of each.

_FAMILY, _DOUBT = 2.0, 1.0
_EQUAL_OUTPUT, _EQUAL_INPUT = 2.0, 1.0
# A name that every function of a sort answers to.
_LIKE = {"softmax": "softmax", "log_softmax": "log_softmax", "swish": "silu"}


class CallKind:
    """What kind of call a node is, apart from its values: equal sorts are looked at once."""

    __slots__ = ("cls", "functions", "inputs", "is_module", "outputs", "path", "text")

    def __init__(self, facts: Facts, node: int, *, sized: bool) -> None:
        tree = facts.tree
        self.is_module = tree.is_module[node]
        self.cls = tree.cls[node]
        self.path = unnumbered(tree.path[node]) if self.is_module else ""
        self.inputs = facts.fingerprints.shape(facts.input_row(node)) if sized else None
        self.outputs = facts.fingerprints.shape(facts.output_row(node)) if sized else None
        functions = {_plain(tree.family[node])}
        if self.is_module:
            calls = {_plain(tree.family[child]) for child in tree.children[node]}
            functions = ({function_of(self.cls)} - {""}) | (calls if len(calls) == 1 else set())
        self.functions = frozenset(functions)
        self.text = (self.is_module, self.cls, self.path, self.functions, self.inputs, self.outputs)


def sort_of(facts: Facts, node: int, known: dict[object, int], sorts: list[CallKind], *, sized: bool) -> int:
    """A number for the node's sort; where sizes do not meet, without them."""
    sort = CallKind(facts, node, sized=sized)
    number = known.setdefault(sort.text, len(sorts))
    if number == len(sorts):
        sorts.append(sort)
    return number


def fit(one: CallKind, other: CallKind) -> float:
    """What names, classes and sizes say about two calls."""
    if one.is_module and other.is_module:
        score = kinds_fit(one.cls, other.cls) + names_fit(one.path, one.cls, other.path, other.cls)
        return score + _sizes(one, other) - _DOUBT
    if not one.functions & other.functions:
        return NEVER
    return _FAMILY + _sizes(one, other) - _DOUBT


def _sizes(one: CallKind, other: CallKind) -> float:
    return _one_size(one.outputs, other.outputs) + 0.5 * like_sizes(one.inputs, other.inputs)


def _one_size(one: Shape | None, other: Shape | None) -> float:
    if one is None or other is None:
        return 0.0
    if one == other:
        return 1.0
    alike = like_sizes(one, other)
    return alike - 0.2 if alike > 0 else -2.0


def equal_values(target: Facts, target_nodes: list[int], golden: Facts, golden_nodes: list[int]) -> NDArray[np.float64]:
    """What equal inputs and outputs add, for all combinations of two lists of calls."""
    outputs, inputs = (
        same_values(target.fingerprints, target_rows, golden.fingerprints, golden_rows)
        for target_rows, golden_rows in zip(
            _first_rows(target, target_nodes), _first_rows(golden, golden_nodes), strict=True
        )
    )
    return np.asarray(_EQUAL_OUTPUT * outputs + _EQUAL_INPUT * inputs)


def _first_rows(facts: Facts, nodes: list[int]) -> tuple[list[int], list[int]]:
    """The first output and the first input of each call."""
    return [facts.output_row(node) for node in nodes], [facts.input_row(node) for node in nodes]


class EqualCells:
    """The same for two long lists, in the cells asked for."""

    def __init__(self, target: Facts, target_nodes: list[int], golden: Facts, golden_nodes: list[int]) -> None:
        self._outputs, self._inputs = (
            ValueCells(target.fingerprints, target_rows, golden.fingerprints, golden_rows)
            for target_rows, golden_rows in zip(
                _first_rows(target, target_nodes), _first_rows(golden, golden_nodes), strict=True
            )
        )

    def __call__(self, rows: Ints, columns: Ints) -> NDArray[np.float64]:
        """Cell by cell, broadcast."""
        return np.asarray(_EQUAL_OUTPUT * self._outputs(rows, columns) + _EQUAL_INPUT * self._inputs(rows, columns))

    @property
    def seen(self) -> bool:
        """Whether any two calls asked about had equal values."""
        return self._outputs.seen or self._inputs.seen


@lru_cache(maxsize=16384)
def _plain(family: str) -> str:
    bare = family.rpartition(".")[2]
    return _LIKE.get(bare, bare)


MODULES, CALLS, MIXED = "modules in place", "calls in place", "module and call"
_EDGE = 0.4
_Found = list[tuple[int, int, float, float, bool]]  # place, place, score, confidence, equal values


def link_calls(work: Workspace) -> None:
    """Pair what lies between linked calls, from the outside in."""
    matcher = _CallMatcher(work)
    for opened in (False, True):
        done: set[int] = set()
        while True:
            scopes = [pair for pair in work.matched_modules() if pair[0] not in done]
            if not scopes:
                break
            for node, other in scopes:
                done.add(node)
                same = work.outputs_agree(node, other)
                for piece in list(pieces(work, node, other, opened=opened)):
                    matcher.link(piece, meets_again=bool(same))


class _CallMatcher:
    def __init__(self, work: Workspace) -> None:
        self._work = work
        self._sorts: list[CallKind] = []
        self._numbers: dict[object, int] = {}
        self._sort_of: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self._fits: dict[tuple[int, int], float] = {}
        self._known: dict[object, _Found] = {}
        self._done: set[object] = set()
        self._sized = _sizes_meet(work)

    def link(self, piece: Piece, *, meets_again: bool) -> None:
        """Pair the calls of a piece. Where both modules around give the same, two calls that belong together do so."""
        target_sorts = [self._sort(node, golden=False) for node in piece.target]
        golden_sorts = [self._sort(node, golden=True) for node in piece.golden]
        if target_sorts == golden_sorts:
            found = [(at, at, self._fit(sort, sort), 1.0, False) for at, sort in enumerate(target_sorts)]
        elif is_large(len(target_sorts), len(golden_sorts)):
            calls = tuple(piece.target), tuple(piece.golden)
            found = self._pair_large(piece, target_sorts, golden_sorts) if calls not in self._done else []
            self._done.add(calls)
        else:
            work = self._work
            values = equal_values(work.target, piece.target, work.golden, piece.golden)
            key = (tuple(target_sorts), tuple(golden_sorts), values.tobytes())
            if key not in self._known:
                self._known[key] = self._pair(target_sorts, golden_sorts, values)
            found = self._known[key]
        for at, to, score, confidence, equal in found:
            if not meets_again or not self._give_unlike(piece.target[at], piece.golden[to]):
                self._link_pair(piece.target[at], piece.golden[to], score, confidence, equal)

    def _give_unlike(self, node: int, other: int) -> bool:
        work = self._work
        is_call = not (work.target.tree.is_module[node] or work.golden.tree.is_module[other])
        return is_call and work.outputs_agree(node, other) is False

    def _link_pair(self, node: int, other: int, score: float, confidence: float, equal: bool) -> None:
        work = self._work
        modules = work.target.tree.is_module[node], work.golden.tree.is_module[other]
        rule = MODULES if all(modules) else MIXED if any(modules) else CALLS
        kind = SAME if modules[0] == modules[1] else MODULE_CALL
        reason = "same place" + (", equal values" if equal else ", same function" if not all(modules) else "")
        work.link(Link((node,), (other,), rule, reason, confidence * sure(score + 0.5), kind))

    def _sort(self, node: int, *, golden: bool) -> int:
        known = self._sort_of[golden]
        if node not in known:
            facts = self._work.golden if golden else self._work.target
            known[node] = sort_of(facts, node, self._numbers, self._sorts, sized=self._sized)
        return known[node]

    def _fit(self, one: int, other: int) -> float:
        if (one, other) not in self._fits:
            self._fits[one, other] = fit(self._sorts[one], self._sorts[other])
        return self._fits[one, other]

    def _pair(self, target: list[int], golden: list[int], values: NDArray[np.float64]) -> _Found:
        rows, columns = distinct(target), distinct(golden)
        table = np.array([[self._fit(one, other) for other in columns[0]] for one in rows[0]])
        steps = pair_by_table(table[rows[1]][:, columns[1]] + values, _EDGE)
        good = [step for step in steps if step.score > 0]
        return self._kept(target, golden, good, lambda at, to: values[at, to], bool(values.any()))

    def _pair_large(self, piece: Piece, target_sorts: list[int], golden_sorts: list[int]) -> _Found:
        """The same, without a table of all combinations."""
        target, golden = self._work.target, self._work.golden
        fits = KindCells(target_sorts, golden_sorts, lambda one, other: fit(self._sorts[one], self._sorts[other]))
        values = EqualCells(target, piece.target, golden, piece.golden)
        guess = guess_by_values(target, piece.target, golden, piece.golden)
        guess = guess or guess_by_keys(self._keys(target_sorts), self._keys(golden_sorts), MOST)
        steps = pair_by_cells(
            (len(target_sorts), len(golden_sorts)), lambda at, to: fits(at, to) + values(at, to), _EDGE, guess, WIDEST
        )
        return self._kept(target_sorts, golden_sorts, [step for step in steps if step.score > 0], values, values.seen)

    def _keys(self, sorts: list[int]) -> list[Hashable]:
        return [(self._sorts[sort].functions, self._sorts[sort].outputs) for sort in sorts]

    def _kept(self, target: list[int], golden: list[int], steps: list[Step], values: Score, any_equal: bool) -> _Found:
        """Without equal values, a function that is called more often on one side is too doubtful to pair."""
        counts = self._counts(target), self._counts(golden)
        rows = np.array([step.target[0] for step in steps], dtype=np.int64)
        columns = np.array([step.golden[0] for step in steps], dtype=np.int64)
        found = []
        for step, worth in zip(steps, values(rows, columns).tolist(), strict=True):
            at, to = step.target[0], step.golden[0]
            functions = self._sorts[target[at]].functions & self._sorts[golden[to]].functions
            same = any(counts[0][name] == counts[1][name] for name in functions) or not functions
            confidence = step.confidence if worth or same or not any_equal else 0.5 * step.confidence
            if not any_equal and not same:
                confidence *= 0.7
            found.append((at, to, step.score, confidence, worth >= 2.0))
        return found

    def _counts(self, sorts: list[int]) -> Counter[str]:
        return Counter(name for sort in sorts for name in self._sorts[sort].functions)


def _sizes_meet(work: Workspace) -> bool:
    """Whether the layers that belong together give tensors of one size; not so for batches of another size."""
    met = []
    for link in work.links:
        if link.one_to_one and work.target.is_layer[link.target[0]]:
            rows = work.target.output_row(link.target[0]), work.golden.output_row(link.golden[0])
            if NONE not in rows:
                met.append(work.target.fingerprints.numel[rows[0]] == work.golden.fingerprints.numel[rows[1]])
    return bool(2 * sum(met) >= len(met))


# Rule: calls at the same place that are equal in meaning, whatever they are called; several may do what one does.

RULE, WHOLE = "equal results", "other steps"
_CONFIDENCE, _BY_PLACE = 0.9, 0.7


def link_results(work: Workspace) -> None:
    """Link free API calls of linked modules in groups, between places where both runs have the same values."""
    facts = work.target, work.golden
    flows = Flow(facts[0].tree.side, facts[0].fingerprints), Flow(facts[1].tree.side, facts[1].fingerprints)
    for node, other in work.matched_modules():
        found = pieces(work, node, other, opened=True)
        if facts[0].is_layer[node] != facts[1].is_layer[other]:  # one layer is the other's layers: all that they call
            found = iter([Piece(_free_inside(facts[0], node, work.partner), _free_inside(facts[1], other, work.back))])
        for piece in list(found):
            nodes = [{one.tree.op[at]: at for at in _calls(one, part)} for one, part in zip(facts, piece, strict=True)]
            if not all(nodes):
                continue
            for target_ops, golden_ops, equal in where_values_meet(flows, sorted(nodes[0]), sorted(nodes[1])):
                if not equal and not any(group_rows(flows, target_ops, golden_ops)[1:]):
                    continue
                links = tuple(nodes[0][op] for op in target_ops), tuple(nodes[1][op] for op in golden_ops)
                kind = SAME if len(target_ops) == len(golden_ops) == 1 else COMPOSITE
                if equal:
                    work.link(Link(*links, RULE, "same place, equal output", _CONFIDENCE, kind))
                else:
                    work.link(Link(*links, WHOLE, "same place", _BY_PLACE, kind))


def _free_inside(facts: Facts, node: int, linked: list[int]) -> list[int]:
    found, stack = [], [node]
    while stack:
        for child in facts.tree.children[stack.pop()]:
            stack.append(child)
            if linked[child] == NONE:
                found.append(child)
    return found


def _calls(facts: Facts, nodes: list[int]) -> list[int]:
    return [node for node in nodes if not facts.tree.is_module[node] and facts.output_row(node) != NONE]
