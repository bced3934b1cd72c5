"""Where two models part: the one seam between what was measured and what is said about it.

``first_difference`` takes every measured pair of a step in execution order (inputs, parameters, outputs, gradients,
each with its error), gives each difference its cause, and returns the first one with a sentence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from twinprobe._live.console import sibling
from twinprobe._live.live_run import Values
from twinprobe._measure.tolerance import Gap
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS, parse_op

PHASE_ORDER = (
    BEFORE_PHASE, FORWARD_PHASE, LOSS_PHASE, BACKWARD_PHASE, GRADIENT_PHASE, WEIGHT_PHASE, AFTER_PHASE,
) = ("buffers before", "forward", "loss", "backward", "gradients", "weights", "buffers after")  # fmt: skip
INJECTED, INHERITED, ARRIVES, INSIDE = "injected", "inherited", "arrives", "inside"
SAME_NAN = "the same NaN on both sides"
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
    """So many findings, none of which differs. ``make`` makes them when somebody looks; it must hold no tensor."""

    def __init__(self, count: int, make: Callable[[], list[Finding]]) -> None:
        self._count = count
        self._make = make
        self._made: list[Finding] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Finding]:
        if self._made is None:
            self._made = self._make()
        return iter(self._made)


Findings = list[Finding] | AgreeingPairs


def differing(findings: Findings) -> list[Finding]:
    """Those that differ."""
    return [] if isinstance(findings, AgreeingPairs) else [finding for finding in findings if finding.differs]


def in_order(findings: list[Finding]) -> list[Finding]:
    """In the order of execution."""
    return sorted(findings, key=lambda finding: (PHASE_ORDER.index(finding.phase), finding.order))


@dataclass
class First:
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


def first_difference(
    findings: list[Finding], raw: Values, base: Values, alone: tuple[list[str], list[str]]
) -> First | None:
    """The first difference among the findings of a step, in their order; None where all that decides agrees.

    ``alone`` are the calls that only the raw and only the base model make: they are suspects.
    """
    _settle_causes(findings, raw)
    phase = next((finding.phase for finding in findings if finding.differs and finding.decides), None)
    if phase is None:
        return None
    found = [finding for finding in findings if finding.differs and finding.phase == phase]
    if phase == GRADIENT_PHASE:
        found = [finding for finding in found if finding.decides]
    names = list(dict.fromkeys(finding.raw for finding in found))
    chosen = names[0]
    if phase in (FORWARD_PHASE, BACKWARD_PHASE):  # where a call encloses others, the first of these
        for _ in names:  # a recording may hold circles
            chosen = next((name for name in names if raw.parents.get(name) == chosen), chosen)
    chosen = _named_by_its_layer(chosen, names, raw)
    found = [finding for finding in found if finding.raw == chosen]
    causes = [finding.cause for finding in found]
    cause = next((cause for cause in (INJECTED, INSIDE, ARRIVES, INHERITED) if cause in causes), INJECTED)
    given = [finding for finding in findings if finding.place == "input" and _is_model(finding.raw)]
    why = _explain(found, raw, given) + _suspects(found, raw, base, alone)
    partner = found[0].base
    return First(
        found[0].step, phase, chosen, partner, cause, why, found, _line(raw, chosen), _line(base, partner)
    )  # fmt: skip


def _settle_causes(findings: list[Finding], raw: Values) -> None:
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
    for name, found in by_call.items():
        came_in = _came_in(name, by_call)
        for finding in found:
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
        return any(parse_op(other).direction == FORWARD for other in by_call)
    direction = parse_op(name).direction
    if direction == FORWARD:
        return False
    # A gradient follows from what its forward call saw, and a parameter's from what flowed back.
    return sibling(name, FORWARD) in by_call or (direction == GRADIENTS and sibling(name, BACKWARD) in by_call)


def _named_by_its_layer(name: str, names: list[str], raw: Values) -> str:
    """A function called by a layer that has no layers inside is better known by the layer."""
    parent = raw.parents.get(name)
    if parse_op(name).is_module or parent is None or parent not in names:
        return name
    has_modules = any(around == parent and parse_op(child).is_module for child, around in raw.parents.items())
    return name if has_modules else parent


_EXPLANATIONS = {
    # What differs, by place, the most telling first.
    "input as computed": "fed with the reference's values, it is handed others here: look at the code that calls it",
    "gradient as computed": (
        "fed with the reference's gradients, another one arrives at its output: look at what uses this output, between "
        "this layer and the next"
    ),
    "gradient of output": (
        "the gradient that arrives at its output differs: look at what uses this output, between this layer and the "
        "next"
    ),
    "gradient of input": (
        "the same gradient arrives at its output, but what it hands on differs: its backward is at fault"
    ),
}


def _explain(found: list[Finding], raw: Values, given: list[Finding]) -> str:
    """``given`` are the inputs of the models themselves; none where they were not recorded."""
    places = {finding.place for finding in found}
    why = found[0].gap.why
    named = ", ".join(f.tensor.rpartition(".")[2] for f in found if f.place in ("parameter", "gradient"))
    reason = next((text for place, text in _EXPLANATIONS.items() if place in places), "")
    if "input" in places:
        reason = "what goes in differs already, but every layer before it agrees: look at the code that calls it"
        outside = [finding for finding in given if finding.differs]
        if outside and all(SAME_NAN in finding.gap.why for finding in outside):
            reason = f"both models are given the same NaN, which equals nothing; equal_nan=True lets it pass ({why})"
        elif outside or (not given and raw.ops[:1] == [found[0].raw]):
            reason = "the two models are given different inputs"
    elif "buffer" in places:
        buffers = ", ".join(finding.tensor for finding in found)
        when = "before anything runs" if found[0].phase == BEFORE_PHASE else "after the step"
        reason = f"its buffers differ {when}: {buffers} ({why})"
    elif "parameter" in places:
        reason = f"its parameters differ before anything runs: {named}"
    elif "output" in places:
        reason = f"its inputs agree, its output does not ({why})"
    elif "gradient" in places:
        reason = f"the gradient of its parameter differs: {named} ({why})"
    elif "loss" in places:
        reason = f"the losses differ although all outputs agree ({why})"
    return reason or why


def _suspects(found: list[Finding], raw: Values, base: Values, alone: tuple[list[str], list[str]]) -> str:
    """Calls beside the guilty one that the other model does not make."""
    if found[0].phase != FORWARD_PHASE or all(finding.place != "input" for finding in found):
        return ""
    text = ""
    for who, run, name, names in (("raw", raw, found[0].raw, alone[0]), ("base", base, found[0].base, alone[1])):
        around = run.parents.get(name)
        order = {call: number for number, call in enumerate(run.ops)}
        beside = [call for call in names if run.parents.get(call) == around and order.get(call, 0) < order.get(name, 0)]
        if beside:
            line = _line(run, beside[-1])
            text += f"; only the {who} model calls {beside[-1]}" + (f" ({line})" if line else "")
    return text


def _is_model(name: str) -> bool:
    op = parse_op(name)
    return op.is_module and not op.body


# Recordings may come from elsewhere, so a framework's files are told by where packages usually lie.
_FRAMEWORK_FILES = ("-packages/torch/", "-packages/paddle/", "-packages/mindspore/", "<frozen", "<__array")


def _line(run: Values, name: str) -> str:
    """The user's line of code that made a call."""
    frames = run.stacks[name] or run.stacks[sibling(name, FORWARD)]
    for text in frames:
        if not any(part in text.partition(", line")[0] for part in _FRAMEWORK_FILES):
            place, _, source = text.partition(", \n")
            return f"{place.removeprefix('File ')}: {source.strip()}".replace(", line ", ":", 1)
    return ""
