"""The flow of values through a pair of runs: who made a value, who reads it, which call holds which.

A dump names no tensors. A value is recognised by what was recorded of it: an input that shows the same numbers as an
earlier output, on both sides, is that output.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import all_dims
from twinprobe._judge.operations import Family, operation_of
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS, OpName
from twinprobe._runs.run import Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TENSOR

if TYPE_CHECKING:
    import polars as pl

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NONE = -1
PARAMETER_GRADIENTS = "parameter gradients"  # one of the results that a summary begins with
IN_OPTIMIZER = "optimizer"  # what stands around an optimiser's calls, in construct.json
OPTIMIZER = "Optimizer"  # the prefix of what optimizer.json holds
TOTAL_NORM = f"{OPTIMIZER}.total_norm."  # the norm of all gradients, where a program clips them

# Three odd constants that spread the bits of max, min and the number of elements over one word.
_SPREAD = tuple(np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


_OVERWRITE = frozenset({
    "random_", "normal_", "uniform_", "fill_", "zero_", "copy_", "exponential_", "bernoulli_", "geometric_", "cauchy_",
    "log_normal_", "trunc_normal_",
})  # fmt: skip
_FILLS = frozenset({"setitem", "index_put", "scatter", "index_copy", "masked_scatter", "index_fill"})


@dataclass
class Flow:
    """Rows are those of the pair table, calls those of the target run; NONE where there is none."""

    ops: list[OpName]
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
    other_arguments: Bools
    """Calls that one layout gives a tensor and the other does not: a bias that is added to the sum of all ranks."""

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

    def parents_of(self, call: int) -> list[int]:
        """The calls around a call, the innermost first."""
        around: list[int] = []
        outer = int(self.parent[call])
        while outer != NONE and outer not in around:  # a damaged construct.json may hold circles
            around.append(outer)
            outer = int(self.parent[outer])
        return around


def trace(run: Run, pairs: pl.DataFrame, *, other_layout: bool = False) -> Flow:
    """Follow the values of a paired run; ``run`` is the target."""
    of_row = pairs["t_op"].fill_null(NONE).to_numpy().astype(np.int64)
    role = pairs["t_role"].fill_null(255).to_numpy()
    whole_group = grouped_calls(pairs, of_row)
    ops = run.op_names
    parent, leaf, start = _nesting(run)
    for call, members in whole_group.items():
        start[call] = min(int(start[member]) for member in members)
    sizes = _sizes(pairs, "t"), _sizes(pairs, "g")
    elements = sizes[0][0], sizes[1][0]
    marks = [_marks(pairs, side, count) for side, count in zip("tg", elements, strict=True)]
    tensor = ((pairs["t_kind"] == TENSOR) | (pairs["g_kind"] == TENSOR)).fill_null(value=False).to_numpy()
    made = tensor & ((role == OUTPUT) | (role == GRADIENT))
    alone = tensor & (of_row == NONE) & (pairs["g_role"] == OUTPUT).fill_null(value=False).to_numpy()
    taken = tensor & (role == INPUT)
    begins = np.where(of_row >= 0, start[of_row], 0)
    both = marks[0] * _SPREAD[0] ^ marks[1]
    source = _latest(both, made, taken, of_row, begins)
    # What a module gives was made by a call inside it.
    passed = made & ~np.where(of_row >= 0, leaf[of_row], True)
    begins_or_ends = np.where(passed, of_row, begins)
    target_source = _latest(marks[0], made, taken | passed, of_row, begins_or_ends)
    golden_source = _latest(marks[1], made | alone, taken | passed, of_row, begins_or_ends)
    # What only the golden run makes has no place among the target's calls: in its own run it must have come before.
    golden_op = pairs["g_op"].fill_null(NONE).to_numpy()
    behind = (golden_source != NONE) & alone[golden_source] & (golden_op[golden_source] > golden_op)
    golden_source[behind & (golden_op != NONE)] = NONE
    written = np.array([op.prefix == OPTIMIZER for op in ops] or [False], dtype=bool)  # of an optimizer.json
    parameter = (role == PARAMETER) & tensor
    parameter |= taken & (source == NONE) & np.isin(marks[0], marks[0][parameter]) & (elements[0] > 1)
    updates = np.array([run.parents.get(name) == IN_OPTIMIZER for name in run.ops] or [False], dtype=bool) | written
    in_place = np.array([not op.is_module and op.body.endswith("_") for op in ops] or [False], dtype=bool) | written
    clips = np.array([run.parents.get(name) == "clip_grad" for name in run.ops] or [False], dtype=bool)
    written_to = np.flatnonzero(taken & np.where(of_row >= 0, (in_place & ~written)[of_row], False))
    written_to = written_to[np.unique(of_row[written_to], return_index=True)[1]]
    # Whatever writes to a parameter once there are gradients is an optimiser, written by hand.
    begun = next((call for call, op in enumerate(ops) if op.direction == BACKWARD), len(ops))
    updates[of_row[written_to[parameter[written_to] & (of_row[written_to] > begun)]]] = True
    by_optimizer = np.where(of_row >= 0, updates[of_row], False)
    stepped = written_to[by_optimizer[written_to]]
    # So is what an optimiser writes to, whoever reads it: weights that are given to a function by hand.
    parameter |= taken & (source == NONE) & np.isin(both, both[stepped]) & ~by_optimizer
    # A parameter that an optimiser has just written is no longer what came with the model.
    rewritten = _latest(both, made & by_optimizer, (role == PARAMETER) & tensor, of_row, begins)
    unread = source == NONE
    source[unread] = rewritten[unread]
    read = _read_later(marks[0], made, taken, of_row, begins)
    twin, back = _twins(ops)
    in_groups = set().union(*whole_group.values())
    unlike = _other_arguments(pairs, of_row, len(ops), in_groups) if other_layout else np.zeros(len(ops), dtype=bool)
    return Flow(
        ops, of_row, role, parent, leaf, start, twin, back, source, target_source, golden_source, parameter, read,
        updates, clips, in_place, both, (marks[0], marks[1]), elements, sizes[0][1], whole_group, in_groups,
        bool(run.arrangement), golden_op.astype(np.int64), alone, unlike,
    )  # fmt: skip


def ignored_rows(flow: Flow, error: Floats) -> Bools:
    """Values that mean nothing: memory nobody has written, and inputs that are such memory."""
    empty = np.array([operation_of(op).family == Family.EMPTY for op in flow.ops], dtype=bool)
    ignored = flow.spread(empty)
    for source in (flow.source, flow.target_source):
        ignored |= (source != NONE) & ignored[np.maximum(source, 0)]
    # What is about to be overwritten does not matter either: the first input of random_, fill_, copy_ ...
    overwrites = np.array([op.body in _OVERWRITE for op in flow.ops], dtype=bool)
    ignored[flow.first_inputs(overwrites)] = True
    # Nor does what is about to be filled, element by element, if no call has made it: fresh memory.
    filled = np.array([op.body.strip("_") in _FILLS for op in flow.ops], dtype=bool)
    first = flow.first_inputs(filled)
    fresh = (flow.source[first] == NONE) & (flow.target_source[first] == NONE) & ~flow.parameter[first]
    ignored[first[fresh]] = True
    # Some kernels leave results that nobody asked for unwritten: what else should differ in a call that gives the same?
    same = np.ones(len(flow.ops), dtype=bool)
    given = np.flatnonzero((flow.role == OUTPUT) & (flow.of_row >= 0))
    main = given[np.unique(flow.of_row[given], return_index=True)[1]]
    compared = np.isin(flow.role, (INPUT, PARAMETER)) & (flow.of_row >= 0)
    compared[main] = True
    same[flow.of_row[compared & (np.nan_to_num(error) != 0)]] = False
    same[flow.of_row[main[np.isnan(error[main])]]] = False
    ignored |= (flow.role == OUTPUT) & flow.spread(same) & ~compared & ~flow.read
    return ignored


def result_rows(flow: Flow, matched: Bools, floating: Bools) -> dict[str, Ints]:
    """The rows people look at first: the loss, the model's outputs, gradients, updated parameters."""
    call = np.maximum(flow.of_row, 0)
    matched = matched & (flow.of_row >= 0)
    forward = np.array([op.direction == FORWARD for op in flow.ops] or [False])[call]
    outputs = matched & floating & forward & (flow.role == OUTPUT) & ~flow.updates[call]
    module = np.array([op.is_module for op in flow.ops] or [False])
    outermost = outputs & module[call] & (flow.parent[call] == NONE) & (flow.elements[0] > 1)
    updated = matched & flow.updates[call] & flow.in_place[call] & (flow.role == OUTPUT)
    # A loss has a way back; norms and coefficients of an optimiser have none.
    scalar = outputs & (flow.elements[0] == 1)
    derived = scalar & np.isin(call, flow.twin[flow.twin != NONE])
    return {
        "loss": np.flatnonzero(derived if derived.any() else scalar)[-1:],
        "outputs": np.flatnonzero(outermost),
        PARAMETER_GRADIENTS: np.flatnonzero(matched & (flow.role == GRADIENT)),
        "updated parameters": np.flatnonzero(updated),
    }


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
    target, golden = (((pairs[f"{side}_kind"] == TENSOR) & pairs[f"{side}_role"].is_in([INPUT, PARAMETER]))
                      .fill_null(value=False).to_numpy() for side in "tg")  # fmt: skip
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


