"""A second look at what the search found, with the whole run in view.

Sibling layers: the same call of the other layers is a control group that the run itself provides. Where most of them
make more of an input error than the model of noise allows, so may this one. They excuse no error that comes from equal
inputs, and none that is further off than noise ever comes. They never accuse.

Results that are far apart although no call stands out have a cause too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from math import pi

import numpy as np

from twinprobe._judge.deviation import Bools, Floats, Ints
from twinprobe._judge.flow import NONE, Flow, ignored_rows
from twinprobe._judge.noise import Noise
from twinprobe._judge.operations import Family, operation_of
from twinprobe._judge.results import PARAMETER_GRADIENTS, ends_of, follow, result_rows
from twinprobe._judge.search import (
    OUTPUT_DIFFERS,
    OUTSIDE,
    PARAMETER_DIFFERS,
    Beginning,
    Differences,
    find_beginnings,
    when,
)
from twinprobe._runs.names import FORWARD, OpName
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

_FEWEST = 3  # siblings that a call is measured by
_MANY_GRADIENTS = 0.25  # of all: single ones that are zero in theory are nothing but noise
_JUMP = 4.0  # times the error that came in


def without_the_usual(
    flow: Flow,
    noise: Noise,
    facts: Differences,
    limit: Floats,
    isolated: Floats | None,
    plain: Bools,
    sketched: Bools,
    beginnings: list[Beginning],
) -> list[Beginning]:
    """What is left of these beginnings once sibling layers have excused what is usual among them.

    ``plain``: rows without a sign of their own that noise does not have; ``sketched``: rows whose errors are estimates
    from sketches. Where nothing stands out any more and yet the results are further apart than noise brings them, the
    excuse was none: a fault in all layers alike.
    """
    before = noise.times.copy(), noise.expected.copy()
    if not _excuse(flow, noise, limit, plain, sketched):
        return beginnings
    left = find_beginnings(flow, noise, facts, limit, isolated)
    follow(flow, noise, facts, left)
    if not any(beginning.reaches for beginning in left):
        rows = result_rows(flow, facts.matched, facts.tensor & ~facts.integer)
        apart = any(noise.matters[rows[name]].any() for name in ("loss", "outputs"))
        if apart or any(noise.far[found].any() for found in rows.values()):
            noise.times, noise.expected = before
            return beginnings
    return left


def _excuse(flow: Flow, noise: Noise, limit: Floats, plain: Bools, sketched: Bools) -> bool:
    """Raise what is expected of the rows beyond their limit by what is usual in sibling layers, in place."""
    error = np.nan_to_num(noise.error)
    unequal = np.zeros(len(flow.ops) + 1, dtype=bool)  # calls whose inputs are not known to be the same in both runs
    unresolved = sketched & np.maximum.accumulate(error > 0)  # sketches do not see the smallest errors
    unequal[flow.of_row[np.isin(flow.role, (INPUT, PARAMETER)) & ((error > 0) | unresolved)]] = True
    amplified = (flow.role == OUTPUT) & (flow.of_row >= 0) & unequal[flow.of_row] & np.isfinite(noise.times)
    with np.errstate(invalid="ignore"):
        suspects = np.flatnonzero(amplified & plain & (noise.times > limit) & ~noise.far)
    if not len(suspects):
        return False
    outputs = defaultdict(list)
    for row in np.flatnonzero((flow.role == OUTPUT) & (flow.of_row >= 0)).tolist():
        outputs[int(flow.of_row[row])].append(row)
    wanted = {_what(flow, int(flow.of_row[row])) for row in suspects}
    groups = defaultdict(list)
    keys: dict[int, list[Hashable]] = {}
    for call, key in _places(flow, wanted):
        groups[key].append(call)
        keys.setdefault(call, []).append(key)
    times = noise.times.copy()  # of the model alone: what is learned teaches nobody
    excused = False
    for row in suspects.tolist():
        owner = int(flow.of_row[row])
        place = outputs[owner].index(row)
        # Layers may be nested, stages of blocks say: most siblings tell most.
        siblings = max((groups[key] for key in keys.get(owner, ())), key=len, default=[])
        rows = [outputs[call][place] for call in siblings if call != owner and len(outputs[call]) > place]
        alike = [other for other in rows if amplified[other] and flow.elements[1][other] == flow.elements[1][row]]
        # The median: two layers that are faulty must not excuse each other.
        usual = float(np.median(times[alike])) if len(alike) >= _FEWEST else 1.0
        if usual > 1:
            noise.expected[row] *= usual
            noise.times[row] /= usual
            excused = True
    return excused


def _what(flow: Flow, call: int) -> tuple[str, ...]:
    op = flow.ops[call]
    return op.prefix, op.cls or op.body, op.direction


def _places(flow: Flow, wanted: set[tuple[str, ...]]) -> Iterator[tuple[int, Hashable]]:
    """Where calls of these functions and classes stand: the path of a module, with one of its numbers left out."""
    counted: defaultdict[tuple[int, tuple[str, ...]], int] = defaultdict(int)
    for call, op in enumerate(flow.ops):
        what, around = _what(flow, call), int(flow.parent[call])
        if what not in wanted or (around == NONE and not op.is_module):
            continue
        module, number = (op, op.call) if op.is_module else (flow.ops[around], counted[around, what])
        counted[around, what] += 1
        path = module.body.split(".")
        for at, part in enumerate(path):
            if part.isdecimal():
                yield call, (what, *path[:at], "#", *path[at + 1 :], module.cls, module.call, number)


def grown(flow: Flow, noise: Noise, facts: Differences, beginnings: list[Beginning]) -> list[Beginning]:
    """Where no call stands out and yet the results are far apart: the first value that is.

    What its inputs explain, call by call, may still be a fault that was explained away.
    """
    rows = result_rows(flow, facts.matched, facts.tensor & ~facts.integer)
    # Other whole numbers from outside, tokens say, are no noise: the cause, once the loss is off by more than rounding.
    given = [one for one in beginnings if one.cause == OUTSIDE and facts.whole[one.row]]
    if given and noise.far[rows["outputs"]].any() and noise.abnormal[rows["loss"]].any():
        given[0].reaches = True
        return beginnings
    if not _far_apart(flow, noise, facts, rows):
        return beginnings
    forward = flow.each_call(lambda op: op.direction == FORWARD) & ~flow.updates
    # A sign, a rounding, an index flips, and other elements are picked: a step by nature.
    chooses = flow.each_call(lambda op: operation_of(op).family == Family.CHOICE)
    chooses[flow.of_row[(flow.role == INPUT) & facts.whole & facts.matched]] = True
    flips = flow.spread(chooses) & (flow.role == OUTPUT)
    flips |= (flow.source != NONE) & flips[flow.source]
    drifted = flow.parameter & (noise.times <= _JUMP)  # noise explains it: what it leads to is no beginning
    apart = noise.far & ~flips & ~drifted & ~ignored_rows(flow, noise.error) & ~facts.idle
    known = np.flatnonzero(apart & facts.matched & flow.spread(forward & flow.leaf)).tolist()
    flipped = np.flatnonzero(noise.far & flips & facts.matched).tolist()
    if flipped and known and min(flipped) < min(known):  # what follows from a flip is expected
        for beginning in beginnings[:1]:
            beginning.reaches |= when(flow, beginning.row) <= when(flow, min(flipped))  # the flip follows from this
        return beginnings
    grew = []
    if known:
        row = min(known, key=lambda row: (when(flow, row), row))
        row = row if flow.source[row] == NONE else int(flow.source[row])  # seen better where it is read
        came = np.isin(flow.role, (INPUT, PARAMETER)) & (flow.of_row == flow.of_row[row]) & ~noise.masked
        before = float(np.max(np.nan_to_num(noise.error), where=came & (flow.role[row] == OUTPUT), initial=0.0))
        said = any(one.call == flow.of_row[row] or row in one.arguments for one in beginnings)
        if noise.error[row] > _passed_on(flow.ops[int(flow.of_row[row])], before) and not said:
            grew.append(Beginning(int(flow.of_row[row]), row, OUTPUT_DIFFERS if flow.role[row] == OUTPUT else OUTSIDE))
    found = sorted([*beginnings, *grew], key=lambda one: when(flow, one.row))
    for beginning in found:
        # What one run alone makes is seen where it is read.
        if noise.far[[beginning.row, *beginning.arguments]].any() or beginning in grew:
            beginning.reaches = True
            break
    return found


def _far_apart(flow: Flow, noise: Noise, facts: Differences, rows: dict[str, Ints]) -> bool:
    """Whether the results of the two runs, and the gradients where there are any, are further apart than noise is."""
    # Outputs alone may be far off where nobody reads them, padding say; a loss alone may be scaled.
    gradients, loss, outputs = len(rows[PARAMETER_GRADIENTS]), rows["loss"], rows["outputs"]
    # Without either, what comes last counts: padding of a prompt is off, and no token that is made of it.
    final = loss if len(loss) else outputs[flow.of_row[outputs] == flow.of_row[outputs].max(initial=0)]
    read = bool(gradients) or bool((noise.abnormal if len(loss) else noise.matters)[final].any())
    if not (noise.far[loss].any() or (read and noise.far[outputs].any())):
        return False
    seen = noise.far & ends_of(flow, facts) & (flow.role == GRADIENT)
    return bool(seen.sum() >= _MANY_GRADIENTS * gradients)


def _passed_on(op: OpName, error: float) -> float:
    """How far off noise in its inputs may leave what a call gives: less is no step, noise grows from call to call."""
    # An unknown class may take signs or round: with a relative error r, r / pi of normal numbers change their sign.
    opaque = op.is_module and operation_of(op).family == Family.OTHER
    return max(_JUMP * error, 2 * (error / pi) ** 0.5 if opaque else 0.0)


def by_formula(flow: Flow, noise: Noise, facts: Differences, beginnings: list[Beginning]) -> None:
    """Optimisers that compute the same by different formulas: of most parameters, what they write agrees. Where it does
    not, the formula is no cause, and it begins with what was written."""
    turn, writes = flow.turns
    if not writes.any():
        return
    kept = (flow.role == OUTPUT) & facts.matched & noise.abnormal & flow.spread(flow.keeps & flow.updates)
    off: dict[int, int] = {}  # by turns: what was written and differs, a parameter rather than a moment
    for row in sorted(np.flatnonzero(kept).tolist(), key=lambda row: bool(writes[flow.of_row[row]])):
        off[int(turn[flow.of_row[row]])] = row
    inner: dict[tuple[str, str], list[Beginning]] = {}
    for one in beginnings:
        computed = flow.updates[one.call] and not writes[one.call] and one.row not in off.values()
        if computed and one.cause not in (PARAMETER_DIFFERS, OUTSIDE):
            inner.setdefault((flow.ops[one.call].body, one.cause), []).append(one)
    for alike in inner.values():
        wrong = [one for one in alike if int(turn[one.call]) in off]
        if len(alike) <= 2 * len(wrong):
            continue
        for one in alike:
            one.reaches = False
        for row in dict.fromkeys(off[int(turn[one.call])] for one in wrong):
            written = Beginning(int(flow.of_row[row]), row, OUTPUT_DIFFERS, reaches=True)
            if all(one.call != written.call for one in beginnings):
                beginnings.append(written)
        beginnings.sort(key=lambda one: when(flow, one.row))
