"""Expected error: how far apart two healthy runs may be at each value, given how far apart the inputs were.

Errors are carried as measured, never as predicted: a bound that grows with depth would excuse everything. What a call
may add by itself is a rounding (0.21 of the dtype's epsilon in relative norm) of whatever it adds up on the way, which
may be far larger than what is left (cancellation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._judge.deviation import COARSE, WILD, Values, values_of
from twinprobe._judge.drift import drift_of, hidden_drift, moved_parameters, of_running_statistics, shown_by_means
from twinprobe._judge.flow import NONE, Flow
from twinprobe._judge.operands import FLOAT32, RESOLVED, ROUNDING, THROUGH_DERIVATIVES, Operands
from twinprobe._judge.operations import Family, hidden_precision, operation_of
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS, OPTIMIZER
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, POINT

if TYPE_CHECKING:
    import polars as pl

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_ON_THE_WAY = 8.0  # so much smaller than if all terms were alike
_IN_A_ROW = 512  # terms that a kernel adds to one sum in float32; longer sums are put together from such
_BATCH = 4  # terms of a sum: more are those of a batch
_NOTHING = 1e-3  # of the usual size of a gradient: noise around zero
_FILLED = 9e3  # a mean beyond this is one of a mask's fill values
_SEEN = 3.0  # what is carried on stands out from the rounding that every call renews; what has died out does not
_MORE = 10.0  # times as far off as what running statistics average
# How many epsilons of noise a healthy run may gather until its end: 2 in bfloat16, 16 in float32; twice as many in
# gradients, which go the same way twice. Beyond _FAR times as many, and this share, it is no noise.
_FAR, _FAR_LEAST, _THERE_AND_BACK = 8.0, 1e-3, 2.0
_DEPTH_AT, _DEPTH, _DEPTH_GROWTH = 2.0**-7, 2.0, 3.0 / 16.0
# Of all gradients together: one that is no larger is zero in theory, and nothing but rounding.
NOTHING = 16.0 * FLOAT32


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
    ``sketched``: those whose errors are estimates from sketches.
    ``settings``: the precision flags of the recorded run; ``step``: its number, -1 where it is not known.
    ``measured``: the error of a third run; ``noisy``: see ``Estimate``.
    """
    sketched = np.zeros(len(error), dtype=bool) if sketched is None else sketched
    error = _behind_norms(flow, error, estimated & ~sketched)
    values = values_of(pairs, flow, error, epsilon)
    drift, furthest = drift_of(pairs, flow, values, step, settings)
    # Parameters that are all off by a little act on whatever is computed with them as a coarser rounding does.
    values.epsilon = np.where(epsilon > 0, np.maximum(epsilon, drift / ROUNDING), epsilon)
    grain = np.maximum(values.grain, drift / ROUNDING)
    few = np.where(estimated, shown_by_means(pairs, values), 0.0) if step > 0 else np.zeros(len(error))
    between = _arrived(flow, values, few)
    # Nothing was measured of a tensor that holds infinities, a mask say: it may be as far off as what surrounds it.
    unknown = np.isnan(values.distance) & (values.epsilon > 0) & (flow.role != PARAMETER)
    values.distance = np.where(unknown, between, values.distance)
    operands = Operands(pairs, flow, values, settings, noisy)
    scale, carried = operands.added_up(values), operands.explained(flow, values, estimated, sketched, few)
    scale, carried = _parameter_gradients(flow, values, scale, carried)
    row_call = np.maximum(flow.of_row, 0)
    output = (flow.role == OUTPUT) | (flow.role == GRADIENT)
    depth = _DEPTH * (_DEPTH_AT / grain) ** _DEPTH_GROWTH
    local = np.where(
        output,
        _own_rounding(flow, values, operands, grain, settings) * np.fmax(values.norm, scale[row_call]),
        _on_the_way_in(flow, values, grain, depth, furthest, operands.updates.silent[row_call] == 1),
    )
    local = np.hypot(local, hidden_drift(pairs, flow, furthest)[row_call] * np.where(output, values.norm, 0.0))
    if step:
        moved = moved_parameters(pairs, flow, values, operands.updates, abs(step), depth * grain, settings)
        local = np.where(flow.parameter, np.fmax(local, moved), local)
    inherited = np.where(flow.source != NONE, values.distance[np.maximum(flow.source, 0)], between)
    # Nothing before explains a parameter, nor a value that was saved by itself.
    inherited = np.where((flow.parameter & (flow.source == NONE)) | (flow.role == POINT), 0.0, inherited)
    allowed = np.hypot(local, np.where(output, carried[row_call], inherited))
    # A container passes on what its parts made.
    allowed = np.where(output & ~flow.leaf[row_call], np.fmax(allowed, _gave_inside(flow, values)), allowed)
    allowed = np.hypot(allowed, np.where(flow.role == GRADIENT, _usual_of_gradients(flow, values, depth * grain), 0.0))
    # Where four numbers alone were compared, less was seen than a sketch of the same value shows when it is read.
    unseen = (flow.source != NONE) & estimated[np.maximum(flow.source, 0)] & ~estimated
    allowed = np.where(unseen, np.fmax(allowed, allowed[np.maximum(flow.source, 0)]), allowed)
    running = of_running_statistics(pairs, flow, values, depth * grain)
    allowed = np.hypot(allowed, _long_sums(flow, values, operands, grain))
    allowed = np.fmax(allowed, np.fmax(running, _beside(flow, values, grain)))
    allowed = _explained_once(flow, operands, allowed, 2 * depth * grain * values.norm)
    # Sums of sketches resolve no finer errors; statistics of 16-bit tensors are themselves rounded to 16 bits.
    finest = np.select([estimated & (values.epsilon > COARSE), sketched], [values.epsilon, RESOLVED], 0.0)
    allowed = np.hypot(allowed, finest * values.norm)
    allowed = np.fmax(allowed, operands.updates.of_vectors(pairs, flow, values, allowed))
    small = np.where(values.elements < 4, 3.0, np.where(values.elements < 32, 2.0, 1.0))
    allowed *= small
    if measured is not None:
        allowed = np.fmax(allowed, _pooled(pairs, values, measured) * values.norm)
    with np.errstate(invalid="ignore", divide="ignore"):
        times = np.where(values.distance == 0, 0.0, values.distance / allowed)
        times = np.where(unknown, np.nan, times)
        expected = np.where(values.norm > 0, allowed / values.norm, np.nan)
        abnormal = values.distance > _SEEN * local * small
        far = values.distance > _FAR * depth * np.maximum(grain, hidden_precision(settings)) * values.norm
        far &= (values.distance > _FAR_LEAST * values.norm) & (values.epsilon > 0) & ~values.masked
        added = np.where(output, np.fmax(values.norm, scale[row_call]), values.norm)
        gathered = depth * np.where(
            (flow.role == GRADIENT) & _unread_by_the_loss(flow, values, grain, far), _THERE_AND_BACK, 1.0
        )
        matters = _settled(flow, values, operands, values.distance > gathered * grain * added, abnormal)
    return Noise(
        error, expected, times, values.grain, abnormal, matters, far, values.masked, _flips_of(flow, values, far),
        (running > 0) & far & (values.distance > _MORE * running),
    )  # fmt: skip


