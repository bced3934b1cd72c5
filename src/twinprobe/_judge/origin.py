"""Did a call cause its difference, or did it inherit one?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._judge.deviation import DIFFERS, Deviation, bools, related_shapes
from twinprobe._judge.flow import NONE, Differences, Flow, grouped_calls
from twinprobe._judge.operations import Family, operation_of
from twinprobe._judge.ranks import COLLECTIVE_PREFIXES, COMMUNICATION
from twinprobe._runs.names import BACKWARD, FORWARD, OPTIMIZER, TOTAL_NORM, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, POINT, TENSOR, VALUE

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._judge.verdicts import Evidence, Judged

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
LOSS = "loss"  # the results that a summary begins with
PARAMETER_GRADIENTS = "parameter gradients"
UPDATED_PARAMETERS = "updated parameters"
_CHOOSES = frozenset({"argmax", "topk", "sort", "argsort"})  # one or some of many, by scores
_SCALED, _FLOAT32 = 1e-3, 2.0**-23  # relative: losses that are further apart are no noise
Floats = NDArray[np.float64]

# Calls whose result is memory nobody has written yet, or a plain copy of bytes: their values say nothing.
UNINITIALISED = frozenset({
    "empty", "empty_like", "numpy", "to", "__setitem__", "empty_with_format", "new_empty_strided", "new_empty",
    "empty_strided",
})  # fmt: skip
# Collectives whose recorded input is partly a receive buffer.
BUFFERED = frozenset({"_reduce_scatter_base", "_all_gather_base", "all_to_all_single", "batch_isend_irecv"})
_SPECIAL = UNINITIALISED | BUFFERED
# An error this many times as large as rounding and the inputs' errors explain begins here.
SUSPICIOUS = 4.0
_NOTHING = 1e-3  # of the usual norm
_SAME_NORM = 1e-2  # relative: of all gradients together


@dataclass
class Calls:
    """What is known of each target call, and which call each row belongs to (-1 for golden-only rows)."""

    of_row: NDArray[np.int64]
    role: NDArray[np.uint8]
    exempt: Bools
    collective: Bools
    buffered: Bools
    inputs_differ: Bools
    parameters_differ: Bools
    outputs_differ: Bools
    from_outside: Bools
    injected: Bools
    gives: Bools
    """Calls with results that are judged by themselves: outputs, or the gradients that a backward call leaves."""

    def spread(self, per_call: Bools) -> Bools:
        """A fact of each call, given to each of its rows."""
        return np.where(self.of_row >= 0, per_call[self.of_row], False)


def call_facts(run: Run, pairs: pl.DataFrame, deviation: Deviation) -> Calls:
    """Find, for every call of the target run, whether a difference begins there.

    A call injects a difference when an output differs while all inputs and parameters agree; also when its
    parameters differ and its inputs agree, and when the very first difference of the run enters through an input
    that no earlier call gave. What comes out of a collective may have begun on another rank, so it never counts.
    """
    count = len(run.ops)
    of_row = pairs["t_op"].fill_null(-1).to_numpy().astype(np.int64)
    grouped_calls(pairs, of_row)
    role = pairs["t_role"].fill_null(255).to_numpy()
    exempt, buffered, collective = (np.zeros(count, dtype=bool) for _ in range(3))
    for at, name in enumerate(run.ops if not run.single_points else ()):
        prefix, _, rest = name.partition(".")
        collective[at] = prefix in COLLECTIVE_PREFIXES
        if rest.partition(".")[0] in _SPECIAL:
            op = parse_op(name)
            exempt[at] = op.body in UNINITIALISED and not op.is_module
            buffered[at] = op.body in BUFFERED
    differs = (deviation.state == DIFFERS) & (of_row >= 0)
    differs &= ~np.where(of_row >= 0, exempt[of_row], False)

    def any_in(mask: Bools) -> Bools:
        found = np.zeros(count, dtype=bool)
        found[of_row[differs & mask]] = True
        return found

    inputs = any_in(role == INPUT)
    parameters = any_in(role == PARAMETER)
    outputs = any_in((role == OUTPUT) | (role == GRADIENT) | (role == POINT))
    bare = any_in((role == GRADIENT) | (role == POINT))  # values recorded without the call that made them
    first = _first(inputs | parameters | outputs)
    from_outside = parameters & ~inputs
    received = outputs & collective & ~inputs
    injected = outputs & ~inputs & ~parameters & ~collective & ~bare
    if not run.arrangement:  # what other ranks have sent is not in the run
        injected &= ~_around(run, received)
    if first is not None and (inputs[first] or bare[first]) and not collective[first]:
        from_outside[first] |= bool(inputs[first])
        injected[first] |= bool(bare[first])
    injected |= from_outside
    gives = np.array([f".{BACKWARD}" in name for name in run.ops], dtype=bool)
    gives[of_row[(role == OUTPUT) & (of_row >= 0)]] = True
    return Calls(of_row, role, exempt, collective, buffered, inputs, parameters, outputs, from_outside, injected, gives)


def communication(pairs: pl.DataFrame) -> Bools:
    """Rows of calls that exchange data between ranks: collectives, functional ones, and those of sharded parameters."""
    names = pairs["t_name"].fill_null(pairs["g_name"])
    return bools(names.str.contains(COMMUNICATION.pattern))


def _around(run: Run, calls: Bools) -> Bools:
    """The module calls that enclose any of these calls: what they give may have come from another rank too."""
    found = np.zeros(len(run.ops), dtype=bool)
    chosen = np.flatnonzero(calls).tolist()
    if not chosen:
        return found
    place = {name: at for at, name in enumerate(run.ops)}
    seen: set[str] = set()  # a damaged construct.json may hold circles
    for at in chosen:
        parent = run.parents.get(run.ops[at])
        while parent is not None and parent not in seen:
            seen.add(parent)
            if parent in place:
                found[place[parent]] = True
            parent = run.parents.get(parent)
    return found


def _first(mask: Bools) -> int | None:
    found = np.flatnonzero(mask)
    return int(found[0]) if len(found) else None


# What a comparison found, in a form that every report can show.


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One of the two runs: where it is and what was recorded."""

    path: str
    framework: str
    task: str
    level: str
    ops: int
    rows: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """A place where the runs part. ``order`` is its row in the result table, counted from zero."""

    op: str
    row: str
    golden_row: str
    stack_line: str
    target_values: dict[str, str]
    golden_values: dict[str, str]
    relative_error: float | None
    sentence: str
    origin: str
    order: int
    module: str = ""
    """The path of the module around the call, or the module's own."""
    argument: str = ""
    begins: str = ""
    """How it begins: output, argument, parameter, outside, between, extra, missing or random."""
    kinds: list[dict[str, Any]] = field(default_factory=list)
    """What kind of difference it is: name, sentence and confidence of each that holds, the surest first."""
    error_eps: float | None = None
    """The error in epsilons of the coarsest dtype on the way."""
    expected_eps: float | None = None
    times_noise: float | None = None
    """The error in multiples of what rounding and the inputs' errors explain."""

    @property
    def call(self) -> str:
        """The recorded call: ``op`` under the name that people look for."""
        return self.op

    @property
    def line(self) -> str:
        """The line of the user's code that made the call; empty where stacks were not recorded."""
        return self.stack_line

    @property
    def values(self) -> dict[str, tuple[str, str]]:
        """Both sides' dtype, shape and statistics: (target, golden)."""
        names = dict.fromkeys([*self.target_values, *self.golden_values])
        return {name: (self.target_values.get(name, ""), self.golden_values.get(name, "")) for name in names}

    @property
    def kind(self) -> str:
        """The likeliest kind of difference, or how it begins where none was recognised."""
        return str(self.kinds[0]["name"]) if self.kinds else self.begins

    @property
    def evidence(self) -> str:
        """Why this is where the runs part, in a sentence."""
        return self.sentence

    def _repr_html_(self) -> str:
        from twinprobe._notebook import card

        facts = [("call", self.op), ("module", self.module), ("kind", self.kind), ("why", self.sentence),
                 ("line", self.stack_line or "not recorded")]  # fmt: skip
        table = [("", "target", "golden"), *((name, *both) for name, both in self.values.items())]
        return card("first divergence", facts, good=False, table=table)


