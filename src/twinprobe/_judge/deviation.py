"""How far apart a pair of recorded values is, in one number and one word."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import canonicals, dims, epsilons
from twinprobe._judge.flow import NONE, Flow
from twinprobe._judge.operations import Family, is_smooth, operation_of, orders
from twinprobe._measure.sketch import Estimate, estimate_pairs
from twinprobe._measure.statistics import MINUS_INF, NAN, NUMBER, PLUS_INF, SAME, StatDifference
from twinprobe._runs.names import FORWARD, FORWARD_CALL, FUNCTION_OF_ROW
from twinprobe._runs.table import GRADIENT, INPUT, NULL, OUTPUT, STATS, TENSOR, TEXT, VALUE

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._runs.run import Run

# The state of a row. UNKNOWN: both sides exist, but nothing that could be compared was recorded.
UNMATCHED, UNKNOWN, IDENTICAL, ROUNDING, DIFFERS = range(5)

# Outputs of matrix products, as functions and as modules; a type that fewer of them have is an exception.
_PRODUCT = rf"(?i)(linear|mm|matmul|matmul__|einsum|conv\w*|dense|lstm|gru|rnn|attention){FORWARD_CALL}\.output"
_USUAL = 0.3
PRODUCT_PRECISION = "product_precision"  # a setting of what optimizers saw: the epsilon of the step's matrix products
# The same, by the paths of parameters: the share of a gradient's elements that are nothing but rounding.
SILENT = "silent"
ADAPTIVE_RATE = "adaptive_rate"  # a setting: the rate of an optimizer that divides by a gradient's size (Adam)
ONE_PROCESS = "one_process"  # a setting: 1 where that is the rate of a run that was not put together from ranks
_MANY = 64  # elements of a size: rounding a single one that outweighs the others would change the norm as well

# Of a plain number. A rate that is computed otherwise differs in the last digits of float64; one that is read off a
# tensor (an update's size, as Adafactor and clipping do) is as far off as float32 rounds over a few operations.
_LAST_DIGITS = 64 * 2.0**-23
WILD = 1e3  # stands for an error without a size: NaN, infinity, another shape
COARSE = 2.0**-12  # epsilons above this are those of 16-bit types

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass
class Deviation:
    """Per row: the state, the relative error (NaN where there is none), and whether NaN or inf stand alone."""

    state: NDArray[np.uint8]
    error: Floats
    nonfinite: Bools


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
            seen = r"^Optimizer\.(total_norm\.|.+\.input\.0$)" if run.step == 0 else r"^Optimizer\."
            widened = bools(self.pairs["t_name"].str.contains(seen))
            coarser[widened] = np.maximum(coarser[widened], run.settings[PRODUCT_PRECISION])
        return coarser

    def _unpaired_precision(self, known: dict[str | None, float]) -> float:
        """The epsilon of most matrix products where none has a counterpart, 0 where some do: a model as a whole, which
        shows no products, is compared with the calls inside it."""
        named = {side: bools(self.pairs[f"{side}_name"].str.contains(_PRODUCT)) for side in "tg"}
        if (named["t"] & named["g"] & self.matched).any() or not (named["t"] | named["g"]).any():
            return 0.0
        usual = [product_types(self.pairs[f"{side}_name"], self.pairs[f"{side}_dtype"]) for side in "tg"]
        return max((known[dtype] for types in usual for dtype in types), default=0.0)


def product_types(names: pl.Series, dtypes: pl.Series) -> list[str]:
    """The types in which most matrix products are computed; ``dtypes`` are those of the values with these names."""
    products = dtypes.filter(names.str.contains(_PRODUCT).fill_null(value=False))
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


_UNFILLED = 1e-3, 16.0  # what is left beside infinities: a share, or so many epsilons
_FILL, _OUTSTANDING = -9e3, 100.0  # a mask's fill value: this low, and so many times as far out as the largest value


@dataclass
class Values:
    """What is known of the values of each row."""

    error: Floats  # relative
    distance: Floats  # absolute: the norm of the difference
    norm: Floats
    rms: Floats
    elements: Floats
    epsilon: Floats
    mean: Floats
    masked: Bools
    grain: Floats  # the coarsest epsilon met so far, in the order of the run


def values_of(pairs: pl.DataFrame, flow: Flow, error: Floats, epsilon: Floats) -> Values:
    """Read what was recorded of each row; ``error`` and ``epsilon`` are relative."""
    own, norm = (np.abs(pairs[f"{side}_norm"].to_numpy().astype(np.float64)) for side in "tg")
    norm = np.where(pairs["g_row"].is_null().to_numpy(), own, norm)  # what one run alone has is as large as it is there
    high, low, mean = (pairs[f"g_{stat}"].to_numpy().astype(np.float64) for stat in ("max", "min", "mean"))
    amplitude = np.fmax(*(np.where(np.isfinite(stat), np.abs(stat), np.nan) for stat in (high, low)))
    elements = np.maximum(flow.elements[1], flow.elements[0])
    order = np.lexsort((np.arange(len(epsilon)), np.maximum(flow.of_row, 0)))
    grain = np.empty_like(epsilon)
    grain[order] = np.maximum.accumulate(np.fmax(epsilon[order], 2.0**-52))
    with np.errstate(invalid="ignore", over="ignore"):
        unknown = ~np.isfinite(norm)
        # Of a tensor that has elements alone and no statistics, the relative error is known; any size will do.
        amplitude = np.where(np.isnan(amplitude) & np.isfinite(error), 1.0, np.nan_to_num(amplitude))
        norm = np.where(unknown, amplitude * np.sqrt(elements), norm)
        rms = norm / np.sqrt(np.maximum(elements, 1))
        # An error against nothing: the target's own size is the distance.
        distance = np.where(np.isfinite(error), error * norm, np.where(np.isnan(error), np.nan, np.fmax(own, norm)))
        # Fill values of masks say nothing about the rest; what is judged is the softmax behind them. Sketches and
        # tensors' errors leave infinities out, but nobody knows how large the rest is: noise takes it no further.
        filled = [pairs[f"{side}_min"].to_numpy() for side in "tg"]
        masked = (filled[0] <= _FILL) & (filled[1] <= _FILL) & (filled[1] < -_OUTSTANDING * np.abs(high))
        masked &= (
            np.isfinite(filled[1]) | ~np.isfinite(error) | (error <= np.maximum(_UNFILLED[0], _UNFILLED[1] * grain))
        )
        distance = np.where(masked & (error != 0), np.nan, distance)
        top = np.where(high == 0, 1.0, np.abs(high))  # of what is not masked; logarithms of a mask end at 0
        norm = np.where(masked, np.fmin(np.where(norm > 0, norm, np.inf), top * np.sqrt(elements)), norm)
        distance = np.where(
            np.isposinf(error) & ~masked & ~np.isfinite(distance), np.finfo(np.float64).max ** 0.25, distance
        )
    return Values(error, distance, norm, rms, elements, epsilon, np.nan_to_num(mean), masked & (error != 0), grain)


def behind_norms(flow: Flow, error: Floats, by_statistics: Bools) -> Floats:
    """Errors, with those that a normalisation hides from statistics.

    Whatever comes in, it gives rows of one norm and mean, and where a part of a batch is wrong, the extremes may lie in
    another. What is known of its output is the error that came in, until the next call shows what became of it.
    """
    normed = flow.each_call(lambda op: op.direction == FORWARD and operation_of(op).family == Family.NORM)
    inputs = flow.first_inputs(normed)
    came = np.zeros(len(flow.ops) + 1)
    came[flow.of_row[inputs]] = np.nan_to_num(error[inputs], posinf=0.0)
    made = by_statistics & (flow.role == OUTPUT) & flow.spread(normed) & (error != 0)
    grown = np.where(made, np.fmax(error, came[flow.of_row]), error)
    source = np.maximum(flow.source, 0)
    read = by_statistics & (flow.source != NONE) & made[source]
    hidden: Floats = np.where(read, np.fmax(grown, grown[source]), grown)
    return hidden


def flips_of(flow: Flow, values: Values, far: Bools, matched: Bools) -> Bools:
    """Whole numbers that were made of numbers with an error: a router, top-k, an argmax may flip. Not where these are
    further apart than noise comes: scores that were masked out are no longer there to choose. Among equal values a
    kernel takes any: places that differ where the values in order are the same are those of ties. What one run alone
    has has no partner to flip against."""
    unsure = np.zeros(len(flow.ops) + 1, dtype=bool)
    inputs = (flow.role == INPUT) & (flow.of_row >= 0) & (values.epsilon > 0)
    unsure[flow.of_row[inputs & (np.nan_to_num(values.error) > 0)]] = True
    unsure[flow.of_row[inputs & far]] = False
    outputs = (flow.role == OUTPUT) & (flow.of_row >= 0)
    whole = matched & outputs & (values.epsilon == 0) & (values.elements > 0)
    other = values.error != 0
    tied = np.append(flow.each_call(lambda op: op.direction == FORWARD and orders(op)), False)
    tied[flow.of_row[(flow.role == INPUT) & (values.elements > 0) & other]] = False
    differing = np.bincount(flow.of_row[outputs & other], minlength=len(tied))
    tied &= differing < np.maximum(np.bincount(flow.of_row[outputs], minlength=len(tied)), 2)
    flips: Bools = whole & (unsure | tied)[flow.of_row] & (np.nan_to_num(values.error) != 0)
    return flips


_BETWEEN = 8.0  # roundings that code between recorded calls may add


def arrived(flow: Flow, values: Values, few: Floats, nothing: Bools) -> Floats:
    """For inputs whose maker was not recorded: the error that arrived in the enclosing call so far, as a distance.

    ``few``: see ``shown_by_means``. ``nothing``: rows that are nothing but rounding, of which nothing else is made.
    """
    count = len(flow.ops)
    # What lies under a mask was not compared.
    error = np.where(values.masked, 0.0, np.nan_to_num(values.error, nan=0.0, posinf=WILD))
    error = np.fmax(error, np.divide(few, values.norm, out=np.zeros(len(few)), where=values.norm > 0))
    error[nothing] = 0.0
    outputs = (flow.role == OUTPUT) & (flow.of_row >= 0)
    inputs = (flow.role == INPUT) & ~flow.parameter & (flow.of_row >= 0)
    given, entered = np.zeros(count), np.zeros(count)
    np.maximum.at(given, flow.of_row[outputs], error[outputs])
    np.maximum.at(entered, flow.of_row[inputs], error[inputs])
    # A call that only one run makes hands on what its parts gave, and what arrived there arrived around it.
    known = ~np.isnan(values.error)
    unseen, closed = np.ones((2, count), dtype=bool)
    unseen[flow.of_row[outputs & known]] = False
    closed[flow.of_row[inputs & known]] = False
    inner = np.flatnonzero(flow.parent >= 0)
    for call in inner[unseen[flow.parent[inner]]].tolist():
        given[flow.parent[call]] = max(given[flow.parent[call]], given[call])
    so_far = np.zeros(count)
    order = np.lexsort((flow.start, -flow.parent))  # calls around others end after them
    owner = flow.parent[order]
    edges = np.flatnonzero(np.diff(owner, prepend=owner[:1] - 1)).tolist() if count else []
    scopes = list(zip(edges, [*edges[1:], count], strict=True))
    for begin, end in scopes[-1:] + scopes[:-1]:  # what nothing is around comes last, and is needed first
        members = order[begin:end]
        around = int(owner[begin])
        arrived = 0.0 if around == NONE else so_far[around] if closed[around] else entered[around]
        reached = np.maximum.accumulate(np.concatenate(([arrived], given[members])))
        so_far[members] = reached[:-1]
    # A gradient that comes from a loss nobody recorded is made of what the forward call gave.
    so_far = np.where(flow.twin != NONE, np.fmax(so_far, given[np.maximum(flow.twin, 0)]), so_far)
    distance: Floats = np.where(flow.of_row >= 0, so_far[np.maximum(flow.of_row, 0)], 0.0) * values.norm * _BETWEEN**0.5
    return distance


def gave_inside(flow: Flow, values: Values) -> Floats:
    """For outputs of a call that holds others: what those gave, as a distance."""
    count = len(flow.ops)
    error = np.nan_to_num(values.error, nan=0.0, posinf=WILD)
    outputs = ((flow.role == OUTPUT) | (flow.role == GRADIENT)) & (flow.of_row >= 0)
    given, held = np.zeros(count), np.zeros(count)
    np.maximum.at(given, flow.of_row[outputs], error[outputs])
    inner = np.flatnonzero(flow.parent >= 0)
    np.maximum.at(held, flow.parent[inner], given[inner])
    passed: Floats = held[np.maximum(flow.of_row, 0)] * values.norm * _BETWEEN**0.5
    return passed


def carried_state(flow: Flow, far: Bools) -> Bools:
    """What an optimiser's state holds of the noise of the steps before. Any of it may be noise, but not most of it."""
    carried = np.zeros(len(flow.role), dtype=bool)
    state = flow.first_inputs(flow.updates & flow.in_place)
    state = state[flow.source[state] == NONE]  # what no call of this step has made
    names = np.array([flow.ops[call].body for call in flow.of_row[state].tolist()])
    for name in np.unique(names):
        rows = state[names == name]
        own = rows[~flow.parameter[rows]]
        carried[rows] = len(own) == 0 or far[own].mean() <= 0.5
    return carried