def _sizes(pairs: pl.DataFrame, side: str) -> tuple[Floats, Ints]:
    """The number of elements of each row, and of those along the first axis."""
    shapes = pairs[f"{side}_shape"]
    known = {text: shape for text, shape in all_dims(shapes.unique().to_list()).items() if shape is not None}
    elements = shapes.replace_strict({text: float(prod(shape)) for text, shape in known.items()}, default=0.0)
    lengths = shapes.replace_strict({text: shape[0] for text, shape in known.items() if shape}, default=0)
    return elements.fill_null(0.0).to_numpy().astype(np.float64), lengths.fill_null(0).to_numpy().astype(np.int64)


def _marks(pairs: pl.DataFrame, side: str, elements: Floats) -> NDArray[np.uint64]:
    """One word per row; equal words mean equal values, whatever their layout."""
    digests = pairs[f"{side}_digest"]
    if digests.null_count() < len(digests):
        return digests.hash().to_numpy()
    with np.errstate(over="ignore"):
        high, low, norm = (pairs[f"{side}_{stat}"].to_numpy().astype(np.float64) for stat in ("max", "min", "norm"))
        # A norm that was added up in another order differs in its last digits.
        with np.errstate(invalid="ignore", divide="ignore"):
            size = np.nan_to_num(np.round(np.log2(np.abs(norm)) * 512))
        mark = np.zeros(len(elements), dtype=np.uint64)
        for word, spread in zip((high + 0.0, low + 0.0, size + 0.0, elements), (*_SPREAD, _SPREAD[0]), strict=True):
            mark = (mark ^ word.view(np.uint64)) * spread
            mark ^= mark >> np.uint64(29)
    return mark


