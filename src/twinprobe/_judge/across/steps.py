"""Two runs over many steps: from which step on they differ, and with what it begins.

The numbers of a step follow one another: parameters and data, outputs of modules, loss, gradients, the optimizer's
settings. So the first of them that differs, in the first step in which any does, is where the runs part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.watch import DIGEST

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

# In the order in which a step goes through them.
KINDS = ("parameter", "input", "output", "buffer", "loss", "gradient", "group")
# Where every call was compared, the judge knows more about these than their norms tell.
_JUDGED = ("output", "buffer", "loss", "gradient")
# They explain a difference and are none by themselves: programs draw random numbers for many things.
_EXPLAIN = ("random", "setting")
_SETTINGS = {"lr": "learning rate", "weight_decay": "weight decay"}
_ROUNDING = 64  # epsilons: more than the order of a sum changes
_HALF = (2.0**-14, 2.0**-7)  # relative errors that bfloat16 and float16 leave in a norm or a largest value
APART = "relative_error"  # the series of a tensor whose sketch tells how far it is from golden's, which has 0 there
_SCALED = 1e-4  # a factor that all gradients share, up to this
_EXACT = 1.2e-7  # the epsilon of float32, in which the statistics are taken


@dataclass
class Trend:
    """One rank of two runs, step by step: ``target`` and ``golden`` have a row for each pair of steps and a column for
    each series. ``difference`` is relative, ``noise`` what healthy runs may differ by."""

    rank: int
    steps: NDArray[np.int64]
    golden_steps: NDArray[np.int64]
    names: list[str]
    target: Floats
    golden: Floats
    known: Bools
    difference: Floats
    noise: Floats
    order: str = "step numbers"
    """How steps were paired: by their numbers, by the data they took, or by their places."""
    notes: list[str] = field(default_factory=list)

    @property
    def differs(self) -> Bools:
        """Which values of which steps are further apart than noise explains."""
        found: Bools = self.known & ~(self.difference <= self.noise)
        found[:, [not name.startswith(KINDS) for name in self.names]] = False
        return found


@dataclass(frozen=True)
class Parting:
    """Where two runs part: ``step`` as the target counts, ``golden_step`` as the golden run does; None if they agree.

    ``cause`` is a word or two, ``module`` the path of the module where it is seen first.
    """

    step: int | None
    golden_step: int | None
    cause: str
    module: str
    sentence: str
    rank: int = 0

    def __bool__(self) -> bool:
        return self.step is not None


@dataclass
class StepsComparison:
    """Two runs over all their steps: where they part, and the curves of each rank."""

    target: str
    golden: str
    parting: Parting
    trends: list[Trend]
    notes: list[str]


def differences(names: Sequence[str], target: Floats, golden: Floats, known: Bools) -> Floats:
    """How far apart the values are, relative to the larger; infinite where only one of them is a number."""
    scale = np.maximum(np.abs(target), np.abs(golden))
    place = {name: at for at, name in enumerate(names)}
    for at, name in enumerate(names):
        title, _, kind = name.rpartition(".")
        if kind == APART:
            scale[:, at] = 1.0
        # A mean may be near zero by chance, and a residue is a part of the norm.
        measure = place.get(f"{title}.{'max' if kind == 'mean' else 'norm'}") if kind in ("mean", "residue") else None
        if measure is not None:
            scale[:, at] = np.maximum(scale[:, at], scale[:, measure])
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.abs(target - golden) / scale
        found[(target == golden) | (np.isnan(target) & np.isnan(golden)) | ~known] = 0.0
    found[np.isnan(found)] = np.inf
    return found


# Healthy runs on other kernels differ by rounding from the first step on, and each step carries the difference into the
# next: ten times what the steps before have shown is growth, more is something new.
_GROWTH = 10.0


def expected_noise(names: Sequence[str], golden: Floats, known: Bools, difference: Floats) -> Floats:
    """What two healthy runs may differ by, for each value: nothing, as long as the runs are equal to the last bit."""
    noise = np.zeros_like(difference)
    kinds = np.array([name.partition(".")[0] for name in names])
    place = {name: at for at, name in enumerate(names)}
    base = np.full(len(names), 16 * _EXACT)
    for at, name in enumerate(names):
        eps = place.get(f"{name.rpartition('.')[0]}.eps")
        if eps is not None and known[0, eps]:
            base[at] = max(golden[0, eps], 16 * _EXACT)
        digest = place.get(f"{name.removesuffix('.norm')}.digest")
        if kinds[at] == "input" and name.endswith(".norm") and digest is not None:
            # Equal to the last bit; two frameworks add up the same numbers in another order.
            noise[:, at] = np.where(difference[:, digest] == 0, difference[:, at], 0.0)
    coarsest = base[kinds == "output"].max(initial=16 * _EXACT)
    base[np.isin(kinds, ("gradient", "loss", "grad_norm"))] = 4 * coarsest
    drifting = ("parameter", "output", "buffer", "loss", "gradient", "grad_norm")
    measured = np.isin(kinds, drifting)
    if not difference[0, measured].any():  # deterministic and on the same kernels: every bit counts
        return noise
    for kind in drifting:
        columns = np.flatnonzero(kinds == kind)
        if not len(columns):
            continue
        finite = np.where(np.isfinite(difference[:, columns]), difference[:, columns], 0.0)
        # What a series and its like have shown so far, whichever is more.
        shown = np.maximum.accumulate(np.maximum(finite, np.median(finite, axis=1, keepdims=True)), axis=0)
        least = base[columns] * (_beside(golden, names, columns) if kind == "gradient" else 1.0)
        noise[:, columns] = least
        noise[1:, columns] = np.maximum(_GROWTH * shown[:-1], noise[1:, columns])
    rates = [at for at, name in enumerate(names) if name.startswith("group.") and name.endswith(".lr")]
    apart = np.logical_or.accumulate(difference[:-1, kinds == "gradient"].any(axis=1))
    for at, name in enumerate(names):
        # Adam turns a gradient that is noise into a whole step, so elements may go the other way each time: the largest
        # by two rates, and so the norm, in which the others cancel. Equal gradients explain nothing.
        if rates and name.startswith("parameter."):
            step = 2 * np.abs(golden[:, rates]).max(axis=1) / np.maximum(np.abs(golden[:, at]), _EXACT)
            noise[1:, at] = np.maximum(noise[1:, at], np.where(apart | name.endswith(".max"), step[1:], 0.0))
    return noise


def _beside(golden: Floats, names: Sequence[str], columns: NDArray[np.intp]) -> Floats:
    """How many times as large as a gradient the largest of its module is: both are made of the same numbers, and one
    that is zero in theory (of a bias before a norm) is what rounding leaves of them."""
    homes = [(names[at].rpartition(".")[0].rpartition(".")[0], names[at].rpartition(".")[2]) for at in columns.tolist()]
    sizes = np.nan_to_num(np.abs(golden[:, columns]))
    largest = np.empty_like(sizes)
    for home in set(homes):
        beside = [at for at, one in enumerate(homes) if one == home]
        largest[:, beside] = sizes[:, beside].max(axis=1, keepdims=True)
    times: Floats = largest / np.maximum(sizes, np.finfo(np.float32).tiny)
    return times


# What it begins with.


def find_parting(trend: Trend, differing: Mapping[int, str] | None = None) -> Parting:
    """The first step that differs, and what differs first in it.

    ``differing``: where each step begins to differ, as far as every call of it was compared. That decides, even where
    the runs were equal to the last bit before: statistics only tell the cause.
    """
    differs = trend.differs
    if differing is not None:
        differs[[step not in differing for step in trend.steps.tolist()]] = False
        # The same data in another dtype: only where calls were compared is it known what follows from it.
        inputs = np.array([name.startswith("input.") for name in trend.names], dtype=np.bool_)
        differs &= ~(inputs & (trend.difference <= _HALF[1]))
        judged = next((at for at, step in enumerate(trend.steps.tolist()) if step in differing), len(trend.steps))
        if not differs[: judged + 1].any() and judged < len(trend.steps):
            step = int(trend.steps[judged])
            return _parting(
                trend, judged, "call", "", f"{_until(trend, judged)}; step {step} differs: {differing[step]}"
            )
    rows = np.flatnonzero(differs.any(axis=1))
    if not len(rows):
        within = ", within noise" if trend.difference.any() else ""
        return Parting(None, None, "", "", f"the runs agree in all {len(trend.steps)} steps{within}", trend.rank)
    at = int(rows[0])
    found = [name for name, one in zip(trend.names, differs[at].tolist(), strict=True) if one]
    kind = next(kind for kind in _BEGINNINGS if any(name.partition(".")[0] == kind for name in found))
    step = int(trend.steps[at])
    if differing and step in differing and kind in _JUDGED:
        return _parting(trend, at, "call", "", f"{_until(trend, at)}; step {step} differs: {differing[step]}")
    return _BEGINNINGS[kind](trend, at, [name for name in found if name.partition(".")[0] == kind])


def calls_parting(steps: Sequence[int], differing: Mapping[int, str]) -> Parting:
    """The first step that differs, where nothing but the comparison of its calls is known."""
    at = next((at for at, step in enumerate(steps) if step in differing), None)
    if at is None:
        return Parting(None, None, "", "", f"no call differs in any of the {len(steps)} steps that were compared")
    until = f"the runs agree up to step {steps[at - 1]}; " if at else "the runs differ from the first step on: "
    return Parting(steps[at], steps[at], "call", "", f"{until}step {steps[at]} differs: {differing[steps[at]]}")


def _parting(trend: Trend, at: int, cause: str, module: str, sentence: str) -> Parting:
    step, golden = int(trend.steps[at]), int(trend.golden_steps[at])
    there = f" (step {step} of the target is step {golden} of the golden run)" if step != golden else ""
    return Parting(step, golden, cause, module, sentence + there, trend.rank)


def _until(trend: Trend, at: int) -> str:
    return f"the runs agree up to step {trend.steps[at - 1]}" if at else "the runs differ from the first step on"


def _from(trend: Trend, at: int) -> str:
    """The beginning of the sentence about what differs in a step."""
    return f"{_until(trend, at)}; from step {trend.steps[at]} on " if at else f"{_until(trend, at)}: "


def _value(trend: Trend, at: int, name: str) -> tuple[float, float]:
    place = trend.names.index(name)
    return float(trend.target[at, place]), float(trend.golden[at, place])


def _by_update(trend: Trend, at: int, names: list[str]) -> Parting:
    """Parameters, though everything in the step before agrees."""
    where, module = _modules(trend, names)
    if not at:
        sentence = f"{_from(trend, at)}{where} before the first update"
        return _parting(trend, at, "initial parameters", module, sentence)
    sentence = (
        f"{_from(trend, at)}{where}, beginning with the parameter update of step {trend.steps[at - 1]} "
        "(gradients, learning rate and the other recorded settings agree)"
    )
    return _parting(trend, at - 1, "update", module, sentence)


def _by_setting(trend: Trend, at: int, names: list[str]) -> Parting:
    """The optimizer's settings of this step: their effect is seen in the parameters of the next."""
    told: dict[str, str] = {}
    for name in names:
        key = name.split(".", 2)[2]
        a, b = _value(trend, at, name)
        told.setdefault(_SETTINGS.get(key, key.replace("_", " ")), f"{a:.6g} against {b:.6g}")
    values = ", ".join(f"{key} {text}" for key, text in told.items())
    agree = "gradients agree, " if any(name.startswith("gradient.") for name in trend.names) else ""
    step, cause = trend.steps[at], next(iter(told))
    later: list[str] = []
    if at + 1 < len(trend.steps):
        differs = trend.differs[at + 1].tolist()
        later = [name for name, one in zip(trend.names, differs, strict=True) if one and name.startswith("parameter.")]
    if not later:
        sentence = f"{_from(trend, at)}the settings of the parameter update differ ({agree}{values})"
        return _parting(trend, at, cause, "", sentence)
    where, module = _modules(trend, later)
    sentence = (
        f"the runs agree up to step {step}; from step {trend.steps[at + 1]} on {where}, beginning with the "
        f"parameter update of step {step} ({agree}{values})"
    )
    return _parting(trend, at, cause, module, sentence)


