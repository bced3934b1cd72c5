"""What training makes of rounding: parameters that drift apart, and the whole steps that adaptive optimizers make.

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
from numpy.typing import NDArray

from twinprobe._judge.deviation import ADAPTIVE_RATE, COARSE, ONE_PROCESS, SILENT, Values, bools
from twinprobe._judge.flow import NONE, Flow
from twinprobe._judge.operations import ADAPTIVE, softened
from twinprobe._runs.names import CONTAINERS, LISTS, OPTIMIZER
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER, STATS, VALUE

if TYPE_CHECKING:
    import polars as pl

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# How far noise moves parameters: so many epsilons a step, no further than this in 32 and in 16 bits.
_DRIFT, _DRIFT_END = 256.0, (2.0**-6, 2.0**-4)
# With whole steps single parameters drift far more than most: by so many epsilons a step, no further than this share
# of a usual parameter.
_DRIFTED, _DRIFTED_END = 1024.0, (1e-2, 2e-2)
_DIVIDES, _USUAL_STEP, _BETA1 = "addcdiv", 1e-2, 0.9
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
        plain = np.flatnonzero((pairs["t_kind"] == VALUE).fill_null(value=False).to_numpy() & (flow.of_row >= 0))
        number = np.nan_to_num(np.abs(pairs["t_max"].to_numpy().astype(np.float64)))
        np.maximum.at(step, flow.of_row[plain], number[plain])
        step = np.fmax(step, step[flow.whole]) if len(flow.whole) else step  # one number for all elements of a list
        whole = divides & (step == 0) & ~flow.each_call(lambda op: LISTS in op.body)
        step = np.where(step > 0, step, np.where(whole, 1.0, _USUAL_STEP))
    adapts = flow.each_call(lambda op: op.text.startswith(OPTIMIZER) and bool(_ADAPTS.search(op.body)))
    if adapts.any():
        given = np.flatnonzero(pairs["t_name"].str.ends_with(".lr").fill_null(value=False).to_numpy())
        rate[flow.of_row[given]] = np.nan_to_num(pairs["t_max"].to_numpy().astype(np.float64)[given])
        rate = np.where(adapts, rate, 0.0)
    known: dict[str, float] = settings.get(SILENT) or {}
    silent: Floats = flow.each_call(lambda op: known.get(op.body.rpartition(".")[0], 0.0), np.float64)
    shares = np.full(count, np.nan) if noisy is None else np.where(first != NONE, noisy[first], np.nan)
    return Updates(rate, divides, step, whole, silent, shares, softened(pairs, flow.of_row, count))


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
