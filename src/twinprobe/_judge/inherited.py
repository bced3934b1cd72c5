"""What a call inherits: how far off its inputs are already, and what training makes of rounding.

In training, parameters drift apart, and adaptive optimizers make whole steps of noise.
Adam and its kin divide a gradient by its own size: an update is u = rate * m / (sqrt(v) + eps), which is the rate times
a sign as long as m and v follow one gradient. So u hardly depends on how large the gradient g is, and an error e of g
changes nothing where abs(g) is larger than abs(e). Where it is not, the sign itself is noise: each run moves the
element by up to the rate, and the runs end up to two rates apart. If that happens to a share s of n elements, the
updates are 2 * rate * sqrt(s * n) apart (``whole_steps``), and as much again after each further step.

Around zero the elements of a gradient are spread about as evenly as its size suggests, so s is about the relative error
of the gradient. To this come elements that are zero in theory, a bias that a normalisation takes off again or the keys'
bias, as far as sketches or the gradient's size show them, and those no larger than a difference of eps. All allowances
for such optimizers are this one, with the share that is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._judge.deviation import SILENT, WILD, Bools, Floats, Ints, bools
from twinprobe._judge.flow import NONE, Flow
from twinprobe._judge.operations import ROUGH_EXP, Family, operation_of, orders, softened
from twinprobe._runs.names import (
    ADAPTIVE,
    BACKWARD,
    FORWARD,
    GRADIENTS,
    LISTS,
    OPTIMIZER,
    RUNNING_MEAN,
    RUNNING_VARIANCE,
)
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, POINT, STATS, VALUE

if TYPE_CHECKING:
    import polars as pl


ROUNDING = 0.21  # of an epsilon: one rounding of every element, in relative norm
THROUGH_DERIVATIVES = 3.0  # gradients pass through derivatives that no dump holds
FLOAT32 = 2.0**-23
# Of all gradients together: one that is no larger is zero in theory, and nothing but rounding.
NOTHING = 16.0 * FLOAT32
FAR, FAR_LEAST = 8.0, 1e-3  # beyond so many times what a healthy run gathers, and this share, it is no noise
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
    # What one run alone has is as large as it is there, and filled as it is there.
    alone = {"t": pairs["t_row"].is_null().to_numpy(), "g": pairs["g_row"].is_null().to_numpy()}
    norm = np.where(alone["g"], own, norm)
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
        filled, tops = (
            [pairs[f"{side}_{stat}"].to_numpy().astype(np.float64) for side in "tg"] for stat in ("min", "max")
        )
        filled = [np.where(alone["t"], filled[1], filled[0]), np.where(alone["g"], filled[0], filled[1])]
        high = np.where(alone["g"], tops[0], high)
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
_ROUGH = 2.0**-17  # relative: 64 epsilons of float32, where an exp between them is an approximation


def arrived(flow: Flow, values: Values, few: Floats, nothing: Bools, settings: dict[str, Any]) -> Floats:
    """For inputs whose maker was not recorded: the error that arrived in the enclosing call so far, as a distance.

    ``few``: see ``shown_by_means``. ``nothing``: rows that are nothing but rounding, of which nothing else is made.
    With ``settings`` that say so, code between modules may have taken an exp that one run approximates.
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
    given[flow.each_call(lambda op: LISTS in op.body)] = 0.0  # how far off one element is says nothing of the others
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
    hidden = settings.get(ROUGH_EXP) and all(op.is_module for op in flow.ops if op.direction == FORWARD)
    return np.fmax(distance, _ROUGH * values.norm) if hidden else distance


def came_in(flow: Flow, values: Values, between: Floats) -> Floats:
    """How far off inputs were where they were made, as a distance, or else what arrived around them (``between``)."""
    source = np.maximum(flow.source, 0)
    with np.errstate(invalid="ignore", divide="ignore"):  # an optimizer's gradients may have lost a scale since
        ratio = np.where(flow.updates[np.maximum(flow.of_row, 0)], values.norm / values.norm[source], 1.0)
    made = values.distance[source] * np.where(np.isfinite(ratio), ratio, 1.0)
    # Nothing before explains a parameter, nor a value that was saved by itself.
    alone = (flow.parameter & (flow.source == NONE)) | (flow.role == POINT)
    return np.where(alone, 0.0, np.where(flow.source != NONE, made, between))