@dataclass(frozen=True, slots=True)
class Result:
    """What the run is made for (loss, outputs, gradients, updates): whether it agrees, and how far off it is."""

    name: str
    agrees: bool
    values: int
    differing: int
    worst: float
    worst_eps: float
    where: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of a comparison and its first divergence. ``verdicts`` counts pass, warning and error rows."""

    mode: str
    target: RunInfo
    golden: RunInfo
    rows: int
    matched: int
    target_only: int
    golden_only: int
    verdicts: dict[str, int]
    first: Divergence | None
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    rank: str = ""
    results: list[Result] = field(default_factory=list)
    """Whether loss, outputs, gradients and updated parameters agree; empty where that was not weighed."""
    others: list[Divergence] = field(default_factory=list)
    """Further beginnings that the first does not explain."""
    unread: int = 0
    """Rows with a tensor that could not be read: their recorded statistics were compared, where there are any."""
    lost: list[str] = field(default_factory=list)
    """What was asked for and is not in the result: ranks that could not be read, placements that contradict."""

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, texts and numbers, with the field names as keys."""
        return asdict(self)


def update_of_one_run(ops: list[str], side: str) -> Divergence:
    """Parameters that only the optimizer of one side changes, named by the first of them."""
    more = f" and {len(ops) - 1} more" if len(ops) > 1 else ""
    sentence = f"only the {side} run's optimizer changes this parameter{more}: only there it has a gradient"
    begins = "missing" if side == "golden" else "extra"
    row = f"{ops[0]}.output.0"
    return Divergence(
        ops[0], row, row, "", {}, {}, None, sentence, "injected", NONE, argument="output.0", begins=begins,
        kinds=[{"name": begins, "sentence": sentence, "confidence": 0.9}],
    )  # fmt: skip


