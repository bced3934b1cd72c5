"""What a run is made for (loss, outputs, gradients, updates): which rows these are, whether they agree, and
what reaches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from twinprobe._judge.deviation import DIFFERS, Bools, Deviation, Ints, bools, related_shapes
from twinprobe._judge.flow import NONE, SPREAD, Flow
from twinprobe._judge.noise import Noise
from twinprobe._judge.operations import Family, chooses, operation_of
from twinprobe._judge.search import (
    ARGUMENT,
    EXPLAINED,
    EXTRA,
    MISSING,
    PARAMETER_DIFFERS,
    Beginning,
    Differences,
    unused,
)
from twinprobe._judge.summary import Result
from twinprobe._runs.names import BACKWARD, COLLECTIVE_PREFIXES, FORWARD, GRADIENTS, OPTIMIZER, TOTAL_NORM
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, POINT

if TYPE_CHECKING:
    import polars as pl


LOSS = "loss"  # the results that a summary begins with
PARAMETER_GRADIENTS = "parameter gradients"
UPDATED_PARAMETERS = "updated parameters"
_SCALED, _FLOAT32 = 1e-3, 2.0**-23  # relative: losses that are further apart are no noise
_NOTHING = 1e-3  # of the usual norm
# A gradient that comes in so many times as far off as what the forward call kept was parted elsewhere.
_GAIN = 100.0
_DEEPEST = 64  # modules around a call that are looked through
_DIRECTIONS = (FORWARD, BACKWARD, GRADIENTS, "")


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
    floating = bools(pairs["t_dtype"].str.contains("(?i)float"))
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


# What reaches them.


def ends_of(flow: Flow, facts: Differences) -> Bools:
    """Outputs that nothing recorded reads, nor could read through code between calls; and all gradients.

    Whole numbers that only Python reads (is any token masked?) are no results, unless the whole model gives them.
    """
    outputs = (flow.role == OUTPUT) & (flow.of_row >= 0)
    outputs &= ~facts.integer | (flow.parent[np.maximum(flow.of_row, 0)] == NONE)
    unread = outputs & ~flow.read
    direction: Ints = flow.each_call(lambda op: _DIRECTIONS.index(op.direction), np.int64)
    forward, backward = (direction == _DIRECTIONS.index(which) for which in (FORWARD, BACKWARD))
    if (flow.role == GRADIENT).any():
        # Gradients of activations are summed where nobody records: parameters have them all.
        unread &= ~flow.spread(backward)
    # Code between calls may read it: for a later call of the same module that takes a value of unknown origin, or for
    # the module's own output. What enters the way back is a gradient: no forward output was read for it.
    # After a backward pass gradients are read.
    span = len(flow.ops) + 1
    taken = flow.of_row[(flow.role == INPUT) & (flow.of_row >= 0) & (flow.source == NONE) & ~flow.parameter]
    given = np.flatnonzero(outputs & ~flow.leaf[np.maximum(flow.of_row, 0)])
    inner = flow.mark[outputs] * SPREAD[0] ^ flow.parent[flow.of_row[outputs]].astype(np.uint64)
    given = given[~np.isin(flow.mark[given] * SPREAD[0] ^ flow.of_row[given].astype(np.uint64), inner)]
    given = flow.of_row[given]
    place = (flow.parent + 1) * len(_DIRECTIONS) + direction  # readers in the order of places, then of time
    own = (given + 1) * len(_DIRECTIONS) + direction[given]
    readers = np.sort(np.concatenate((place[taken] * span + flow.start[taken], own * span + given)))
    rows = np.flatnonzero(unread)
    calls = flow.of_row[rows]
    after = np.append(readers, -1)[np.searchsorted(readers, place[calls] * span + calls, side="right")]
    back = np.flatnonzero(backward)
    until = np.append(back, len(flow.ops))[np.searchsorted(back, calls)]
    between = (after // span == place[calls]) & ~flow.updates[calls]
    unread[rows[between & (~forward[calls] | (after % span <= until))]] = False
    state = outputs & flow.spread(flow.keeps)
    unread &= ~flow.spread(flow.updates & ~flow.keeps)
    # So is a buffer that the model's or the user's own code writes to, in one call or several: the next step reads it.
    writes = forward & flow.each_call(lambda op: not op.body.startswith("__"))
    kept = np.zeros(len(flow.ops), dtype=bool)
    for row in flow.first_inputs(flow.in_place & writes & ~flow.updates).tolist():
        if not flow.parameter[row] and flow.elements[0][row] > 1:
            kept[flow.of_row[row]] = flow.source[row] == NONE or kept[flow.of_row[flow.source[row]]]
    state |= outputs & flow.spread(kept)
    # Of a call without recorded outputs nothing more is known; what goes to other ranks only is read there.
    silent = flow.each_call(lambda op: op.direction in (FORWARD, ""))
    silent[flow.of_row[(flow.role >= OUTPUT) & (flow.of_row >= 0)]] = False
    sent = flow.each_call(lambda op: op.prefix in COLLECTIVE_PREFIXES and "send" in op.body)
    # Two draws from other probabilities may be the same by chance: what a token is drawn from is a result.
    drawn = flow.each_call(lambda op: op.body == "multinomial") & ~flow.updates
    state |= (flow.role <= PARAMETER) & flow.spread(sent | silent | drawn)
    gradients = flow.role == GRADIENT
    seen = _read_by_optimizer(flow, facts)
    arrived = np.isin(flow.mark, flow.mark[gradients])
    if seen.sum() >= gradients.sum():  # where they are scaled, clipped or summed up on the way, what arrives counts
        gradients &= np.isin(flow.mark, flow.mark[seen])
    ends: Bools = unread | state | gradients | (seen & ~arrived) | (flow.role == POINT)
    if not (ends & facts.matched).any():
        # Only one run has what comes last (losses of parts of a batch): what the outermost paired calls give counts.
        paired = outputs & facts.matched
        given = np.zeros(len(flow.ops), dtype=bool)
        given[flow.of_row[paired]] = True
        outermost = np.array(
            [flag and not given[flow.parents_of(at)].any() for at, flag in enumerate(given)] or [False]
        )
        ends |= paired & flow.spread(outermost) & ~np.isin(flow.mark, flow.mark[(flow.role == INPUT) & facts.matched])
    return ends


def _read_by_optimizer(flow: Flow, facts: Differences) -> Bools:
    """The gradients as an optimiser reads them, or clipping before it, and the state that it keeps from before: not
    what it has made itself, in whatever order."""
    made = flow.target_source
    own = (made != NONE) & flow.spread(flow.updates)[np.maximum(made, 0)]
    seen: Bools = flow.spread(flow.updates | flow.clips) & (flow.role == INPUT) & facts.tensor & facts.matched
    seen &= ~own & ~flow.parameter & (flow.elements[0] > 1)
    return seen


def follow(flow: Flow, noise: Noise, facts: Differences, beginnings: list[Beginning]) -> None:
    """Find which beginnings are still seen at an end of the run: a result that nothing reads, or a gradient."""
    if not beginnings:
        return
    ends = ends_of(flow, facts) & (noise.matters | facts.whole)
    ends |= predictions(flow, facts, noise.abnormal, noise.flips) & (noise.matters | (facts.shape & facts.matched))
    ends &= ~facts.part & ~unused(flow, noise, facts)  # what reads the place that both have tells
    # A loss may be scaled, and its gradients scaled back; outputs go into a loss that nobody records. Where gradients
    # are known and agree, these count for nothing.
    back = np.flatnonzero(flow.each_call(lambda op: op.direction == BACKWARD)).max(initial=NONE)
    kept = flow.updates | (flow.in_place & flow.each_call(lambda op: not op.body.startswith("__")))
    before = (flow.role == OUTPUT) & (flow.of_row < back) & ~flow.spread(kept)
    gradients = flow.role == GRADIENT
    compared = bool((gradients & facts.matched).any())
    made = flow.spread(flow.updates) & (noise.times <= EXPLAINED)  # of gradients that agree, but for noise
    if compared and not (ends & ~before & ~made).any():
        ends &= ~before
    chains = _Chains(flow, noise, facts, ends)
    # Noise moves parameters where the loss does not depend on them: such a one shows in nothing but its next update.
    moved = [one for one in beginnings if not facts.first_step and one.cause == PARAMETER_DIFFERS]
    drifted = _Chains(flow, noise, facts, ends & ~flow.spread(flow.updates)) if moved else chains
    # The next step reads what an optimiser keeps. Of calls that one run makes alone, what they leave is known of
    # parameters only, unless something differs that both runs have written.
    stays = flow.keeps if (flow.updates & ~facts.called).any() else flow.updates
    alone = stays.copy()
    if not (ends & noise.abnormal & flow.spread(stays)).any():
        alone &= flow.turns[1]
    unseen = bool(gradients.any()) and not compared
    owners = flow.of_row[gradients & (flow.of_row >= 0)]
    # Later, parameters have drifted: an optimiser makes whole steps of noise.
    trained = set(flow.twin[owners].tolist()) if facts.first_step and not flow.updates.any() else set()
    sure = [one.call for one in beginnings if one.cause in (PARAMETER_DIFFERS, ARGUMENT)]
    begun = {call for one in sure for call in (one, *flow.parents_of(one))}
    chains.begun, drifted.begun = begun, begun
    for beginning in beginnings:
        # Where no gradients are compared (a batch in parts), few digits or a norm may hide what another weight does.
        given = chains.rows_of(beginning.call)
        parameter = beginning.cause == PARAMETER_DIFFERS and bool(noise.far[beginning.row])
        acts = unseen and parameter
        acts = acts and bool((noise.far[given] & (flow.role[given] == OUTPUT)).any())
        # A trained parameter that is far off is as far off after its update, which no call shows here.
        acts |= parameter and beginning.call in trained and beginning not in moved
        written = bool((alone if beginning.cause in (EXTRA, MISSING) else stays)[beginning.call])
        written = written and beginning not in moved
        beginning.reaches |= acts or written or (drifted if beginning in moved else chains).reach_an_end(beginning)
    # A parameter that differs at its optimiser differed where it was used first.
    for late in [one for one in beginnings if one.cause == PARAMETER_DIFFERS and flow.updates[one.call]]:
        used = (flow.mark == flow.mark[late.row]) & flow.parameter & ~flow.spread(flow.updates) & (flow.of_row >= 0)
        early = [one for one in beginnings if used[one.row] and one.cause == PARAMETER_DIFFERS]
        if early:
            early[0].reaches |= late.reaches
            beginnings.remove(late)


class _Chains:
    """Which beginnings lead to an end of the run. Plain lists, made once for all: single items of arrays are slow."""

    def __init__(self, flow: Flow, noise: Noise, facts: Differences, ends: Bools) -> None:
        self.flow = flow
        self.abnormal: Bools = noise.abnormal | facts.whole | (facts.shape & facts.matched)
        self.size, self.matters = np.nan_to_num(noise.error, nan=np.inf), noise.matters
        self.link = np.where(flow.back != NONE, flow.back, flow.twin).tolist()
        self.begun: set[int] = set()  # calls with another parameter or argument, and those around
        self.start, self.twin, self.parent = flow.start.tolist(), flow.twin.tolist(), flow.parent.tolist()
        # The call around, and what is around that where only one run makes it: its own values show nothing.
        self.around = [[outer] for outer in self.parent]
        for call in np.flatnonzero((flow.parent != NONE) & ~facts.called[flow.parent]).tolist():
            around = self.around[call]
            while around[-1] != NONE and not facts.called[around[-1]] and len(around) < _DEEPEST:
                around.append(self.parent[around[-1]])
        order = np.argsort(flow.of_row, kind="stable")
        edges = np.searchsorted(flow.of_row[order], np.arange(len(flow.ops) + 1))
        self.rows_of: Callable[[int], Ints] = lambda call: order[edges[call] : edges[call + 1]]
        held = self.abnormal & (flow.of_row >= 0)
        self.ending = set(flow.of_row[held & ends].tolist())
        # An optimiser makes much of little: what it is given must matter by itself.
        matters = (noise.matters | facts.whole) & (flow.role == INPUT)
        self.settled = set(np.flatnonzero(flow.updates).tolist()) - set(flow.of_row[held & matters].tolist())
        # Where an optimiser takes one parameter after another, its own code hands nothing from one to the next.
        self.turn = flow.turns[0].tolist()
        rows = np.flatnonzero(held)
        rows = rows[np.argsort(flow.of_row[rows], kind="stable")]
        maker = np.where(flow.source[rows] != NONE, flow.of_row[flow.source[rows]], NONE)
        takes = np.isin(flow.role[rows], (INPUT, PARAMETER))
        values = zip(rows.tolist(), maker.tolist(), flow.mark[rows].tolist(), takes.tolist(), strict=True)
        self.differing: dict[int, list[tuple[int, int, int, bool]]] = {}  # inner calls come before those around them
        for call, value in zip(flow.of_row[rows].tolist(), values, strict=True):
            self.differing.setdefault(call, []).append(value)

    def reach_an_end(self, beginning: Beginning) -> bool:
        """Whether a chain of differing values leads from a beginning to an end."""
        flow = self.flow
        shown = [beginning.row, *beginning.arguments]
        reached: set[int] = {beginning.call, *(int(flow.of_row[row]) for row in shown)} - {NONE}
        inside: set[int] = {outer for call in reached for outer in self.around[call]}
        begun = min(self.start[call] for call in reached)
        others = self.begun and self.begun - {beginning.call, *flow.parents_of(beginning.call)}
        shows = set(inside)  # of the same those that hold a value that matters
        carried: set[int] = set()  # equal values may be made twice: computed here, and received from another rank
        for call, values in self.differing.items():
            if (self.start[call] < begun and call < beginning.call) or (call in self.settled and call not in reached):
                continue
            if call not in reached:
                twin, back = self.twin[call], self.link[call]
                touched = call in inside or (back != twin and (back in reached or back in inside))
                if not touched and twin in reached:
                    kept, came = self.rows_of(twin), self.rows_of(call if back == twin else back)
                    came = came[flow.role[came] == INPUT]
                    largest = [np.max(self.size[rows], initial=0.0, where=self.abnormal[rows]) for rows in (kept, came)]
                    touched = bool(largest[0] >= largest[1] / _GAIN)
                for row, maker, mark, takes in values:
                    if touched:
                        break
                    if maker != NONE:
                        touched = maker in reached or mark in carried
                    elif takes and self.turn[beginning.call] in (NONE, self.turn[call]):
                        # Where another parameter differs, too, what matters was not made of what does not.
                        by_other = bool(others) and bool(self.matters[row])
                        touched = not (shows if by_other else inside).isdisjoint(self._came_through(row, call))
                        if not touched and self.parent[call] != NONE:  # made of an input of the call around: cast, say
                            outer = self.rows_of(self.parent[call])
                            seen = self.matters if by_other else self.abnormal
                            came = flow.source[outer[seen[outer] & (flow.role[outer] == INPUT)]]
                            touched = not reached.isdisjoint(flow.of_row[came[came != NONE]].tolist())
                if not touched or (call in others and self._parts_by_itself(call)):
                    continue
            if call in self.ending:
                return True
            reached.add(call)
            carried.update(mark for _, _, mark, _ in values)
            held = [*self.around[call], *([] if flow.leaf[call] else [call])]
            inside.update(held)
            if any(self.matters[row] for row, _, _, takes in values if not takes):
                shows.update(held)
        return False

    def _parts_by_itself(self, call: int) -> bool:
        """Whether a call with a cause of its own gives what is far off, and nothing that reached it is: weights into
        which a norm was folded heal in the next module, but for rounding, and explain no fault behind it."""
        rows, flow = self.rows_of(call), self.flow
        far = rows[self.matters[rows] & ~flow.parameter[rows]]
        return (
            flow.ops[call].direction == FORWARD
            and bool((flow.role[far] == OUTPUT).any())
            and not bool((flow.role[far] == INPUT).any())
        )

    def _came_through(self, row: int, call: int) -> list[int]:
        """The calls whose own code may have made an input: the one around, and its own if the input is its as well."""
        around = [self.parent[call]]
        while around[-1] != NONE:
            rows = self.rows_of(around[-1])
            taken = rows[self.flow.role[rows] == INPUT]
            # Of a model that gives a dict nobody records the gradients that come in.
            if len(taken) and self.flow.mark[row] not in self.flow.mark[taken]:
                break
            around.append(self.parent[around[-1]])
        return around