def of_parts(flow: Flow, values: Values, allowed: Floats, rounding: Floats) -> Floats:
    """What is allowed to outputs of calls that hold others: these pass on what their parts made.

    Where golden's call hands on the result of a part as it is, nothing is computed any more: it may be as far off as
    that part is or may be, whatever else went into the call. ``rounding``: one, as a distance.
    """
    count = len(flow.ops)
    error = np.nan_to_num(values.error, nan=0.0, posinf=WILD)
    outputs = ((flow.role == OUTPUT) | (flow.role == GRADIENT)) & (flow.of_row >= 0)
    given, held = np.zeros(count), np.zeros(count)
    np.maximum.at(given, flow.of_row[outputs], error[outputs])
    inner = np.flatnonzero(flow.parent >= 0)
    np.maximum.at(held, flow.parent[inner], given[inner])
    passed = held[np.maximum(flow.of_row, 0)] * values.norm * _BETWEEN**0.5
    explained: Floats = np.where(outputs & ~flow.leaf[np.maximum(flow.of_row, 0)], np.fmax(allowed, passed), allowed)
    forward = flow.spread(flow.each_call(lambda op: op.direction == FORWARD))
    rows = np.flatnonzero((flow.role == OUTPUT) & forward & (flow.elements[1] > 1) & np.isfinite(values.distance))
    rows = rows[np.lexsort((flow.of_row[rows], flow.marks[1][rows]))]
    part, whole = rows[:-1], rows[1:]
    handed_on = (flow.marks[1][part] == flow.marks[1][whole]) & (flow.of_row[part] < flow.of_row[whole])
    handed_on &= flow.of_row[part] >= flow.start[flow.of_row[whole]]
    part, whole = part[handed_on], whole[handed_on]
    off = np.fmax(values.distance[part], explained[part])
    explained[whole] = np.fmin(explained[whole], np.hypot(off, rounding[whole]))
    return explained


_DIVIDES, _USUAL_STEP = "addcdiv", 1e-2
_ADAPTS = re.compile(rf"(?i)\.{ADAPTIVE}$")
_FEW_UPDATES = 0.25  # of those that an optimizer makes: what is wrong with it shows in more of them


def whole_steps(rate: Any, elements: Any, share: Any) -> Floats:
    """How far apart noise leaves an update of so many elements, of which it moves this share, as a distance."""
    with np.errstate(over="ignore"):
        apart: Floats = 2 * rate * np.sqrt(np.minimum(share, 1.0) * elements)
    return apart


