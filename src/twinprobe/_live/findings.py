"""Where two models part. The tolerance decides whether they do; the judge of recordings, where and why.

Two runs in memory are paired, measured and judged like two dumps: the same fault gets the same sentence. Only what no
recording holds (buffers, the loss, a layer fed with the reference's values) is explained here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite, prod
from typing import TYPE_CHECKING

from twinprobe._judge.describe import user_frame
from twinprobe._judge.search import OUTPUT_DIFFERS
from twinprobe._live.live_run import LiveRun
from twinprobe._live.pairing.matching import Matches
from twinprobe._live.running import Options
from twinprobe._measure.elements import ANY_ORDER
from twinprobe._measure.elements import turned as turned_like
from twinprobe._measure.tolerance import Gap, transposed
from twinprobe._record.entries import Note
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS, parse_op
from twinprobe._runs.run import DIGESTS, STATISTICS, Run
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import Loader
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._compare.one import Comparison
    from twinprobe._judge.summary import Divergence

PHASE_ORDER = (
    BEFORE_PHASE, FORWARD_PHASE, LOSS_PHASE, BACKWARD_PHASE, GRADIENT_PHASE, WEIGHT_PHASE, AFTER_PHASE,
) = ("buffers before", "forward", "loss", "backward", "gradients", "weights", "buffers after")  # fmt: skip
_WAY_BACK = (BACKWARD_PHASE, GRADIENT_PHASE)
INJECTED, INHERITED, ARRIVES, INSIDE = "injected", "inherited", "arrives", "inside"
SAME_NAN = "the same NaN on both sides"
_FOLLOWS = 10.0  # how much further off than what it was computed from a mean of values may be
_ARRIVING = ("input", "gradient of output")  # places of what a call is given


@dataclass(slots=True)
class Finding:
    """One pair of tensors. ``decides``: whether a difference here makes the comparison fail."""

    step: int
    phase: str
    raw: str  # the call
    base: str
    place: str
    tensor: str  # the rest of the name, such as output.0
    gap: Gap
    decides: bool
    raw_shape: str = ""
    base_shape: str = ""
    dtype: str = ""
    rule: str = ""
    order: int = 0
    cause: str = ""

    @property
    def differs(self) -> bool:
        return not self.gap.same


class AgreeingPairs:
    """``count`` findings, none of which differs; ``make`` makes them on first use and must hold no tensor."""

    def __init__(self, count: int, make: Callable[[], list[Finding]]) -> None:
        self._count, self._make = count, cache(make)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._make())


Findings = list[Finding] | AgreeingPairs


def differing(findings: Findings) -> list[Finding]:
    """Those that differ."""
    return [] if isinstance(findings, AgreeingPairs) else [finding for finding in findings if finding.differs]


def in_order(findings: list[Finding]) -> list[Finding]:
    """In the order of execution."""
    return sorted(findings, key=lambda finding: (PHASE_ORDER.index(finding.phase), finding.order))


@dataclass
class FirstDifference:
    """The first difference: which pair of calls, what of it, why, and from which line it was called."""

    step: int
    phase: str
    raw: str
    base: str
    cause: str
    why: str
    findings: list[Finding] = field(default_factory=list)
    raw_line: str = ""
    base_line: str = ""

    def __str__(self) -> str:
        return f"{self.phase}, step {self.step}: {self.raw} against {self.base}: {self.why}"


@dataclass
class Claim:
    """The judge's claim about two runs: where they part, and the paired call at which that is seen."""

    divergence: Divergence
    call: str


@dataclass
class Judgement:
    """What the judge says of a step: a claim, or that what the tolerance does not let pass is noise."""

    claim: Claim | None = None
    noise: int = 0  # so many pairs
    worst: float = 0.0  # the largest of their relative errors

    def explains(self, gap: Gap) -> bool:
        """Whether a value that was computed from these pairs (the loss, a running mean) is off by no more than they."""
        return bool(self.noise) and gap.relative_norm <= _FOLLOWS * self.worst


NOTHING_SAID = Judgement()


