"""The flow of values through a pair of runs: who made a value, who reads it, which call holds which.

A dump names no tensors. A value is recognised by what was recorded of it: an input that shows the same numbers as an
earlier output, on both sides, is that output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import all_dims
from twinprobe._judge.deviation import Bools, Floats, Ints, bools
from twinprobe._judge.operations import ROUGH_EXP, Family, operation_of
from twinprobe._runs.names import (
    BACKWARD,
    FORWARD,
    GRADIENTS,
    IN_OPTIMIZER,
    LISTS,
    MOVED_VALUES,
    OPTIMIZER,
    OWN_MODULE,
    SUMMED_ONTO,
    OpName,
)
from twinprobe._runs.run import Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TENSOR

if TYPE_CHECKING:
    import polars as pl

NONE = -1

# Three odd constants that spread the bits of max, min and the number of elements over one word.
SPREAD = tuple(np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


_OVERWRITE = frozenset({
    "random_", "normal_", "uniform_", "fill_", "zero_", "copy_", "exponential_", "bernoulli_", "geometric_", "cauchy_",
    "log_normal_", "trunc_normal_",
})  # fmt: skip
# The operators that write: others end with underscores too.
_OPERATORS = frozenset(
    f"__i{name}__" for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul"]
)
_OPERATORS |= {"__setitem__"}
_FILLS = frozenset({"setitem", "index_put", "scatter", "index_copy", "masked_scatter", "index_fill"})


@dataclass
class Flow:
    """Rows are those of the pair table, calls those of the target run; NONE where there is none."""

    ops: list[OpName]
    each_call: Callable[..., NDArray[Any]]
    """A fact of each call that its number has no part in: asked once for all calls of a kind."""
    of_row: Ints
    """The call of each row; NONE for rows that only the golden run has."""
    role: NDArray[np.uint8]
    parent: Ints
    """The call that encloses each call."""
    leaf: Bools
    """Calls that hold no recorded call."""
    start: Ints
    """When a call begins: the number of the first call inside it."""
    twin: Ints
    """The forward call of a backward call or of a parameter's gradients."""
    back: Ints
    """The backward call that a parameter's gradients belong to."""
    source: Ints
    """The output row that each input row repeats, on both sides."""
    target_source: Ints
    """The output row that an input repeats in the target run alone: its counterpart took another value there."""
    golden_source: Ints
    """The same for the golden run."""
    parameter: Bools
    """Rows that are a parameter, or an input that is one."""
    read: Bools
    """Outputs that a later call reads."""
    updates: Bools
    """Calls of an optimiser: what they give is read in the next step."""
    clips: Bools
    """Calls that clip gradients."""
    in_place: Bools
    """Calls that write into their first input."""
    mark: NDArray[np.uint64]
    """Equal marks are equal values, on both sides."""
    marks: tuple[NDArray[np.uint64], NDArray[np.uint64]]
    """The same for target and golden by themselves."""
    elements: tuple[Floats, Floats]
    """The number of elements of each row, target and golden; 0 where no shape is known."""
    length: Ints
    """The target's number of elements along the first axis, of tokens say."""
    grouped: dict[int, set[int]]
    """Calls that stand for a group that is equal in meaning with one of the golden run, and all calls of it."""
    in_groups: set[int]
    """All calls of such groups."""
    of_ranks: bool
    """Whether the target is made of the runs of all its ranks: what comes from another rank is in it."""
    golden_call: Ints
    """The golden run's call of each row, by its number there."""
    golden_only: Bools
    """Outputs of calls that only the golden run makes."""
    kind: tuple[Ints, Ints]
    """Which outputs are of modules of one name and class, target and golden; 0 for what is no module's output."""
    hits: Bools
    """Rows of zeros and ones alone: masks, or which predictions were right."""
    other_arguments: Bools
    """Calls that one layout gives a tensor and the other does not: a bias that is added to the sum of all ranks."""
    moved: frozenset[int] = frozenset()
    """Outputs of calls that only move values, in a run whose other one records none of these: they begin nothing."""
    unread: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Inputs that their calls do not read, whatever they hold."""
    element: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Which element of a list each row is, of calls that take lists (``_foreach_add_``); NONE elsewhere."""
    written_to: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The inputs that calls in place write to."""
    whole: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Where elements of lists have calls of their own (``elements_apart``): the call that each is a part of."""

    @property
    def takes_unpaired(self) -> Bools:
        """Calls (or groups of calls) that take a tensor without a counterpart in the golden run."""
        taken = (self.role == INPUT) & (self.of_row >= 0) & (self.golden_call == NONE) & (self.elements[0] > 1)
        made_inside = (self.target_source != NONE) & (self.of_row[self.target_source] == self.of_row)
        calls = np.zeros(len(self.ops), dtype=bool)
        calls[self.of_row[taken & ~made_inside]] = True
        return calls

    def spread(self, per_call: Bools) -> Bools:
        """A fact of each call, given to each of its rows."""
        return np.where(self.of_row >= 0, per_call[self.of_row], False)

    def first_inputs(self, calls: Bools) -> Ints:
        """The first input row of each of these calls: what a call that works in place writes to."""
        rows = np.flatnonzero((self.role == INPUT) & self.spread(calls))
        return rows[np.unique(self.of_row[rows], return_index=True)[1]]

    @property
    def keeps(self) -> Bools:
        """Calls of an optimiser whose results stay: what it writes in place. What it computes on the way, by whatever
        formula, it forgets. Where nobody saw it write, all of its calls."""
        kept: Bools = self.updates & self.in_place
        return kept if kept.any() else self.updates

    @property
    def turns(self) -> tuple[Ints, Bools]:
        """The place of each call in an optimiser that takes one parameter after another (NONE for other calls), and
        the calls that write to a parameter, with which a turn ends."""
        writes = np.zeros(len(self.ops), dtype=bool)
        writes[self.of_row[self.parameter & self.spread(self.updates & self.in_place)]] = True
        return np.where(self.updates, np.cumsum(writes) - writes, NONE), writes

    def parents_of(self, call: int) -> list[int]:
        """The calls around a call, the innermost first."""
        around: list[int] = []
        outer = int(self.parent[call])
        while outer != NONE and outer not in around:  # a damaged construct.json may hold circles
            around.append(outer)
            outer = int(self.parent[outer])
        return around

    def last_module_before(self, row: int) -> str:
        """The last module call that had ended before an outermost one took this input; nothing where functions were
        recorded too, or no module had run."""
        owner = int(self.of_row[row])
        takes = set(self.of_row[(self.role == INPUT) & (self.mark == self.mark[row])].tolist())
        while self.parent[owner] in takes:  # it goes in through the module around
            owner = int(self.parent[owner])
        forward = [call for call, op in enumerate(self.ops) if op.direction == FORWARD]
        if self.parent[owner] != NONE or any(not self.ops[call].is_module for call in forward):
            return ""
        ended = [call for call in forward if call < self.start[owner]]
        return self.ops[ended[-1]].text if ended else ""

    def begins_backward(self, row: int) -> bool:
        """Whether a row is the gradient of the loss, which code outside of all recorded calls computes."""
        backward = np.flatnonzero(self.each_call(lambda op: op.direction == BACKWARD))
        first = len(backward) > 0 and self.of_row[row] == backward[0] and self.parent[backward[0]] == NONE
        return bool(first and self.role[row] == INPUT)

    def ends_in(self, row: int) -> bool:
        """Whether a row is the gradient of something that no recorded call reads: code behind all of them made it."""
        owner = int(self.of_row[row])
        forward = NONE if owner == NONE else int(self.twin[owner])
        if self.role[row] != INPUT or forward == NONE or self.ops[owner].direction != BACKWARD:
            return False
        made = (self.of_row == forward) & (self.role == OUTPUT) & (self.elements[0] == self.elements[0][row])
        later = self.marks[0][(self.role == INPUT) & (self.of_row > forward)]
        return bool(made.any()) and not np.isin(self.marks[0][made], later).any()