@dataclass
class Updates:
    """The calls that make updates: of adaptive optimizers, how far they go with a gradient that is noise."""

    rate: Floats
    """Per call of optimizer.json: the rate, 0 where the optimizer does not adapt."""
    divides: Bools
    """Recorded functions that divide a first by a second moment."""
    step: Floats
    """Of these, the largest plain number given: the rate over the first moment's share."""
    whole: Bools
    """Of these, the ones that add the quotient itself: RMSprop, into its momentum."""
    silent: Floats
    """Per call of optimizer.json: the share of the gradient that is known to be rounding, by other ranks' sketches."""
    noisy: Floats
    """The same by this run's sketches; NaN where there are none."""
    softened: Floats
    """By how much another formula of Adam adds another eps."""

    def flipped(self, calls: Ints, error: Floats, rms: Floats, elements: Floats) -> Floats:
        """How far updates in optimizer.json are apart whose gradients have these relative errors and sizes."""
        beside = np.divide(self.softened[calls], rms, out=np.zeros(len(calls)), where=rms > 0)
        share = np.fmax(error, self.noisy[calls]) + beside + self.silent[calls]
        return whole_steps(self.rate[calls], elements, share)

    def quotient(self, calls: Ints, ratio: Floats, elements: Floats) -> Floats:
        """How far apart a recorded division may be: nothing is known of its moments' elements, so all of them.

        ``ratio``: the size of the first operand in units of the second.
        """
        return whole_steps(self.step[calls] * np.maximum(np.where(self.whole[calls], 0.0, 1.0), ratio), elements, 1.0)

    def of_vectors(self, pairs: pl.DataFrame, flow: Flow, values: Values, allowed: Floats) -> Floats:
        """What is allowed, with how far a few vectors in optimizer.json may be off where no sketches tell.

        A shift that something later takes off again has no gradient in theory. Such shifts are biases, or parts of
        them (the keys in a fused bias); no statistic tells which part. A matrix is no shift, and what is wrong with
        an optimizer shows in more of its updates.
        """
        call = np.maximum(flow.of_row, 0)
        adapted = (self.rate[call] > 0) & np.isnan(self.noisy[call]) & (flow.of_row >= 0) & (values.epsilon > 0)
        updated = adapted & (flow.role == OUTPUT)
        off = updated & (values.distance > allowed)
        noisy = (values.error[adapted & (flow.role == INPUT)] > 0).any()
        if not off.any() or not noisy or off.sum() > _FEW_UPDATES * updated.sum():
            return allowed
        before = np.zeros(len(flow.ops), dtype=np.int64)
        held = np.flatnonzero(adapted & (flow.role == PARAMETER))
        before[flow.of_row[held]] = held
        still = [
            np.all([pairs[f"{side}_{stat}"].to_numpy() == pairs[f"{side}_{stat}"].to_numpy()[before[call]]
                    for stat in STATS], axis=0) for side in "tg"
        ]  # fmt: skip
        off &= (still[0] == still[1]) & ~bools(pairs["g_shape"].str.contains(",", literal=True))
        return np.where(off, np.fmax(allowed, whole_steps(self.rate[call], values.elements, 1.0)), allowed)


def updates_of(
    pairs: pl.DataFrame, flow: Flow, first: Ints, noisy: Floats | None, settings: Mapping[str, Any]
) -> Updates:
    """Read the calls that make updates. ``first``: each call's first operand, a row; ``noisy``: see ``Estimate``."""
    count = len(flow.ops)
    divides = flow.updates & flow.each_call(lambda op: _DIVIDES in op.body)
    step, whole, rate = np.zeros(count), np.zeros(count, dtype=bool), np.zeros(count)
    if divides.any():
        plain = np.flatnonzero(bools(pairs["t_kind"] == VALUE) & (flow.of_row >= 0))
        number = np.nan_to_num(np.abs(pairs["t_max"].to_numpy().astype(np.float64)))
        np.maximum.at(step, flow.of_row[plain], number[plain])
        step = np.fmax(step, step[flow.whole]) if len(flow.whole) else step  # one number for all elements of a list
        whole = divides & (step == 0) & ~flow.each_call(lambda op: LISTS in op.body)
        step = np.where(step > 0, step, np.where(whole, 1.0, _USUAL_STEP))
    adapts = flow.each_call(lambda op: op.text.startswith(OPTIMIZER) and bool(_ADAPTS.search(op.body)))
    if adapts.any():
        given = np.flatnonzero(bools(pairs["t_name"].str.ends_with(".lr")))
        rate[flow.of_row[given]] = np.nan_to_num(pairs["t_max"].to_numpy().astype(np.float64)[given])
        rate = np.where(adapts, rate, 0.0)
    known: dict[str, float] = settings.get(SILENT) or {}
    silent: Floats = flow.each_call(lambda op: known.get(op.body.rpartition(".")[0], 0.0), np.float64)
    shares = np.full(count, np.nan) if noisy is None else np.where(first != NONE, noisy[first], np.nan)
    return Updates(rate, divides, step, whole, silent, shares, softened(pairs, flow.of_row, count))