def judge_runs(
    raw: LiveRun, base: LiveRun, matches: Matches, findings: Findings, options: Options, *, updated: bool = False
) -> Judgement:
    """Where two runs part, of what the tolerance does not let pass. To be asked while their tensors are held.

    Where the tolerance is not the user's own, what the judge of recordings takes for noise decides nothing: no fixed
    tolerance fits all depths, element types and steps of optimizers. ``updated``: parameters that differ were found to
    agree after the last step, as far as their gradients tell.
    """
    differences = in_order(differing(findings))
    first = next((finding for finding in differences if finding.decides), None)
    if first is None:
        return NOTHING_SAID
    from twinprobe._align.links import from_partners
    from twinprobe._compare.one import Options as How
    from twinprobe._compare.one import compare_runs
    from twinprobe._judge.rules import PASS
    from twinprobe._judge.search import PARAMETER_DIFFERS

    for run in (raw, base):
        run.measure()
        run.settings |= run.ask_settings()
    target, golden = raw, base
    if raw.mode != base.mode:  # a live model against a recording of statistics
        if DIGESTS in (raw.mode, base.mode):
            return NOTHING_SAID
        target, golden = (_by_statistics(run) for run in (raw, base))
    partners, rules = [-1] * raw.table.height, [""] * raw.table.height
    for row, golden_row, rule in matches.rows:
        partners[row], rules[row] = golden_row, rule
    pairs = replace(from_partners(partners, base.table.height, rules), call_groups=matches.call_groups)
    measure = _measure_in_memory if raw.in_memory or base.in_memory else None
    try:
        compared = compare_runs(target, golden, How(match=lambda *_: pairs, measure=measure))
    except BadInput:  # a recording that cannot be judged: perturbed, or without the folder of its tensors
        return NOTHING_SAID
    rows = {finding.order for finding in differences}
    causes = {beginning.cause for beginning in compared.judged.beginnings if beginning.reaches}
    if options.default_tolerance and not options.single_step and raw.in_memory and base.in_memory:
        deciding = [finding for finding in differences if finding.decides]
        errors = [finding.gap.relative_norm for finding in deciding]
        # An error that begins somewhere is no noise, even if it dies out and explains what differs.
        verdicts = compared.judged.verdict
        within = not compared.judged.beginnings and all(verdicts[finding.order] == PASS for finding in deciding)
        settled = within or (updated and (compared.summary.first is None or causes == {PARAMETER_DIFFERS}))
        if settled and all(map(isfinite, errors)) and not any("NaN" in finding.gap.why for finding in deciding):
            for finding in deciding:
                finding.decides = False
            return Judgement(noise=len(deciding), worst=max(errors))
    # What the judge takes for noise may still be beyond the user's tolerance: then the tolerance decides what differs.
    claim = _claim(compared, rows, first.phase) or _claim(_by_tolerance(compared, rows), rows, first.phase)
    return Judgement(claim)


def _by_statistics(run: LiveRun) -> LiveRun:
    if run.task == STATISTICS:
        return run
    copy = replace(run, task=STATISTICS)
    copy.__dict__["parents"] = run.parents
    return copy


def _measure_in_memory(
    target: Run, golden: Run, pairs: pl.DataFrame, progress: Callable[[int, int], None]
) -> pl.DataFrame:
    """The metrics of all pairs; tensors that one model stores transposed are turned."""
    from twinprobe._compare.one import file_metrics
    from twinprobe._compare.pair_table import as_text, from_text

    any_order = as_text([ANY_ORDER])
    columns = (pairs[name].to_list() for name in ("t_file", "g_file", "turn", "t_row", "g_row"))
    files, golden_files, turns, rows, golden_rows = columns
    assert isinstance(target, LiveRun)
    assert isinstance(golden, LiveRun)

    def load(row: int) -> HostTensor:
        tensor = target.load(files[row])
        if turns[row] == any_order:
            return turned_like(tensor, [ANY_ORDER], golden.load(golden_files[row]))
        if (rows[row] in target.turned) is not (golden_rows[row] in golden.turned):
            return transposed(tensor)
        if turns[row] is None:
            return tensor
        return turned_like(tensor, from_text(turns[row]), golden.load(golden_files[row]))

    def loaders(row: int) -> tuple[Loader, Loader]:
        return lambda: load(row), lambda: golden.load(golden_files[row])

    notes = [note for run in (target, golden) if run.live is not None for note in run.live.value if type(note) is Note]
    work = 4 * sum(prod(note.shape) for note in notes)  # about how many bytes
    return file_metrics(
        target.path, golden.path, pairs, progress, work=work, load=lambda rows: iter([loaders(row) for row in rows])
    )


