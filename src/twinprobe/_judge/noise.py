"""Expected error: how far apart two healthy runs may be at each value, given how far apart the inputs were.

Errors are carried as measured, never as predicted: a bound that grows with depth would excuse everything. What a call may
add by itself is a rounding (0.21 of the dtype's epsilon in relative norm) of whatever it adds up on the way, which may
be far larger than what is left (cancellation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import dims
from twinprobe._judge.flow import NONE, Flow
from twinprobe._judge.operations import Family, Operation, operation_of
from twinprobe._runs.names import FORWARD, GRADIENTS
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

if TYPE_CHECKING:
    import polars as pl

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ROUNDING = 0.21  # of an epsilon: one rounding of every element, in relative norm
# Gradients pass through derivatives that no dump holds.
_BACKWARD = 3.0
# Code between two recorded calls may select and scale: no more than this.
_BETWEEN = 8.0
_FLOAT32 = 2.0**-23
_FILL, _OUTSTANDING = -9e3, 100.0  # a mask's fill value: this low, and so many times as far out as the largest value
_WILD = 1e3  # stands for an error without a size: NaN, infinity, another shape
# A difference that is carried on stands out from the rounding that every call renews; what has died out does not.
_SEEN = 3.0
# How many epsilons of noise a healthy run may gather until its end: 2 in bfloat16, 16 in float32.
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


@dataclass
class _Values:
    """What is known of the values of each row."""

    error: Floats  # relative
    distance: Floats  # absolute: the norm of the difference
    norm: Floats
    rms: Floats
    elements: Floats
    amplitude: Floats
    epsilon: Floats
    mean: Floats


def expected_errors(pairs: pl.DataFrame, flow: Flow, error: Floats, epsilon: Floats, *, estimated: bool) -> Noise:
    """Judge each row's relative error by what its call may lose and what came in.

    ``estimated``: the errors are read off max, min, mean and norm, which see only a part of a difference.
    """
    values = _values(pairs, flow, error, epsilon)
    between = _between(flow, values)
    # Nothing was measured of a tensor that holds infinities, a mask say: it may be as far off as what surrounds it.
    unknown = np.isnan(values.distance) & (values.epsilon > 0)
    values.distance = np.where(unknown, between, values.distance)
    operations = [operation_of(op) for op in flow.ops]
    grain = _grain(flow, values.epsilon)
    carried, scale, roundings = _by_call(pairs, flow, values, operations, grain, estimated=estimated)
    row_call = np.maximum(flow.of_row, 0)
    output = (flow.role == OUTPUT) | (flow.role == GRADIENT)
    backward = np.array([op.direction != FORWARD for op in flow.ops] or [False])
    composite = ~flow.leaf | backward | np.array([op.is_module for op in flow.ops] or [False])
    local_epsilon = np.where(composite[row_call], grain, values.epsilon)
    local = ROUNDING * local_epsilon * np.sqrt(roundings[row_call]) * np.fmax(values.norm, scale[row_call])
    entering = ROUNDING * np.where(flow.source != NONE, 1.0, 4.0) * np.where(flow.parameter, epsilon, grain)
    local = np.where(output, local, entering * values.norm)
    inherited = np.where(flow.source != NONE, values.distance[np.maximum(flow.source, 0)], between)
    inherited = np.where(flow.parameter, 0.0, inherited)  # nothing before explains a parameter
    allowed = np.hypot(local, np.where(output, carried[row_call], inherited))
    # A container passes on what its parts made.
    inner = output & ~flow.leaf[row_call]
    allowed = np.where(inner, np.fmax(allowed, _within(flow, values)), allowed)
    gradient = flow.role == GRADIENT
    if gradient.any():  # every gradient gathers the errors of all that lies behind it
        typical = float(np.nanmedian(np.where(np.isfinite(error[gradient]), error[gradient], np.nan)))
        allowed = np.where(gradient, np.hypot(allowed, 2 * np.nan_to_num(typical) * values.norm), allowed)
    if estimated:  # statistics of 16-bit tensors are themselves rounded to 16 bits
        coarse = values.epsilon > 2.0**-12
        allowed = np.hypot(allowed, np.where(coarse, values.epsilon * values.norm, 0.0))
    few = np.where(values.elements < 4, 3.0, np.where(values.elements < 32, 2.0, 1.0))
    allowed = allowed * few
    with np.errstate(invalid="ignore", divide="ignore"):
        times = np.where(values.distance == 0, 0.0, values.distance / allowed)
        times = np.where(unknown, np.nan, times)
        expected = np.where(values.norm > 0, allowed / values.norm, np.nan)
        abnormal = values.distance > _SEEN * local * few
        depth = _DEPTH * (_DEPTH_AT / grain) ** _DEPTH_GROWTH
        matters = values.distance > depth * grain * np.where(output, np.fmax(values.norm, scale[row_call]), values.norm)
        # An update is small beside its parameter: what an optimiser writes counts by what its inputs explain.
        matters = np.where(flow.spread(flow.updates), times > _SEEN, matters)
    return Noise(error, expected, times, grain, abnormal, matters)


def _values(pairs: pl.DataFrame, flow: Flow, error: Floats, epsilon: Floats) -> _Values:
    norm = np.abs(pairs["g_norm"].to_numpy().astype(np.float64))
    high, low, mean = (pairs[f"g_{stat}"].to_numpy().astype(np.float64) for stat in ("max", "min", "mean"))
    amplitude = np.fmax(*(np.where(np.isfinite(stat), np.abs(stat), np.nan) for stat in (high, low)))
    elements = np.maximum(flow.elements[1], flow.elements[0])
    with np.errstate(invalid="ignore", over="ignore"):
        unknown = ~np.isfinite(norm)
        norm = np.where(unknown, np.nan_to_num(amplitude) * np.sqrt(elements), norm)
        rms = norm / np.sqrt(np.maximum(elements, 1))
        # An error against nothing: the target's own size is the distance.
        own = np.abs(pairs["t_norm"].to_numpy().astype(np.float64))
        distance = np.where(np.isfinite(error), error * norm, np.where(np.isnan(error), np.nan, np.fmax(own, norm)))
        # Fill values of masks say nothing about the rest; what is judged is the softmax behind them.
        filled = [pairs[f"{side}_min"].to_numpy() for side in "tg"]
        masked = (filled[0] <= _FILL) & (filled[1] <= _FILL) & (filled[1] < -_OUTSTANDING * np.abs(high))
        distance = np.where(masked & (error != 0), np.nan, distance)
        norm = np.where(masked, np.fmin(norm, np.abs(high) * np.sqrt(elements)), norm)
        distance = np.where(np.isposinf(error) & ~masked & ~np.isfinite(distance), np.finfo(np.float64).max ** 0.25, distance)
    return _Values(error, distance, norm, rms, elements, amplitude, epsilon, np.nan_to_num(mean))


def _grain(flow: Flow, epsilon: Floats) -> Floats:
    """The coarsest epsilon met so far, in the order of the run."""
    order = np.lexsort((np.arange(len(epsilon)), np.maximum(flow.of_row, 0)))
    grain = np.empty_like(epsilon)
    grain[order] = np.maximum.accumulate(epsilon[order]) if len(order) else epsilon
    return np.maximum(grain, 2.0**-52)


def _by_call(
    pairs: pl.DataFrame, flow: Flow, values: _Values, operations: list[Operation], grain: Floats, *, estimated: bool
) -> tuple[Floats, Floats, Floats]:
    """Per call: the distance that its inputs explain, the size of what it adds up, how often it rounds."""
    count = len(operations)
    family = np.array([op.family for op in operations], dtype=np.int64)
    factor = np.array([op.factor for op in operations])
    roundings = np.array([op.roundings for op in operations])
    backward = np.array([op.direction != FORWARD for op in flow.ops], dtype=bool)
    takes = ((flow.role == INPUT) | (flow.role == PARAMETER)) & (values.elements > 0) & (values.epsilon > 0)
    takes &= flow.of_row >= 0
    rows = np.flatnonzero(takes)
    calls = flow.of_row[rows]
    first, second = _operands(rows, calls, count)
    gives = np.flatnonzero(((flow.role == OUTPUT) | (flow.role == GRADIENT)) & (flow.of_row >= 0))
    size, norm, width = np.zeros(count), np.zeros(count), np.zeros(count)
    for array, what in ((size, values.elements), (norm, values.norm)):
        np.maximum.at(array, flow.of_row[gives], what[gives])
    width = _contracted(pairs, flow, first, second)
    distance = np.nan_to_num(values.distance[rows], nan=0.0)
    if estimated:
        # Four numbers see only a part of a difference; 16-bit ones hide half an epsilon.
        dirty = np.maximum.accumulate(np.nan_to_num(values.distance) > 0)[rows]
        hidden = np.where(values.epsilon[rows] > 2.0**-12, 0.5, ROUNDING) * values.epsilon[rows] * values.norm[rows]
        distance = np.where(dirty, np.fmax(2.0 * distance, hidden), distance)
    error = np.where(values.norm[rows] > 0, distance / np.where(values.norm[rows] > 0, values.norm[rows], 1), 0.0)
    elements = np.maximum(values.elements[rows], 1)
    spread = np.sqrt(np.maximum(1.0, size[calls] / elements))
    kind, by = family[calls], factor[calls]
    partner = np.where(rows == first[calls], second[calls], first[calls])
    other = np.where(partner != NONE, values.rms[np.maximum(partner, 0)], 1.0)
    relative = by * error * norm[calls]
    terms = width[calls]
    ratio = size[calls] / elements
    root = values.rms[np.maximum(first, 0)]
    gain = np.select(
        [kind == Family.COPY, kind == Family.SUM, kind == Family.REDUCE, kind == Family.MEAN, kind == Family.SMOOTH],
        [
            distance * spread, distance * spread, 2 * distance, 2 * distance * np.minimum(1.0, ratio),
            np.fmax(by * distance * spread, 0.0),
        ],
        relative,
    )  # fmt: skip
    product = (kind == Family.PRODUCT) & (second[calls] != NONE)
    gain = np.where(product, 2 * distance * np.sqrt(ratio) * other * np.sqrt(terms), gain)
    times = (kind == Family.MULTIPLY) & (second[calls] != NONE)
    gain = np.where(times, np.fmax(by * distance * other * spread, relative), gain)
    gain = np.where(kind == Family.EXPONENT, np.fmax(relative, by * distance / np.sqrt(elements) * norm[calls]), gain)
    loss = kind == Family.LOSS
    gain = np.where(loss, np.fmax(by * distance / np.sqrt(elements), error * norm[calls]), gain)
    # Normalising divides by what is left of the values without their mean.
    mean = np.abs(values.mean[rows])
    left = np.sqrt(np.maximum(values.rms[rows] ** 2 - mean**2, (1e-3 * values.rms[rows]) ** 2))
    steep = np.where(left > 0, values.rms[rows] / np.where(left > 0, left, 1), 1.0)
    gain = np.where(kind == Family.NORM, relative * np.where(rows == first[calls], steep, 1.0), gain)
    attention = kind == Family.ATTENTION
    third = _third(rows, calls, count)
    value = values.rms[np.maximum(third, 0)] * np.sqrt(size)
    logits = np.maximum(1.0, root * values.rms[np.maximum(second, 0)])
    gain = np.where(attention, by * error * np.fmax(value, norm)[calls] * logits[calls], gain)
    gain = np.where(backward[calls], _BACKWARD * error * norm[calls], gain)
    squares = np.zeros(count)
    np.add.at(squares, calls, gain**2)
    # A backward call also reads what its forward call kept.
    kept = np.zeros(count)
    seen = flow.of_row >= 0
    np.maximum.at(kept, flow.of_row[seen], np.nan_to_num(values.error, nan=0.0, posinf=_WILD)[seen])
    twin = flow.twin
    squares += np.where(twin != NONE, (_BACKWARD * kept[np.maximum(twin, 0)] * norm) ** 2, 0.0)
    scale = norm.copy()
    added = np.zeros(count)
    np.add.at(added, calls, (values.norm[rows] * spread) ** 2)
    scale = np.where((family == Family.SUM) & ~backward, np.fmax(scale, np.sqrt(added)), scale)
    reduced = np.zeros(count)
    np.maximum.at(reduced, calls, np.where(kind == Family.MEAN, values.norm[rows] * np.minimum(1, ratio), values.norm[rows]))
    scale = np.where(((family == Family.REDUCE) | (family == Family.MEAN)) & ~backward, np.fmax(scale, reduced), scale)
    both = (family == Family.PRODUCT) & (second != NONE) & ~backward
    summed = np.sqrt(size * np.maximum(width, 1)) * root * values.rms[np.maximum(second, 0)]
    scale = np.where(both, np.fmax(scale, summed), scale)
    fine = np.zeros(count)
    np.maximum.at(fine, flow.of_row[gives], values.epsilon[gives])
    own = np.where(fine > _FLOAT32 * 2, 2.0, np.maximum(width, 2.0))  # 16-bit products are summed in float32
    roundings = np.where(family == Family.PRODUCT, np.maximum(own, roundings), roundings)
    scale = np.where(attention_of(family) & ~backward, np.fmax(scale, value), scale)
    scale = np.where((family == Family.LOSS) & ~backward, np.fmax(scale, root), scale)
    steepness = np.ones(count)
    np.maximum.at(steepness, calls, np.where((kind == Family.NORM) & (rows == first[calls]), steep, 1.0))
    scale = scale * steepness
    roundings = np.where(backward, np.maximum(roundings, 4.0) * 2, roundings)
    gradient = np.array([op.direction == GRADIENTS for op in flow.ops], dtype=bool)
    if gradient.any():
        scale, squares = _parameter_gradients(flow, values, gradient, scale, squares)
    return np.sqrt(squares), scale, roundings


def attention_of(family: Ints) -> Bools:
    """Which calls are attention."""
    return family == Family.ATTENTION


def _operands(rows: Ints, calls: Ints, count: int) -> tuple[Ints, Ints]:
    """The first and the second floating-point input of each call."""
    first, second = np.full(count, NONE, dtype=np.int64), np.full(count, NONE, dtype=np.int64)
    first[calls[::-1]] = rows[::-1]
    later = rows != first[calls]
    second[calls[later][::-1]] = rows[later][::-1]
    return first, second


def _third(rows: Ints, calls: Ints, count: int) -> Ints:
    first, second = _operands(rows, calls, count)
    later = (rows != first[calls]) & (rows != second[calls])
    third = second.copy()
    third[calls[later][::-1]] = rows[later][::-1]
    return third


def _contracted(pairs: pl.DataFrame, flow: Flow, first: Ints, second: Ints) -> Floats:
    """How many products each element of a matmul, linear or convolution adds up."""
    shapes = pairs["g_shape"].to_list()
    width = np.ones(len(first))
    for call, (one, two) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        if two == NONE:
            continue
        op = flow.ops[call]
        name = (op.cls or op.body).lower()
        if "conv" in name:
            shape = dims(shapes[two])
            width[call] = float(np.prod(shape[1:])) if shape else 1.0
        else:
            shape = dims(shapes[one])
            width[call] = float(shape[-1]) if shape else 1.0
    return np.maximum(width, 1.0)


def _parameter_gradients(
    flow: Flow, values: _Values, gradient: Bools, scale: Floats, squares: Floats
) -> tuple[Floats, Floats]:
    """A gradient that is zero in theory is judged by what was added up: the gradient that came in, or its neighbours."""
    largest = np.zeros(len(gradient))
    arrived = np.zeros(len(gradient))
    error = np.zeros(len(gradient))
    rows = np.flatnonzero((flow.role == GRADIENT) & (flow.of_row >= 0))
    np.maximum.at(largest, flow.of_row[rows], values.norm[rows])
    backward = {
        (op.prefix, op.body, op.cls): call for call, op in enumerate(flow.ops) if op.direction == "backward"
    }
    incoming = np.zeros(len(gradient))
    wrong = np.zeros(len(gradient))
    inputs = np.flatnonzero((flow.role == INPUT) & (flow.of_row >= 0))
    np.maximum.at(incoming, flow.of_row[inputs], values.norm[inputs])
    np.maximum.at(wrong, flow.of_row[inputs], np.nan_to_num(values.error[inputs], posinf=_WILD))
    for call in np.flatnonzero(gradient).tolist():
        op = flow.ops[call]
        found = backward.get((op.prefix, op.body, op.cls))
        if found is not None:
            arrived[call], error[call] = incoming[found], wrong[found]
    scale = np.where(gradient, np.fmax(scale, np.fmax(largest, arrived)), scale)
    return scale, squares + np.where(gradient, (_BACKWARD * error * scale) ** 2, 0.0)


def _between(flow: Flow, values: _Values) -> Floats:
    """For inputs whose maker was not recorded: the error that arrived in the enclosing call so far, as a distance."""
    count = len(flow.ops)
    error = np.nan_to_num(values.error, nan=0.0, posinf=_WILD)
    outputs = ((flow.role == OUTPUT) | (flow.role == GRADIENT)) & (flow.of_row >= 0)
    inputs = (flow.role == INPUT) & ~flow.parameter & (flow.of_row >= 0)
    given, entered = np.zeros(count), np.zeros(count)
    np.maximum.at(given, flow.of_row[outputs], error[outputs])
    np.maximum.at(entered, flow.of_row[inputs], error[inputs])
    so_far = np.zeros(count)
    order = np.lexsort((flow.start, flow.parent))
    owner = flow.parent[order]
    edges = np.flatnonzero(np.diff(owner, prepend=owner[:1] - 1)).tolist() if count else []
    for begin, end in zip(edges, [*edges[1:], count], strict=True):
        members = order[begin:end]
        around = int(owner[begin])
        reached = np.maximum.accumulate(np.concatenate(([entered[around] if around != NONE else 0.0], given[members])))
        so_far[members] = reached[:-1]
    return np.where(flow.of_row >= 0, so_far[np.maximum(flow.of_row, 0)], 0.0) * values.norm * np.sqrt(_BETWEEN)


def _within(flow: Flow, values: _Values) -> Floats:
    """For outputs of a call that holds others: what those gave, as a distance."""
    count = len(flow.ops)
    error = np.nan_to_num(values.error, nan=0.0, posinf=_WILD)
    outputs = ((flow.role == OUTPUT) | (flow.role == GRADIENT)) & (flow.of_row >= 0)
    given, held = np.zeros(count), np.zeros(count)
    np.maximum.at(given, flow.of_row[outputs], error[outputs])
    inner = np.flatnonzero(flow.parent >= 0)
    np.maximum.at(held, flow.parent[inner], given[inner])
    return held[np.maximum(flow.of_row, 0)] * values.norm * np.sqrt(_BETWEEN)