def clipping(pairs: pl.DataFrame) -> str:
    """How the runs clip their gradients, where that differs, or the norms before it do; empty elsewhere."""
    totals = pairs.filter(pairs["t_name"].str.starts_with(TOTAL_NORM).fill_null(value=False))
    rows = list(totals.iter_rows(named=True))
    norms = {(row["t_role"], side): row[f"{side}_norm"] for row in rows for side in "tg"}
    before, after = np.nan_to_num([[norms.get((role, side)) or 0.0 for side in "tg"] for role in (INPUT, OUTPUT)])
    # Of ranks that clip by norms of their own, no norm of all gradients is known.
    clips = [any(row["t_role"] == INPUT and row[f"{side}_kind"] in (TENSOR, VALUE) for row in rows) for side in "tg"]
    if clips[0] != clips[1]:
        return f"only the {'target' if clips[0] else 'golden'} run calls a function that clips gradients by their norm"
    if not all(clips):
        return ""
    if all(before) and abs(before[0] - before[1]) > _SAME_NORM * before[1]:
        return f"before clipping, the norm of all of them is {before[0]:.4g} against {before[1]:.4g}"
    apart = all(after) and abs(after[0] - after[1]) > _SAME_NORM * after[1]
    return f"gradients are clipped to a norm of {after[0]:.4g} against {after[1]:.4g}" if apart else ""


def begins_backward(flow: Flow, row: int) -> bool:
    """Whether a row is the gradient of the loss, which code outside of all recorded calls computes."""
    backward = np.flatnonzero(flow.each_call(lambda op: op.direction == BACKWARD))
    first = len(backward) > 0 and flow.of_row[row] == backward[0] and flow.parent[backward[0]] == NONE
    return bool(first and flow.role[row] == INPUT)


def unread_rows(count: int, where: str = "") -> str:
    """Say how many rows, ``where`` in the run, could not be read."""
    return f"{count:,} row{'' if count == 1 else 's'}{where} could not be read"


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
    chooses = outside & flow.each_call(lambda op: op.body in _CHOOSES)
    for calls in (called, outside, chooses):
        calls[flow.of_row[flips & (flow.of_row >= 0)].min(initial=len(calls)) + (calls is chooses) :] = False
    given: Bools = (flow.spread(called) | (flow.spread(outside) & ~flow.read & ~facts.integer)) & (flow.role == OUTPUT)
    given |= flow.spread(chooses) & (flow.role == INPUT)
    return given