def _by_tolerance(compared: Comparison, rows: set[int]) -> Comparison:
    """The same runs, judged by the tolerance instead of the noise: it may be narrower."""
    import numpy as np

    from twinprobe._judge.deviation import DIFFERS, IDENTICAL, ROUNDING, Deviation
    from twinprobe._judge.rules import Thresholds
    from twinprobe._judge.verdicts import judge

    measured = compared.evidence.deviation
    state = measured.state.copy()
    tensor = np.isfinite(measured.error)
    state[tensor & (state == DIFFERS)] = ROUNDING
    state[tensor & (state == ROUNDING) & (measured.error == 0)] = IDENTICAL
    state[sorted(rows)] = DIFFERS
    evidence = replace(compared.evidence, deviation=Deviation(state, measured.error, measured.nonfinite))
    return replace(compared, evidence=evidence, judged=judge(compared.target, evidence, Thresholds(rounding=0.0)))


def _claim(compared: Comparison, rows: set[int], phase: str) -> Claim | None:
    """The first beginning that these rows show, in this phase."""
    from twinprobe._judge.describe import describe
    from twinprobe._judge.search import EXTRA, Beginning

    target, judged, pairs = compared.target, compared.judged, compared.evidence.pairs
    beginnings = [beginning for beginning in judged.beginnings if beginning.reaches]
    if not beginnings and judged.first_row is not None:
        beginnings = [Beginning(pairs["t_op"][judged.first_row], judged.first_row, "")]
    ops = pairs["t_op"].to_list()
    for beginning in beginnings:
        seen_at = ops[beginning.arguments[0]] if beginning.cause == EXTRA else beginning.call
        shown = {beginning.row, *beginning.arguments, *(row for row in rows if ops[row] in (beginning.call, seen_at))}
        call = target.ops[seen_at] if seen_at is not None and seen_at >= 0 else ""
        if call and shown & rows and _same_way(phase_of(call), phase):
            return Claim(describe(target, compared.golden, compared.evidence, judged, beginning), call)
    return None


def phase_of(call: str) -> str:
    """In which phase a call is made."""
    return {BACKWARD: BACKWARD_PHASE, GRADIENTS: GRADIENT_PHASE}.get(parse_op(call).direction, FORWARD_PHASE)


def _same_way(first: str, second: str) -> bool:
    return first == second or (first in _WAY_BACK and second in _WAY_BACK)


def first_difference(
    findings: list[Finding], raw: LiveRun, base: LiveRun, claim: Claim | None
) -> FirstDifference | None:
    """The first difference among the findings of a step, in their order; None where all that decides agrees."""
    _settle_causes(findings, raw)
    phase = next((finding.phase for finding in findings if finding.differs and finding.decides), None)
    if phase is None:
        return None
    together = [finding for finding in findings if finding.differs and _same_way(finding.phase, phase)]
    names = list(dict.fromkeys(finding.raw for finding in together))
    fed = any(finding.place in _EXPLANATIONS for finding in together)
    if claim is not None and not fed and _same_way(phase_of(claim.call), phase):
        divergence = claim.divergence
        chosen, why = _named_by_its_layer(claim.call, names, raw), divergence.sentence
        if divergence.op != claim.call and divergence.begins == "extra":
            line = _line(raw, divergence.op)
            why = f"{divergence.op}{f' ({line})' if line else ''}: {why}"
    else:
        chosen, why = next(finding.raw for finding in together if finding.phase == phase), ""
    of_call = [finding for finding in together if finding.raw == chosen]
    if phase == FORWARD_PHASE:  # only the caller of auto_diff knows that these are what the models were given
        given = [f.gap.why for f in together if f.place == "input" and not parse_op(f.raw).body]
        if given and all(SAME_NAN in text for text in given):
            why = (
                f"both models are given the same NaN, which never equals itself; equal_nan=True allows it ({given[0]})"
            )
        elif given:
            why = f"the two models are given different inputs; {why or given[0]}"
    causes = [finding.cause for finding in of_call]
    cause = next((cause for cause in (INJECTED, INSIDE, ARRIVES, INHERITED) if cause in causes), INJECTED)
    partner = of_call[0].base if of_call else chosen
    # Of calls that are compared as a group, the one that the other model does not make is where to look.
    shown = chosen
    if claim is not None and why == claim.divergence.sentence and claim.divergence.begins == OUTPUT_DIFFERS:
        other, of_base = claim.divergence.op, any(kind["name"] == "missing" for kind in claim.divergence.kinds[:1])
        if other != claim.call and other in raw.ops and not of_base:
            shown = _named_by_its_layer(other, names, raw)
    return FirstDifference(
        findings[0].step, of_call[0].phase if of_call else phase, shown, partner, cause, why or _explain(of_call),
        of_call, _line(raw, shown), _line(base, partner),
    )  # fmt: skip


