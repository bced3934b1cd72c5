"""Every pair of tensors of two runs, measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nan

from twinprobe.live.calm import Calm, Found
from twinprobe.live.live_run import Values, short_dtype
from twinprobe.live.matching import Matches
from twinprobe.live.measuring import Pair, PairGaps
from twinprobe.live.missing_gradients import missing_gradients
from twinprobe.measure.tolerance import Gap, Tolerance, compare
from twinprobe.runs.names import BACKWARD, GRADIENTS, OpName, parse_op
from twinprobe.runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

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


def find_differences(
    raw: Values, base: Values, matches: Matches, tolerance: Tolerance, step: int, phases: frozenset[str]
) -> Found:
    """Measure every paired row of the phases that are asked for."""
    telling = _Telling(raw, base, matches.doubtful, step)
    wanted = matches.rows
    if raw.plain or base.plain:
        wanted = [row for row in wanted if row[0] not in raw.plain and row[1] not in base.plain]
    if not phases >= frozenset(PHASE_ORDER):
        wanted = [row for row in wanted if telling.phase(row) in phases]
    gaps = PairGaps(raw, base, wanted, tolerance)
    if matches.equal and wanted and gaps.all_same:
        return Calm(len(wanted), lambda: telling.findings(wanted, gaps))
    found = telling.findings(wanted, gaps)
    for one in found:
        if one.place == "input" and "NaN" in one.gap.why and not parse_op(one.raw).body:
            row, other, _ = next(pair for pair in wanted if pair[0] == one.order)
            hosts = raw.tensor(row), base.tensor(other)
            if hosts[0] is not None and hosts[1] is not None:
                again = compare(hosts[0], hosts[1], replace(tolerance, equal_nan=True))
                one.gap = replace(one.gap, why=f"{one.gap.why}, {SAME_NAN}") if again.same else one.gap
    missing = missing_gradients(raw, base, matches.rows) if GRADIENT_PHASE in phases and not matches.equal else []
    return found + [telling.without_gradient(*one) for one in missing]


class _Telling:
    """Puts measured pairs into words."""

    def __init__(self, raw: Values, base: Values, doubtful: set[str], step: int) -> None:
        self._ops = raw.ops, base.ops
        self._columns = raw.columns, base.columns
        self._doubtful = doubtful
        self._step = step
        self._names: dict[int, tuple[OpName, str]] = {}

    def findings(self, rows: list[Pair], gaps: PairGaps) -> list[Finding]:
        """All pairs that could be measured."""
        found = []
        for at, row in enumerate(rows):
            gap = gaps[at]
            if gap is not None:
                found.append(self._finding(*row, gap))
        return found

    def phase(self, row: Pair) -> str:
        """In which phase a pair belongs."""
        return self._name(self._columns[0]["op"][row[0]])[1]

    def _name(self, op: int) -> tuple[OpName, str]:
        """A call of the raw model and its phase."""
        found = self._names.get(op)
        if found is None:
            name = parse_op(self._ops[0][op])
            found = self._names[op] = name, _phase(name)
        return found

    def _finding(self, row: int, other: int, rule: str, gap: Gap) -> Finding:
        mine, theirs = self._columns
        name, phase = self._name(mine["op"][row])
        role = mine["role"][row]
        places = _BACKWARD_PLACES if phase == BACKWARD_PHASE else _PLACES
        return Finding(
            self._step, phase, name.text, self._ops[1][theirs["op"][other]], places.get(role, "value"),
            mine["name"][row].removeprefix(name.text + "."), gap, self._decides(name, role, phase),
            mine["shape"][row] or "", theirs["shape"][other] or "", _dtypes(mine["dtype"][row], theirs["dtype"][other]),
            rule, row,
        )  # fmt: skip

    def _decides(self, name: OpName, role: int, phase: str) -> bool:
        """Modules decide. Calls inside them, and pairs that are doubtful, help to find where."""
        if name.text in self._doubtful or not (name.is_module or phase == GRADIENT_PHASE):
            return False
        if phase == FORWARD_PHASE:
            return role == OUTPUT or (role == INPUT and not name.body)
        return True

    def without_gradient(self, calls: tuple[str, str], parameter: str, why: str, rule: str, row: int) -> Finding:
        """A parameter of which only one model has a gradient."""
        gap = Gap(False, why, nan, nan, nan, nan, nan)
        return Finding(
            self._step, GRADIENT_PHASE, *calls, "gradient", parameter, gap, True, rule=rule, order=row
        )  # fmt: skip


def shortened(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def only_places(found: Found, places: tuple[str, ...]) -> list[Finding]:
    """The findings of these places; each of them decides."""
    kept = [one for one in found if one.place in places]
    for one in kept:
        one.decides = True
    return kept


def _phase(name: OpName) -> str:
    if name.direction == GRADIENTS:
        return GRADIENT_PHASE
    return BACKWARD_PHASE if name.direction == BACKWARD else FORWARD_PHASE


def _dtypes(one: str | None, other: str | None) -> str:
    mine, theirs = short_dtype(one or ""), short_dtype(other or "")
    return mine if mine == theirs else f"{mine}/{theirs}"
