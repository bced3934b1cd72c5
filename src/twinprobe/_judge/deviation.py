"""How far apart a pair of recorded values is, in one number and one word, and what was recorded of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import all_dims, canonicals, dims, epsilons
from twinprobe._judge.operations import is_smooth
from twinprobe._judge.rules import SUSPICIOUS
from twinprobe._measure.sketch import Estimate, estimate_pairs, sketch
from twinprobe._measure.statistics import MINUS_INF, NAN, NUMBER, PLUS_INF, SAME, StatDifference
from twinprobe._runs import table as tables
from twinprobe._runs.names import FUNCTION_OF_ROW, GIVEN_OR_NORM, OPTIMIZER, PRODUCT_OUTPUT
from twinprobe._runs.sketches import ROW
from twinprobe._runs.table import NULL, STATS, TENSOR, TEXT, VALUE
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._runs.run import Run

# The state of a row. UNKNOWN: both sides exist, but nothing that could be compared was recorded.
UNMATCHED, UNKNOWN, IDENTICAL, ROUNDING, DIFFERS = range(5)

_USUAL = 0.3  # of matrix products: a type that fewer of them have is an exception
PRODUCT_PRECISION = "product_precision"  # a setting of what optimizers saw: the epsilon of the step's matrix products
# The same, by the paths of parameters: the share of a gradient's elements that are nothing but rounding.
SILENT = "silent"
ADAPTIVE_RATE = "adaptive_rate"  # a setting: the rate of an optimizer that divides by a gradient's size (Adam)
ONE_PROCESS = "one_process"  # a setting: 1 where that is the rate of a run that was not put together from ranks
_MANY = 64  # elements of a size: rounding a single one that outweighs the others would change the norm as well

_OTHERWISE = 0.3  # relative: what no rounding is
# Of a plain number. A rate that is computed otherwise differs in the last digits of float64; one that is read off a
# tensor (an update's size, as Adafactor and clipping do) is as far off as float32 rounds over a few operations.
_LAST_DIGITS = 64 * 2.0**-23
WILD = 1e3  # stands for an error without a size: NaN, infinity, another shape
COARSE = 2.0**-12  # epsilons above this are those of 16-bit types

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class Deviation:
    """Per row: the state, the relative error (NaN where there is none), and whether NaN or inf stand alone."""

    state: NDArray[np.uint8]
    error: Floats
    nonfinite: Bools


@dataclass
class Isolated:
    """What replaying calls from their own inputs has shown, by row; NaN where a row was not replayed: how far each side
    is from its own float64 reference, in epsilons and in multiples of what the operation may lose."""

    target_eps: Floats
    target_times: Floats
    golden_eps: Floats
    golden_times: Floats
    notes: list[str] = field(default_factory=list)

    def note(self, row: int, target: Any, golden: Any, *, clears: bool) -> None:
        """Keep what was found of a row: of each side an error with ``eps`` and ``times``, or None.

        ``clears``: both sides made the same call, so that healthy results on both sides explain all that differs.
        """
        known = [error for error in (target, golden) if error is not None]
        counts = clears or any(error.times > SUSPICIOUS for error in known)
        for error, eps, times in (
            (target, self.target_eps, self.target_times),
            (golden, self.golden_eps, self.golden_times),
        ):
            if error is not None:
                eps[row] = error.eps
                times[row] = error.times if counts else np.nan

    @property
    def times(self) -> Floats:
        """How far off the worse side is by itself; where both are off alike, the runs do not part.

        Nothing is known of a call with a healthy side where the other could not be replayed.
        """
        worse = np.fmax(self.target_times, self.golden_times)
        with np.errstate(invalid="ignore"):
            better = np.minimum(self.target_times, self.golden_times)
            alike = np.where(np.isfinite(better), np.maximum(better - 1.0, 0.0), 0.0)
            unsure = np.isnan(better) & (worse <= SUSPICIOUS)
        apart: Floats = np.where(unsure, np.nan, worse - alike)
        return apart


def by_sketches(target: Run, golden: Run, pairs: pl.DataFrame) -> Estimate | None:
    """How far apart the tensors of each pair are by their sketches; None where a run has none.

    Says nothing of pairs that are laid out differently: a sketch tells elements apart by their place.
    """
    found = estimate_pairs(target.sketches, golden.sketches, pairs["t_row"].to_numpy(), pairs["g_row"].to_numpy())
    if found is None:
        return None
    other = turned(pairs) | (bools(pairs["joined"]) if "joined" in pairs.columns else False)
    relative, lower, upper, worst, noisy = (np.where(other, np.nan, part) for part in (*found[1:5], found.noisy))
    block = np.where(other, -1, found.block)
    return Estimate(found.comparable & ~other, relative, lower, upper, worst, block, found.refilled, noisy)


def of_statistics(
    pairs: pl.DataFrame,
    differences: dict[str, StatDifference],
    rounding: float | None,
    estimate: Estimate | None = None,
) -> Deviation:
    """Judge rows by their recorded statistics, and by their sketches where both sides have one.

    By statistics, the error is the largest of the norm's relative error and the differences of max, min and mean
    measured against the golden tensor's amplitude, so that a value near zero is no alarm and a flipped sign is. A
    sketch gives the norm of the difference itself: two tensors with equal statistics may be 141 % apart.
    """
    rows = Rows(pairs)
    amplitudes = [np.fmax(np.abs(rows.number(side, "max")), np.abs(rows.number(side, "min"))) for side in "gt"]
    # Of a sum over golden's ranks only the mean may be known: the target's amplitude stands in.
    amplitude = np.where(np.isnan(amplitudes[0]), amplitudes[1], amplitudes[0])
    error = np.full(pairs.height, np.nan)
    for stat, difference in differences.items():
        scale = np.abs(rows.number("g", "norm")) if stat == "norm" else amplitude
        known = (difference.case == NUMBER) | (difference.case == SAME)
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.where(difference.case == SAME, 0.0, np.abs(difference.diff))
            share = np.where(gap == 0, 0.0, gap / scale)
        error = np.where(known & ~rows.blank(stat), np.fmax(error, share), error)
    nothing = np.all([rows.blank(stat) for stat in STATS], axis=0) & rows.tensor & ~rows.empty()
    all_same: Bools = np.all([difference.case == SAME for difference in differences.values()], axis=0) & ~nothing
    if estimate is None:
        return _settle(rows, error, _nonfinite(differences, rows), rounding, all_same=all_same)
    # Sums that were added up in another order differ in their last digits: only what is surely there counts.
    differs = estimate.comparable & (estimate.lower > 0)
    worst = np.where(estimate.comparable, np.fmax(error, estimate.relative), error)
    deviation = _settle(rows, worst, _nonfinite(differences, rows), rounding, all_same=all_same & ~differs)
    shown = estimate.comparable & rows.tensor & (deviation.state != IDENTICAL)
    deviation.error = np.where(shown, estimate.relative, deviation.error)
    return deviation


def of_digests(pairs: pl.DataFrame) -> Deviation:
    """Judge rows by their checksums: equal or not."""
    rows = Rows(pairs)
    t, g = (pairs[f"{side}_digest"].fill_null(pairs[f"{side}_value_digest"]) for side in "tg")
    both = (t.is_not_null() & g.is_not_null()).to_numpy() | (rows.null & rows.matched)
    equal = bools(t == g) | rows.null
    both &= equal | ~turned(pairs)  # a checksum does not survive turning
    state = np.where(~rows.matched, UNMATCHED, np.where(~both, UNKNOWN, np.where(equal, IDENTICAL, DIFFERS)))
    error = np.where(both & rows.matched, np.where(equal, 0.0, np.nan), np.nan)
    deviation = Deviation(state.astype(np.uint8), error, np.zeros(pairs.height, dtype=bool))
    _judge_values(rows, deviation)
    return deviation


class Rows:
    """Shorthand for the columns that every rule looks at."""

    def __init__(self, pairs: pl.DataFrame) -> None:
        self.pairs = pairs
        self.matched: Bools = (pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null()).to_numpy()
        self._t_kind = pairs["t_kind"].fill_null(255).to_numpy()
        self._g_kind = pairs["g_kind"].fill_null(255).to_numpy()
        self.tensor: Bools = (self._t_kind == TENSOR) & (self._g_kind == TENSOR)
        self.value: Bools = (self._t_kind == VALUE) & (self._g_kind == VALUE)
        self.null: Bools = (self._t_kind == NULL) & (self._g_kind == NULL)
        self.mixed: Bools = self.matched & (self._t_kind != self._g_kind)

    def number(self, side: str, stat: str) -> Floats:
        return self.pairs[f"{side}_{stat}"].to_numpy()

    def blank(self, stat: str) -> Bools:
        """Whether a side recorded no number for this statistic."""
        target, golden = (self.pairs[f"{side}_{stat}_kind"].fill_null(TEXT) for side in "tg")
        return bools((target == TEXT) | (golden == TEXT))

    def empty(self) -> Bools:
        """Whether the tensor has no elements."""
        return bools(self.pairs["t_shape"].str.contains(r"[\[ ]0[,\]]"))

    def moved(self, error: Floats) -> Bools:
        """Values that are far apart although their extremes, mean and norm are the same: in another order.

        No call is left out or made twice there, since it would have changed some of these.
        """
        target, golden = ([self.number(side, stat).astype(np.float64) for stat in STATS] for side in "tg")
        size = np.fmax(np.abs(golden[0]), np.abs(golden[1]))
        scales = (size, size, size, golden[3])
        with np.errstate(invalid="ignore"):
            apart = [abs(one - other) > _LAST_DIGITS * scale
                     for one, other, scale in zip(target, golden, scales, strict=True)]  # fmt: skip
            far = (error > _OTHERWISE) & (golden[3] > 0)
        found: Bools = self.tensor & self.matched & far & ~np.any(apart, axis=0)
        return found

    def epsilon(self, run: Run | None = None) -> Floats:
        """The coarser machine epsilon of the two dtypes.

        With the target's run, a few values that one run casts to a coarser type have the finer one: that is a
        difference, not what noise is. A run in mixed precision computes its matrix products in the coarser type.
        """
        sides = [self.pairs[f"{side}_dtype"] for side in "tg"]
        known = epsilons({dtype for side in sides for dtype in side.unique().to_list()})
        exact = {dtype: epsilon for dtype, epsilon in known.items() if epsilon}
        target, golden = (
            side.replace_strict(exact, default=0.0).fill_null(0.0).to_numpy().astype(np.float64) for side in sides
        )
        coarser: Floats = np.maximum(target, golden)
        for side, own, other in (("t", target, golden), ("g", golden, target)) if run is not None else ():
            odd = (own > other) & ((other > 0) | ~self.matched)
            if odd.any():
                usual = {
                    known[dtype] for dtype in product_types(self.pairs[f"{side}_name"], self.pairs[f"{side}_dtype"])
                }
                rows = odd & ~np.isin(own, list(usual)) if usual else np.zeros_like(odd)
                coarser[rows] = other[rows]
        if run is not None:
            coarser = np.where(coarser > 0, np.maximum(coarser, self._unpaired_precision(known)), coarser)
        if run is not None and run.settings.get(PRODUCT_PRECISION):
            # In mixed precision gradients are widened before optimizers get them; parameters keep what they learnt.
            names = self.pairs["t_name"].str
            widened = bools(names.contains(GIVEN_OR_NORM) if run.step == 0 else names.starts_with(OPTIMIZER))
            coarser[widened] = np.maximum(coarser[widened], run.settings[PRODUCT_PRECISION])
        return coarser

    def _unpaired_precision(self, known: dict[str | None, float]) -> float:
        """The epsilon of most matrix products where none has a counterpart, 0 where some do: a model as a whole, which
        shows no products, is compared with the calls inside it."""
        named = {side: bools(self.pairs[f"{side}_name"].str.contains(PRODUCT_OUTPUT)) for side in "tg"}
        if (named["t"] & named["g"] & self.matched).any() or not (named["t"] | named["g"]).any():
            return 0.0
        usual = [product_types(self.pairs[f"{side}_name"], self.pairs[f"{side}_dtype"]) for side in "tg"]
        return max((known[dtype] for types in usual for dtype in types), default=0.0)


def product_types(names: pl.Series, dtypes: pl.Series) -> list[str]:
    """The types in which most matrix products are computed; ``dtypes`` are those of the values with these names."""
    products = dtypes.filter(names.str.contains(PRODUCT_OUTPUT).fill_null(value=False))
    types = products.value_counts(name="count")
    usual: list[str] = types.filter(types["count"] >= _USUAL * len(products))[products.name].to_list()
    return usual


def bools(column: pl.Series) -> Bools:
    """A polars column of booleans as an array, null taken as false."""
    array: Bools = column.fill_null(value=False).to_numpy()
    return array


def dtypes_differ(pairs: pl.DataFrame) -> Bools:
    """Whether the dtypes differ in meaning, whatever a framework calls them."""
    sides = list(pairs.select("t_dtype", "g_dtype").unique().iter_rows())
    names = canonicals({dtype for both in sides for dtype in both})
    result: Bools = np.zeros(pairs.height, dtype=bool)
    for t, g in sides:
        if t is not None and g is not None and names[t] != names[g]:
            result |= bools((pairs["t_dtype"] == t) & (pairs["g_dtype"] == g))
    return result


def shapes_differ(pairs: pl.DataFrame) -> Bools:
    """Whether the recorded shapes differ, and not only in their layout."""
    return bools(pairs["t_shape"] != pairs["g_shape"]) & ~turned(pairs)


def related_shapes(pairs: pl.DataFrame) -> tuple[Bools, Bools]:
    """Of shapes that differ: recut ones, and those of which one may be a part of the other.

    Recut: as many elements lie along as many axes, cut into other lengths; axes in another order are none. A part: a
    single place along one axis, such as the scores of the last token alone, whose extremes lie within the other's.
    """
    shapes = pairs.select("t_shape", "g_shape")
    differ = pairs["t_shape"] != pairs["g_shape"]
    cut: set[tuple[str, str]] = set()
    shorter: dict[tuple[str, str], int] = {}  # which of the two is the part
    for target, golden in shapes.filter(differ).unique().iter_rows():
        one, other = dims(target), dims(golden)
        if one and other and len(one) == len(other):
            lengths = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
            if prod(one) == prod(other) and sorted(one) != sorted(other):
                cut.add((target, golden))
            elif len(lengths) == 1 and min(lengths[0]) == 1:
                shorter[target, golden] = int(np.argmin(lengths[0]))
    recut, part = np.zeros((2, pairs.height), dtype=bool)
    if cut or shorter:
        extremes = pairs.select("t_max", "g_max", "t_min", "g_min").to_numpy().astype(np.float64)
        for row in np.flatnonzero(bools(differ)).tolist():
            both = shapes.row(row)
            recut[row] = both in cut
            if both in shorter:
                high, low = extremes[row, :2], extremes[row, 2:]
                inner, outer = shorter[both], 1 - shorter[both]
                slack = _LAST_DIGITS * max(abs(high[outer]), abs(low[outer]))  # another kernel rounds otherwise
                part[row] = high[inner] <= high[outer] + slack and low[inner] >= low[outer] - slack
    return recut, part


def turned(pairs: pl.DataFrame) -> Bools:
    """Whether the target's tensor is compared after turning it to the golden layout."""
    return pairs["turn"].is_not_null().to_numpy() if "turn" in pairs.columns else np.zeros(pairs.height, dtype=bool)