def results(target: Run, evidence: Evidence, judged: Judged) -> list[Result]:
    """The loss, the model's outputs, the parameters' gradients and the updates: do they agree, how far off are they?"""
    flow, noise = judged.flow, judged.noise
    if flow is None or noise is None or target.single_points:
        return []
    matched = evidence.pairs["g_row"].is_not_null().to_numpy()
    floating = evidence.pairs["t_dtype"].str.contains("(?i)float").fill_null(value=False).to_numpy()
    rows = result_rows(flow, matched, floating)
    claimed = any(beginning.reaches for beginning in judged.beginnings)
    # A part of a model may give its values in another order, and the code that reads them turn them back: gradients
    # show whether it did.
    turned = (flow.marks[0] == flow.marks[1]) & (not claimed) & (len(rows[PARAMETER_GRADIENTS]) > 0)
    found = []
    scaled = _other_loss(evidence.pairs, rows[LOSS]) if len(rows[LOSS]) and not matched.all() else None
    for name, own in ((name, own) for name, own in rows.items() if len(own)):
        if name == LOSS and scaled is not None:
            found.append(scaled)
            continue
        error = np.nan_to_num(judged.error[own], nan=0.0)
        differs = judged.state[own] == DIFFERS
        if name in (LOSS, "outputs"):  # whatever explains it: this far off is not agreement
            # What is read by a later call is no result: it may differ, and what follows heal.
            differs = (differs | (noise.far[own] & ~(flow.read[own] & ~claimed))) & ~turned[own]
            if not claimed:  # no further off than what a healthy run gathers on its way: a compiled model, say
                differs &= noise.matters[own] | noise.far[own] | ~(error > 0)
            error[turned[own]] = 0.0
            if differs.any() and not claimed:  # the scores of the last token alone are no difference by themselves
                part = related_shapes(evidence.pairs)[1][own]
                differs, error = differs & ~part, np.where(part, 0.0, error)
        elif not claimed:  # a few epsilons that no call stands out for
            differs &= noise.far[own]
        # Gradients that are zero but for noise are not what one asks for.
        if name not in (LOSS, "outputs") and not differs.any():
            size = np.nan_to_num(np.abs(evidence.pairs["g_norm"].gather(own).to_numpy().astype(np.float64)))
            error = np.where(size > _NOTHING * np.median(size), error, 0.0)
        worst = int(own[int(np.argmax(error))])
        sizes = [float(judged.error[worst]), float(judged.error[worst] / noise.grain[worst])]
        worst_error, worst_eps = (size if np.isfinite(size) else 0.0 for size in sizes)
        where = evidence.pairs["t_name"][worst] or ""
        found.append(Result(name, not bool(differs.any()), len(own), int(differs.sum()), worst_error, worst_eps, where))
    return found


def _other_loss(pairs: pl.DataFrame, paired: NDArray[np.int64]) -> Result | None:
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


@dataclass
class Isolated:
    """What replaying calls from their own inputs has shown, by row; NaN where a row was not replayed: how far each side
    is from its own float64 reference, in epsilons and in multiples of what the operation may lose."""

    target_eps: Floats
    target_times: Floats
    golden_eps: Floats
    golden_times: Floats
    notes: list[str] = field(default_factory=list)

    def note(self, row: int, target: Any, golden: Any, *, clears: bool) -> None:
        """Keep what was found of a row: of each side an error with ``eps`` and ``times``, or None.

        ``clears``: both sides made the same call, so that healthy results on both sides explain all that differs.
        """
        known = [error for error in (target, golden) if error is not None]
        counts = clears or any(error.times > SUSPICIOUS for error in known)
        for error, eps, times in (
            (target, self.target_eps, self.target_times),
            (golden, self.golden_eps, self.golden_times),
        ):
            if error is not None:
                eps[row] = error.eps
                times[row] = error.times if counts else np.nan

    @property
    def times(self) -> Floats:
        """How far off the worse side is by itself; where both are off alike, the runs do not part.

        Nothing is known of a call with a healthy side where the other could not be replayed.
        """
        worse = np.fmax(self.target_times, self.golden_times)
        with np.errstate(invalid="ignore"):
            better = np.minimum(self.target_times, self.golden_times)
            alike = np.where(np.isfinite(better), np.maximum(better - 1.0, 0.0), 0.0)
            unsure = np.isnan(better) & (worse <= SUSPICIOUS)
        apart: Floats = np.where(unsure, np.nan, worse - alike)
        return apart