def _by_data(trend: Trend, at: int, names: list[str]) -> Parting:
    taken = ", ".join(dict.fromkeys(name.split(".", 1)[1].rpartition(".")[0] for name in names))
    how = _reordered(trend, at, names)
    begin = f"{_until(trend, at)}; step {trend.steps[at]} takes" if at else f"{_until(trend, at)}: they take"
    cause = "data order" if how else "data"
    return _parting(trend, at, cause, "", f"{begin} {how or 'other data'} (input {taken})")


def _reordered(trend: Trend, at: int, names: list[str]) -> str:
    """Whether the data of the later steps are the same, in another order; in words, or nothing."""
    digests = [trend.names.index(name) for name in names if name.endswith(".digest")]
    chosen = digests or [trend.names.index(name) for name in names if not name.endswith(APART)]
    samples = [
        place for place, name in enumerate(trend.names) if name.startswith("input.") and name.endswith(".samples")
    ]
    if samples and not trend.difference[at, samples].any():
        return "the same samples in another order"
    taken, there = ([tuple(batch) for batch in side[at:, chosen].tolist()] for side in (trend.target, trend.golden))
    # Later steps that take the same batches on both sides say nothing about this one: it must come up elsewhere.
    moved = chosen and (taken[0] in there[1:] or there[0] in taken[1:])
    if moved and sum((Counter(taken) & Counter(there)).values()) * 4 >= len(taken):
        return "the same batches in another order"
    if samples:  # these digests add up over samples: equal sums mean that up to there both have seen the same ones
        sums = [np.cumsum(side[at:, samples[0]]) % DIGEST for side in (trend.target, trend.golden)]
        if (sums[0] == sums[1]).any():
            return "the same samples in another order"
    return ""