def _settle_causes(findings: list[Finding], raw: LiveRun) -> None:
    """Say for each difference whether it begins here (injected), came in (inherited) or is that of a call inside."""
    by_call: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.differs:
            by_call[finding.raw].append(finding)
    has_inner: set[str] = set()
    for name in by_call:
        parent = raw.parents.get(name)
        while parent is not None and parent not in has_inner:
            has_inner.add(parent)
            parent = raw.parents.get(parent)
    for name, of_call in by_call.items():
        came_in = _came_in(name, by_call)
        for finding in of_call:
            if finding.place in _ARRIVING:
                finding.cause = ARRIVES
            elif came_in and not finding.place.endswith("as computed"):
                finding.cause = INHERITED
            else:
                finding.cause = INSIDE if name in has_inner else INJECTED


def _came_in(name: str, by_call: dict[str, list[Finding]]) -> bool:
    if any(finding.place in _ARRIVING for finding in by_call[name]):
        return True
    if name == "loss":
        return any(parse_op(differing_call).direction == FORWARD for differing_call in by_call)
    call = parse_op(name)
    if call.direction == FORWARD:
        return False
    # A gradient follows from what its forward call saw, and a parameter's from what flowed back.
    return call.turned(FORWARD) in by_call or (call.direction == GRADIENTS and call.turned(BACKWARD) in by_call)


def _named_by_its_layer(name: str, names: list[str], raw: LiveRun) -> str:
    """A function called by a layer that has no layers inside is better known by the layer."""
    parent = raw.parents.get(name)
    if parse_op(name).is_module or parent is None or parent not in names:
        return name
    has_modules = any(around == parent and parse_op(child).is_module for child, around in raw.parents.items())
    return name if has_modules else parent


_EXPLANATIONS = {
    # Of a layer that is fed with the reference's values.
    "input as computed": (
        "it was fed the reference's values, but receives different ones here: look at the code that calls it"
    ),
    "gradient as computed": (
        "it was fed the reference's gradients, but a different one arrives at its output: look at what uses this "
        "output, between this layer and the next"
    ),
}


def _explain(findings: list[Finding]) -> str:
    """What is no call of a recording, or nothing that the judge could tell more of."""
    places, why = {finding.place for finding in findings}, findings[0].gap.why
    named = ", ".join(finding.tensor for finding in findings)
    if "buffer" in places:
        when = "before anything runs" if findings[0].phase == BEFORE_PHASE else "after the step"
        return f"its buffers differ {when}: {named} ({why})"
    if "loss" in places:
        return f"the losses differ although all outputs agree{_times(findings[0].gap.max_rel)} ({why})"
    return next((text for place, text in _EXPLANATIONS.items() if place in places), f"{named}: {why}")


def _times(relative: float) -> str:
    """Where one loss is a whole number of times the other, say so: a sum of so many elements against their mean."""
    if not isfinite(relative) or relative <= 0:
        return ""
    less = relative < 1 - _SAME_TIMES  # of a loss of twice the base's, rounding may make a little less than one
    times = 1 / (1 - relative) if less else 1 + relative
    whole = times >= 2 - _SAME_TIMES and abs(times - round(times)) <= _SAME_TIMES * times
    which = ("base's", "raw's") if less else ("raw's", "base's")
    return f": {which[0]} is {round(times)} times {which[1]}, a sum against a mean?" if whole else ""


_SAME_TIMES = 1e-5


def _line(run: LiveRun, name: str) -> str:
    """The user's line of code that made a call."""
    frames = run.stacks[name] or run.stacks[parse_op(name).turned(FORWARD)]
    place, _, source = user_frame(frames).partition(", \n")
    return f"{place.removeprefix('File ')}: {source.strip()}".replace(", line ", ":", 1) if place else ""
