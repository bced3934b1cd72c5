"""The search for beginnings: which calls part the runs by themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinprobe._judge.deviation import DIFFERS, Bools, Ints, Rows, bools, related_shapes, shapes_differ
from twinprobe._judge.drift import carried_state
from twinprobe._judge.flow import NONE, Flow, ignored_rows
from twinprobe._judge.inherited import NOTHING
from twinprobe._judge.noise import Noise
from twinprobe._judge.operations import Family, operation_of, same_eps
from twinprobe._runs.names import (
    BACKWARD,
    COLLECTIVE_PREFIXES,
    COMMUNICATION,
    FORWARD,
    GRADIENTS,
    IN_TRAINING,
    KERNEL_SETTING,
    MODULE_OF_ROW,
    OPTIMIZER,
    RUNNING_MOMENTUM,
)
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, POINT

if TYPE_CHECKING:
    import polars as pl


# What a beginning is.
Cause = Literal["output", "argument", "parameter", "outside", "between", "extra", "missing", "random", ""]
OUTPUT_DIFFERS: Cause = "output"
ARGUMENT: Cause = "argument"
PARAMETER_DIFFERS: Cause = "parameter"
OUTSIDE: Cause = "outside"
BETWEEN: Cause = "between"
EXTRA: Cause = "extra"
MISSING: Cause = "missing"
RANDOM: Cause = "random"


class CauseWords(NamedTuple):
    """What a cause is called: the rule in the verdict of its rows, the kind of difference, and that kind in words."""

    rule: str
    kind: str = ""
    words: str = ""


CAUSES: dict[Cause, CauseWords] = {
    OUTPUT_DIFFERS: CauseWords("injected"),
    ARGUMENT: CauseWords("injected_by_argument", "argument", "an argument differs"),
    PARAMETER_DIFFERS: CauseWords("injected_by_parameter", "parameter", "a parameter differs"),
    OUTSIDE: CauseWords("injected_by_input", "input", "an input from outside differs"),
    BETWEEN: CauseWords("injected_inside"),
    EXTRA: CauseWords("extra", "extra", "only the target run makes this call"),
    MISSING: CauseWords("missing", "missing", "only the golden run makes this call"),
    RANDOM: CauseWords("random", "random", "a random call gave other numbers"),
}
_FILL = 9e3  # numbers beyond this are a mask's fill value
_CHANGED = 1e-2  # relative: no rounding moves values so far while their maximum, minimum and norm stay the same
_TRANSPOSED = 1e-2  # of an input's error: the output of a product does not depend on what differs in it
EXPLAINED = 2.0  # times what is expected: within noise
_NEAR = 3  # modules around a call: its own, an attention or experts, the layer
_MOST = 32  # beginnings that are followed, values that are looked at; the first ones are what people read


@dataclass
class Beginning:
    """A call where the runs part by themselves. ``row`` shows it best; ``arguments`` are rows that differ."""

    call: int
    row: int
    cause: Cause
    arguments: list[int] = field(default_factory=list)
    reaches: bool = False
    """Whether it is still seen at an end of the run."""


@dataclass
class Differences:
    """What is known of each row beside its error: plain facts."""

    value: Bools  # plain arguments that differ
    integer: Bools  # tensors of integers and booleans
    whole: Bools  # those that differ
    shape: Bools  # shapes that differ
    recut: Bools  # shapes of as many axes and elements that are cut into other lengths: heads, groups, windows
    part: Bools  # shapes of which one may be a single place of the other
    matched: Bools
    tensor: Bools
    called: Bools  # calls, not rows: those that have a counterpart
    number: NDArray[np.float64]  # the target's plain arguments, where they are numbers; 0 elsewhere
    given: Bools  # arguments that are a tensor in one run and none, or a plain value, in the other
    refilled: Bools  # masks with more fill values on one side
    carried: Bools  # an optimiser's state after the steps before
    acts_later: Bools  # arguments that change nothing but what the next step reads: momentum of running statistics
    first_step: bool  # no update came before: parameters are as they were loaded
    idle: Bools  # parameters that an optimiser moves by noise alone: their gradient is zero in theory
    moved: Callable[[], Bools]  # the same values in another order, by their statistics


def facts_of(
    flow: Flow, rows: Rows, noise: Noise, state: NDArray[np.uint8], *, integer: Bools, refilled: Bools, first_step: bool
) -> Differences:
    """The plain facts of each row; ``state`` and ``refilled`` as they were measured."""
    pairs = rows.pairs
    names, shape = pairs["t_name"], shapes_differ(pairs) & rows.tensor
    # A mask holds yes and no, in whatever type.
    integer, differs = integer | refilled, (state == DIFFERS) | refilled
    carried = np.zeros(len(flow.role), dtype=bool) if first_step else carried_state(flow, noise.far)
    number = rows.number("t", "max")
    # Results of a step do not depend on the momentum of running statistics; where these are only read, nothing does.
    frozen = bools(names.str.contains(IN_TRAINING)) & rows.value & (number == 0)
    acts_later = bools(names.str.contains(RUNNING_MOMENTUM)) & rows.value
    acts_later |= noise.running & rows.tensor & rows.matched
    recut, part = related_shapes(pairs)
    alike = bools(names.str.contains(KERNEL_SETTING)) | same_eps(pairs)
    return Differences(
        value=rows.value & differs & ~alike, integer=integer, whole=integer & differs,
        shape=shape, recut=shape & recut, part=shape & part, matched=rows.matched, tensor=rows.tensor,
        called=np.isin(np.arange(len(flow.ops)), flow.of_row[rows.matched]),
        number=np.where(rows.value, np.nan_to_num(number.astype(np.float64)), 0.0),
        given=rows.mixed, refilled=refilled, carried=carried, first_step=first_step,
        acts_later=acts_later & ~np.isin(flow.of_row, flow.of_row[frozen]),
        idle=np.zeros(len(flow.role), dtype=bool) if first_step else _idle(flow, pairs),
        moved=partial(rows.moved, noise.error),
    )  # fmt: skip


def _idle(flow: Flow, pairs: pl.DataFrame) -> Bools:
    """Parameters that have no gradient but rounding, before a normalisation say: no result depends on them, and an
    optimiser that divides by the size of a gradient moves them by whole steps all the same."""
    import polars as pl

    whose, name = r"^(.*)\.(?:forward\.\d+\.parameters|parameters_grad\.\d+)\.", r"([^.]+)$"
    owner = pairs.select(pl.col("g_name").str.extract(whose) + "." + pl.col("g_name").str.extract(name)).to_series()
    size = np.nan_to_num(np.abs(pairs["g_norm"].to_numpy().astype(np.float64)))
    given = (flow.role == GRADIENT) & bools(owner.is_not_null())
    nothing = given & (size <= NOTHING * np.linalg.norm(size[given]))
    idle = (flow.role == PARAMETER) & bools(owner.is_in(owner.filter(nothing).implode()))
    # The same in an optimizer.json.
    written = flow.each_call(lambda op: op.text.startswith(OPTIMIZER))
    read = flow.spread(written) & (flow.role == INPUT) & (flow.elements[1] > 1)
    calls = np.zeros(len(flow.ops), dtype=bool)
    calls[flow.of_row[read & (size <= NOTHING * np.linalg.norm(size[read]))]] = True
    idle |= (flow.role == PARAMETER) & flow.spread(calls)
    found: Bools = idle | np.isin(flow.mark, flow.mark[idle]) | np.isin(flow.marks[0], flow.marks[0][idle])
    return found


def find_beginnings(
    flow: Flow,
    noise: Noise,
    facts: Differences,
    limit: NDArray[np.float64],
    isolated: NDArray[np.float64] | None = None,
) -> list[Beginning]:
    """All calls whose difference nothing before explains, in the order of the run.

    ``isolated``: how far off a row's call is by itself, in multiples of what it may lose; NaN where it is not known.
    """
    family = flow.each_call(lambda op: operation_of(op).family, np.int64)
    arguments: dict[int, list[int]] = {}
    for row in np.flatnonzero(facts.value & facts.matched & (flow.of_row >= 0)).tolist():
        arguments.setdefault(int(flow.of_row[row]), []).append(row)
    unexplained = _unexplained(flow, noise, facts, limit, family, arguments, isolated)
    # These may be equal in meaning (a mask, or a flag for it), so they explain what differs, but rounding is no sign.
    for row in np.flatnonzero(facts.given & (flow.role == INPUT) & (flow.of_row >= 0)).tolist():
        if flow.ops[owner := int(flow.of_row[row])].direction == FORWARD:
            arguments.setdefault(owner, []).append(row)
    events = sorted(np.flatnonzero(unexplained).tolist(), key=lambda row: (when(flow, row), row))
    taken = [row for row in events if flow.role[row] in (INPUT, PARAMETER)]
    around = [(outer, row) for row in taken for outer in flow.parents_of(int(flow.of_row[row]))]
    deeper, passed_on = {outer for outer, _ in around}, {(at, flow.mark[row]) for at, row in around if facts.whole[row]}
    owned = {int(flow.of_row[row]) for row in events if flow.role[row] == PARAMETER}
    found: dict[int, Beginning] = {}
    for row in events:
        owner = int(flow.of_row[row])
        if isolated is not None and not np.isnan(isolated[row]) and flow.twin[owner] != NONE:
            forward = int(flow.twin[owner])
            if any(forward in (call, *flow.parents_of(call)) for call in found):
                continue  # the way back of a call that is guilty already
        if facts.acts_later[row]:
            beginning = Beginning(owner, row, OUTSIDE if facts.tensor[row] else ARGUMENT, [row], reaches=True)
        elif flow.role[row] in (INPUT, PARAMETER):
            if owner in deeper and (not facts.whole[row] or (owner, flow.mark[row]) in passed_on):
                continue  # a call inside takes the same value, or what was made of it; of a mask anything is made
            beginning = _entering(flow, row, owner, facts, events[0])
            inside = int(flow.parent[beginning.call]) in owned
            beginning = _by_argument(beginning, arguments, facts, inside=inside)
        elif not flow.leaf[owner] and any(owner in flow.parents_of(call) for call in found):
            continue  # a part of it is a beginning already
        elif not flow.leaf[owner] and _alone(flow.golden_source[row], facts) and flow.ops[owner].direction == FORWARD:
            beginning = Beginning(owner, row, MISSING, [int(flow.golden_source[row])])
        else:
            # Where a group ends in a dropout, what came before it may be the other function.
            random = family[owner] == Family.RANDOM and owner not in flow.grouped
            random &= flow.ops[owner].direction == FORWARD
            cause = ARGUMENT if owner in arguments else RANDOM if random else OUTPUT_DIFFERS
            beginning = Beginning(owner, row, cause, arguments.get(owner, []))
        found.setdefault(beginning.call, beginning)
    return list(found.values())[:_MOST]


def _unexplained(
    flow: Flow,
    noise: Noise,
    facts: Differences,
    limit: NDArray[np.float64],
    family: Ints,
    arguments: dict[int, list[int]],
    isolated: NDArray[np.float64] | None,
) -> Bools:
    """Rows whose difference neither noise nor anything before them explains."""
    call = np.maximum(flow.of_row, 0)
    collective = flow.each_call(lambda op: op.prefix in COLLECTIVE_PREFIXES)
    received = collective.copy()  # what encloses them receives, too
    for outer in () if flow.of_ranks else np.flatnonzero(collective).tolist():
        received[flow.parents_of(outer)] = True
    held = (flow.of_row >= 0) & ~ignored_rows(flow, noise.error) & ~received[call]
    inputs = np.isin(flow.role, (INPUT, PARAMETER)) & held
    # Whole numbers that differ explain whatever a call makes of them; so do other shapes.
    explained, unsure = np.zeros((2, len(flow.ops)), dtype=bool)
    explained[flow.of_row[inputs & (facts.whole | facts.shape)]] = True
    explained |= flow.other_arguments
    # A gradient has the shape of the value that came in forward.
    shaped = np.isin(np.arange(len(flow.ops)), flow.of_row[inputs & facts.shape])
    explained |= (flow.twin != NONE) & shaped[flow.twin]
    unsure[flow.of_row[inputs & (np.nan_to_num(noise.error) > 0)]] = True
    # Squares of a gradient that is half off, and quotients of them, are off by anything.
    explained[flow.of_row[inputs & (np.nan_to_num(noise.error) > 0.5) & flow.spread(flow.updates)]] = True
    with np.errstate(invalid="ignore"):
        off = (noise.times > limit) | ((facts.whole | facts.shape) & facts.tensor)
    off &= held & facts.matched & ~_exchanged(flow, noise, facts)[call]
    outputs = off & ((flow.role == OUTPUT) | (flow.role == POINT))
    chosen = (family == Family.CHOICE) & unsure
    chosen[list(arguments)] = False  # another k takes others, and no rounding does that
    outputs &= ~(explained | chosen)[call] & ~noise.flips
    if isolated is not None:  # a call that was run again from its own inputs is guilty or not, whatever came in
        replayed = ~np.isnan(isolated) & (flow.role == OUTPUT)
        outputs = (outputs & ~replayed) | (replayed & (isolated > limit) & held & facts.matched)
    # With inputs equal to the last bit, another argument is the cause of whatever differs; a mask's fill value is not.
    filled = [owner for owner, rows in arguments.items() if any(abs(facts.number[row]) > _FILL for row in rows)]
    # An optimiser's settings are the cause of another update, whatever the gradients are.
    unsettled = (unsure | explained) & ~flow.updates
    caused = np.isin(call, list(arguments)) & ~np.isin(call, filled) & ~unsettled[call]
    caused &= (np.nan_to_num(noise.error) != 0) & facts.matched & held & (flow.role == OUTPUT)
    # A value that agrees where it was made and differs where it is read was changed on the way, by code that nobody
    # recorded: rolled, flipped, permuted, which leaves its statistics as they are.
    with np.errstate(invalid="ignore"):
        changed = (noise.times > limit) & (noise.error > _CHANGED)
    # Masks look alike: another one was taken.
    changed |= facts.refilled & ~facts.refilled[np.maximum(flow.source, 0)]
    entering = off & inputs & ((flow.source == NONE) | changed | _recut(flow, noise, facts)) & ~facts.carried
    entering &= ~_picked(flow, facts, entering) & ~unused(flow, noise, facts) & ~facts.idle
    # A product that gives the same took the same, transposed by a flag of its own: nothing begins there. A bias, which
    # has one axis, is never transposed. Nor does anything where two factors or summands have changed places.
    given = np.zeros(len(flow.ops))
    made = (flow.role == OUTPUT) & (flow.of_row >= 0)
    np.maximum.at(given, flow.of_row[made], np.nan_to_num(np.where(facts.matched, noise.error, 1.0), nan=1.0)[made])
    backward = flow.each_call(lambda op: op.direction != FORWARD)
    least = np.fmin(np.nan_to_num(noise.error), 1.0)  # infinite where golden is zero
    operand = np.ones(len(flow.ops))
    np.minimum.at(operand, flow.of_row[inputs & facts.tensor], least[inputs & facts.tensor])
    # Results are no nearer than their type rounds: in 16 bits that is not much nearer than the operands.
    rounding = np.zeros(len(flow.ops))
    np.maximum.at(rounding, flow.of_row[made], noise.grain[made])
    near = np.fmax(_TRANSPOSED * operand, np.fmin(rounding, 10 * _TRANSPOSED * operand))
    commutes = np.isin(family, (Family.SUM, Family.MULTIPLY)) & ~backward & (given <= near)
    given[backward | (family != Family.PRODUCT)] = np.inf
    entering &= ((given[call] > _TRANSPOSED * least) | (flow.elements[0] == flow.length)) & ~commutes[call]
    gradients = off & (flow.role == GRADIENT)
    if (flow.back != NONE).any():  # a parameter that is read without a call of its module: nobody saw what came back
        gradients &= noise.far | (flow.back[call] != NONE)
    found: Bools = outputs | caused | entering | gradients | (facts.acts_later & (facts.value | facts.tensor) & held)
    return found


def _recut(flow: Flow, noise: Noise, facts: Differences) -> Bools:
    """Inputs that are the same values in other lengths, where that changes what is computed: heads of an attention."""
    cut: Bools = facts.recut & (flow.role == INPUT) & (flow.source != NONE) & ~facts.shape[np.maximum(flow.source, 0)]
    shaped = (Family.ATTENTION, Family.PRODUCT, Family.NORM, Family.SMOOTH)
    cut &= flow.spread(flow.each_call(lambda op: operation_of(op).family in shaped))
    # Queries of a group that are read as so many tokens of one head give the same.
    off = (flow.role == OUTPUT) & (flow.of_row >= 0) & facts.matched & facts.tensor & ~(noise.times <= EXPLAINED)
    return cut & np.isin(flow.of_row, flow.of_row[off])


def _picked(flow: Flow, facts: Differences, entering: Bools) -> Bools:
    """Values that indices picked, or that count them: other indices before, of as many tokens in the same block,
    explain what differs. A router that flipped deals its tokens out in another order, by indexing nobody recorded."""
    picked = np.zeros(len(entering), dtype=bool)
    indices = facts.whole & facts.matched & (flow.role == OUTPUT) & (flow.of_row >= 0)
    if not indices.any():
        return picked

    def sizes(row: int) -> set[int]:
        return {int(flow.length[row]), int(flow.elements[0][row])} - {0, 1}

    near: dict[int, list[int]] = {}  # by the modules around
    for row in np.flatnonzero(indices).tolist():
        for module in flow.parents_of(int(flow.of_row[row]))[:_NEAR]:
            near.setdefault(module, []).append(row)
    for row in np.flatnonzero(entering).tolist():
        owner = int(flow.of_row[row])
        forward = owner if flow.twin[owner] == NONE else int(flow.twin[owner])
        before = [index for module in {*flow.parents_of(owner)[:_NEAR], *flow.parents_of(forward)[:_NEAR]}
                  for index in near.get(module, []) if flow.of_row[index] < owner]  # fmt: skip
        # So many tokens for one expert and so many for another: shapes that differ need no further match.
        picked[row] = any(facts.shape[row] or sizes(row) & sizes(index) for index in before)
    return picked


def unused(flow: Flow, noise: Noise, facts: Differences) -> Bools:
    """What a call that only one run makes hands to one whose results are equal to the last bit: it reads no more of it
    than a type or a shape, so the call before explains nothing. Nor does one that hands on another shape, that of a
    mask that is cut to size inside, where the results agree within noise."""
    sources = (flow.target_source, flow.golden_source)
    alone = np.logical_or(*((source != NONE) & ~facts.matched[source] for source in sources))
    given = (flow.role == OUTPUT) & (flow.of_row >= 0) & facts.tensor
    unused = np.zeros(len(flow.role), dtype=bool)
    for agree, rows in ((noise.error == 0, True), (noise.times <= 1, facts.shape)):
        same, other = np.zeros((2, len(flow.ops)), dtype=bool)
        same[flow.of_row[given & agree]] = True
        other[flow.of_row[given & ~agree]] = True
        unused |= alone & (flow.role == INPUT) & flow.spread(same & ~other) & rows
    return unused


def _exchanged(flow: Flow, noise: Noise, facts: Differences) -> Bools:
    """Calls of an optimiser that takes its parameters in another order: these are no pairs."""
    exchanged = np.zeros(len(flow.ops), dtype=bool)
    if not flow.updates.any():
        return exchanged
    rows = flow.spread(flow.updates) & facts.tensor & facts.matched
    exchanged[flow.of_row[rows & facts.shape]] = True
    taken = rows & (flow.role == INPUT) & (np.maximum(*flow.elements) > 1)
    target, golden = flow.marks
    other = taken & noise.abnormal & (target != golden)
    other &= np.isin(target, golden[taken]) & np.isin(golden, target[taken])
    exchanged[flow.of_row[other]] = True
    return exchanged & flow.updates


def _alone(row: int, facts: Differences) -> bool:
    """Whether a row exists, and in one run only."""
    return row != NONE and not facts.matched[row]


def when(flow: Flow, row: int) -> float:
    """Inputs of a call count when it begins, outputs when it ends."""
    owner = int(flow.of_row[row])
    return float(flow.start[owner]) - 0.5 if flow.role[row] in (INPUT, PARAMETER) else float(owner)


def _entering(flow: Flow, row: int, owner: int, facts: Differences, began: int) -> Beginning:
    """An input differs that no paired call has made; ``began``: the first row of all that nothing explains."""
    sources = _before_nothing(flow, int(flow.target_source[row])), int(flow.golden_source[row])
    made, meant = (NONE if source in flow.moved else source for source in sources)
    around = int(flow.parent[owner])
    forward = flow.ops[owner].direction in (FORWARD, "")
    same = flow.source[row] != NONE or flow.marks[0][row] == flow.marks[1][row]
    another = NONE not in (made, meant) and flow.of_row[made] != flow.of_row[meant]  # call's result is taken
    if facts.recut[row] and same and owner not in flow.grouped:
        cut = np.flatnonzero((flow.of_row == owner) & (flow.role == INPUT) & facts.recut)
        beginning = Beginning(owner, row, ARGUMENT, cut.tolist())
    elif flow.parameter[row] and not _alone(meant, facts):  # the golden run may compute with it first
        beginning = _innermost(flow, row, PARAMETER_DIFFERS)
    elif _alone(made, facts) and int(flow.twin[flow.of_row[made]]) in flow.in_groups:
        beginning = _innermost(flow, row, BETWEEN)  # the golden run computes the same in other steps
    elif _alone(made, facts):
        maker = int(flow.of_row[made])
        twin = int(flow.twin[maker])
        if twin != NONE and not facts.called[twin]:  # its forward call is extra as well
            maker = twin
        beginning = Beginning(maker, made, EXTRA, [row])
        if flow.ops[maker].direction == FORWARD and not forward and maker != twin:
            beginning = _innermost(flow, row, BETWEEN)  # a hook on the way back: its calls are forward calls
    elif _alone(meant, facts):
        beginning = Beginning(owner, row, MISSING, [meant])
    elif not forward:
        reader = _reader_of_one_run(flow, row, owner)
        beginning = _innermost(flow, row, BETWEEN) if reader is None else Beginning(owner, row, MISSING, [reader])
    elif another or (around != NONE and flow.mark[row] in flow.mark[(flow.of_row == around) & (flow.role == INPUT)]):
        beginning = _innermost(flow, row, OUTSIDE)
    elif not facts.moved()[row] and (alone := _only_one_run(flow, row, owner, around, facts, began)) is not None:
        beginning = alone
    elif around == NONE:  # what a call has made, in another order, was not given by the caller
        beginning = _innermost(flow, row, BETWEEN if made == meant != NONE else OUTSIDE)
    else:  # a module's own code is not recorded, nor is that of the module around
        module = flow.ops[owner].is_module
        beginning = Beginning(around if module else owner, row, BETWEEN if module else OUTSIDE)
    return beginning


def _before_nothing(flow: Flow, made: int) -> int:
    """Where a value comes from, behind dropouts that drop nothing: they give back what they took."""
    while made != NONE and operation_of(flow.ops[int(flow.of_row[made])]).family == Family.RANDOM:
        took = (flow.of_row == flow.of_row[made]) & (flow.role == INPUT) & (flow.marks[0] == flow.marks[0][made])
        if not took.any():
            break
        made = int(flow.target_source[np.argmax(took)])
    return made


def _by_argument(
    beginning: Beginning, arguments: dict[int, list[int]], facts: Differences, *, inside: bool
) -> Beginning:
    """A module's own code computes with what it is given: a tensor in one run and none in the other is the cause.

    ``inside`` a module with another parameter: that is what comes in, cast, cut or reshaped where nobody recorded it.
    """
    if inside and beginning.cause == OUTSIDE and not facts.whole[beginning.row]:
        return Beginning(beginning.call, beginning.row, PARAMETER_DIFFERS)
    given = [row for row in arguments.get(beginning.call, []) if facts.given[row]]
    caused = beginning.cause == BETWEEN and bool(given)
    return Beginning(beginning.call, beginning.row, ARGUMENT, given) if caused else beginning


def _reader_of_one_run(flow: Flow, row: int, owner: int) -> int | None:
    """Of the value whose gradient comes in here: what a call that only golden makes reads of it.

    A gradient gathers what all readers of a value send back, also those that change the results by nothing.
    """
    forward = int(flow.twin[owner])
    if forward == NONE:
        return None
    made = (flow.of_row == forward) & (flow.role == OUTPUT) & ((flow.elements[0] > 1) | flow.begins_backward(row))
    made = np.flatnonzero(made)
    readers = np.isin(flow.marks[1], flow.marks[1][made]) & (flow.of_row == NONE) & ~flow.golden_only
    return int(np.argmax(readers)) if readers.any() else None


def _only_one_run(flow: Flow, row: int, owner: int, around: int, facts: Differences, began: int) -> Beginning | None:
    """The last call before in the module around that only one run makes: what it gave may have been indexed on the way.

    None where both runs make such calls, and where what they gave is there without them: these change nothing. So do
    modules of which one run alone has another of their name before anything differs. Indexing makes no whole numbers of
    others.
    """
    inside = (flow.of_row >= (flow.start[around] if around != NONE else 0)) & (flow.of_row < owner)
    made = inside & (flow.role == OUTPUT) & ~facts.matched & (flow.elements[0] > 1)
    made &= ~facts.called[np.maximum(flow.of_row, 0)]
    if flow.of_ranks:  # what ranks exchange is another layout's way to the same value
        made &= ~flow.spread(flow.each_call(lambda op: re.match(COMMUNICATION, op.text) is not None))
    made[list(flow.moved)] = False
    any_made = made.any()
    for at in np.flatnonzero(made).tolist():  # what leaves a module that both runs call is compared there
        outer = flow.parents_of(int(flow.of_row[at]))
        outer = outer[: outer.index(around) if around in outer else None]
        made[at] = not any(facts.called[call] for call in outer) and _before_nothing(flow, at) == at
    if any_made and not made.any():  # and so may be those of golden
        return None
    first = flow.golden_call[inside & facts.matched]
    meant = flow.golden_only & (flow.elements[1] > 1) & (flow.golden_call < flow.golden_call[row])
    meant &= flow.golden_call >= (first.min() if len(first) else flow.golden_call[row])
    meant[list(flow.moved)] = False
    alike = facts.integer == facts.integer[row]
    made, meant = made & alike, meant & alike
    for alone, side, call in ((made, 0, flow.of_row), (meant, 1, flow.golden_call)):
        if alone.any():
            marks, kind = flow.marks[side], flow.kind[side]
            usual = np.bincount(kind[~facts.matched & (call < call[began])], minlength=kind.max() + 1) > 1
            usual[0] = False
            alone[alone] = ~np.isin(marks[alone], marks[facts.matched]) & ~usual[kind[alone]]
    if made.any() == meant.any():
        return None
    alone, side, call = (meant, 1, flow.golden_call) if meant.any() else (made, 0, flow.of_row)
    last = np.flatnonzero(alone)[np.argmax(call[alone])]
    # What a module gives was made by a call inside it.
    same = np.flatnonzero(alone & (flow.marks[side] == flow.marks[side][last]))
    last = same[np.argmin(call[same])]
    return Beginning(owner, row, MISSING, [int(last)]) if side else Beginning(int(call[last]), int(last), EXTRA, [row])


def _innermost(flow: Flow, row: int, cause: Cause) -> Beginning:
    """The first call that takes this value itself: inner calls end before those around them."""
    owner = int(flow.of_row[row])
    same = np.flatnonzero((flow.mark == flow.mark[row]) & (flow.role <= PARAMETER) & (flow.of_row >= flow.start[owner]))
    inner = [(len(around), -int(flow.of_row[at]), int(at)) for at in same
             if owner in (around := [int(flow.of_row[at]), *flow.parents_of(int(flow.of_row[at]))])]  # fmt: skip
    first = max(inner)[2] if inner else row
    return Beginning(int(flow.of_row[first]), first, cause)


# What stands on one side of a beginning.


def untrained(pairs: pl.DataFrame, flow: Flow, facts: Differences, beginnings: list[Beginning]) -> list[Beginning]:
    """Where only one run lets gradients through: a parameter that it alone trains, a value the other has detached.

    It explains gradients that are there in one run only, or that part on the way back.
    """
    other = bools(pairs["t_requires_grad"] != pairs["g_requires_grad"]) & facts.matched
    alone = bools((pairs["t_role"] == GRADIENT) | (pairs["g_role"] == GRADIENT))
    alone &= ~facts.matched
    claims = [beginning for beginning in beginnings if beginning.reaches]
    if claims:
        back = flow.ops[claims[0].call].direction in (BACKWARD, GRADIENTS)
        # Not what is called after the gradients that part: clipping, say.
        row = _detached(flow, facts, other & (flow.of_row < claims[0].call)) if back else None
    elif not alone.any():
        row = None
    elif (parameters := other & (flow.role == PARAMETER)).any():
        row = int(np.argmax(parameters))
    else:  # of modules that both runs have: which of them have a gradient in one run only?
        modules = pairs["t_name"].fill_null(pairs["g_name"]).str.extract(MODULE_OF_ROW)
        held, trained = (set(modules.filter(rows)) for rows in (facts.matched & (flow.role == PARAMETER), alone))
        row = _detached(flow, facts, other) if (held & trained) - {None} else None
    if row is None:
        return beginnings
    return [Beginning(int(flow.of_row[row]), row, ARGUMENT, [row], reaches=True), *beginnings]


def _detached(flow: Flow, facts: Differences, other: Bools) -> int | None:
    """The first value that a forward call takes with gradients in one run only; ``other``: requires_grad differs."""
    forward = flow.each_call(lambda op: op.direction == FORWARD) & flow.leaf & ~flow.updates
    # Not where it was computed without gradients: a function may have a backward pass of its own. A gradient is read
    # again by a penalty, which trains nothing unless the pass before kept its graph.
    made = (flow.source != NONE) & other[flow.source] & flow.spread(forward)[flow.source]
    taken = other & (flow.role == INPUT) & flow.spread(forward) & (flow.elements[0] > 1) & ~made
    # So may a module: it takes the value, and gives its gradient in both runs.
    gives = (flow.role == OUTPUT) & facts.matched & (flow.elements[0] > 1) & (flow.of_row >= 0)
    come_back = set(flow.twin[flow.of_row[gives]].tolist()) - {NONE}
    passed: set[int] = set()
    for row in np.flatnonzero(taken)[:_MOST].tolist():
        around = set(flow.parents_of(int(flow.of_row[row])))
        takers = flow.of_row[(flow.mark == flow.mark[row]) & (flow.role == INPUT)].tolist()
        passed |= around & come_back & set(takers)
        if not around & passed:
            return int(row)
    return None