def _nonfinite(differences: dict[str, StatDifference], rows: Rows) -> Bools:
    """Whether NaN or an infinity stands on one side only."""
    found: Bools = np.zeros(len(rows.matched), dtype=bool)
    # Recorders take mean and norm in the tensor's own dtype: in float16 they overflow while the tensor is finite.
    narrow = bools(
        rows.pairs["t_dtype"].str.contains("(?i)[.]?float16$") & ~rows.pairs["t_dtype"].str.contains("(?i)bf")
    )
    for stat, difference in differences.items():
        infinite = np.isin(difference.case, (PLUS_INF, MINUS_INF))
        found |= difference.case == NAN
        found |= infinite if stat in ("max", "min") else infinite & ~narrow
    return found


def _settle(rows: Rows, error: Floats, nonfinite: Bools, rounding: float | None, all_same: Bools) -> Deviation:
    with np.errstate(invalid="ignore"):
        small = error <= (rounding * rows.epsilon() if rounding else 0.0)
    state = np.full(len(error), UNKNOWN, dtype=np.uint8)
    state[~np.isnan(error)] = DIFFERS
    state[small] = ROUNDING
    state[all_same] = IDENTICAL
    error = np.where(all_same, 0.0, error)
    nonfinite = nonfinite & rows.tensor
    state[nonfinite] = DIFFERS
    state[~rows.matched] = UNMATCHED
    deviation = Deviation(state, np.where(rows.matched, error, np.nan), nonfinite)
    deviation.state[rows.tensor & shapes_differ(rows.pairs)] = DIFFERS
    _judge_values(rows, deviation)
    return deviation


