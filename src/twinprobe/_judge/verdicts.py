"""From measured pairs to verdicts: every rule is applied here, in one readable list."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._judge.deviation import (
    DIFFERS,
    IDENTICAL,
    ROUNDING,
    UNKNOWN,
    UNMATCHED,
    Bools,
    Deviation,
    Floats,
    Isolated,
    Rows,
    aligned,
    bools,
    devices,
    dtypes_differ,
    of_statistics,
    other_function,
    shapes_differ,
    turned,
)
from twinprobe._judge.flow import Flow, grouped_calls, ignored_rows, times_zero, trace
from twinprobe._judge.noise import Noise, expected_errors
from twinprobe._judge.operations import BUFFERED, HIDDEN_PRECISION, UNINITIALISED
from twinprobe._judge.reconsider import by_formula, grown, without_the_usual
from twinprobe._judge.results import follow
from twinprobe._judge.rules import PASS, RULES, SEVERITIES, Thresholds
from twinprobe._judge.search import CAUSES, Beginning, facts_of, find_beginnings, untrained
from twinprobe._judge.summary import unread_rows
from twinprobe._measure.statistics import NUMBER, StatDifference
from twinprobe._runs.names import BACKWARD, COLLECTIVE_PREFIXES, COMMUNICATION, TOTAL_NORM, parse_op
from twinprobe._runs.run import DIGESTS, Run
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, POINT, TENSOR

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._measure.sketch import Estimate

_BIT = {name: np.int64(1) << at for at, name in enumerate(RULES)}


class Findings:
    """Which rules hold for which rows, one bit per rule."""

    def __init__(self, rows: int) -> None:
        self.bits: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)

    def mark(self, rule: str, rows: NDArray[np.bool_]) -> None:
        """Record that a rule holds for these rows."""
        self.bits[rows] |= _BIT[rule]

    def verdicts(self) -> tuple[list[str], list[str], list[str]]:
        """Per row: the verdict, the messages as a JSON list, the reason in words."""
        distinct, place = np.unique(self.bits, return_inverse=True)
        texts = np.array([_describe(int(bits)) for bits in distinct], dtype=object).reshape(-1, 3)
        verdict, messages, reason = texts.T[:, place].tolist()
        return verdict, messages, reason


def _describe(bits: int) -> tuple[str, str, str]:
    held = [rule for name, rule in RULES.items() if bits & int(_BIT[name])]
    held.sort(key=lambda rule: -SEVERITIES.index(rule.severity))
    verdict = held[0].severity if held else PASS
    messages = [f"{rule.severity}: {rule.words}" for rule in held if rule.severity != PASS]
    told = [rule.words for rule in held if verdict == PASS or rule.severity != PASS]
    return verdict, json.dumps(messages), "; ".join(told)


_OF_ROLE = {PARAMETER: "parameter", GRADIENT: "gradient", POINT: "point", INPUT: "input"}  # a row that differs
_OTHER_LAYOUT = ("qkv", "gate_up")
_REORDERED = 0.1  # by sketches: values in another order are off by about their own size


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


@dataclass
class Judged:
    """The verdict of every row, and the calls they belong to."""

    verdict: list[str]
    messages: list[str]
    reason: list[str]
    origin: list[str]
    error: NDArray[np.float64]
    calls: Calls
    first_row: int | None
    unread: Bools
    """Rows with a tensor that could not be read."""
    flow: Flow | None = None
    noise: Noise | None = None
    """None where no noise was weighed: checksums, and a tolerance given by hand."""
    beginnings: list[Beginning] = field(default_factory=list)
    state: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))

    @property
    def unread_before(self) -> str:
        """What the sentence about the first divergence adds where rows up to it could not be read."""
        if self.first_row is None:
            return ""
        earlier = (self.calls.of_row >= 0) & (self.calls.of_row <= self.calls.of_row[self.first_row]) & self.unread
        count = int(earlier.sum()) - int(earlier[self.first_row])
        return f"; {unread_rows(count, ' before it')}: the difference may begin earlier" if count else ""


@dataclass
class Evidence:
    """All that was measured of a pair table."""

    mode: str
    pairs: pl.DataFrame
    deviation: Deviation
    differences: dict[str, StatDifference] | None = None
    metrics: pl.DataFrame | None = None
    estimate: Estimate | None = None
    """What sketches say, in statistics runs that have them."""
    noise: Floats | None = None
    """How far a third run is from the golden one, by row: noise as measured."""
    isolated: Isolated | None = None
    other_layout: bool = False
    """Whether the runs are spread over their ranks in different ways."""
    partly: Bools | None = None
    """Rows that are judged by a part of their elements: tokens that a mask shows."""


_SPECIAL = UNINITIALISED | BUFFERED


def judge(run: Run, evidence: Evidence, thresholds: Thresholds) -> Judged:
    """Apply the rules to a measured pair table; ``run`` is the target run."""
    pairs, deviation = evidence.pairs, evidence.deviation
    rows = Rows(pairs)
    weighed = thresholds.rounding is None and evidence.mode != DIGESTS
    flow, noise, beginnings = None, None, list[Beginning]()
    if weighed:
        flow, noise, beginnings, deviation = _weigh(run, evidence, rows, thresholds)
    calls = call_facts(run, pairs, deviation)
    claims = [beginning for beginning in beginnings if beginning.reaches]
    if weighed:
        calls.injected = np.zeros(len(run.ops), dtype=bool)
        calls.injected[[beginning.call for beginning in claims]] = True
    findings = Findings(pairs.height)
    buffered = calls.spread(calls.buffered)
    silent = calls.spread(calls.exempt) | (buffered & (calls.role != OUTPUT))
    if flow is not None:
        silent |= ignored_rows(flow, evidence.deviation.error)
    unread = np.zeros(pairs.height, dtype=bool)
    if evidence.metrics is not None:
        unread = evidence.metrics["fault"].is_not_null().to_numpy() & rows.matched

    _mark_states(findings, rows, deviation, calls, silent, other_layout=evidence.other_layout)
    if flow is not None:
        unlike = flow.spread(flow.other_arguments) & (calls.role == OUTPUT)
        findings.mark("other_arguments", unlike & (deviation.state == DIFFERS))
        silent |= unlike
    _mark_facts(findings, rows, deviation, calls, silent, by_row=thresholds.by_row or not weighed)
    if noise is not None and flow is not None:
        _mark_beginnings(findings, flow, noise, deviation, calls, beginnings, silent, evidence.isolated)
    else:
        _mark_differences(findings, deviation, calls, evidence.mode, silent)
    findings.mark("unreadable", unread)
    findings.mark("by_statistics", unread & (deviation.state != UNKNOWN))
    # What noise explains is not far off, however large it is.
    unjudged = silent | buffered | (deviation.state != DIFFERS if weighed else False)
    if evidence.metrics is not None:
        _mark_tensors(findings, evidence.metrics, deviation, calls, thresholds, unread, unjudged)
        unjudged = unjudged | ~unread
    if evidence.differences is not None:
        _mark_statistics(findings, evidence, calls, thresholds, unjudged)

    verdict, messages, reason = findings.verdicts()
    if evidence.metrics is not None:
        faults, words = evidence.metrics["fault"], RULES["unreadable"].words
        for at in np.flatnonzero(faults.is_not_null().to_numpy()).tolist():
            reason[at] = reason[at].replace(words, f"{words}: {faults[at]}", 1)
    differs = deviation.state == DIFFERS
    injected = calls.spread(calls.injected) & differs & ~silent
    origin = np.where(injected, "injected", np.where(differs & ~silent & (calls.of_row >= 0), "inherited", ""))
    first = claims[0].row if claims else None if weighed else _first_row(calls, injected)
    if claims:
        origin[[beginning.row for beginning in claims]] = "injected"
    return Judged(
        verdict, messages, reason, origin.tolist(), deviation.error, calls, first, unread, flow, noise, beginnings,
        deviation.state,
    )  # fmt: skip


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
    first = next(iter(np.flatnonzero(inputs | parameters | outputs).tolist()), None)
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
    return bools(names.str.contains(COMMUNICATION))


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


def _weigh(
    run: Run, evidence: Evidence, rows: Rows, limits: Thresholds
) -> tuple[Flow, Noise, list[Beginning], Deviation]:
    """Weigh every error against the noise that is to be expected, and find where the runs part."""
    pairs, measured = evidence.pairs, evidence.deviation
    flow = trace(run, pairs, other_layout=evidence.other_layout)
    # A parameter without a counterpart still says how much a call adds up and rounds. So does another input, of a call
    # that adds up the same in another order: it may be as far off as what surrounds it.
    alone = bools(pairs["t_role"].is_in([PARAMETER, INPUT]) & pairs["g_row"].is_null() & (pairs["t_kind"] == TENSOR))
    alone &= (flow.role == PARAMETER) | flow.spread(flow.takes_unpaired)
    epsilon = np.where(rows.tensor | alone, rows.epsilon(run), 0.0)
    error = np.where(measured.nonfinite, np.inf, measured.error)
    flow.unread = times_zero(pairs)
    error[flow.unread] = 0.0
    shape = shapes_differ(pairs) & rows.tensor
    # A mask of booleans against one of numbers says nothing, nor does what only one layout gives all arguments.
    masks = [bools(pairs[f"{side}_dtype"].str.contains("(?i)bool")) for side in "tg"]
    unlike = flow.spread(flow.other_arguments) & (flow.role == OUTPUT)
    error = np.where(shape | unlike | ((masks[0] != masks[1]) & rows.tensor), np.nan, error)
    sketched = np.zeros(len(error), dtype=bool)
    if evidence.metrics is None and evidence.estimate is not None:
        sketched = evidence.estimate.comparable
    estimated = ~sketched & (evidence.metrics is None)
    renamed, smooth = other_function(pairs)
    if evidence.differences is not None and "group" in pairs.columns and pairs["group"].null_count() < pairs.height:
        # Calls that are equal in meaning may hold the same values in another order: a transposed operand, say.
        inside = pairs["group"].is_not_null().to_numpy() & rows.tensor
        by_statistics = of_statistics(pairs, evidence.differences, None).error
        # In their order they are hardly off, and what reads them is as far off by its sketch as they are.
        reordered = inside & (estimated | (error > _REORDERED))
        error = np.where(reordered, np.fmin(error, by_statistics), error)
        estimated = estimated | (inside & renamed)
    noise = expected_errors(
        pairs, flow, error, epsilon, estimated=estimated, sketched=sketched, settings=run.settings, step=run.step,
        measured=evidence.noise, noisy=None if evidence.estimate is None else evidence.estimate.noisy,
    )  # fmt: skip
    refilled = rows.tensor & (False if evidence.estimate is None else evidence.estimate.refilled)
    facts = facts_of(
        flow, rows, noise, measured.state, integer=rows.tensor & (epsilon == 0), refilled=refilled,
        first_step=run.step == 0,
    )  # fmt: skip
    plain = np.where(estimated, limits.estimated, limits.suspicious)
    # TF32 cuts bits off: an error of one direction.
    coarsest = np.maximum(epsilon, run.settings.get(HIDDEN_PRECISION, 0.0))
    one_way = aligned(pairs, error, coarsest) & ~estimated & (evidence.partly is None or ~evidence.partly)
    unequal = np.zeros(len(flow.ops) + 1, dtype=bool)  # calls with an input that is not the same to the last bit
    unequal[flow.of_row[np.isin(flow.role, (INPUT, PARAMETER)) & (measured.state != IDENTICAL)]] = True
    replaced = smooth & flow.spread(~unequal[:-1]) & ~estimated
    limit = np.select([replaced, one_way], [limits.replaced, limits.aligned], plain)
    isolated = None if evidence.isolated is None else evidence.isolated.times
    beginnings = find_beginnings(flow, noise, facts, limit, isolated)
    follow(flow, noise, facts, beginnings)
    if any(beginning.reaches and not noise.far[beginning.row] for beginning in beginnings):
        beginnings = without_the_usual(flow, noise, facts, limit, isolated, limit >= plain, sketched, beginnings)
    if (flow.updates & ~facts.called).any():
        by_formula(flow, noise, facts, beginnings)
    claimed = any(beginning.reaches for beginning in beginnings)
    beginnings = untrained(pairs, flow, facts, beginnings if claimed else grown(flow, noise, facts, beginnings))
    compared = rows.tensor & rows.matched & ~facts.integer & ~np.isnan(error)
    state = _states(flow, noise, measured.state, limit, compared, [claim for claim in beginnings if claim.reaches])
    state[facts.refilled] = DIFFERS
    return flow, noise, beginnings, Deviation(state, measured.error, measured.nonfinite & ~noise.masked)


def _states(
    flow: Flow, noise: Noise, measured: NDArray[np.uint8], limit: Floats, compared: Bools, claims: list[Beginning]
) -> NDArray[np.uint8]:
    """The state of each row, where the noise is known."""
    with np.errstate(invalid="ignore"):
        beyond = noise.times > limit
        if claims:  # what a real difference has reached is no noise
            begun = min(int(flow.start[claim.call]) for claim in claims)
            beyond |= noise.matters & (flow.of_row >= begun)
    state: NDArray[np.uint8] = measured.copy()
    floating = compared & (state != IDENTICAL)
    state[floating] = np.where(beyond, DIFFERS, ROUNDING)[floating]
    state[noise.masked | (noise.flips & ~beyond)] = ROUNDING
    return state


def _mark_states(
    findings: Findings, rows: Rows, deviation: Deviation, calls: Calls, silent: Bools, *, other_layout: bool
) -> None:
    state = deviation.state
    alone, unknown = state == UNMATCHED, state == UNKNOWN
    if other_layout:
        exchanged = (alone | unknown) & communication(rows.pairs)
        findings.mark("communication", exchanged)
        alone, unknown = alone & ~exchanged, unknown & ~exchanged
        # What is added up later: its result is judged where it was recorded. A mean alone has no scale.
        mean, high = (np.isnan([rows.number(side, stat) for side in "tg"]) for stat in ("mean", "max"))
        means = unknown & rows.tensor & ~mean.any(axis=0) & high.all(axis=0)
        findings.mark("only_means", means)
        unknown &= ~means
    target_only = alone & (calls.of_row >= 0)
    findings.mark("identical", state == IDENTICAL)
    findings.mark("rounding", state == ROUNDING)
    findings.mark("target_only", target_only)
    findings.mark("golden_only", alone & ~target_only)
    totals = rows.mixed & (bools(rows.pairs["t_name"].str.starts_with(TOTAL_NORM)) if "t_name" in rows.pairs else False)
    findings.mark("not_clipped", totals)
    findings.mark("mixed", rows.mixed & ~silent & ~totals)
    findings.mark("unknown", unknown & ~rows.mixed & ~silent)
    findings.mark("uninitialised", silent & (state != UNMATCHED))


def _mark_facts(
    findings: Findings, rows: Rows, deviation: Deviation, calls: Calls, silent: Bools, *, by_row: bool
) -> None:
    """What a row says by itself: NaN and inf, requires_grad, values, dtype, shape."""
    pairs = rows.pairs
    differs = (deviation.state == DIFFERS) & ~silent
    findings.mark("nonfinite", deviation.nonfinite & ~silent)
    grads = bools(pairs["t_requires_grad"] != pairs["g_requires_grad"])
    findings.mark("requires_grad" if by_row else "other_requires_grad", grads & ~silent)
    other_device = devices(pairs) & bools(pairs["t_max_text"] != pairs["g_max_text"])
    findings.mark("device", other_device & rows.value)
    free = bools(pairs["g_name"].str.contains("|".join(_OTHER_LAYOUT)))
    findings.mark("dtype" if by_row else "other_dtype", dtypes_differ(pairs) & rows.tensor & ~free & ~silent)
    findings.mark("turned", turned(pairs) & rows.tensor & (deviation.state != UNKNOWN) & ~silent)
    shape = shapes_differ(pairs) & rows.tensor & ~silent
    value = rows.value & differs
    if by_row:
        findings.mark("value", value)
        findings.mark("shape", shape)
    else:  # where nothing comes of it, it is not an error
        begins, moved = calls.spread(calls.injected), calls.spread(calls.outputs_differ)
        begins = begins | ~calls.spread(calls.gives)
        findings.mark("value", value & begins)
        findings.mark("same_results", value & ~moved)
        findings.mark("input", value & moved & ~begins)
        findings.mark("shape", shape & begins)
        findings.mark("other_shape", shape & ~begins)


def _mark_beginnings(
    findings: Findings,
    flow: Flow,
    noise: Noise,
    deviation: Deviation,
    calls: Calls,
    beginnings: list[Beginning],
    silent: Bools,
    isolated: Isolated | None,
) -> None:
    """Where a difference comes from: from before, from outside, or from this very call."""
    differs = (deviation.state == DIFFERS) & (calls.of_row >= 0) & ~silent
    findings.mark("masked", noise.masked & ~silent)
    findings.mark("flip", noise.flips & (deviation.state == ROUNDING))
    here = np.zeros(len(differs), dtype=bool)
    for beginning in beginnings:
        own = (calls.of_row == beginning.call) & ((calls.role == OUTPUT) | (calls.role == GRADIENT)) & differs
        own[beginning.row] = True
        here |= own
        rule = CAUSES[beginning.cause].rule if beginning.reaches else "without_effect"
        if rule == "injected":
            role = int(calls.role[beginning.row])
            rule = _OF_ROLE[role] if role in (GRADIENT, POINT) else rule
        if rule == "injected" and isolated is not None and not np.isnan(isolated.times[beginning.row]):
            target = isolated.target_times[beginning.row] >= np.nan_to_num(isolated.golden_times[beginning.row])
            rule = "isolated" if target else "isolated_golden"
        if rule == "injected" and calls.inputs_differ[beginning.call]:
            rule = "injected_beyond"
        if rule == "injected" and flow.takes_unpaired[beginning.call]:
            rule = "injected_unpaired"
        findings.mark(rule, own)
    rest = differs & ~here
    collective = calls.spread(calls.collective) & ~calls.spread(calls.inputs_differ)
    for role, rule in _OF_ROLE.items():
        findings.mark(rule, rest & (calls.role == role))
    findings.mark("received", rest & (calls.role == OUTPUT) & collective)
    findings.mark("inherited", rest & (calls.role == OUTPUT) & ~collective)


def _mark_differences(findings: Findings, deviation: Deviation, calls: Calls, mode: str, silent: Bools) -> None:
    """The same without noise: a tolerance given by hand, or checksums."""
    differs = (deviation.state == DIFFERS) & (calls.of_row >= 0) & ~silent
    inputs, parameters, outside, collective, injected = (
        calls.spread(fact)
        for fact in (
            calls.inputs_differ, calls.parameters_differ, calls.from_outside, calls.collective, calls.injected,
        )
    )  # fmt: skip
    outputs = differs & (calls.role == OUTPUT)
    enters = differs & (calls.role == INPUT) & outside
    findings.mark("outside", enters)
    for role, rule in _OF_ROLE.items():
        findings.mark(rule, differs & (calls.role == role) & ~enters)
    findings.mark("inherited", outputs & inputs & ~outside)
    findings.mark("injected_by_input", outputs & inputs & outside)
    findings.mark("injected_by_parameter", outputs & ~inputs & parameters)
    findings.mark("received", outputs & ~inputs & ~parameters & collective)
    findings.mark("injected", outputs & injected & ~inputs & ~parameters)
    if mode == DIGESTS:
        findings.mark("digest", differs & injected)


def _mark_statistics(findings: Findings, evidence: Evidence, calls: Calls, limits: Thresholds, silent: Bools) -> None:
    assert evidence.differences is not None
    norm, deviation = evidence.differences["norm"], evidence.deviation
    relative = np.where(norm.case == NUMBER, norm.relative, 0.0)
    is_input = np.isin(calls.role, (INPUT, PARAMETER))
    before = _per_call(np.fmax, np.where(np.isfinite(relative), relative, 0.0), is_input, calls, 0.0)
    # Norms of other shapes do not compare: sums over longer or shorter pieces, say.
    outputs = (calls.role == OUTPUT) & ~silent & ~shapes_differ(evidence.pairs)
    findings.mark("far_norm", outputs & (before < limits.small_input) & (relative > limits.large_output))
    grown = (before > 0) & (relative > limits.growth * before) & (deviation.state == DIFFERS)
    findings.mark("growth", outputs & grown & np.isfinite(relative))
    if evidence.estimate is not None:
        apart = np.nan_to_num(evidence.estimate.relative)
        close = (before < limits.small_input) & (_per_call(np.fmax, apart, is_input, calls, 0.0) < limits.small_input)
        findings.mark("far_sketch", outputs & close & (evidence.estimate.lower > limits.large_output))
    points = (calls.role == POINT) & (relative > limits.large_output)
    findings.mark("far_point", points & ~silent)


def _mark_tensors(
    findings: Findings,
    metrics: pl.DataFrame,
    deviation: Deviation,
    calls: Calls,
    limits: Thresholds,
    unread: Bools,
    silent: Bools,
) -> None:
    is_input = np.isin(calls.role, (INPUT, PARAMETER))
    outputs = (calls.role == OUTPUT) & ~silent
    ratio = metrics["one_thousandth"].to_numpy()
    # An input that nobody read is close only if its recorded statistics say so.
    agrees = (deviation.state == IDENTICAL) | (deviation.state == ROUNDING)
    seen = np.where(unread, agrees.astype(np.float64), ratio)
    before = _per_call(np.fmin, seen, is_input, calls, 1.0)
    with np.errstate(invalid="ignore"):
        findings.mark("far_ratio", outputs & (before > limits.close_ratio) & (ratio < limits.far_ratio))
        cosine = metrics["cosine"].to_numpy()
        close = _per_call(np.fmin, np.where(unread, agrees.astype(np.float64), cosine), is_input, calls, 1.0)
        drop = (close > limits.close_ratio) & (close - cosine > limits.cosine_drop)
        findings.mark("cosine", outputs & drop)
        findings.mark("far_point", (calls.role == POINT) & (ratio < limits.far_ratio) & ~silent)


def _per_call(combine: Any, values: Floats, mask: Bools, calls: Calls, start: float) -> Floats:
    """Fold the values of a call's chosen rows into one and give it to all its rows."""
    folded = np.full(len(calls.exempt), start)
    chosen = mask & (calls.of_row >= 0)
    combine.at(folded, calls.of_row[chosen], values[chosen])
    return np.where(calls.of_row >= 0, folded[calls.of_row], start)


def _first_row(calls: Calls, injected: Bools) -> int | None:
    """The row that shows the first divergence: an output of the first injecting call, else what differs there."""
    rows = np.flatnonzero(injected)
    if not len(rows):
        return None
    first = calls.of_row[rows].min()
    rows = rows[calls.of_row[rows] == first]
    outputs = rows[calls.role[rows] == OUTPUT]
    return int(outputs[0] if len(outputs) else rows[0])