def _usual_of_gradients(flow: Flow, values: Values, gathered: Floats) -> Floats:
    """What every gradient gathers: the errors of all that lies behind it, as a distance; no more than noise comes to,
    for a branch that was cut off changes every gradient as well. ``gathered``: by noise, relative."""
    known = values.error[(flow.role == GRADIENT) & np.isfinite(values.error)]
    most = np.fmax(_FAR * gathered, _FAR_LEAST)
    usual: Floats = 2 * np.fmin(float(np.median(known)) if len(known) else 0.0, most) * values.norm
    return usual


def _explained_once(flow: Flow, operands: Operands, allowed: Floats, gathered: Floats) -> Floats:
    """A gradient that several calls read, of which one explains it, is explained, as far as noise gathers."""
    read = np.flatnonzero((flow.role == INPUT) & (flow.source == NONE) & operands.backward[np.maximum(flow.of_row, 0)])
    _, value = np.unique(flow.mark[read], return_inverse=True)
    most = np.zeros(len(read))
    np.maximum.at(most, value, np.nan_to_num(allowed[read]))
    explained: Floats = allowed.copy()
    explained[read] = np.fmax(allowed[read], np.fmin(most[value], gathered[read]))
    return explained


def _unread_by_the_loss(flow: Flow, values: Values, grain: Floats, far: Bools) -> bool:
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
    terms = np.where(known, taken[source], 0.0) / np.maximum(values.elements, 1)
    arrived = np.zeros(operands.count)
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