def trace(run: Run, pairs: pl.DataFrame, *, other_layout: bool = False) -> Flow:
    """Follow the values of a paired run; ``run`` is the target."""
    of_row = pairs["t_op"].fill_null(NONE).to_numpy().astype(np.int64)
    role = pairs["t_role"].fill_null(255).to_numpy()
    whole_group = grouped_calls(pairs, of_row)
    ops = run.op_names
    kinds: dict[tuple[str, str, str, str], int] = {}  # calls of a kind differ in nothing but their number
    kind = np.array([kinds.setdefault((op.prefix, op.body, op.cls, op.direction), len(kinds)) for op in ops], np.int64)
    each_call = partial(_each_call, [ops[at] for at in np.unique(kind, return_index=True)[1].tolist()], kind)
    parent, leaf, start = _nesting(run)
    for call, members in whole_group.items():
        start[call] = min(int(start[member]) for member in members)
    sizes = _sizes(pairs["t_shape"])
    elements = sizes[0], sizes[0] if pairs["t_shape"].equals(pairs["g_shape"]) else _sizes(pairs["g_shape"])[0]
    marks = [_marks(pairs, side, count) for side, count in zip("tg", elements, strict=True)]
    tensor = bools((pairs["t_kind"] == TENSOR) | (pairs["g_kind"] == TENSOR))
    made = tensor & ((role == OUTPUT) | (role == GRADIENT))
    alone = tensor & (of_row == NONE) & bools(pairs["g_role"] == OUTPUT)
    taken = tensor & (role == INPUT)
    begins = np.where(of_row >= 0, start[of_row], 0)
    both = marks[0] * SPREAD[0] ^ marks[1]
    source = _latest(both, made, taken, of_row, begins)
    # What a module gives was made by a call inside it.
    passed = made & ~np.where(of_row >= 0, leaf[of_row], True)
    begins_or_ends = np.where(passed, of_row, begins)
    target_source = _latest(marks[0], made, taken | passed, of_row, begins_or_ends)
    golden_source = _latest(marks[1], made | alone, taken | passed, of_row, begins_or_ends)
    element = _elements_of_lists(pairs, of_row, each_call)
    _from_their_own(((source, both), (target_source, marks[0]), (golden_source, marks[1])), element, of_row, role)
    # What only the golden run makes has no place among the target's calls: in its own run it must have come before.
    golden_op = pairs["g_op"].fill_null(NONE).to_numpy()
    behind = (golden_source != NONE) & alone[golden_source] & (golden_op[golden_source] > golden_op)
    golden_source[behind & (golden_op != NONE)] = NONE
    written = each_call(lambda op: op.text.startswith(OPTIMIZER))  # of an optimizer.json
    parameter = (role == PARAMETER) & tensor
    parameter |= taken & (source == NONE) & np.isin(marks[0], marks[0][parameter]) & (elements[0] > 1)
    updates, clips = (
        np.array([run.parents.get(op) == outer for op in run.ops], dtype=bool) for outer in (IN_OPTIMIZER, "clip_grad")
    )
    updates |= written
    in_place = each_call(_writes) | written
    written_to = _written_to(pairs, of_row, taken & np.where(of_row >= 0, (in_place & ~written)[of_row], False))
    backward = each_call(lambda op: op.direction == BACKWARD)
    _mark_updates(pairs, backward, (of_row, written_to, both, source), taken, parameter, updates)
    by_optimizer = np.where(of_row >= 0, updates[of_row], False)
    stepped = written_to[by_optimizer[written_to]]
    # So is what an optimiser writes to, whoever reads it: weights that are given to a function by hand.
    parameter |= taken & (source == NONE) & np.isin(both, both[stepped]) & ~by_optimizer
    # A parameter that an optimiser has just written is no longer what came with the model.
    rewritten = _latest(both, made & by_optimizer, (role == PARAMETER) & tensor, of_row, begins)
    source = np.where(source == NONE, rewritten, source)
    scaled = taken & by_optimizer & (source == NONE) & (elements[0] > 1)
    source = np.where(scaled, _before_the_scale(pairs, tensor & (role == GRADIENT), scaled, of_row, elements), source)
    read = _read_later(marks[0], made, taken, of_row, begins)
    twin, back = _twins(ops, np.flatnonzero(each_call(lambda op: op.direction in (BACKWARD, GRADIENTS))).tolist())
    # One squared is one; of booleans no norm is recorded.
    hits = ~(
        np.abs(
            np.minimum(pairs["t_norm"].to_numpy(), 1e9) ** 2 - np.clip(pairs["t_mean"].to_numpy(), -1, 1) * elements[0]
        )
        > 1e-3 * elements[0]
    ) & np.all([np.isin(pairs[f"t_{stat}"], (0, 1)) for stat in ("max", "min")], axis=0)
    in_groups = set().union(*whole_group.values())
    unlike = _other_arguments(pairs, of_row, len(ops), in_groups) if other_layout else np.zeros(len(ops), dtype=bool)
    return Flow(
        ops, each_call, of_row, role, parent, leaf, start, twin, back, source, target_source, golden_source,
        parameter, read, updates, clips, in_place, both, (marks[0], marks[1]), elements, sizes[1], whole_group,
        in_groups, bool(run.arrangement), golden_op.astype(np.int64), alone, (_kinds(pairs["t_name"]),
        _kinds(pairs["g_name"])), hits & (elements[0] > 1), unlike,
        _moved(pairs) if run.settings.get(ROUGH_EXP) else frozenset(), element=element, written_to=written_to,
    )  # fmt: skip


