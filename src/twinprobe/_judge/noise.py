"""Expected error: how far apart two healthy runs may be at each value, given how far apart the inputs were.

Errors are carried as measured, never as predicted: a bound that grows with depth would excuse everything. What a call
may add by itself is a rounding (0.21 of the dtype's epsilon in relative norm) of whatever it adds up on the way, which
may be far larger than what is left (cancellation).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.calls import all_dims
from twinprobe._judge.deviation import COARSE, WILD, Bools, Floats, Ints
from twinprobe._judge.drift import drift_of, hidden_drift, moved_parameters, shown_by_means
from twinprobe._judge.flow import NONE, Flow, elements_apart
from twinprobe._judge.inherited import (
    FAR,
    FAR_LEAST,
    FLOAT32,
    ROUNDING,
    THROUGH_DERIVATIVES,
    Values,
    arrived,
    behind_norms,
    beside,
    came_in,
    flips_of,
    of_parts,
    of_running_statistics,
    parameter_gradients,
    pooled,
    shown_by_gradients,
    unread_by_the_loss,
    updates_of,
    usual_of_gradients,
    values_of,
    zero_in_theory,
)
from twinprobe._judge.operations import (
    HIDDEN_PRECISION,
    OTHER_MODULE,
    ROUGH_EXP,
    Family,
    divisor_of,
    is_kinked,
    is_over_batch,
    operation_of,
    rough_roundings,
)
from twinprobe._runs.names import FORWARD, LISTS, OPTIMIZER
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, POINT

if TYPE_CHECKING:
    import polars as pl


RESOLVED = 0.7e-7  # sums of sketches resolve no finer errors
_STEEPEST = 1e3  # no further is a relative error carried from a mean element to the smallest
_ROW = 8.0  # numbers that every kernel adds up first
_MOST_ROUNDINGS = 64.0  # to 16 bits, in one call
_PATHS = "ctc_loss"
_ON_THE_WAY = 8.0  # so much smaller than if all terms were alike
_IN_A_ROW = 512  # terms that a kernel adds to one sum in float32; longer sums are put together from such
_BATCH = 4  # terms of a sum: more are those of a batch
_RARE = 1e-3  # flips expected in one call: fewer come in none
_NOTHING = 1e-3  # of the usual size of a gradient: noise around zero
_FILLED = 9e3  # a mean beyond this is one of a mask's fill values
_SEEN = 3.0  # what is carried on stands out from the rounding that every call renews; what has died out does not
_MORE = 10.0  # times as far off as what running statistics average
# How many epsilons of noise a healthy run may gather until its end: 2 in bfloat16, 16 in float32; twice as many in
# gradients, which go the same way twice.
_THERE_AND_BACK = 2.0
_DEPTH_AT, _DEPTH, _DEPTH_GROWTH = 2.0**-7, 2.0, 3.0 / 16.0


@dataclass
class Noise:
    """Per row, all as relative errors of the golden value; NaN where nothing was measured."""

    error: Floats
    expected: Floats
    """What rounding and the measured errors of the inputs explain."""
    times: Floats
    """The error in multiples of what is expected."""
    grain: Floats
    """The coarsest epsilon on the way to this value."""
    abnormal: Bools
    """Rows whose difference was carried there: more than the rounding of the call itself."""
    matters: Bools
    """Rows further off than what a healthy run gathers on its way."""
    far: Bools
    """Rows further off than noise comes in any healthy run."""
    masked: Bools
    """Rows with the fill values of a mask, which are not compared."""
    flips: Bools
    """Whole numbers that differ and were made of numbers that differ a little."""
    running: Bools
    """Running statistics that are further off than what they average."""


def expected_errors(
    pairs: pl.DataFrame,
    flow: Flow,
    error: Floats,
    epsilon: Floats,
    *,
    estimated: Bools,
    settings: dict[str, Any],
    step: int = 0,
    sketched: Bools | None = None,
    measured: Floats | None = None,
    noisy: Floats | None = None,
) -> Noise:
    """Judge each row's relative error by what its call may lose and what came in.

    ``estimated``: rows whose errors are read off max, min, mean and norm, which see only a part of a difference;
    ``sketched``: those whose errors are estimates from sketches; ``measured``: the error of a third run.
    ``settings``: the precision flags of the run; ``step``: its number, -1 if unknown; ``noisy``: see ``Estimate``.
    """
    sketched = np.zeros(len(error), dtype=bool) if sketched is None else sketched
    error = behind_norms(flow, error, estimated & ~sketched)
    values = values_of(pairs, flow, error, epsilon)
    drift, furthest = drift_of(pairs, flow, values, step, settings) if step else (0.0, 0.0)
    grain = np.maximum(values.grain, drift / ROUNDING)  # parameters that are all off act as a coarser rounding does
    values.epsilon = np.where(epsilon > 0, np.maximum(epsilon, drift / ROUNDING), epsilon)
    few = np.where(estimated, shown_by_means(pairs, values), 0.0) if step > 0 else np.zeros(len(error))
    nothing = zero_in_theory(pairs, flow, values)
    between = arrived(flow, values, few, nothing[0], settings)
    # Nothing was measured of a tensor that holds infinities, a mask say: it may be as far off as what surrounds it.
    unknown = np.isnan(values.distance) & (values.epsilon > 0) & (flow.role != PARAMETER)
    values.distance = np.where(unknown, between, values.distance)
    flow = elements_apart(flow, pairs)
    operands = Operands(pairs, flow, values, settings, noisy)
    scale, carried = operands.added_up(values), operands.explained(flow, values, estimated, sketched, few)
    scale, carried = parameter_gradients(flow, values, scale, carried)
    row_call = np.maximum(flow.of_row, 0)
    output = (flow.role == OUTPUT) | (flow.role == GRADIENT)
    depth = _DEPTH * (_DEPTH_AT / grain) ** _DEPTH_GROWTH
    local = _lost_here(pairs, flow, values, operands, grain, depth, furthest, settings, scale, nothing)
    if step:
        moved = moved_parameters(pairs, flow, values, operands.updates, abs(step), depth * grain, settings)
        local = np.where(flow.parameter, np.fmax(local, moved), local)
    allowed = np.hypot(local, np.where(output, carried[row_call], came_in(flow, values, between)))
    allowed = of_parts(flow, values, allowed, ROUNDING * grain * values.norm)
    allowed = np.hypot(allowed, np.where(flow.role == GRADIENT, usual_of_gradients(flow, values, depth * grain), 0.0))
    # Where four numbers alone were compared, less was seen than a sketch of the same value shows when it is read.
    unseen = (flow.source != NONE) & estimated[np.maximum(flow.source, 0)] & ~estimated
    allowed = np.where(unseen, np.fmax(allowed, allowed[np.maximum(flow.source, 0)]), allowed)
    running = of_running_statistics(pairs, flow, values, depth * grain)
    allowed = np.hypot(allowed, _long_sums(flow, values, operands, grain))
    allowed = np.fmax(allowed, np.fmax(running, beside(flow, values, grain)))
    allowed = _explained_once(flow, operands, allowed, 2 * depth * grain * values.norm)
    # Sums of sketches resolve no finer errors; statistics of 16-bit tensors are themselves rounded to 16 bits.
    finest = np.select([estimated & (values.epsilon > COARSE), sketched], [values.epsilon, RESOLVED], 0.0)
    allowed = np.hypot(allowed, finest * values.norm)
    allowed = allowed if operands.updates is None else operands.updates.of_vectors(pairs, flow, values, allowed)
    small = np.where(values.elements < 4, 3.0, np.where(values.elements < 32, 2.0, 1.0))
    allowed = np.fmax(allowed * small, 0.0 if measured is None else pooled(pairs, values, measured) * values.norm)
    with np.errstate(invalid="ignore", divide="ignore"):
        times = np.where(unknown, np.nan, np.where(values.distance == 0, 0.0, values.distance / allowed))
        expected = np.where(values.norm > 0, allowed / values.norm, np.nan)
        abnormal = values.distance > _SEEN * local * small
        far = values.distance > FAR * depth * np.maximum(grain, settings.get(HIDDEN_PRECISION, 0.0)) * values.norm
        far &= (values.distance > FAR_LEAST * values.norm) & (values.epsilon > 0) & ~values.masked
        added = np.where(output, np.fmax(values.norm, scale[row_call]), values.norm)
        back = (flow.role == GRADIENT) & unread_by_the_loss(flow, values, grain, far)
        gathered = depth * np.where(back, _THERE_AND_BACK, 1.0)
        matters = _settled(flow, values, operands, values.distance > gathered * grain * added, abnormal)
    matched = (pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null()).to_numpy()
    return Noise(
        error, expected, times, values.grain, abnormal, matters, far, values.masked,
        flips_of(flow, values, far, matched),
        (running > 0) & far & (values.distance > _MORE * running),
    )  # fmt: skip


def _explained_once(flow: Flow, operands: Operands, allowed: Floats, gathered: Floats) -> Floats:
    """A gradient that several calls read, of which one explains it, is explained, as far as noise gathers."""
    read = np.flatnonzero((flow.role == INPUT) & (flow.source == NONE) & operands.backward[np.maximum(flow.of_row, 0)])
    _, value = np.unique(flow.mark[read], return_inverse=True)
    most = np.zeros(len(read))
    np.maximum.at(most, value, np.nan_to_num(allowed[read]))
    explained: Floats = allowed.copy()
    explained[read] = np.fmax(allowed[read], np.fmin(most[value], gathered[read]))
    return explained


def _settled(flow: Flow, values: Values, operands: Operands, matters: Bools, abnormal: Bools) -> Bools:
    """What matters to an optimiser, and of values saved by themselves."""
    # An update is small beside its parameter: all but rounding counts.
    alone = flow.spread(flow.updates | ((operands.size == 0) & ~operands.backward)) | (flow.role == POINT)
    read = flow.spread(flow.updates & (operands.size > 0)) & (flow.role == INPUT)
    settled: Bools = np.where(alone & ~read, abnormal, matters)
    source = np.maximum(flow.source, 0)  # where a gradient was made, what was added up is known
    settled &= ~(read & (flow.source != NONE) & ~flow.spread(flow.updates)[source]) | matters[source]
    sized = read & (values.rms > 0)
    if sized.any():  # a gradient that is zero in theory is far smaller than the others, and off by no more
        least = _NOTHING * float(np.median(values.rms[sized])) * np.sqrt(values.elements)
        settled &= ~read | (np.fmax(values.norm, np.nan_to_num(values.distance)) > least)
    return settled


def _long_sums(flow: Flow, values: Values, operands: Operands, grain: Floats) -> Floats:
    """What sums over a batch may lose on the way back, as a distance.

    The terms may be alike (a mean's gradient), then their errors add up while the sums of two samples cancel, as far as
    a kernel adds them up in a row. And some kernels add up in 16 bits, where small terms are lost beside a sum that has
    grown: as many epsilons as terms.
    """
    taken, wrong = np.zeros((2, operands.count))
    np.maximum.at(taken, operands.calls, operands.elements)
    np.maximum.at(wrong, operands.calls, np.nan_to_num(values.distance[operands.rows], nan=0.0))
    call = np.maximum(flow.of_row, 0)
    source = np.where(flow.role == GRADIENT, flow.back[call], call)
    known, source = source != NONE, np.maximum(source, 0)
    terms, arrived = np.where(known, taken[source], 0.0) / np.maximum(values.elements, 1), np.zeros(operands.count)
    np.maximum.at(arrived, operands.calls, np.nan_to_num(values.norm[operands.rows]))
    # Sums that cancel in the end were larger on the way.
    sums = np.fmax(values.norm, np.where(known, arrived[source], 0.0) * np.sqrt(terms) / _ON_THE_WAY)
    lost = np.where(grain > COARSE, grain * terms, FLOAT32 * np.minimum(terms, _IN_A_ROW))
    lost = np.minimum(1.0, ROUNDING * lost) * sums
    summed = (operands.backward[call] | (flow.role == GRADIENT)) & (flow.role >= OUTPUT) & (terms > _BATCH)
    distance = np.where(summed, np.hypot(lost, wrong[source] * np.sqrt(terms)), 0.0)
    # A weight's gradient adds up products with what came in forward; the sum may cancel, its errors do not.
    forward = np.maximum(flow.twin[call], 0)
    weight = np.maximum(operands.second[forward], 0)
    product = known & (flow.twin[call] != NONE) & (operands.second[forward] != NONE) & (flow.role >= OUTPUT)
    product &= (operands.family[forward] == Family.PRODUCT) & (values.elements == values.elements[weight])
    summand = np.hypot(wrong[source], ROUNDING * grain * arrived[source]) * operands.first_rms[forward]
    multiplied: Floats = np.where(product, 2 * summand * np.sqrt(operands.terms[forward]), 0.0)
    # Errors of a whole channel may be alike: those of a mean that a normalisation has taken off. They add up with the
    # mean of what came in forward, over all places of all samples.
    places = np.where(known, taken[source], 0.0) / np.maximum(values.elements / operands.terms[forward], 1)
    mean = np.abs(values.mean[np.maximum(operands.first[forward], 0)])
    mean = np.where(mean < _FILLED, mean, 0.0)  # not that of a mask's fill values
    alike = np.where(product, wrong[source] * mean * np.sqrt(operands.terms[forward] * places), 0.0)
    return np.hypot(distance, np.hypot(multiplied, alike))


def _lost_here(
    pairs: pl.DataFrame, flow: Flow, values: Values, operands: Operands, grain: Floats, depth: Floats, furthest: float,
    settings: dict[str, Any], scale: Floats, nothing: tuple[Bools, float],
) -> Floats:  # fmt: skip
    """What a call may lose by itself, and what its inputs may have lost between the recorded calls: nothing, a little,
    or on an optimiser's a backward pass. ``nothing``: see ``zero_in_theory``."""
    row_call, output = np.maximum(flow.of_row, 0), (flow.role == OUTPUT) | (flow.role == GRADIENT)
    epsilon = values.epsilon
    unseen = np.where(flow.spread(flow.updates), np.fmax(4 * ROUNDING, depth / 4), 4 * ROUNDING)
    # A parameter is as it was stored, or rounded once; a function may be given it in a finer type.
    often = np.where((flow.source != NONE) | flow.parameter, ROUNDING, unseen)
    stored = epsilon[(flow.role == PARAMETER) & (epsilon > 0)]
    known = np.fmax(epsilon, float(np.median(stored)) if len(stored) else 0.0)
    rounding = often * np.where(flow.parameter, np.where(flow.role == PARAMETER, epsilon, known), grain)
    lost: Floats = rounding * values.norm
    if furthest:  # a parameter that began as zero is nothing but updates: its size is not what counts
        usual = float(np.median(values.rms[flow.parameter & (values.rms > 0)])) * np.sqrt(values.elements)
        lost = np.where(flow.parameter, np.fmax(lost, furthest * np.fmax(values.norm, usual)), lost)
    composite = ~flow.leaf | operands.backward | flow.each_call(lambda op: op.is_module)
    composite[list(flow.grouped)] = True  # a group holds calls, in whatever types they compute
    coarse = np.where(composite[row_call], grain, epsilon)
    if coarser := settings.get(HIDDEN_PRECISION, 0.0):  # products of float32 numbers, rounded to fewer bits before
        products = np.isin(operands.family, (Family.PRODUCT, Family.ATTENTION))
        coarse = np.where((products | composite)[row_call], np.fmax(coarse, coarser), coarse)
    own = ROUNDING * coarse * np.sqrt(operands.roundings()[row_call]) * np.fmax(values.norm, scale[row_call])
    lost = np.where(output, own, lost)
    seen = flow.spread(flow.each_call(lambda op: op.text.startswith(OPTIMIZER)))
    made = (flow.role == GRADIENT) | (flow.spread(flow.updates) & (flow.role == INPUT))
    made &= nothing[0] | (seen & (operands.silent[row_call] == 1))
    sizes = np.fmax(4 * np.nan_to_num(values.norm), ROUNDING * depth * grain * nothing[1])
    lost = np.where(made, np.fmax(lost, sizes), lost)
    if furthest:
        lost = np.hypot(lost, np.where(output, hidden_drift(pairs, flow, furthest)[row_call] * values.norm, 0.0))
    return lost


class Operands:
    """Every floating-point input of every call, with what its call is: one entry an input."""

    def __init__(self, pairs: pl.DataFrame, flow: Flow, values: Values, settings: dict[str, Any], noisy: Any) -> None:
        self.count = count = len(flow.ops)
        self.family: Ints = flow.each_call(lambda op: operation_of(op).family, np.int64)
        self.factor: Floats = flow.each_call(lambda op: operation_of(op).factor, np.float64)
        roundings = rough_roundings if settings.get(ROUGH_EXP) else lambda op: operation_of(op).roundings
        self.often: Floats = flow.each_call(roundings, np.float64)
        self.one: Bools = flow.each_call(lambda op: operation_of(op).one)
        self.listed: Bools = flow.each_call(lambda op: LISTS in op.body)
        for call, members in flow.grouped.items():
            # A linear map in place of a convolution adds up as many products, in another order.
            if len(members) > 1 or self.family[call] != Family.PRODUCT:
                self.family[call], self.factor[call] = OTHER_MODULE.family, OTHER_MODULE.factor
                self.often[call] = OTHER_MODULE.roundings
        self.backward = flow.each_call(lambda op: op.direction != FORWARD)
        takes = ((flow.role == INPUT) | (flow.role == PARAMETER)) & (values.elements > 0) & (values.epsilon > 0)
        self.rows = np.flatnonzero(takes & (flow.of_row >= 0))
        self.calls = flow.of_row[self.rows]
        self.first, self.second, self.third = self._by_place()
        self.gives = np.flatnonzero(((flow.role == OUTPUT) | (flow.role == GRADIENT)) & (flow.of_row >= 0))
        self.size, self.norm, self.fine = np.zeros(count), np.zeros(count), np.zeros(count)
        owners = flow.of_row[self.gives]
        for array, what in ((self.size, values.elements), (self.norm, values.norm), (self.fine, values.epsilon)):
            np.maximum.at(array, owners, what[self.gives])
        self.terms = self._contracted(pairs, flow)
        self.path = np.zeros(count)  # the logarithm of what CTC adds up: the probabilities of whole paths
        self.updates = updates_of(pairs, flow, self.first, noisy, settings) if flow.updates.any() else None
        self.silent = np.zeros(count) if self.updates is None else self.updates.silent
        self.elements = np.maximum(values.elements[self.rows], 1)
        self.ratio = self.size[self.calls] / self.elements
        self.spread = np.sqrt(np.maximum(1.0, self.ratio))  # a broadcast repeats its errors
        self.first_rms, self.second_rms, self.third_rms = (
            np.where(place != NONE, values.rms[np.maximum(place, 0)], 1.0)
            for place in (self.first, self.second, self.third)
        )
        paths = flow.each_call(lambda op: _PATHS in op.body)
        if paths.any():
            self.path = np.where(paths & ~self.backward, self.terms * self.first_rms, 0.0)
            self.path = np.where(paths & (flow.twin != NONE), self.path[flow.twin], self.path)
        self.value_norm = self.third_rms * np.sqrt(self.size)  # of attention: what it averages
        # Normalising divides by what is left of the values without their mean.
        rms, mean = values.rms[self.rows], np.abs(values.mean[self.rows])
        with np.errstate(over="ignore", invalid="ignore"):
            left = np.sqrt(np.maximum(rms**2 - mean**2, (1e-3 * rms) ** 2))
        normed = (self.family[self.calls] == Family.NORM) & (self.rows == self.first[self.calls]) & (left > 0)
        self.steep = np.where(normed, rms / np.where(left > 0, left, 1), 1.0)
        # The smallest elements are the largest of the results.
        divides = flow.each_call(divisor_of, np.int64)[self.calls] == 2 - (self.rows == self.first[self.calls])
        low, high = (pairs[f"g_{stat}"].to_numpy().astype(np.float64)[self.rows] for stat in ("min", "max"))
        divides &= (least := np.fmax(low, -high)) > 0
        self.steep = np.where(divides, np.clip(rms / np.where(divides, least, 1), self.steep, _STEEPEST), self.steep)
        self.given = np.full(count, NONE, dtype=np.int64)
        self.given[owners[::-1]] = self.gives[::-1]
        shown = shown_by_gradients(flow, values, self.first, self.given)
        self.steep = np.where(normed, np.fmax(self.steep, np.minimum(shown[self.calls], _STEEPEST)), self.steep)
        self.least = np.where(self.given != NONE, pairs["g_min"].to_numpy().astype(np.float64)[self.given], np.nan)

    def _by_place(self) -> tuple[Ints, Ints, Ints]:
        """The first three floating-point inputs of each call; the third is the second where there are two."""
        places: list[Ints] = []
        left = np.ones(len(self.rows), dtype=bool)
        for _ in range(3):
            place = places[-1].copy() if len(places) == 2 else np.full(self.count, NONE, dtype=np.int64)
            place[self.calls[left][::-1]] = self.rows[left][::-1]
            left &= self.rows != place[self.calls]
            places.append(place)
        return places[0], places[1], places[2]

    def _contracted(self, pairs: pl.DataFrame, flow: Flow) -> Floats:
        """How many numbers a call adds up: a product for each element, a norm over a batch for each channel."""
        terms = np.ones(self.count)
        shapes = pairs["g_shape"].fill_null(pairs["t_shape"])
        known = {text: shape for text, shape in all_dims(shapes.unique().to_list()).items() if shape}
        norms = np.flatnonzero((self.family == Family.NORM) & (self.first != NONE))
        if len(norms):
            norms = norms[flow.each_call(is_over_batch)[norms]]
            counts = {text: prod(shape) / max(shape[1], 1) for text, shape in known.items() if len(shape) > 1}
            taken = shapes.gather(self.first[norms])
            terms[norms] = taken.replace_strict(counts, default=1.0).fill_null(1.0).to_numpy()
        for call in np.flatnonzero(flow.each_call(lambda op: _PATHS in op.body) & (self.first != NONE)).tolist():
            terms[call] = float(known.get(shapes[int(self.first[call])], (1,))[0])
        products = np.flatnonzero((self.family == Family.PRODUCT) & (self.second != NONE))
        if len(products):
            first = self.first[products]
            # Where what goes in has no partner (patches that are cut elsewhere), the weight comes first.
            ends = pairs["g_name"].gather(first).str.contains(r"\.(input\.1|weight)$").fill_null(value=False)
            by_weight = (flow.role[first] == PARAMETER) | ends.to_numpy()
            convolution = flow.each_call(lambda op: "conv" in (op.cls or op.body).lower())[products] & ~by_weight
            operand = shapes.gather(np.where(convolution, self.second[products], first))
            inner = {text: float(prod(shape[1:])) for text, shape in known.items()}
            last = {text: float(shape[-1]) for text, shape in known.items()}
            added = [operand.replace_strict(each, default=1.0).fill_null(1.0).to_numpy() for each in (inner, last)]
            terms[products] = np.where(convolution | by_weight, *added)
        return np.maximum(terms, 1.0)

    def explained(self, flow: Flow, values: Values, estimated: Bools, sketched: Bools, few: Floats) -> Floats:
        """Per call: how far off its outputs may be since its inputs are, as a distance.

        ``few``: see ``shown_by_means``.
        """
        rows, calls, kind, by = self.rows, self.calls, self.family[self.calls], self.factor[self.calls]
        distance = np.nan_to_num(values.distance[rows], nan=0.0)
        dirty = np.maximum.accumulate(np.nan_to_num(values.distance) > 0)[rows]
        # What a sketch does not resolve may be there, once anything differs at all.
        distance = np.where(dirty & sketched[rows], np.fmax(distance, RESOLVED * values.norm[rows]), distance)
        if estimated.any():
            # Four numbers see only a part of a difference; 16-bit ones hide half an epsilon.
            dirty = dirty & estimated[rows]
            epsilon = values.epsilon[rows]
            hidden = np.where(epsilon > COARSE, 0.5, ROUNDING) * epsilon * values.norm[rows]
            distance = np.where(dirty, np.fmax(np.fmax(2.0 * distance, hidden), few[rows]), distance)
        sizes = values.norm[rows]
        error = np.where(sizes > 0, distance / np.where(sizes > 0, sizes, 1), 0.0)
        norm, two = self.norm[calls], self.second[calls] != NONE
        other = np.where(rows == self.first[calls], self.second_rms[calls], self.first_rms[calls])
        logits = np.maximum(1.0, self.first_rms * self.second_rms)[calls]
        relative = by * error * norm
        single = distance / np.sqrt(self.elements)  # the error of one element
        bias = (rows == self.third[calls]) & (self.third != self.second)[calls]
        bias &= (flow.elements[0] == flow.length)[rows]  # along one axis: added to each row of the product
        gain = np.select(
            [
                self.backward[calls],
                (kind == Family.COPY) | (kind == Family.SUM),
                kind == Family.REDUCE,
                kind == Family.MEAN,
                kind == Family.SMOOTH,
                (kind == Family.PRODUCT) & bias,
                (kind == Family.PRODUCT) & two,
                (kind == Family.MULTIPLY) & two,
                kind == Family.EXPONENT,
                kind == Family.LOSS,
                kind == Family.ATTENTION,
            ],
            [
                np.fmax(THROUGH_DERIVATIVES * error * norm, distance),  # sums over a batch may cancel
                distance * self.spread,
                2 * distance,
                2 * distance * np.sqrt(np.minimum(1.0, self.ratio)),  # errors may be alike: those of a bias, say
                by * distance * self.spread,
                2 * distance * self.spread,
                2 * distance * np.sqrt(self.ratio * self.terms[calls]) * other,
                np.fmax(by * distance * other * self.spread, relative * self.steep),
                np.fmax(relative, by * single * norm),
                np.fmax(by * single, error * norm),
                by * error * np.fmax(self.value_norm, self.norm)[calls] * logits,
            ],
            relative * self.steep,
        )
        roots = (kind == Family.ROOT) & ~self.backward[calls]
        if roots.any():
            gain = np.where(roots, np.fmax(gain, self._of_roots(single, calls)), gain)
        # Adaptive optimizers make whole steps of gradients that are noise.
        if self.updates is not None:
            ratio = np.divide(self.second_rms, self.third_rms, out=np.ones(self.count), where=self.third_rms > 0)[calls]
            divided = self.updates.quotient(calls, ratio, self.size[calls])
            gain = np.where(self.updates.divides[calls] & (distance > 0), np.fmax(gain, divided), gain)
            flipped = self.updates.flipped(calls, error, self.first_rms[calls], self.size[calls])
            gain = np.where(rows == self.first[calls], np.fmax(gain, flipped), gain)
        squares = np.zeros(self.count)
        np.add.at(squares, calls, gain**2)
        # A backward call also reads what its forward call kept.
        kept, seen = np.zeros(self.count), flow.of_row >= 0
        np.maximum.at(kept, flow.of_row[seen], np.nan_to_num(values.error, nan=0.0, posinf=WILD)[seen])
        kept = np.where(flow.twin != NONE, kept[np.maximum(flow.twin, 0)], 0.0)
        squares += (THROUGH_DERIVATIVES * kept * self.norm) ** 2
        # The derivative of a kink jumps: as many elements flip as lie within the error around it, or, by chance, more.
        flips = np.where(flow.each_call(is_kinked), kept, 0.0) * self.size
        flips = np.where(flips > _RARE, flips + 3 * np.sqrt(flips) + 1, flips)
        squares += np.minimum(flips / np.maximum(self.size, 1), 1.0) * self.norm**2
        return np.sqrt(squares)

    def _of_roots(self, lost: Floats, calls: Ints) -> Floats:
        """How far off square roots are whose arguments have lost so much in each element, as a distance: much more near
        zero, where about as many elements may lie as a square matrix has on its diagonal."""
        size = np.maximum(self.size[calls], 1)
        least, usual = self.least[calls], self.norm[calls] / np.sqrt(size)
        with np.errstate(divide="ignore", invalid="ignore"):
            near_zero = np.fmin(np.sqrt(lost), lost / (2 * np.abs(least)))
            distance: Floats = np.nan_to_num(np.hypot(near_zero * size**0.25, lost / (2 * usual) * np.sqrt(size)))
        return distance

    def added_up(self, values: Values) -> Floats:
        """Per call: the size of what it adds up on the way, which may be far larger than what is left of it."""
        count, calls, family = self.count, self.calls, self.family
        sizes = values.norm[self.rows]
        summed, reduced, steep = np.zeros(count), np.zeros(count), np.ones(count)
        np.add.at(summed, calls, (sizes * self.spread) ** 2)
        shrunk = np.where(family[calls] == Family.MEAN, np.minimum(1, self.ratio), 1.0)
        np.maximum.at(reduced, calls, sizes * shrunk)
        # A quotient rounds no more than once, whatever it is divided by.
        np.maximum.at(steep, calls, np.where(family[calls] == Family.MULTIPLY, 1.0, self.steep))
        products = np.sqrt(self.size * self.terms) * self.first_rms * self.second_rms
        scale = np.select(
            [
                self.backward,
                family == Family.SUM,
                (family == Family.REDUCE) | (family == Family.MEAN),
                (family == Family.PRODUCT) & (self.second != NONE),
                family == Family.ATTENTION,
                family == Family.LOSS,
            ],
            [self.norm, np.sqrt(summed), reduced, products, self.value_norm, self.first_rms],
            self.norm * steep,
        )
        apart = (family == Family.DISTANCE) & ~self.backward
        if apart.any():
            taken, other = (values.elements[np.maximum(place, 0)] for place in (self.first, self.second))
            products = self.first_rms * self.second_rms * np.sqrt(taken * other / np.maximum(self.size, 1))
            lost = self._of_roots(4 * self.fine * products, np.arange(count))
            scale = np.where(apart, np.fmax(scale, lost / (ROUNDING * np.maximum(self.fine, 2.0**-52))), scale)
        ones = np.where(self.one & ~self.backward & (self.fine <= 2 * FLOAT32), np.sqrt(self.size), 0.0)
        # What an optimizer adds to elements of a list is multiplied by its rate first: they are as large as they are.
        largest: Floats = np.where(self.listed, 0.0, np.fmax(np.fmax(scale, self.norm), ones))
        return largest

    def roundings(self) -> Floats:
        """Per call: how often it rounds on the way."""
        # Products of 16 bits are summed in float32, and so are those of recurrent layers.
        coarse = self.fine > 2 * FLOAT32
        sums = np.where(coarse, 2.0, np.maximum(self.terms, 2.0))
        often = np.where(coarse, np.minimum(self.often, _MOST_ROUNDINGS), self.often)
        often = np.where(self.family == Family.PRODUCT, np.maximum(sums, often), often)
        # Some kernels sum a channel of an image in rows, others in one go: channels_last, say.
        often = np.where(self.family == Family.NORM, np.maximum(sums / _ROW, often), often)
        often = np.maximum(often, self.path**2)  # the error of a logarithm is relative to what it is the logarithm of
        rounded: Floats = np.where(self.backward, 2 * np.maximum(often, 4.0), often)
        return rounded
