"""What a run is made for (loss, outputs, gradients, updates): which rows these are, and whether they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe._judge.deviation import DIFFERS, Deviation, related_shapes
from twinprobe._judge.flow import NONE, Differences, Flow
from twinprobe._judge.noise import Noise
from twinprobe._judge.operations import Family, chooses, operation_of
from twinprobe._judge.summary import Result
from twinprobe._runs.names import BACKWARD, FORWARD, OPTIMIZER, TOTAL_NORM
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT

if TYPE_CHECKING:
    import polars as pl

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LOSS = "loss"  # the results that a summary begins with
PARAMETER_GRADIENTS = "parameter gradients"
UPDATED_PARAMETERS = "updated parameters"
_SCALED, _FLOAT32 = 1e-3, 2.0**-23  # relative: losses that are further apart are no noise
_NOTHING = 1e-3  # of the usual norm


def begins_backward(flow: Flow, row: int) -> bool:
    """Whether a row is the gradient of the loss, which code outside of all recorded calls computes."""
    backward = np.flatnonzero(flow.each_call(lambda op: op.direction == BACKWARD))
    first = len(backward) > 0 and flow.of_row[row] == backward[0] and flow.parent[backward[0]] == NONE
    return bool(first and flow.role[row] == INPUT)


def result_rows(flow: Flow, matched: Bools, floating: Bools) -> dict[str, Ints]:
    """The rows people look at first: the loss, the model's outputs, gradients, updated parameters."""
    call = np.maximum(flow.of_row, 0)
    matched = matched & (flow.of_row >= 0)
    forward = flow.each_call(lambda op: op.direction == FORWARD)[call]
    outputs = matched & floating & forward & (flow.role == OUTPUT) & ~flow.updates[call]
    module = flow.each_call(lambda op: op.is_module)
    outermost = outputs & module[call] & (flow.parent[call] == NONE) & (flow.elements[0] > 1)
    updated = matched & flow.updates[call] & flow.in_place[call] & (flow.role == OUTPUT)
    written = flow.each_call(lambda op: op.text.startswith(OPTIMIZER) and not op.text.startswith(TOTAL_NORM))
    updated &= (flow.elements[0] > 1) | written[call]  # no step counts
    # A loss has a way back; norms and coefficients of an optimiser have none.
    scalar = outputs & (flow.elements[0] == 1)
    derived = scalar & np.isin(call, flow.twin[flow.twin != NONE])
    if not derived.any():
        # Without one, it comes after all that the model gives, and is made by a loss function or of what recorded calls
        # give: other scalars are parts of masks and positions, or a mean of token numbers.
        last = int(call[outermost].max(initial=NONE))
        taken = (flow.role == INPUT) & (flow.target_source != NONE) & (flow.of_row >= 0)
        made = flow.each_call(lambda op: operation_of(op).family == Family.LOSS)[call]
        made |= np.isin(call, flow.of_row[taken])
        derived = scalar & made & (call > (flow.start[last] if last != NONE else NONE))
        derived &= flow.length == 0  # a vector of one element is one of many that happens to be alone: a box, a token
        if derived.any():  # how many predictions were right tells little of the scores
            counts = {int(one) for one in call[derived] if _counts(flow, floating, int(one), last)}
            derived &= ~np.isin(call, list(counts))
    return {
        LOSS: np.flatnonzero(derived)[-1:],
        "outputs": np.flatnonzero(outermost),
        PARAMETER_GRADIENTS: np.flatnonzero(matched & (flow.role == GRADIENT)),
        UPDATED_PARAMETERS: np.flatnonzero(updated),
    }


def _counts(flow: Flow, floating: Bools, call: int, after: int) -> bool:
    """Whether a call ``after`` the model computes with nothing but counts: whole numbers, zeros and ones, and what is
    made of these."""
    taken = np.flatnonzero((flow.of_row == call) & (flow.role == INPUT) & floating & ~flow.hits)
    made = flow.of_row[flow.target_source[taken]].tolist()
    known = (flow.target_source[taken] != NONE).all()
    return bool(known) and all(after < one < call and _counts(flow, floating, one, after) for one in made)


def predictions(flow: Flow, facts: Differences, abnormal: Bools, flips: Bools) -> Bools:
    """Where no gradient was recorded: what the last module gives, if the loss behind it differs as well, and what is
    made of it (boxes, scores).

    A loss averages errors out, so it is a poor witness by itself. Where it is the same to the last digits, what differs
    before it is padding. A model that is called again and again, for one token after another, gives a result each time,
    until a token flips within rounding: that leads to others. The best of other scores may be the same by chance: what
    a token or a box is chosen by is a result.
    """
    outermost = flow.each_call(lambda op: op.is_module) & (flow.parent == NONE)
    last = np.flatnonzero(outermost).max(initial=NONE)
    loss = result_rows(flow, facts.matched, facts.tensor & ~facts.integer)[LOSS]
    agrees = (flow.of_row[loss] > last).any() and not abnormal[loss].any()
    if last == NONE or agrees or flow.each_call(lambda op: op.direction not in (FORWARD, "")).any():
        return np.zeros(len(flow.role), dtype=bool)
    model = flow.ops[last]
    called = outermost & flow.each_call(lambda op: (op.body, op.cls) == (model.body, model.cls))
    outside = (flow.parent == NONE) & (np.arange(len(flow.ops)) > np.argmax(outermost)) & ~outermost
    chosen = outside & flow.each_call(chooses)
    for calls in (called, outside, chosen):
        calls[flow.of_row[flips & (flow.of_row >= 0)].min(initial=len(calls)) + (calls is chosen) :] = False
    given: Bools = (flow.spread(called) | (flow.spread(outside) & ~flow.read & ~facts.integer)) & (flow.role == OUTPUT)
    given |= flow.spread(chosen) & (flow.role == INPUT)
    return given