def _mark_updates(
    pairs: pl.DataFrame,
    backward: Bools,
    rows: tuple[Ints, Ints, NDArray[np.uint64], Ints],
    taken: Bools,
    parameter: Bools,
    updates: Bools,
) -> None:
    """Whatever writes to a parameter once there are gradients is an optimiser, written by hand.

    Functions take parameters that no module has: leaves that need a gradient and are read before the backward pass.
    ``rows``: their calls, those that are written to, marks and sources; ``taken``: tensors that calls take.
    """
    of_row, written_to, both, source = rows
    begun = int(np.argmax(np.append(backward, True)))
    later = written_to[of_row[written_to] > begun]
    needs = bools(pairs["t_requires_grad"])
    leaf = taken & needs & ((source == NONE) | ~needs[source])  # ``requires_grad_`` came after what made it
    parameter[later] |= leaf[later] & np.isin(both[later], both[leaf & (of_row < begun)])
    updates[of_row[later[parameter[later]]]] = True


def _kinds(names: pl.Series) -> Ints:
    given = names.str.extract(OWN_MODULE).fill_null("").to_numpy()
    return np.unique(given, return_inverse=True)[1].astype(np.int64)


def _moved(pairs: pl.DataFrame) -> frozenset[int]:
    moves = [pairs[f"{side}_name"].str.contains(MOVED_VALUES) for side in "tg"]
    own, other = (moves[0], moves[1]) if moves[0].any() else (moves[1], moves[0])
    return frozenset() if other.any() else frozenset(own.arg_true().to_list())


