"""What sibling layers tell: the same call of the other layers is a control group that the run itself provides.

Where most of them make more of an input error than the model of noise allows, so may this one. They excuse no error
that comes from equal inputs, and none that is further off than noise ever comes. They never accuse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from twinprobe._judge.flow import NONE, Differences, Flow, result_rows
from twinprobe._judge.noise import Noise
from twinprobe._judge.search import Beginning, find_beginnings, follow
from twinprobe._runs.table import INPUT, OUTPUT, PARAMETER

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_FEWEST = 3  # siblings that a call is measured by


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