def _judge_values(rows: Rows, deviation: Deviation) -> None:
    """Plain values are equal or not; a number is equal whatever Python type it has."""
    pairs = rows.pairs
    if not rows.value.any() and not rows.mixed.any():
        return
    t, g = (pairs[f"{side}_max_text"] for side in "tg")
    t_meaning, g_meaning = pairs["t_meaning"].fill_null(""), pairs["g_meaning"].fill_null("")
    equal = (t.fill_null("") == g.fill_null("")).to_numpy() & (t_meaning == g_meaning).to_numpy()
    numbers = ~rows.blank("max")
    with np.errstate(invalid="ignore"):
        t_number, g_number = rows.number("t", "max"), rows.number("g", "max")
        same_number = np.isclose(t_number, g_number, rtol=_LAST_DIGITS, atol=0.0, equal_nan=True)
        same_number &= (t_number == g_number) | (t_number % 1 != 0)
    equal = np.where(numbers, same_number, equal) | devices(pairs)
    deviation.state[rows.value] = np.where(equal, IDENTICAL, DIFFERS)[rows.value]
    deviation.state[rows.mixed] = UNKNOWN
    deviation.error[rows.value | rows.mixed] = np.nan


def devices(pairs: pl.DataFrame) -> Bools:
    """Whether both values name a device: two runs on two devices are no difference."""
    pattern = r"^(npu|cpu|cuda|gpu|xpu|mps)(:\w+)?$"
    target, golden = (bools(pairs[f"{side}_max_text"].str.contains(pattern)) for side in "tg")
    return target & golden