def elements_apart(flow: Flow, pairs: pl.DataFrame) -> Flow:
    """The same with a call for each element of the lists that calls take (``_foreach_add_``): an element is made of its
    own operands. These calls come last; what all elements share stays with the whole call."""
    rows = np.flatnonzero(flow.spread(flow.each_call(lambda op: LISTS in op.body)))
    if not len(rows):
        return flow
    place = flow.element[rows]
    tensor = bools(pairs["t_kind"].gather(rows) == TENSOR)
    shared = (place == NONE) & (flow.role[rows] == INPUT) & tensor & (flow.elements[0][rows] > 1)  # no number
    apart = (place != NONE) & ~np.isin(flow.of_row[rows], flow.of_row[rows[shared]])
    rows, place = rows[apart], place[apart]
    keys, number = np.unique(np.stack([flow.of_row[rows], place]), axis=1, return_inverse=True)
    whole = np.concatenate([np.arange(len(flow.ops)), keys[0]])
    of_row = flow.of_row.copy()
    of_row[rows] = len(flow.ops) + number.ravel()
    groups = {call: flow.grouped[int(of)] for call, of in enumerate(whole.tolist()) if of in flow.grouped}
    per_call = ("parent", "leaf", "start", "twin", "back", "updates", "clips", "in_place", "other_arguments")
    return replace(
        flow, ops=[flow.ops[call] for call in whole.tolist()], each_call=partial(_each_element, flow.each_call, whole),
        of_row=of_row, grouped=groups, whole=whole, **{name: getattr(flow, name)[whole] for name in per_call},
    )  # fmt: skip


def _elements_of_lists(pairs: pl.DataFrame, of_row: Ints, each_call: Callable[..., Bools]) -> Ints:
    found = np.full(len(of_row), NONE, dtype=np.int64)
    rows = np.flatnonzero(np.where(of_row >= 0, each_call(lambda op: LISTS in op.body)[of_row], False))
    if len(rows):
        element = pairs["t_name"].gather(rows).str.extract(r"\.(?:input\.[^.]+|output(?:\.0)?)\.(\d+)$")
        found[rows] = element.cast(int).fill_null(NONE).to_numpy()
    return found


