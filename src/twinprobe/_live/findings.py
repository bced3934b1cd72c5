"""Every pair of tensors of two runs, measured; where the first difference begins, and which others follow from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import nan

from twinprobe._live.console import sibling
from twinprobe._live.live_run import Values, short_dtype
from twinprobe._live.measuring import Pair, PairGaps, missing_gradients
from twinprobe._live.pairing.matching import Matches
from twinprobe._measure.tolerance import Gap, Tolerance, compare
from twinprobe._runs.names import BACKWARD, FORWARD, GRADIENTS, OpName, parse_op
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

PHASE_ORDER = (
    BEFORE_PHASE, FORWARD_PHASE, LOSS_PHASE, BACKWARD_PHASE, GRADIENT_PHASE, WEIGHT_PHASE, AFTER_PHASE,
) = ("buffers before", "forward", "loss", "backward", "gradients", "weights", "buffers after")  # fmt: skip
SAME_NAN = "the same NaN on both sides"
_PLACES = {INPUT: "input", PARAMETER: "parameter", OUTPUT: "output", GRADIENT: "gradient"}
_BACKWARD_PLACES = {INPUT: "gradient of output", OUTPUT: "gradient of input"}


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
    return [] if isinstance(findings, AgreeingPairs) else [one for one in findings if one.differs]


def find_differences(
    raw: Values, base: Values, matches: Matches, tolerance: Tolerance, step: int, phases: frozenset[str]
) -> Findings:
    """Measure every paired row of the phases that are asked for."""
    maker = _FindingMaker(raw, base, matches.doubtful, step)
    wanted = matches.rows
    if raw.plain or base.plain:
        wanted = [row for row in wanted if row[0] not in raw.plain and row[1] not in base.plain]
    if not phases >= frozenset(PHASE_ORDER):
        wanted = [row for row in wanted if maker.phase(row) in phases]
    gaps = PairGaps(raw, base, wanted, tolerance)
    if matches.equal and wanted and gaps.all_same:
        return AgreeingPairs(len(wanted), lambda: maker.findings(wanted, gaps))
    found = maker.findings(wanted, gaps)
    for one in found:
        if one.place == "input" and "NaN" in one.gap.why and not parse_op(one.raw).body:
            row, other, _ = next(pair for pair in wanted if pair[0] == one.order)
            hosts = raw.tensor(row), base.tensor(other)
            if hosts[0] is not None and hosts[1] is not None:
                again = compare(hosts[0], hosts[1], replace(tolerance, equal_nan=True))
                one.gap = replace(one.gap, why=f"{one.gap.why}, {SAME_NAN}") if again.same else one.gap
    if GRADIENT_PHASE in phases and not matches.equal:
        for calls, parameter, why, rule, row in missing_gradients(raw, base, matches.rows):
            gap = Gap(False, why, nan, nan, nan, nan, nan)
            found.append(
                Finding(step, GRADIENT_PHASE, *calls, "gradient", parameter, gap, True, rule=rule, order=row)
            )  # fmt: skip
    return found


class _FindingMaker:
    """Makes findings of measured pairs."""

    def __init__(self, raw: Values, base: Values, doubtful: set[str], step: int) -> None:
        self._ops = raw.ops, base.ops
        self._columns = raw.columns, base.columns
        self._doubtful = doubtful
        self._step = step
        self._names: dict[int, tuple[OpName, str]] = {}

    def findings(self, rows: list[Pair], gaps: PairGaps) -> list[Finding]:
        """All pairs that could be measured."""
        measured = ((row, gaps[at]) for at, row in enumerate(rows))
        return [self._finding(*row, gap) for row, gap in measured if gap is not None]

    def phase(self, row: Pair) -> str:
        """In which phase a pair belongs."""
        return self._name(self._columns[0]["op"][row[0]])[1]

    def _name(self, op: int) -> tuple[OpName, str]:
        """A call of the raw model and its phase."""
        found = self._names.get(op)
        if found is None:
            name = parse_op(self._ops[0][op])
            phase = {GRADIENTS: GRADIENT_PHASE, BACKWARD: BACKWARD_PHASE}.get(name.direction, FORWARD_PHASE)
            found = self._names[op] = name, phase
        return found

    def _finding(self, row: int, other: int, rule: str, gap: Gap) -> Finding:
        mine, theirs = self._columns
        name, phase = self._name(mine["op"][row])
        role = mine["role"][row]
        places = _BACKWARD_PLACES if phase == BACKWARD_PHASE else _PLACES
        dtype, other_dtype = short_dtype(mine["dtype"][row] or ""), short_dtype(theirs["dtype"][other] or "")
        return Finding(
            self._step, phase, name.text, self._ops[1][theirs["op"][other]], places.get(role, "value"),
            mine["name"][row].removeprefix(name.text + "."), gap, self._decides(name, role, phase),
            mine["shape"][row] or "", theirs["shape"][other] or "",
            dtype if dtype == other_dtype else f"{dtype}/{other_dtype}", rule, row,
        )  # fmt: skip

    def _decides(self, name: OpName, role: int, phase: str) -> bool:
        """Modules decide. Calls inside them, and pairs that are doubtful, help to find where."""
        if name.text in self._doubtful or not (name.is_module or phase == GRADIENT_PHASE):
            return False
        if phase == FORWARD_PHASE:
            return role == OUTPUT or (role == INPUT and not name.body)
        return True


def only_places(found: Findings, places: tuple[str, ...]) -> list[Finding]:
    """The findings of these places; each of them decides."""
    kept = [one for one in found if one.place in places]
    for one in kept:
        one.decides = True
    return kept


# Where the first difference begins, and which others follow from it.

INJECTED, INHERITED, ARRIVES, INSIDE = "injected", "inherited", "arrives", "inside"


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


def settle_causes(findings: list[Finding], raw: Values) -> None:
    """Say for each difference whether it begins here (injected), came in (inherited) or is that of a call inside."""
    by_call: dict[str, list[Finding]] = defaultdict(list)
    for one in findings:
        if one.differs:
            by_call[one.raw].append(one)
    has_inner: set[str] = set()
    for name in by_call:
        parent = raw.parents.get(name)
        while parent is not None and parent not in has_inner:
            has_inner.add(parent)
            parent = raw.parents.get(parent)
    for name, differing in by_call.items():
        came_in = _came_in(name, by_call)
        for one in differing:
            if one.place in ("input", "gradient of output"):
                one.cause = ARRIVES
            elif came_in and not one.place.endswith("as computed"):
                one.cause = INHERITED
            else:
                one.cause = INSIDE if name in has_inner else INJECTED


def _came_in(name: str, by_call: dict[str, list[Finding]]) -> bool:
    if any(one.place in ("input", "gradient of output") for one in by_call[name]):
        return True
    if name == "loss":
        return any(parse_op(other).direction == FORWARD for other in by_call)
    op = parse_op(name)
    if op.direction == FORWARD:
        return False
    # A gradient follows from what its forward call saw, and a parameter's from what flowed back.
    if sibling(name, FORWARD) in by_call:
        return True
    return op.direction == GRADIENTS and any(
        one.cause != "" or one.differs for one in by_call.get(sibling(name, BACKWARD), ())
    )


def find_first(
    findings: list[Finding], raw: Values, base: Values, alone: tuple[list[str], list[str]] = ([], [])
) -> First | None:
    """The first difference in the order of execution; None where all that decides agrees.

    ``alone`` are the calls that only the raw and only the base model make: they are suspects.
    """
    deciding = [one for one in findings if one.differs and one.decides]
    if not deciding:
        return None
    step = min(one.step for one in deciding)
    phase = min((one.phase for one in deciding if one.step == step), key=PHASE_ORDER.index)
    differing = [one for one in findings if one.differs and one.step == step and one.phase == phase]
    if phase == GRADIENT_PHASE:
        differing = [one for one in differing if one.decides]
    differing.sort(key=lambda one: one.order)
    names = list(dict.fromkeys(one.raw for one in differing))
    chosen = _innermost(names, raw) if phase in (FORWARD_PHASE, BACKWARD_PHASE) else names[0]
    chosen = _named_by_its_layer(chosen, names, raw)
    mine = [one for one in differing if one.raw == chosen]
    causes = [one.cause for one in mine]
    cause = next((cause for cause in (INJECTED, INSIDE, ARRIVES, INHERITED) if cause in causes), INJECTED)
    return First(
        step, phase, chosen, mine[0].base, cause,
        _explain(mine, raw, _given(findings)) + _suspects(mine, raw, base, alone), mine,
        _line(raw, chosen), _line(base, mine[0].base),
    )  # fmt: skip


def _innermost(names: list[str], raw: Values) -> str:
    """The first of them; where that encloses others, the first of these."""
    differing = set(names)
    chosen = names[0]
    while True:
        inner = next((name for name in names if raw.parents.get(name) == chosen and name in differing), None)
        if inner is None:
            return chosen
        chosen = inner


def _named_by_its_layer(name: str, names: list[str], raw: Values) -> str:
    """A function called by a layer that has no layers inside is better known by the layer."""
    op = parse_op(name)
    parent = raw.parents.get(name)
    if op.is_module or parent is None or parent not in names:
        return name
    has_modules = any(other == parent and parse_op(child).is_module for child, other in raw.parents.items())
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


def _given(findings: list[Finding]) -> list[Finding]:
    """What the models themselves were called with; empty where that was not recorded."""
    return [one for one in findings if one.place == "input" and _is_model(one.raw)]


def _explain(mine: list[Finding], raw: Values, given: list[Finding]) -> str:
    places = {one.place for one in mine}
    why = mine[0].gap.why
    named = ", ".join(one.tensor.rpartition(".")[2] for one in mine if one.place in ("parameter", "gradient"))
    reason = next((text for place, text in _EXPLANATIONS.items() if place in places), "")
    if "input" in places:
        reason = "what goes in differs already, but every layer before it agrees: look at the code that calls it"
        differing = [one for one in given if one.differs]
        if differing and all(SAME_NAN in one.gap.why for one in differing):
            reason = f"both models are given the same NaN, which equals nothing; equal_nan=True lets it pass ({why})"
        elif differing or (not given and raw.ops[:1] == [mine[0].raw]):
            reason = "the two models are given different inputs"
    elif "buffer" in places:
        buffers = ", ".join(one.tensor for one in mine)
        when = "before anything runs" if mine[0].phase == BEFORE_PHASE else "after the step"
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


def _suspects(mine: list[Finding], raw: Values, base: Values, alone: tuple[list[str], list[str]]) -> str:
    """Calls beside the guilty one that the other model does not make."""
    if mine[0].phase != FORWARD_PHASE or all(one.place != "input" for one in mine):
        return ""
    found = []
    for who, run, name, names in (("raw", raw, mine[0].raw, alone[0]), ("base", base, mine[0].base, alone[1])):
        around = run.parents.get(name)
        order = {one: at for at, one in enumerate(run.ops)}
        beside = [one for one in names if run.parents.get(one) == around and order.get(one, 0) < order.get(name, 0)]
        if beside:
            line = _line(run, beside[-1])
            found.append(f"; only the {who} model calls {beside[-1]}" + (f" ({line})" if line else ""))
    return "".join(found)


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
