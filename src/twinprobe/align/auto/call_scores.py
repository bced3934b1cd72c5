"""How well two calls fit that stand at the same place: APIs of one family, modules of one function, or one of each."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from twinprobe.align.auto.cells import ValueCells
from twinprobe.align.auto.kinds import function_of
from twinprobe.align.auto.layer_scores import _like_sizes
from twinprobe.align.auto.layers import Facts
from twinprobe.align.auto.module_scores import kinds_fit, names_fit
from twinprobe.align.auto.prints import same_values
from twinprobe.align.auto.sequence import Ints
from twinprobe.align.auto.words import unnumbered
from twinprobe.align.shapes import Shape

NEVER = -30.0
_FAMILY, _DOUBT = 2.0, 1.0
_EQUAL_OUTPUT, _EQUAL_INPUT = 2.0, 1.0
# A name that every function of a sort answers to.
_LIKE = {"softmax": "softmax", "log_softmax": "log_softmax", "swish": "silu"}


class Sort:
    """What kind of call a node is, apart from its values: equal sorts are looked at once."""

    __slots__ = ("cls", "functions", "inputs", "is_module", "outputs", "path", "text")

    def __init__(self, facts: Facts, node: int, *, sized: bool) -> None:
        tree = facts.tree
        self.is_module = tree.is_module[node]
        self.cls = tree.cls[node]
        self.path = unnumbered(tree.path[node]) if self.is_module else ""
        self.inputs = facts.prints.shape(facts.input_row(node)) if sized else None
        self.outputs = facts.prints.shape(facts.output_row(node)) if sized else None
        self.functions: frozenset[str] = frozenset({_plain(tree.family[node])})
        if self.is_module:
            calls = {_plain(tree.family[child]) for child in tree.children[node]}
            own = function_of(self.cls)
            self.functions = frozenset(({own} if own else set()) | (calls if len(calls) == 1 else set()))
        self.text = (self.is_module, self.cls, self.path, self.functions, self.inputs, self.outputs)


def sort_of(facts: Facts, node: int, known: dict[object, int], sorts: list[Sort], *, sized: bool) -> int:
    """A number for the node's sort; where sizes do not meet, without them."""
    sort = Sort(facts, node, sized=sized)
    number = known.setdefault(sort.text, len(sorts))
    if number == len(sorts):
        sorts.append(sort)
    return number


def fit(one: Sort, other: Sort) -> float:
    """What names, classes and sizes say about two calls."""
    if one.is_module and other.is_module:
        score = kinds_fit(one.cls, other.cls) + names_fit(one.path, one.cls, other.path, other.cls)
        return score + _sizes(one, other) - _DOUBT
    if not one.functions & other.functions:
        return NEVER
    return _FAMILY + _sizes(one, other) - _DOUBT


def _sizes(one: Sort, other: Sort) -> float:
    return _one_size(one.outputs, other.outputs) + 0.5 * _like_sizes(one.inputs, other.inputs)


def _one_size(one: Shape | None, other: Shape | None) -> float:
    if one is None or other is None:
        return 0.0
    if one == other:
        return 1.0
    alike = _like_sizes(one, other)
    return alike - 0.2 if alike > 0 else -2.0


def equal_values(target: Facts, mine: list[int], golden: Facts, theirs: list[int]) -> NDArray[np.float64]:
    """What equal inputs and outputs add, for all combinations of two lists of calls."""
    outputs = [target.output_row(node) for node in mine], [golden.output_row(node) for node in theirs]
    inputs = [target.input_row(node) for node in mine], [golden.input_row(node) for node in theirs]
    total = _EQUAL_OUTPUT * same_values(target.prints, outputs[0], golden.prints, outputs[1])
    return np.asarray(total + _EQUAL_INPUT * same_values(target.prints, inputs[0], golden.prints, inputs[1]))


class EqualCells:
    """The same for two long lists, in the cells asked for."""

    def __init__(self, target: Facts, mine: list[int], golden: Facts, theirs: list[int]) -> None:
        outputs = [target.output_row(node) for node in mine], [golden.output_row(node) for node in theirs]
        inputs = [target.input_row(node) for node in mine], [golden.input_row(node) for node in theirs]
        self._outputs = ValueCells(target.prints, outputs[0], golden.prints, outputs[1])
        self._inputs = ValueCells(target.prints, inputs[0], golden.prints, inputs[1])

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