def of_running_statistics(pairs: pl.DataFrame, flow: Flow, values: Values, gathered: Floats) -> Floats:
    """How far the running statistics of a normalisation may be off, as a distance: as far as what they average, where a
    bias before it drifts. A mean may be nothing but the rounding of that, behind another normalisation say."""
    mean, variance = (
        bools(pairs["t_name"].str.contains(name)) & (flow.role == INPUT) & (flow.of_row >= 0)
        for name in (RUNNING_MEAN, RUNNING_VARIANCE)
    )
    variance &= bools(pairs["t_dtype"] == pairs["g_dtype"])  # Paddle's is of the samples
    first = flow.first_inputs(np.isin(np.arange(len(flow.ops)), flow.of_row[mean | variance]))
    error, rms = np.zeros((2, len(flow.ops) + 1))
    error[flow.of_row[first]] = np.hypot(np.nan_to_num(values.error[first], posinf=1.0), gathered[first])
    rms[flow.of_row[first]] = np.nan_to_num(values.rms[first])
    size = np.where(mean, np.fmax(rms[flow.of_row] * np.sqrt(values.elements), values.norm), 2 * values.norm)
    return np.where(mean | variance, error[flow.of_row] * size, 0.0)


def shown_by_gradients(flow: Flow, values: Values, first: Ints, given: Ints) -> Floats:
    """Per call: how many times its relative error grows, as the gradient did on its way back through it.

    A channel that hardly varies is divided by next to nothing when it is normalised, and no number of the whole tensor
    tells. ``first`` and ``given`` are the first input and output of each call.
    """
    steep = np.ones(len(flow.ops))
    forth = np.maximum(flow.twin, 0)
    known = (flow.twin != NONE) & (first != NONE) & (given != NONE) & (first[forth] != NONE) & (given[forth] != NONE)
    back = np.flatnonzero(known)
    forth = forth[back]
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = values.norm[given[back]] / values.norm[first[back]]
        shown = np.nan_to_num(grown * values.norm[first[forth]] / values.norm[given[forth]], nan=1.0, posinf=1.0)
    np.maximum.at(steep, forth, shown)
    return steep


_FEW = 32  # elements: two samples of pure noise differ widely below this


def pooled(pairs: pl.DataFrame, values: Values, measured: Floats) -> Floats:
    """Measured noise; of a few numbers it says little, so these take the largest of their kind in all layers."""
    import polars as pl

    noise = np.nan_to_num(measured)
    few = values.elements < _FEW
    if not few.any():
        return noise
    kinds = pairs["g_name"].fill_null("").str.replace_all(r"\d+", "#")
    frame = pl.DataFrame({"kind": kinds, "noise": noise})
    largest = frame.select(pl.col("noise").max().over("kind")).to_series().to_numpy()
    return np.where(few, largest, noise)


# Gradients: what the whole way there and back leaves of them.


def zero_in_theory(pairs: pl.DataFrame, flow: Flow, values: Values) -> tuple[Bools, float]:
    """Gradients of parameters that are nothing beside all others together (of a bias before a normalisation, of the
    keys' bias) are zero in theory, and what is there is rounding: where they are made and read, and what an optimiser
    that takes one parameter after another makes of them. And the size of all gradients together."""
    seen = flow.spread(flow.each_call(lambda op: op.text.startswith(OPTIMIZER))) & (flow.role == INPUT)
    given = seen | bools(pairs["g_role"] == GRADIENT)
    given &= flow.elements[1] > 0
    sizes = np.nan_to_num(values.norm)
    total = max(float(np.linalg.norm(sizes[given & of])) for of in (seen, ~seen))
    nothing = given & (sizes <= NOTHING * total)
    nothing |= np.isin(flow.marks[1], flow.marks[1][nothing & (sizes > 0)])  # zeros are like any others
    turn, writes = flow.turns
    if writes.any() and nothing.any() and not seen.any():
        read = nothing & (sizes > 0) & (flow.role == INPUT) & flow.spread(flow.updates)
        own = np.where(flow.of_row == NONE, NONE, turn[flow.of_row])
        size = int(flow.element.max(initial=0)) + 2
        own = np.where(own == NONE, NONE, own * size + flow.element + 1)  # in a list, the element
        nothing |= (own != NONE) & np.isin(own, own[read]) & ~flow.parameter
    return nothing, total