def _from_their_own(
    sources: Iterable[tuple[Ints, NDArray[np.uint64]]], element: Ints, of_row: Ints, role: Ints
) -> None:
    """Elements of lists were made of those at their own place, where others look alike: biases that began as zero."""
    given, inputs = (np.flatnonzero((element != NONE) & (role == one)) for one in (OUTPUT, INPUT))
    keys = zip(of_row[given].tolist(), element[given].tolist(), strict=True)
    known = dict(zip(keys, given.tolist(), strict=True))
    for source, marks in sources if known else ():
        taken = inputs[source[inputs] != NONE]
        taken = taken[(element[source[taken]] != NONE) & (element[source[taken]] != element[taken])]
        for row in taken.tolist():
            own = known.get((int(of_row[source[row]]), int(element[row])), NONE)
            if own != NONE and marks[own] == marks[row]:
                source[row] = own


def _each_element(each_call: Callable[..., NDArray[Any]], whole: Ints, *fact: Any) -> NDArray[Any]:
    return each_call(*fact)[whole]


def times_zero(pairs: pl.DataFrame) -> Ints:
    """Inputs that their calls multiply by zero, and so do not read."""
    # By the target's own calls: where another function stands for several, golden has no factor.
    names, call = pairs["t_name"], pairs["t_op"]
    zero = (pairs["t_max"] == 0) & ((pairs["g_max"] == 0) | pairs["g_row"].is_null()) & names.str.ends_with(".beta")
    first = names.str.contains(SUMMED_ONTO) & call.is_in(call.filter(zero.fill_null(value=False)).implode())
    return first.fill_null(value=False).arg_true().to_numpy().astype(np.int64)


def _written_to(pairs: pl.DataFrame, of_row: Ints, taken: Bools) -> Ints:
    """The inputs that calls in place write to, of all that they take: the first, or all of the first list."""
    rows = np.flatnonzero(taken)
    listed = pairs["t_name"].gather(rows).str.contains(rf"{LISTS}.*\.input\.0\.\d+$").fill_null(value=False)
    first = np.unique(of_row[rows], return_index=True)[1]
    return rows[np.union1d(first, np.flatnonzero(listed.to_numpy()))]


def _writes(op: OpName) -> bool:
    """Whether a call writes into its first input."""
    name = op.body.rpartition(".")[2]
    return not op.is_module and (name in _OPERATORS if name.endswith("__") else name.endswith("_"))


def _each_call(kinds: list[OpName], kind: Ints, fact: Callable[[OpName], Any], dtype: Any = bool) -> NDArray[Any]:
    return np.array([fact(op) for op in kinds], dtype=dtype)[kind]


def ignored_rows(flow: Flow, error: Floats) -> Bools:
    """Values that mean nothing: memory nobody has written, and inputs that are such memory."""
    empty = flow.each_call(lambda op: operation_of(op).family == Family.EMPTY)
    ignored = flow.spread(empty)
    for source in (flow.source, flow.target_source):
        ignored |= (source != NONE) & ignored[np.maximum(source, 0)]
    # What is about to be overwritten does not matter either: the first input of random_, fill_, copy_ ...
    overwrites = flow.each_call(lambda op: op.body in _OVERWRITE)
    ignored[flow.first_inputs(overwrites)] = True
    # Nor does what is about to be filled, element by element, if no call has made it: fresh memory.
    filled = flow.each_call(lambda op: op.body.strip("_") in _FILLS)
    first = flow.first_inputs(filled)
    fresh = (flow.source[first] == NONE) & (flow.target_source[first] == NONE) & ~flow.parameter[first]
    ignored[first[fresh]] = True
    # Until it has been filled for the last time: what is left of it is read by the next call that fills, alone.
    left, often = set(flow.of_row[first[fresh]].tolist()), np.bincount(flow.source[flow.role == INPUT] + 1)
    for row in first[~fresh].tolist():
        made = int(flow.source[row])
        if made != NONE and often[made + 1] == 1 and int(flow.of_row[made]) in left:
            ignored[[made, row]] = True
            left.add(int(flow.of_row[row]))
    ignored[flow.unread] = True
    # Under autocast all uses of a weight share one cast, where their gradients arrive added up, as the parameter's own.
    # If only one run does that, the parameter's gradient is what can be compared.
    added_up = [np.isin(mark, mark[flow.role == GRADIENT]) for mark in flow.marks]
    back = flow.spread(flow.each_call(lambda op: op.direction == BACKWARD))
    ignored |= back & (flow.role == OUTPUT) & (added_up[0] != added_up[1])
    # Some kernels leave results that nobody asked for unwritten: what else should differ in a call that gives the same?
    same = np.ones(len(flow.ops), dtype=bool)
    given = np.flatnonzero((flow.role == OUTPUT) & (flow.of_row >= 0))
    main = given[np.unique(flow.of_row[given], return_index=True)[1]]
    compared = np.isin(flow.role, (INPUT, PARAMETER)) & (flow.of_row >= 0)
    compared[main] = True
    same[flow.of_row[compared & (np.nan_to_num(error) != 0)]] = False
    same[flow.of_row[main[np.isnan(error[main])]]] = False
    same &= flow.each_call(lambda op: not op.is_module)  # no kernel: all that it gives was computed for somebody
    ignored |= (flow.role == OUTPUT) & flow.spread(same) & ~compared & ~flow.read
    return ignored