def _by_module(trend: Trend, at: int, names: list[str]) -> Parting:
    """A module gives something else though the parameters and the data are equal."""
    module = names[0].removeprefix("output.").rpartition(".")[0]
    own = [name for name in names if name.startswith(f"output.{module}.")]
    dtype = f"output.{module}.eps"
    measured = [float(trend.difference[at, trend.names.index(name)]) for name in own if name != dtype]
    size = max(measured, default=0.0)
    eps = max(_value(trend, at, dtype)) if dtype in trend.names else _EXACT
    cause, why = _module_cause(size, size / max(eps, _EXACT), _changed(trend, at))
    inputs = [name for name in trend.names if name.startswith("input.")]
    if f"output.{module}.drops" in trend.names:
        cause, why = "random numbers", "its random numbers differ (dropout, seed)"
    elif (
        names[0] == next(name for name in trend.names if name.startswith("output."))
        and inputs
        and not any(name.endswith((".digest", ".norm", APART)) for name in inputs)
    ):  # whole numbers, of which a recording of statistics keeps the extremes
        cause, why = "data", "it is the first call and takes whole numbers, of which only statistics are recorded"
    if dtype in own:
        a, b = (_dtype(value) for value in _value(trend, at, dtype))
        cause, why = "dtype", f"its dtype is {a} against {b}"
    agree = "all parameters" if cause == "data" else "the data and all parameters"
    sentence = f"{_from(trend, at)}module {module} differs though {agree} agree: {why}"
    return _parting(trend, at, cause, module, sentence)