def results(pairs: pl.DataFrame, flow: Flow, noise: Noise, deviation: Deviation, *, claimed: bool) -> list[Result]:
    """The loss, the model's outputs, the parameters' gradients and the updates: do they agree, how far off are they?

    ``deviation``: as it was judged; ``claimed``: whether the runs part at a call.
    """
    matched = pairs["g_row"].is_not_null().to_numpy()
    floating = pairs["t_dtype"].str.contains("(?i)float").fill_null(value=False).to_numpy()
    rows = result_rows(flow, matched, floating)
    # A part of a model may give its values in another order, and the code that reads them turn them back: gradients
    # show whether it did.
    turned = (flow.marks[0] == flow.marks[1]) & (not claimed) & (len(rows[PARAMETER_GRADIENTS]) > 0)
    found = []
    scaled = _other_loss(pairs, rows[LOSS]) if len(rows[LOSS]) and not matched.all() else None
    for name, own in ((name, own) for name, own in rows.items() if len(own)):
        if name == LOSS and scaled is not None:
            found.append(scaled)
            continue
        error = np.nan_to_num(deviation.error[own], nan=0.0)
        differs = deviation.state[own] == DIFFERS
        if name in (LOSS, "outputs"):  # whatever explains it: this far off is not agreement
            # What is read by a later call is no result: it may differ, and what follows heal.
            differs = (differs | (noise.far[own] & ~(flow.read[own] & ~claimed))) & ~turned[own]
            if not claimed:  # no further off than what a healthy run gathers on its way: a compiled model, say
                differs &= noise.matters[own] | noise.far[own] | ~(error > 0)
            error[turned[own]] = 0.0
            if differs.any() and not claimed:  # the scores of the last token alone are no difference by themselves
                part = related_shapes(pairs)[1][own]
                differs, error = differs & ~part, np.where(part, 0.0, error)
        elif not claimed:  # a few epsilons that no call stands out for
            differs &= noise.far[own]
        # Gradients that are zero but for noise are not what one asks for.
        if name not in (LOSS, "outputs") and not differs.any():
            size = np.nan_to_num(np.abs(pairs["g_norm"].gather(own).to_numpy().astype(np.float64)))
            error = np.where(size > _NOTHING * np.median(size), error, 0.0)
        worst = int(own[int(np.argmax(error))])
        sizes = [float(deviation.error[worst]), float(deviation.error[worst] / noise.grain[worst])]
        worst_error, worst_eps = (size if np.isfinite(size) else 0.0 for size in sizes)
        where = pairs["t_name"][worst] or ""
        found.append(Result(name, not bool(differs.any()), len(own), int(differs.sum()), worst_error, worst_eps, where))
    return found


def _other_loss(pairs: pl.DataFrame, paired: Ints) -> Result | None:
    """The losses where one run goes on computing with what both have: adds a constant, divides by a number of batches.

    A loss is the last single number with a way back. None where it is the same, or the pair of rows tells.
    """
    import polars as pl

    values, where = [], ""
    own = int(paired[0])
    for side, other in ("tg", "gt"):
        call = pl.col(f"{side}_name").str.extract(r"^(.*\.\d+)\.forward\.output")
        alone = pairs.filter(pl.col(f"{other}_row").is_null() & pl.col(f"{side}_row").is_not_null())
        back = alone.select(pl.col(f"{side}_name").str.extract(r"^(.*\.\d+)\.backward\.")).to_series().drop_nulls()
        # A second loss, of another pass say, is not made of the first.
        goes_on = alone.filter((pl.col(f"{side}_role") == INPUT) & (pl.col(f"{side}_max") == pairs[f"{side}_max"][own]))
        last = alone.head(len(alone) if goes_on.height else 0).filter(
            (pl.col(f"{side}_shape") == "[]")
            & pl.col(f"{side}_dtype").str.contains("(?i)float")
            & call.is_in(back.unique().to_list())
            & (pl.col(f"{side}_row") > pairs[f"{side}_row"][own])
        )[-1:]
        value = last[f"{side}_max"][0] if last.height else pairs[f"{side}_max"][own]
        if value is None:  # of ranks that hold parts of it, say
            return None
        values.append(float(value))
        where = str(last[f"{side}_name"][0]) if last.height else where
    error = abs(values[0] - values[1]) / abs(values[1]) if values[1] else np.inf
    if not where or not error > _SCALED:
        return None
    return Result(LOSS, False, 1, 1, error, error / _FLOAT32, where)
