"""How well two layers fit: the sum of independent signals, for many pairs at once.

Each signal is worth a few points; above 0 in all speaks for a pair. What is not known on one side counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.auto.fingerprints import (
    Fingerprints,
    merged,
    row_values_agree,
    same_values,
    statistics_agree,
    worth_of,
)
from twinprobe._align.auto.sequence import Ints
from twinprobe._align.auto.tree import Facts, Layer
from twinprobe._align.auto.words import (
    CONV,
    LINEAR,
    POINTWISE,
    agreement,
    class_kind,
    function_of,
    likeness,
    meaning,
    numbers_of,
    own_name,
)
from twinprobe._align.calls import Shape
from twinprobe._align.links import NONE

Array = NDArray[Any]

# The price of saying anything: a pair must earn more.
DOUBT = 1.5
NEVER = -30.0
_SAME_KIND, _LIKE_KIND, _OTHER_KIND = 1.0, 0.7, NEVER
_SAME_WEIGHTS, _SAME_MATRIX, _ONE_SIZE_OFF, _OTHER_WEIGHTS = 1.5, 1.0, -1.2, -8.0
_MEANING, _AROUND, _OWN_NAME, _CLASS, _SAME_PATH, _SAME_PLACE = 1.5, 0.5, 0.75, 0.25, 1.5, 0.4
_EQUAL = {"weight": 3.0, "bias": 1.0, "output": 1.5, "input": 1.0}
_UNEQUAL_WEIGHTS = -3.0
_MOST_COMBINATIONS = 300_000
_SAMPLE = 200


SAME_NORM = 1e-3  # rounding moves the norm of a whole weight by less


class Units:
    """Layers (or groups of layers) of one side in columns."""

    def __init__(self, layers: Sequence[Layer], fingerprints: Fingerprints) -> None:
        self.layers, self.fingerprints = layers, fingerprints
        rows: dict[str, list[tuple[int, ...]]] = {
            "weight": [layer.weight_rows for layer in layers], "bias": [layer.bias_rows for layer in layers],
            "output": [layer.output_rows for layer in layers], "input": [(layer.input_row,) for layer in layers],
        }  # fmt: skip
        self.stats = {name: _merged_stats(groups, fingerprints) for name, groups in rows.items()}
        self.rows = {
            name: np.array([group[0] if len(group) == 1 else NONE for group in groups], dtype=np.int64)
            for name, groups in rows.items()
        }
        """The row of each layer that has one; sketches say nothing of several, joined."""
        self.sizes = [
            (fingerprints.shape(layer.input_row), fingerprints.shape(layer.output_rows[0])) for layer in layers
        ]

    def __len__(self) -> int:
        return len(self.layers)


def _merged_stats(rows: Sequence[tuple[int, ...]], fingerprints: Fingerprints) -> Array:
    """max, min, mean, norm and size of the concatenation of each tuple of rows; NaN where one is not telling."""
    if all(len(group) == 1 for group in rows):
        return fingerprints.known([group[0] for group in rows])
    result = np.full((len(rows), 5), np.nan)
    for at, group in enumerate(rows):
        if NONE in group or not fingerprints.telling[list(group)].all():
            continue
        sizes = fingerprints.numel[list(group)]
        result[at] = *merged(fingerprints.stats[list(group)], sizes), sizes.sum()
    return result


class LayerScores:
    """Scores between the layers of two sides."""

    def __init__(self, target: Units, golden: Units, share: float, *, grouped: bool = False) -> None:
        self._target, self._golden = target, golden
        self._share = share
        columns: list[tuple[Callable[[Layer], Hashable], Callable[[Any, Any], float]]] = [
            (lambda layer: layer.kind, _kinds),
            (lambda layer: (layer.features, _canonical(layer.weights)), _fused_weights if grouped else _weights),
            (lambda layer: (layer.meaning, layer.around), _meanings),
        ]
        if not grouped:
            columns.append((lambda layer: (own_name(layer.path), layer.cls), _names))
        self._tables = [
            _Table([key(layer) for layer in target.layers], [key(layer) for layer in golden.layers], score)
            for key, score in columns
        ]
        if not grouped:
            self._tables.append(_Table(target.sizes, golden.sizes, _sizes))
        self._paths = _numbered(target, golden, lambda layer: layer.path)
        # Equal numbers in two paths: the same layer of the stack.
        self._places = _numbered(target, golden, lambda layer: numbers_of(layer.path))

    def __call__(self, rows: Array, columns: Array) -> Array:
        """Scores of the pairs at these places, broadcast."""
        total = np.full(np.broadcast_shapes(rows.shape, columns.shape), -DOUBT, dtype=np.float32)
        for table in self._tables:
            total += table(rows, columns)
        total += _SAME_PATH * (self._paths[0][rows] == self._paths[1][columns])
        total += _SAME_PLACE * (self._places[0][rows] == self._places[1][columns])
        return np.asarray(total + self.values(rows, columns))

    def values(self, rows: Array, columns: Array) -> Array:
        """What the statistics of parameters, inputs and outputs add."""
        target, golden = self._target, self._golden
        total: Array = np.zeros(())
        for name, worth in _EQUAL.items():
            agree, known = statistics_agree(target.stats[name], golden.stats[name], rows, columns)
            same = worth_of(
                agree, target.fingerprints, target.rows[name][rows], golden.fingerprints, golden.rows[name][columns]
            )
            total = total + worth * same
            if name == "weight":
                total = total + np.where(known & ~agree, _UNEQUAL_WEIGHTS * self._share, 0.0)
        return np.asarray(total)


def shared_weights(target: Units, golden: Units) -> float:
    """The share of the target's weights (of the smaller side's) whose statistics occur on the other side, 0 to 1."""
    fewer, more = _known_weights(target), _known_weights(golden)
    if len(fewer) < 2 or len(more) < 2:
        return 0.0
    if len(fewer) > len(more):
        fewer, more = more, fewer
    order = np.lexsort((more[:, 3], more[:, 4]))
    more = more[order]
    hits = 0
    fewer = fewer[:: max(1, len(fewer) // _SAMPLE)]
    for row in fewer:
        first, last = np.searchsorted(more[:, 4], [row[4], np.nextafter(row[4], np.inf)])
        norms = more[first:last, 3]
        begin = first + np.searchsorted(norms, row[3] * (1 - SAME_NORM))
        end = first + np.searchsorted(norms, row[3] * (1 + SAME_NORM), side="right")
        near = np.arange(begin, min(end, begin + 64))
        hits += bool(len(near)) and bool(statistics_agree(row[None], more, np.zeros(1, np.int64), near)[0].any())
    return hits / len(fewer)


def _known_weights(units: Units) -> Array:
    """Statistics of weights that tell one model from another: matrices, where there are any; norms are all alike."""
    known = np.isfinite(units.stats["weight"][:, 3])
    wide = known & np.array([any(len(shape) > 1 for shape in layer.weights) for layer in units.layers])
    return units.stats["weight"][wide if wide.sum() > 1 else known]


class _Table:
    """A signal that depends on few distinct values of either side: all combinations, looked up."""

    def __init__(
        self, target: Sequence[Hashable], golden: Sequence[Hashable], score: Callable[[Any, Any], float]
    ) -> None:
        target_values, self._rows = distinct(target)
        golden_values, self._columns = distinct(golden)
        if len(target_values) * len(golden_values) <= _MOST_COMBINATIONS:
            self._scores = np.array(
                [[score(one, other) for other in golden_values] for one in target_values], dtype=np.float32
            )
            self._both: dict[Hashable, int] = {}
        else:
            # Too many to try: only equal ones score.
            self._scores = np.zeros((0, 0), dtype=np.float32)
            self._both = {value: at for at, value in enumerate(dict.fromkeys([*target_values, *golden_values]))}
            self._equal = np.array([score(value, value) for value in self._both], dtype=np.float32)
            self._rows = np.array([self._both[value] for value in target_values])[self._rows]
            self._columns = np.array([self._both[value] for value in golden_values])[self._columns]

    def __call__(self, rows: Array, columns: Array) -> Array:
        at, to = self._rows[rows], self._columns[columns]
        if not self._both:
            return np.asarray(self._scores[at, to])
        return np.where(at == to, self._equal[at], np.float32(0))


def distinct(values: Iterable[Hashable]) -> tuple[list[Any], Array]:
    """The different ones of these values, and for each value its place among them."""
    numbers: dict[Hashable, int] = {}
    places = [numbers.setdefault(value, len(numbers)) for value in values]
    return list(numbers), np.array(places, dtype=np.int64)


def _numbered(target: Units, golden: Units, key: Callable[[Layer], Hashable]) -> tuple[Array, Array]:
    """Numbers that are equal where the keys of two layers are."""
    _, numbers = distinct([key(layer) for layer in (*target.layers, *golden.layers)])
    return numbers[: len(target)], numbers[len(target) :]


def _canonical(weights: tuple[Shape, ...]) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """Matrices with sorted sizes (a transposed weight is the same weight, so is one of 1x1 points), and vectors."""
    flat = (shape[:2] if set(shape[2:]) == {1} else shape for shape in weights)
    wide = sorted(tuple(sorted(shape)) for shape in flat if len(shape) > 1)
    return tuple(wide), tuple(sorted(shape for shape in weights if len(shape) == 1))


def _kinds(one: str, other: str) -> float:
    if not one or not other:
        return 0.0
    if one == other:
        return _SAME_KIND
    if POINTWISE in (one, other):
        return _LIKE_KIND if LINEAR in (one, other) else 0.0 if CONV in (one, other) else _OTHER_KIND
    return _OTHER_KIND


_Weights = tuple[tuple[int, int] | None, tuple[tuple[Shape, ...], tuple[Shape, ...]]]


def _weights(one: _Weights, other: _Weights) -> float:
    (features, (wide, narrow)), (other_features, (other_wide, other_narrow)) = one, other
    if not (wide or narrow) or not (other_wide or other_narrow):
        return 0.0
    if wide != other_wide:
        return _ONE_SIZE_OFF if _one_size_off(wide, other_wide) else _OTHER_WEIGHTS
    if features and other_features and features != other_features:
        return _OTHER_WEIGHTS
    if narrow == other_narrow:
        return _SAME_WEIGHTS
    if wide or set(narrow) == set(other_narrow):
        return _SAME_MATRIX
    return _OTHER_WEIGHTS


def _fused_weights(one: _Weights, other: _Weights) -> float:
    """Only a group whose widths add up to the other's fits."""
    return _SAME_WEIGHTS if one[0] and one[0] == other[0] else NEVER