def _changed(trend: Trend, at: int) -> list[str]:
    """Random states and settings that differ in this step and did not in the one before."""
    found = []
    for place, name in enumerate(trend.names):
        differs = trend.known[:, place] & (trend.difference[:, place] > 0)
        if name.startswith(_EXPLAIN) and differs[at] and not (at and differs[at - 1]):
            found.append(name)
    return found


def _module_cause(size: float, epsilons: float, changed: list[str]) -> tuple[str, str]:
    """What makes a module differ, by what else has changed and by how far it is off."""
    settings = [name.removeprefix("setting.") for name in changed if name.startswith("setting.")]
    if "autocast" in settings:
        return "dtype", "autocast differs"
    if any(name.startswith("random.") for name in changed) and epsilons > _ROUNDING:
        return "random numbers", "the random numbers differ (dropout, seed)"
    if settings:
        return "kernel", f"{', '.join(settings)} differ{'s' if len(settings) == 1 else ''}"
    if epsilons <= _ROUNDING:
        return "kernel", "by rounding only, so another kernel computes it"
    if _HALF[0] <= size <= _HALF[1] and epsilons > 4 * _ROUNDING:
        return "dtype", f"by {size:.1e}, as much as computing in a 16-bit dtype explains"
    return "kernel", f"by {size:.1e}, which is more than rounding explains"