def grouped_calls(pairs: pl.DataFrame, of_row: Ints) -> dict[int, set[int]]:
    """Let the rows of a group of calls that are equal in meaning belong to its last call, in place."""
    if "group" not in pairs.columns or pairs["group"].null_count() == pairs.height:
        return {}
    numbers = pairs["group"].fill_null(NONE).to_numpy()
    inside = (numbers != NONE) & (of_row != NONE)
    last = np.full(int(numbers.max()) + 1, NONE, dtype=np.int64)
    np.maximum.at(last, numbers[inside], of_row[inside])
    members: dict[int, set[int]] = {}
    for row in np.flatnonzero(inside).tolist():
        members.setdefault(int(last[numbers[row]]), set()).add(int(of_row[row]))
    of_row[inside] = last[numbers[inside]]
    return members


def _other_arguments(pairs: pl.DataFrame, of_row: Ints, count: int, grouped: set[int]) -> Bools:
    found = np.zeros(count, dtype=bool)
    target, golden = (
        bools((pairs[f"{side}_kind"] == TENSOR) & pairs[f"{side}_role"].is_in([INPUT, PARAMETER])) for side in "tg"
    )
    call_of = dict(pairs.select("g_op", "t_op").drop_nulls().iter_rows())
    paired = np.isin(np.arange(count), of_row[pairs["g_row"].is_not_null().to_numpy() & (of_row >= 0)])
    own = of_row[target & (of_row >= 0) & pairs["g_row"].is_null().to_numpy()]
    found[own[paired[own]]] = True
    lacking = pairs["g_op"].to_numpy()[golden & (of_row == NONE)]
    found[[call_of[op] for op in lacking.tolist() if op in call_of]] = True
    found[list(grouped)] = False  # these take all arguments in one step or another
    return found


def _nesting(run: Run) -> tuple[Ints, Bools, Ints]:
    count = len(run.ops)
    parent = np.full(count, NONE, dtype=np.int64)
    leaf = np.ones(count, dtype=bool)
    start = np.arange(count)
    if run.single_points or not run.parents:
        return parent, leaf, start
    place = {name: number for number, name in enumerate(run.ops)}
    for number, name in enumerate(run.ops):
        around, seen = run.parents.get(name), 0
        while around is not None and around not in place and seen < 64:  # a module that was not recorded itself
            around, seen = run.parents.get(around), seen + 1
        if around is not None and around in place:
            parent[number] = place[around]
    held = parent[parent >= 0]
    leaf[held] = False
    # Calls inside a call begin it, at any depth: children come in order, so a few rounds settle the deepest nesting.
    for _ in range(64):
        before = start.copy()
        np.minimum.at(start, held, start[parent >= 0])
        if np.array_equal(before, start):
            break
    return parent, leaf, start


def _sizes(shapes: pl.Series) -> tuple[Floats, Ints]:
    """The number of elements of each row, and of those along the first axis."""
    known = {text: shape for text, shape in all_dims(shapes.unique().to_list()).items() if shape is not None}
    elements = shapes.replace_strict({text: float(prod(shape)) for text, shape in known.items()}, default=0.0)
    lengths = shapes.replace_strict({text: shape[0] for text, shape in known.items() if shape}, default=0)
    return elements.fill_null(0.0).to_numpy().astype(np.float64), lengths.fill_null(0).to_numpy().astype(np.int64)