def _latest(marks: NDArray[np.uint64], made: Bools, taken: Bools, of_row: Ints, begins: Ints) -> Ints:
    """For each row that takes a value: the last row that made it before."""
    found = np.full(len(marks), NONE, dtype=np.int64)
    outputs, inputs = np.flatnonzero(made), np.flatnonzero(taken)
    if not len(outputs) or not len(inputs):
        return found
    _, ranks = np.unique(marks, return_inverse=True)
    span = int(of_row.max()) + 2
    when = ranks[outputs].astype(np.int64) * span + of_row[outputs] + 1
    order = np.argsort(when, kind="stable")
    place = np.searchsorted(when[order], ranks[inputs].astype(np.int64) * span + begins[inputs] + 1) - 1
    candidate = outputs[order[np.maximum(place, 0)]]
    same = (place >= 0) & (ranks[candidate] == ranks[inputs])
    found[inputs[same]] = candidate[same]
    return found


def _read_later(marks: NDArray[np.uint64], made: Bools, taken: Bools, of_row: Ints, begins: Ints) -> Bools:
    """Outputs that come again later: as an input, or as the output of the call around."""
    _, ranks = np.unique(marks, return_inverse=True)
    last = np.full(len(marks) + 1, NONE, dtype=np.int64)
    np.maximum.at(last, ranks[taken], begins[taken])
    np.maximum.at(last, ranks[made], of_row[made])
    read: Bools = made & (last[ranks] > of_row)
    return read


def _twins(ops: list[OpName]) -> tuple[Ints, Ints]:
    """Of backward calls and gradients the forward call of the same thing and number; of gradients the backward call."""
    forward = {(op.prefix, op.body, op.cls, op.call): at for at, op in enumerate(ops) if op.direction == FORWARD}
    backward = {(op.prefix, op.body, op.cls): at for at, op in enumerate(ops) if op.direction == BACKWARD}
    twin, back = (np.full(len(ops), NONE, dtype=np.int64) for _ in range(2))
    for number, op in enumerate(ops):
        if op.direction == BACKWARD:
            twin[number] = forward.get((op.prefix, op.body, op.cls, op.call), NONE)
        elif op.direction == GRADIENTS:
            twin[number] = forward.get((op.prefix, op.body, op.cls, max(op.call, 0)), NONE)
            back[number] = backward.get((op.prefix, op.body, op.cls), NONE)
    return twin, back