def _one_size_off(wide: tuple[Shape, ...], other: tuple[Shape, ...]) -> bool:
    """A vocabulary that one side has padded."""
    if len(wide) != 1 or len(other) != 1 or len(wide[0]) != 2 or len(other[0]) != 2:
        return False
    return len(set(wide[0]) & set(other[0])) == 1 and max(wide[0]) / max(other[0]) < 1.5 > max(other[0]) / max(wide[0])


def _meanings(one: tuple[str, str], other: tuple[str, str]) -> float:
    around = 0.0
    if one[1] and other[1]:
        around = _AROUND if one[1] == other[1] else -_AROUND
    return _MEANING * agreement(one[0], other[0]) + around


def _names(one: tuple[str, str], other: tuple[str, str]) -> float:
    return _OWN_NAME * likeness(one[0], other[0]) + _CLASS * likeness(one[1], other[1])


def _sizes(one: tuple[Shape | None, Shape | None], other: tuple[Shape | None, Shape | None]) -> float:
    return 0.5 * like_sizes(one[0], other[0]) + 0.5 * like_sizes(one[1], other[1])


def like_sizes(one: Shape | None, other: Shape | None) -> float:
    """1 for equal sizes in any order, a little for as many elements, below 0 for others, 0 where one is unknown."""
    if one is None or other is None:
        return 0.0
    if sorted(size for size in one if size != 1) == sorted(size for size in other if size != 1):
        return 1.0
    mine, theirs = np.prod(one, dtype=np.float64), np.prod(other, dtype=np.float64)
    return 0.6 if mine == theirs else -1.0