def _marks(pairs: pl.DataFrame, side: str, elements: Floats, *, powers: bool = True) -> NDArray[np.uint64]:
    """One word per row; equal words mean equal values, whatever their layout; but for powers of two, if so wanted."""
    digests = pairs[f"{side}_digest"]
    if digests.null_count() < len(digests):
        return digests.hash().to_numpy()
    with np.errstate(over="ignore"):
        high, low, norm = (pairs[f"{side}_{stat}"].to_numpy().astype(np.float64) for stat in ("max", "min", "norm"))
        if not powers:
            largest = np.frexp(np.fmax(np.abs(high), np.abs(low)))[1]
            high, low, norm = (np.ldexp(stat, -largest) for stat in (high, low, norm))
        # A norm that was added up in another order differs in its last digits.
        with np.errstate(invalid="ignore", divide="ignore"):
            size = np.nan_to_num(np.round(np.log2(np.abs(norm)) * 512))
        mark = np.zeros(len(elements), dtype=np.uint64)
        for word, spread in zip((high + 0.0, low + 0.0, size + 0.0, elements), (*SPREAD, SPREAD[0]), strict=True):
            mark = (mark ^ word.view(np.uint64)) * spread
            mark ^= mark >> np.uint64(29)
    return mark


def _latest(marks: NDArray[np.uint64], made: Bools, taken: Bools, of_row: Ints, begins: Ints) -> Ints:
    """For each row that takes a value: the last row that made it before."""
    found = np.full(len(marks), NONE, dtype=np.int64)
    outputs, inputs = np.flatnonzero(made), np.flatnonzero(taken)
    if not len(outputs) or not len(inputs):
        return found
    import polars as pl

    makers = pl.DataFrame({"mark": marks[outputs], "when": of_row[outputs], "row": outputs})
    readers = pl.DataFrame({"mark": marks[inputs], "when": begins[inputs] - 1, "reader": inputs}).sort("when")
    makers = makers.sort("when", maintain_order=True)
    met = readers.join_asof(makers, on="when", by="mark", check_sortedness=False).drop_nulls()
    found[met["reader"].to_numpy()] = met["row"].to_numpy()
    return found


def _before_the_scale(
    pairs: pl.DataFrame, gradients: Bools, scaled: Bools, of_row: Ints, elements: tuple[Floats, Floats]
) -> Ints:
    """The gradients of a scaled loss that these are: divided by the scale, a power of two, where nobody sees it."""
    if not scaled.any() or not gradients.any():
        return np.full(len(scaled), NONE, dtype=np.int64)
    target, golden = (_marks(pairs, side, count, powers=False) for side, count in zip("tg", elements, strict=True))
    return _latest(target * SPREAD[0] ^ golden, gradients, scaled, of_row, of_row)


def _read_later(marks: NDArray[np.uint64], made: Bools, taken: Bools, of_row: Ints, begins: Ints) -> Bools:
    """Outputs that come again later: as an input, or as the output of the call around."""
    _, ranks = np.unique(marks, return_inverse=True)
    last = np.full(len(marks) + 1, NONE, dtype=np.int64)
    np.maximum.at(last, ranks[taken], begins[taken])
    np.maximum.at(last, ranks[made], of_row[made])
    read: Bools = made & (last[ranks] > of_row)
    return read


def _twins(ops: list[OpName], on_the_way_back: list[int]) -> tuple[Ints, Ints]:
    """Of backward calls and gradients the forward call of the same thing and number; of gradients the backward call."""
    twin, back = (np.full(len(ops), NONE, dtype=np.int64) for _ in range(2))
    if not on_the_way_back:
        return twin, back
    forward = {(op.prefix, op.body, op.cls, op.call): at for at, op in enumerate(ops) if op.direction == FORWARD}
    backward = {(op.prefix, op.body, op.cls): at for at, op in enumerate(ops) if op.direction == BACKWARD}
    for number in on_the_way_back:
        op = ops[number]
        if op.direction == BACKWARD:
            twin[number] = forward.get((op.prefix, op.body, op.cls, op.call), NONE)
        elif op.direction == GRADIENTS:
            twin[number] = forward.get((op.prefix, op.body, op.cls, max(op.call, 0)), NONE)
            back[number] = backward.get((op.prefix, op.body, op.cls), NONE)
    return twin, back