def _by_buffer(trend: Trend, at: int, names: list[str]) -> Parting:
    """What a forward pass has left in the model, like running statistics, though all that it gave agrees."""
    found = list(dict.fromkeys(name.split(".", 1)[1].rpartition(".")[0] for name in names))
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    sentence = (
        f"{_from(trend, at)}buffer{'s' if more else ''} {found[0]}{more} differ{'' if more else 's'} after the forward "
        "pass though the outputs of all watched modules agree: it shows where they are used, as in an evaluation"
    )
    return _parting(trend, at, "buffers", found[0].rpartition(".")[0], sentence)


def _by_loss(trend: Trend, at: int, names: list[str]) -> Parting:
    a, b = _value(trend, at, names[0])
    sentence = f"{_from(trend, at)}the loss differs ({a:.6g} against {b:.6g}) though all watched modules agree"
    return _parting(trend, at, "loss", "", sentence)


def _by_gradient(trend: Trend, at: int, names: list[str]) -> Parting:
    """Forward and loss agree. Backward runs from the last module to the first: it begins with the last that differs."""
    start = f"{_from(trend, at)}gradients differ though forward and loss agree"
    norms = [name for name in trend.names if name.startswith("gradient.") and name.endswith(".norm")]
    ratios = [a / b for a, b in (_value(trend, at, name) for name in norms) if b]
    if len(ratios) > 1 and abs(ratios[0] - 1) > _SCALED >= (max(ratios) - min(ratios)) / abs(ratios[0]):
        sentence = f"{start}: all of them are {ratios[0]:.4g} times as large (clipping, or the scale of the loss)"
        return _parting(trend, at, "gradient scale", "", sentence)
    last = names[-1].removeprefix("gradient.").rpartition(".")[0]
    return _parting(trend, at, "gradients", last.rpartition(".")[0], f"{start}; backward meets {last} first")


_BEGINNINGS = {
    "parameter": _by_update, "input": _by_data, "output": _by_module, "buffer": _by_buffer, "loss": _by_loss,
    "gradient": _by_gradient, "group": _by_setting,
}  # fmt: skip


def _modules(trend: Trend, names: Sequence[str]) -> tuple[str, str]:
    """That these parameters differ, in a few words, and the path of the module around them, if it is not the model."""
    found = list(dict.fromkeys(name.split(".", 1)[1].rpartition(".")[0] for name in names))
    every = {name.split(".", 1)[1].rpartition(".")[0] for name in trend.names if name.startswith("parameter.")}
    parts = [name.split(".")[:-1] for name in found]
    shared = ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False)))
    if len(found) == 1:
        return f"{found[0]} differs", shared
    if shared and any(not name.startswith(f"{shared}.") for name in every):
        return f"{shared} differs", shared
    if len(found) == len(every):
        return "every parameter differs", ""
    return f"{len(found)} of {len(every)} parameters ({found[0]}, {found[1]}, ...) differ", ""


def _dtype(eps: float) -> str:
    names = {-52: "float64", -23: "float32", -10: "float16", -7: "bfloat16", -3: "float8_e4m3", -2: "float8_e5m2"}
    return names.get(round(math.log2(eps)), f"one with epsilon {eps:.2g}") if eps > 0 else "unknown"