def _own_rounding(flow: Flow, values: Values, operands: Operands, grain: Floats, settings: dict[str, Any]) -> Floats:
    """What each row's call may lose by itself, relative to what it adds up."""
    row_call = np.maximum(flow.of_row, 0)
    composite = ~flow.leaf | operands.backward | flow.each_call(lambda op: op.is_module)
    composite[list(flow.grouped)] = True  # a group holds calls, in whatever types they compute
    epsilon = np.where(composite[row_call], grain, values.epsilon)
    coarser = hidden_precision(settings)
    if coarser:  # products of float32 numbers that were rounded to fewer bits on their way in
        products = np.isin(operands.family, (Family.PRODUCT, Family.ATTENTION))
        epsilon = np.where((products | composite)[row_call], np.fmax(epsilon, coarser), epsilon)
    rounding: Floats = ROUNDING * epsilon * np.sqrt(operands.roundings()[row_call])
    return rounding


def _on_the_way_in(flow: Flow, values: Values, grain: Floats, depth: Floats, furthest: float, silent: Bools) -> Floats:
    """What inputs may have lost between the recorded calls: nothing, a little, or on an optimiser's a backward pass.

    ``silent``: the gradient of this call's parameter is known to be rounding.
    """
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
    # Of optimizer.json: a gradient that is nothing beside all the others together (of a bias before a normalisation, of
    # the keys' bias) is zero in theory, and what is there is rounding.
    given = flow.spread(flow.each_call(lambda op: op.text.startswith(OPTIMIZER))) & (flow.role == INPUT) & (epsilon > 0)
    sizes = np.nan_to_num(values.norm)
    total = float(np.linalg.norm(sizes[given]))
    nothing = given & ((sizes <= NOTHING * total) | silent)
    return np.where(nothing, np.fmax(lost, np.fmax(4 * sizes, ROUNDING * depth * grain * total)), lost)


def _beside(flow: Flow, values: Values, grain: Floats) -> Floats:
    """What gradients may have lost that come out of code nobody recorded: beside those that come with them.

    An attention that pays the same attention to all has no gradient for its queries and keys but the rounding of the
    one for its values. The least that any row says of a value holds for all of them.
    """
    backward = flow.each_call(lambda op: op.direction == BACKWARD)
    entering = np.flatnonzero((flow.role == INPUT) & (flow.source == NONE) & flow.spread(backward))
    lost = np.zeros(len(values.norm))
    if len(entering):
        around = flow.parent[flow.of_row[entering]] + 1
        largest = np.zeros(len(flow.ops) + 1)
        np.maximum.at(largest, around, np.nan_to_num(values.norm[entering]))
        _, value = np.unique(flow.mark[entering], return_inverse=True)
        most = np.zeros(int(value.max()) + 1)
        np.maximum.at(most, value, np.where(around > 0, largest[around], 0.0))
        lost[entering] = 4 * ROUNDING * grain[entering] * most[value]
    return lost


def _parameter_gradients(flow: Flow, values: Values, scale: Floats, carried: Floats) -> tuple[Floats, Floats]:
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


def _behind_norms(flow: Flow, error: Floats, by_statistics: Bools) -> Floats:
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


def _flips_of(flow: Flow, values: Values, far: Bools) -> Bools:
    """Whole numbers that were made of numbers with an error: a router, top-k, an argmax may flip. Not where these are
    further apart than noise comes: scores that were masked out are no longer there to choose."""
    unsure = np.zeros(len(flow.ops) + 1, dtype=bool)
    inputs = (flow.role == INPUT) & (flow.of_row >= 0) & (values.epsilon > 0)
    unsure[flow.of_row[inputs & (np.nan_to_num(values.error) > 0)]] = True
    unsure[flow.of_row[inputs & far]] = False
    whole = (flow.role == OUTPUT) & (values.epsilon == 0) & (values.elements > 0)
    flips: Bools = whole & unsure[flow.of_row] & (np.nan_to_num(values.error) != 0)
    return flips


_BETWEEN = 8.0  # roundings that code between recorded calls may add


def _arrived(flow: Flow, values: Values, few: Floats) -> Floats:
    """For inputs whose maker was not recorded: the error that arrived in the enclosing call so far, as a distance.

    ``few``: see ``shown_by_means``.
    """
    count = len(flow.ops)
    # What lies under a mask was not compared.
    error = np.where(values.masked, 0.0, np.nan_to_num(values.error, nan=0.0, posinf=WILD))
    error = np.fmax(error, np.divide(few, values.norm, out=np.zeros(len(few)), where=values.norm > 0))
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


def _gave_inside(flow: Flow, values: Values) -> Floats:
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


_FEW = 32  # elements: two samples of pure noise differ widely below this


def _pooled(pairs: pl.DataFrame, values: Values, measured: Floats) -> Floats:
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