def beside(flow: Flow, values: Values, grain: Floats) -> Floats:
    """What gradients may have lost that come out of code nobody recorded: beside those that come with them, and beside
    what came back to the module around.

    Shares of experts that are divided by their sum have no gradient but rounding where they are alike; an attention
    that pays the same attention to all has none for its queries and keys but the rounding of the one for its values.
    The least that any row says of a value holds for all of them.
    """
    backward = flow.each_call(lambda op: op.direction == BACKWARD)
    entering = np.flatnonzero((flow.role == INPUT) & (flow.source == NONE) & flow.spread(backward))
    lost = np.zeros(len(values.norm))
    if len(entering):
        around = flow.parent[flow.of_row[entering]] + 1
        largest = np.zeros(len(flow.ops) + 1)
        np.maximum.at(largest, around, np.nan_to_num(values.norm[entering]))
        given = np.flatnonzero((flow.role == INPUT) & flow.spread(backward))
        np.maximum.at(largest, flow.of_row[given] + 1, np.nan_to_num(values.norm[given]))
        _, value = np.unique(flow.mark[entering], return_inverse=True)
        most = np.zeros(int(value.max()) + 1)
        np.maximum.at(most, value, np.where(around > 0, largest[around], 0.0))
        lost[entering] = 4 * ROUNDING * grain[entering] * most[value]
    return lost


def parameter_gradients(flow: Flow, values: Values, scale: Floats, carried: Floats) -> tuple[Floats, Floats]:
    """A gradient that is zero in theory is judged by what was added up: the gradient that came in, its neighbours."""
    gradient = flow.each_call(lambda op: op.direction == GRADIENTS)
    if not gradient.any():
        return scale, carried
    count = len(gradient)
    largest, incoming, wrong, arrived, error = (np.zeros(count) for _ in range(5))
    rows = np.flatnonzero((flow.role == GRADIENT) & (flow.of_row >= 0))
    np.maximum.at(largest, flow.of_row[rows], values.norm[rows])
    inputs = np.flatnonzero((flow.role == INPUT) & (flow.of_row >= 0))
    np.maximum.at(incoming, flow.of_row[inputs], values.norm[inputs])
    np.maximum.at(wrong, flow.of_row[inputs], np.nan_to_num(values.error[inputs], nan=0.0, posinf=WILD))
    known = flow.back != NONE
    arrived[known], error[known] = incoming[flow.back[known]], wrong[flow.back[known]]
    scale = np.where(gradient, np.fmax(scale, np.fmax(largest, arrived)), scale)
    return scale, np.where(gradient, np.hypot(carried, THROUGH_DERIVATIVES * error * scale), carried)


def usual_of_gradients(flow: Flow, values: Values, gathered: Floats) -> Floats:
    """What every gradient gathers: the errors of all that lies behind it, as a distance; no more than noise comes to,
    for a branch that was cut off changes every gradient as well. Where all else that was recorded of the way there and
    back is equal, no more than rounding. ``gathered``: by noise, relative."""
    known = values.error[(flow.role == GRADIENT) & np.isfinite(values.error)]
    behind = (flow.role != GRADIENT) & ~flow.spread(flow.updates) & (flow.of_row >= 0)
    noisy = (np.nan_to_num(values.distance[behind]) > 0).any()
    most = np.fmax(FAR * gathered, FAR_LEAST) if noisy else gathered
    usual: Floats = 2 * np.fmin(float(np.median(known)) if len(known) else 0.0, most) * values.norm
    return usual


def unread_by_the_loss(flow: Flow, values: Values, grain: Floats, far: Bools) -> bool:
    """Whether the model's outputs are far off where nobody reads them, in padding say.

    Then the gradient that comes back first agrees within a rounding, and all that parameters' gradients are off by is
    the noise of the way there and back.
    """
    backward = flow.spread(flow.each_call(lambda op: op.direction == BACKWARD))
    first = np.flatnonzero(backward & (flow.elements[0] > 1) & (values.epsilon > 0))[:1]
    if not len(first) or not np.all(values.error[first] <= grain[first]):
        return False
    outermost = flow.each_call(lambda op: op.is_module and op.direction == FORWARD) & (flow.parent == NONE)
    return bool((far & flow.spread(outermost) & (flow.role == OUTPUT)).any())
