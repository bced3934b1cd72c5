"""What training has left of rounding before this step: in parameters, which drift, and in an optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._judge.deviation import ADAPTIVE_RATE, COARSE, ONE_PROCESS, Bools, Floats, bools
from twinprobe._judge.flow import NONE, Flow
from twinprobe._judge.inherited import Updates, Values, whole_steps
from twinprobe._runs.names import CONTAINERS
from twinprobe._runs.table import PARAMETER

if TYPE_CHECKING:
    import polars as pl


# How far noise moves parameters: so many epsilons a step, no further than this in 32 and in 16 bits.
_DRIFT, _DRIFT_END = 256.0, (2.0**-6, 2.0**-4)
# With whole steps single parameters drift far more than most: by so many epsilons a step, no further than this share
# of a usual parameter.
_DRIFTED, _DRIFTED_END = 1024.0, (1e-2, 2e-2)
_BETA1 = 0.9


def drift_of(
    pairs: pl.DataFrame, flow: Flow, values: Values, step: int, settings: Mapping[str, Any]
) -> tuple[float, float]:
    """How far apart parameters are after steps that were noise, typically and at most; 0 where they differ for real.

    In training, rounding errors of every step stay in the parameters, in nearly all that are trained, as modules read
    them and as optimizer.json has them before its step.
    """
    trained = (pairs["t_requires_grad"].fill_null(value=True)).to_numpy()
    epsilon = float(values.epsilon.max(initial=0.0))
    known = flow.parameter & (values.epsilon > 0) & (~flow.spread(flow.updates) | (flow.role == PARAMETER))
    moved = known & (values.error > 0)
    if step == 0 or not moved.any():
        return 0.0, 0.0
    typical, coarse = float(np.median(values.error[moved])), epsilon > COARSE
    few = 2 * (moved & trained).sum() < (known & trained).sum()  # the others are the same to the last bit
    if typical > min(_DRIFT * epsilon * abs(step), _DRIFT_END[coarse]) or (coarse and few):
        return 0.0, 0.0
    # A plain optimizer, such as SGD, moves no element further than its gradient.
    single = _DRIFT if settings.get(ADAPTIVE_RATE) == 0.0 else _DRIFTED
    return typical, max(typical, min(single * epsilon * abs(step), _DRIFTED_END[coarse]))


def hidden_drift(pairs: pl.DataFrame, flow: Flow, furthest: float) -> Floats:
    """How far off, relatively, a call may be because of parameters that nobody sees drift: of modules that show their
    parts in one run alone, the other being compiled."""
    paired = bools(pairs["t_row"].is_not_null() & pairs["g_row"].is_not_null())
    around: dict[bool, set[str]] = {True: set(), False: set()}  # modules around what is paired, and what is alone
    for side in "tg":
        bodies = pairs[f"{side}_name"].str.extract(rf"^(?:{'|'.join(sorted(CONTAINERS))})\.(.*)\.[^.]+\.forward\.")
        alone = bools(pairs[f"{side}_role"] == PARAMETER) & ~paired
        for known, rows in ((True, paired), (False, alone)):
            for body in bodies.filter(rows).drop_nulls().unique().to_list():
                parts = body.split(".")
                around[known] |= {".".join(parts[:end]) for end in range(1, len(parts))}
    hidden = around[False] - around[True]
    return np.where(flow.each_call(lambda op: op.is_module and op.body in hidden), furthest, 0.0)


def moved_parameters(
    pairs: pl.DataFrame,
    flow: Flow,
    values: Values,
    updates: Updates | None,
    steps: int,
    gathered: Floats,
    settings: Mapping[str, Any],
) -> Floats:
    """How far whole steps may have moved a parameter in so many steps, as a distance.

    One element at least, and as large a share as noise has of gradients (``gathered``); no more than one where most
    parameters are equal to the last bit, and none where all that are trained are: there was no noise. A parameter that
    began as zero is nothing but updates: all of its elements may. Where ranks were put together, a stale copy moves as
    little.
    """
    differs = np.nan_to_num(values.error) > 0
    trained = flow.parameter & bools(pairs["t_requires_grad"].fill_null(value=True))
    if not (differs & trained).any():
        return np.zeros(len(values.norm))
    drifted = differs[flow.parameter]
    share = float(np.max(gathered)) if 2 * drifted.sum() > len(drifted) else 0.0
    one = 1 / np.maximum(values.elements, 1)
    rate = steps * float(settings.get(ADAPTIVE_RATE) or 0.0)
    few: Floats = whole_steps(rate, values.elements, np.maximum(share, one)) * settings.get(ONE_PROCESS, 0)
    if updates is None or not updates.divides.any():
        return np.where(values.rms <= 2 * rate, whole_steps(rate, values.elements, 1.0), few)
    corrected = float(np.median(updates.step[updates.divides]))  # the rate, divided by the first moment's share
    return np.fmax(few, whole_steps(steps * corrected * (1 - _BETA1 ** (steps + 1)), values.elements, one))


def shown_by_means(pairs: pl.DataFrame, values: Values) -> Floats:
    """After a step of training, how far apart values are if few elements made whole steps, as their means tell.

    Max, min and norm do not see them, and the mean sees each once in so many elements. The means of 16-bit values are
    rounded too coarsely to tell.
    """
    means = [pairs[f"{side}_mean"].to_numpy().astype(np.float64) for side in "tg"]
    with np.errstate(invalid="ignore"):
        gap = np.abs(means[0] - means[1]) - 2 * values.epsilon * np.abs(means[1])
    gap = np.where(values.epsilon < COARSE, np.nan_to_num(gap, posinf=0.0), 0.0)
    found: Floats = np.maximum(gap, 0.0) * values.elements
    return found


def carried_state(flow: Flow, far: Bools) -> Bools:
    """What an optimiser's state holds of the noise of the steps before. Any of it may be noise, but not most of it."""
    carried = np.zeros(len(flow.role), dtype=bool)
    state = flow.written_to[flow.updates[flow.of_row[flow.written_to]]]
    state = state[flow.source[state] == NONE]  # what no call of this step has made
    names = np.array([flow.ops[call].body for call in flow.of_row[state].tolist()])
    for name in np.unique(names):
        rows = state[names == name]
        own = rows[~flow.parameter[rows]]
        carried[rows] = len(own) == 0 or far[own].mean() <= 0.5
    return carried