# Scores between the calls of two large scopes, worked out only for the cells that are asked for.
#
# A table of all combinations grows with the product of the two scopes; a band through it grows with their length.

WIDEST = 640  # of a band through a large scope
_TABLE = 1_000_000


class KindCells:
    """How well the sorts of two calls fit: each two sorts that meet in a cell asked for are looked at once."""

    def __init__(self, target: Sequence[int], golden: Sequence[int], fit: Callable[[int, int], float]) -> None:
        self._fit = fit
        self._rows, self._row_of = np.unique(target, return_inverse=True)
        self._columns, self._column_of = np.unique(golden, return_inverse=True)
        size = len(self._rows) * len(self._columns)
        self._known: NDArray[np.float64] | None = np.full(size, np.nan) if size <= _TABLE else None

    def __call__(self, rows: Ints, columns: Ints) -> NDArray[Any]:
        """Cell by cell, broadcast."""
        codes = self._row_of[rows] * len(self._columns) + self._column_of[columns]
        if self._known is None:
            met, places = np.unique(codes.ravel(), return_inverse=True)
            return np.asarray(self._fits(met)[places].reshape(codes.shape))
        found = np.asarray(self._known[codes])
        missing = np.isnan(found)
        if missing.any():
            met = np.unique(codes[missing])
            self._known[met] = self._fits(met)
            found = np.asarray(self._known[codes])
        return found

    def _fits(self, codes: Ints) -> NDArray[np.float64]:
        rows, columns = np.divmod(codes, len(self._columns))
        pairs = zip(self._rows[rows].tolist(), self._columns[columns].tolist(), strict=True)
        return np.array([self._fit(one, other) for one, other in pairs], dtype=np.float64)