def of_tensors(pairs: pl.DataFrame, metrics: pl.DataFrame, recorded: Deviation, rounding: float | None) -> Deviation:
    """Judge rows by their tensors' elements; where no tensor was kept or can be read, by the recorded statistics."""
    rows = Rows(pairs)
    measured = metrics["status"].is_in(["ok", "scalar", "N/A"]).to_numpy() & rows.tensor
    nonfinite = np.where(measured, metrics["nonfinite"].to_numpy(), recorded.nonfinite)
    error = np.where(measured, metrics["relative_norm"].to_numpy(), recorded.error)
    state = recorded.state.copy()
    with np.errstate(invalid="ignore"):
        small = error <= (rounding * rows.epsilon() if rounding else 0.0)
    state[measured] = np.where(small, ROUNDING, DIFFERS)[measured]
    state[measured & metrics["identical"].to_numpy()] = IDENTICAL
    state[measured & nonfinite] = DIFFERS
    differ = rows.tensor & (metrics["status"] == "shape unmatched").to_numpy()
    state[differ | (rows.tensor & shapes_differ(pairs))] = DIFFERS
    return Deviation(state.astype(np.uint8), error, nonfinite)


def aligned(pairs: pl.DataFrame, error: Floats, epsilon: Floats) -> Bools:
    """Rows whose whole error is a factor, and more than a scalar's rounding. Independent errors change the norm by
    their size over the square root of the number of elements."""
    target, golden = (pairs[f"{side}_norm"].to_numpy().astype(np.float64) for side in "tg")
    largest = np.fmax(*(np.abs(pairs[f"g_{stat}"].to_numpy().astype(np.float64)) for stat in ("max", "min")))
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.abs(target / golden - 1) > 0.8 * error
        factor: Bools = whole & (golden**2 > _MANY * largest**2) & (error > 2 * epsilon)
    return factor