# How well two module calls fit that are no layers: names, classes, and the sizes and values of inputs and outputs.

_EQUAL_MODULE_OUTPUT, _EQUAL_MODULE_INPUT = 2.0, 1.0


@lru_cache(maxsize=65536)
def names_fit(path: str, cls: str, other_path: str, other_cls: str) -> float:
    """What attribute and class names say, from about -1.5 to 4."""
    score = agreement(meaning(path), meaning(other_path)) + 0.75 * likeness(own_name(path), own_name(other_path))
    score += 0.5 if cls and cls == other_cls else 0.4 * likeness(cls, other_cls)
    numbered = path.rpartition(".")[2].isdecimal(), other_path.rpartition(".")[2].isdecimal()
    score += 0.5 if all(numbered) else -0.5 if any(numbered) else 0.0
    return score + (1.0 if path and path == other_path else 0.0)


@lru_cache(maxsize=65536)
def kinds_fit(cls: str, other_cls: str) -> float:
    """What the classes of modules without parameters say they compute."""
    functions = function_of(cls), function_of(other_cls)
    if all(functions):
        return 2.0 if functions[0] == functions[1] else -6.0
    kinds = class_kind(cls), class_kind(other_cls)
    if all(kinds):
        return 1.0 if kinds[0] == kinds[1] else -3.0
    return 0.0


def values_fit(target: Facts, node: int, golden: Facts, other: int) -> tuple[float, bool]:
    """What sizes and values of inputs and outputs say, and whether the outputs hold equal values."""
    score = 0.0
    same_output = False
    for target_row, golden_row, worth, size in (
        (target.input_row(node), golden.input_row(other), _EQUAL_MODULE_INPUT, 0.5),
        (target.output_row(node), golden.output_row(other), _EQUAL_MODULE_OUTPUT, 0.75),
    ):
        score += size * like_sizes(target.fingerprints.shape(target_row), golden.fingerprints.shape(golden_row))
        if row_values_agree(target.fingerprints, target_row, golden.fingerprints, golden_row):
            score += worth * float(
                same_values(target.fingerprints, [target_row], golden.fingerprints, [golden_row])[0, 0]
            )
            same_output = worth == _EQUAL_MODULE_OUTPUT
    return score, same_output