def other_function(pairs: pl.DataFrame) -> tuple[Bools, Bools]:
    """Rows of calls that go by another name in the golden run; and those of them where both are smooth functions."""
    other = bools(pairs["t_name"] != pairs["g_name"])
    if not other.any():
        return other, other.copy()
    rows = np.flatnonzero(other)
    names = [pairs[f"{side}_name"].gather(rows).str.extract(FUNCTION_OF_ROW) for side in "tg"]
    renamed = bools(names[0] != names[1])
    alike = renamed.copy()
    for side in names if renamed.any() else ():
        known = {name: is_smooth(name) for name in side.filter(renamed).unique().to_list()}
        alike &= bools(side.replace_strict(known, default=False))
    smooth = other.copy()
    other[rows], smooth[rows] = renamed, alike
    return other, smooth


# What two runs recorded of the call at which they part and of what is near it, as the rules of kinds read it.

_MOST_BYTES = 1 << 27  # of kept tensors that are sketched to find a value that went elsewhere
_NEARBY = 400  # rows before and after: a layer of a transformer with its functions


@dataclass(frozen=True, slots=True)
class Kind:
    """One answer, stated only where it holds."""

    name: str  # one of those that docs/metrics.md lists
    sentence: str
    confidence: float
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Side:
    """What one run recorded of a value. None where it did not."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    max: float | None = None
    min: float | None = None
    mean: float | None = None
    norm: float | None = None
    value: str | None = None  # the text of a plain argument: a number, a flag, a string, None
    sketch: NDArray[Any] | None = None  # 64 signed sums: of 16 blocks, four each
    l1: float | None = None
    zeros: int | None = None  # how many elements are zero
    not_finite: int | None = None  # how many elements are NaN or infinite
    stored: NDArray[Any] | None = None  # the sketch of a tensor that is compared in another order than it is stored in


INPUT, PARAMETER, OUTPUT, GRADIENT = "input", "parameter", "output", "gradient"


@dataclass(frozen=True, slots=True)
class Row:
    """A value of the call in both runs."""

    name: str  # as a user knows it: ``scale``, ``input.0``, ``weight``
    role: str  # INPUT, PARAMETER, OUTPUT or GRADIENT (of a parameter, or what a backward call hands on)
    target: Side | None
    golden: Side | None
    expected: float = 0.0  # the relative error that noise explains


@dataclass(frozen=True, slots=True)
class Suspect:
    """The call at which the runs part, with all that is known of it."""

    name: str  # the call's full name, as in the dump
    rows: Sequence[Row]
    presence: str = "both"  # both, target (an extra call) or golden (a missing one)
    parameters: Sequence[tuple[str, Side]] = ()
    """All parameters of the golden run, and of its other ranks, with full names: to find one that was exchanged."""
    own: Sequence[tuple[str, Side]] = ()
    """Those of the target run: what one layer holds here, a layer inside of it may hold there."""
    tensors: Sequence[tuple[str, Side]] = ()
    """Tensors of the golden run near this call, nearest first: one of them may be the difference, or what came in."""
    counts: Mapping[str, int] = field(default_factory=dict)  # that a factor may come from: ``{"world size": 8}``
    unpaired: Sequence[str] = ()
    """Calls near this one that only the other run makes, by name: then a call was replaced, or moved."""
    from_outside: bool = False  # the inputs that differ come from no recorded call: the batch, a mask, a state
    begun: bool = False  # something was computed before: a call that only moves values may have made them
    place: str = ""  # the path of the enclosing module, or ``optimizer``
    kept: str = ""  # what speaks for the gradient of an earlier pass in what an optimiser reads


def shown_value(row: dict[str, Any], side: str) -> str:
    """One side of a row in words: a plain value, or the shape of a tensor."""
    text, number = row[f"{side}_max_text"], row[f"{side}_max"]
    if row[f"{side}_kind"] == TENSOR:
        return f"a tensor {row[f'{side}_shape']}"
    return str(text if text is not None else row[f"{side}_meaning"] or (f"{number:.6g}" if number is not None else "-"))


def sketches_of(run: Run, pairs: Any, side: str, rows: list[int], *, kept: bool = False) -> Any:
    """The sketches of one side of these rows, or of tensors that were ``kept`` instead; None where there are none."""
    wanted = pairs[f"{side}_row"].gather(rows).fill_null(-1).to_numpy()
    if run.sketches is None and not kept:
        return None
    return _of_tensors(run, wanted.tolist()) if run.sketches is None else run.sketches.of(wanted)


def _of_tensors(run: Run, rows: Sequence[int]) -> Any:
    """The sketches of tensors that a run has kept, of the first of them where these are large."""
    found, left, files = np.zeros(len(rows), ROW), _MOST_BYTES, run.table["file"]
    for place, row in enumerate(rows):
        file = files[row] if row >= 0 and left > 0 else None
        if file is not None:
            with suppress(TwinProbeError, OSError):
                tensor = run.load(file)
                left -= tensor.data.nbytes
                found[place] = sketch(tensor)[0]
    return found


def side_of(row: dict[str, Any], side: str, sketches: Any, number: int) -> Side | None:
    """One side of a row, with the sketch at this place; None where that run has no such value."""
    if row[f"{side}_row"] is None:
        return None
    kind, facts = row[f"{side}_kind"], dict[str, Any]()
    if kind == TENSOR:
        facts = {stat: row[f"{side}_{stat}"] for stat in STATS}
        single = ";" not in str(row[f"{side}_name"])  # several tensors compared as one have no sketch of their own
        if sketches is not None and sketches["flags"][number] and single:
            found = sketches[number]
            facts |= {"zeros": int(found["zeros"]), "not_finite": int(found["nan"] + found["inf"])}
            # A sketch tells elements apart by their place.
            facts["sketch" if row.get("turn") is None else "stored"] = found["sums"]
            if not facts["not_finite"] and found["count"] and "float" in str(row[f"{side}_dtype"]).lower():
                # Of 16-bit tensors, dump.json has three digits.
                facts |= {"l1": float(found["l1"]), "norm": float(found["norm"]),
                          "mean": float(found["total"] / found["count"])}  # fmt: skip
    elif kind == VALUE:
        facts = {"value": shown_value(row, side)}
    shape = dims(row[f"{side}_shape" if row.get("turn") is None else "g_shape"]) or ()  # as it is compared
    return Side(dtype=str(row[f"{side}_dtype"] or ""), shape=shape, **facts)


def parameters_of(run: Run) -> list[tuple[str, Side]]:
    """All parameters of a run, by their full names."""
    import polars as pl

    table = run.table.with_row_index("at").filter((pl.col("role") == tables.PARAMETER) & (pl.col("kind") == TENSOR))
    known = all_dims(table["shape"].unique().to_list())
    rows = table["at"].to_numpy().astype(np.int64)
    sketches = (
        [row["sums"] if row["flags"] else None for row in run.sketches.of(rows)] if run.sketches else [None] * len(rows)
    )
    wanted = table.select("name", "dtype", "shape", *STATS).iter_rows()
    return [
        (name, Side(str(dtype or ""), known[shape] or (), **dict(zip(STATS, stats, strict=True)), sketch=sketch))
        for (name, dtype, shape, *stats), sketch in zip(wanted, sketches, strict=True)
    ]


def nearby_of(run: Run, row: dict[str, Any], *, kept: bool) -> list[tuple[str, Side]]:
    """Other tensors of the same shape around a row of a run, nearest first."""
    import polars as pl

    at = row["g_row"]
    # The pieces of some values fit no shape.
    if at is None or row["g_shape"] is None or (run.sketches is None and not kept):
        return []
    first = max(0, at - _NEARBY)
    table = run.table.slice(first, 2 * _NEARBY).with_row_index("at", first)
    known = all_dims([row["g_shape"], *table["shape"].unique().to_list()])
    # The axes of what one run turns before it reads it are in another order.
    sizes = sorted(known[row["g_shape"]] or ())
    turned = [text for text, shape in known.items() if sorted(shape or ()) == sizes]
    table = table.filter((table["kind"] == TENSOR) & table["shape"].is_in(turned) & (table["at"] != at))
    table = table.sort((table["at"].cast(pl.Int64) - at).abs(), maintain_order=True)
    rows = table["at"].to_numpy().astype(np.int64)
    sketches = _of_tensors(run, rows.tolist()) if run.sketches is None else run.sketches.of(rows)
    columns = table.select("name", "dtype", "shape", *STATS).iter_rows()
    return [
        (name, Side(str(dtype or ""), known[text] or (), **dict(zip(STATS, stats, strict=True)), sketch=own["sums"]))
        for (name, dtype, text, *stats), own in zip(columns, sketches, strict=True)
        if own["flags"]
    ]


def sizes_of(run: Run) -> dict[str, int]:
    """The sizes of a parallel layout, which a factor may be."""
    return {f"{name} ranks": int(size) for name, size in re.findall(r"(\w+)=(\d+)", run.arrangement)}
