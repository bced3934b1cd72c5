"""Every pair of tensors of two runs, measured."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Any

from twinprobe.errors import DamagedTensor
from twinprobe.live.live_run import IN_OUT, Values, short_dtype
from twinprobe.live.matching import Matches
from twinprobe.measure.gaps import Job, compare_all
from twinprobe.measure.tolerance import Gap, Tolerance
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.leaf import TENSOR
from twinprobe.runs.names import BACKWARD, GRADIENTS, OpName, parse_op
from twinprobe.runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER

FORWARD_PHASE, LOSS_PHASE, BACKWARD_PHASE, GRADIENT_PHASE, WEIGHT_PHASE = (
    "forward", "loss", "backward", "gradients", "weights",
)  # fmt: skip
PHASE_ORDER = (FORWARD_PHASE, LOSS_PHASE, BACKWARD_PHASE, GRADIENT_PHASE, WEIGHT_PHASE)
_PLACES = {INPUT: "input", PARAMETER: "parameter", OUTPUT: "output", GRADIENT: "gradient"}
_ELEMENTS_AT_ONCE = 16 << 20
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
) -> list[Finding]:
    """Measure every paired row of the phases that are asked for."""
    return _Measuring(raw, base, matches, tolerance, step, phases).run()


class _Measuring:
    def __init__(
        self, raw: Values, base: Values, matches: Matches, tolerance: Tolerance, step: int, phases: frozenset[str]
    ) -> None:
        self.raw, self.base, self.matches, self.tolerance = raw, base, matches, tolerance
        self.step, self.phases = step, phases
        self._names: dict[int, tuple[OpName, str]] = {}
        self._columns = _columns(raw), _columns(base)
        self._doubtful = matches.doubtful

    def run(self) -> list[Finding]:
        wanted = [row for row in self.matches.rows if self._is_wanted(*row)]
        found = []
        for (row, other, rule), gap in zip(wanted, self._gaps(wanted), strict=True):
            if gap is not None:
                found.append(self._finding(row, other, rule, gap))
        return found + self._missing_gradients()

    def _is_wanted(self, row: int, other: int, _rule: str) -> bool:
        mine, theirs = self._columns
        if mine["kind"][row] != TENSOR or theirs["kind"][other] != TENSOR:
            return False
        return self._name(mine["op"][row])[1] in self.phases

    def _name(self, op: int) -> tuple[OpName, str]:
        """A call of the raw model and its phase."""
        found = self._names.get(op)
        if found is None:
            name = parse_op(self.raw.ops[op])
            found = self._names[op] = name, _phase(name)
        return found

    def _finding(self, row: int, other: int, rule: str, gap: Gap) -> Finding:
        mine, theirs = self._columns
        name, phase = self._name(mine["op"][row])
        role = mine["role"][row]
        places = _BACKWARD_PLACES if phase == BACKWARD_PHASE else _PLACES
        return Finding(
            self.step, phase, name.text, self.base.ops[theirs["op"][other]], places.get(role, "value"),
            mine["name"][row].removeprefix(name.text + "."), gap, self._decides(name, role, phase),
            mine["shape"][row] or "", theirs["shape"][other] or "", _dtypes(mine["dtype"][row], theirs["dtype"][other]),
            rule, row,
        )  # fmt: skip

    def _decides(self, name: OpName, role: int, phase: str) -> bool:
        """Modules decide. Calls inside them, and pairs that are doubtful, help to find where."""
        if name.text in self.matches.doubtful or not (name.is_module or phase == GRADIENT_PHASE):
            return False
        if phase == FORWARD_PHASE:
            return role == OUTPUT or (role == INPUT and not name.body)
        return True

    def _gaps(self, rows: list[tuple[int, int, str]]) -> list[Gap | None]:
        """One for each pair of rows. The same two tensors are measured once; a recording is read bit by bit."""
        found: list[Gap | None] = [None] * len(rows)
        first: dict[tuple[int, int, bool], int] = {}
        again: list[tuple[int, int]] = []
        jobs: list[Job] = []
        places: list[int] = []
        waiting = 0
        for at, (row, other, _) in enumerate(rows):
            turned = self._is_turned(row, other)
            ids = self.raw.identity(row), self.base.identity(other)
            if all(ids):
                known = first.setdefault((*ids, turned), at)
                if known != at:
                    again.append((at, known))
                    continue
            try:
                one, two = self.raw.spot(row), self.base.spot(other)
            except DamagedTensor as damage:
                found[at] = Gap(False, str(damage), nan, nan, nan, nan, nan)
                continue
            if one is None or two is None:
                found[at] = self._by_statistics(row, other)
                continue
            jobs.append((one, two, turned))
            places.append(at)
            waiting += one.size
            if waiting > _ELEMENTS_AT_ONCE:
                self._measure(jobs, places, rows, found)
                waiting = 0
        self._measure(jobs, places, rows, found)
        for at, known in again:
            found[at] = found[known]
        return found

    def _measure(
        self, jobs: list[Job], places: list[int], rows: list[tuple[int, int, str]], found: list[Gap | None]
    ) -> None:
        def hosts(at: int) -> tuple[HostTensor, HostTensor]:
            row, other, _ = rows[places[at]]
            one, two = self.raw.tensor(row), self.base.tensor(other)
            assert one is not None
            assert two is not None
            return one, two

        for at, gap in zip(places, compare_all(jobs, hosts, self.tolerance, in_all=len(rows)), strict=True):
            found[at] = gap
        jobs.clear()
        places.clear()
        self.raw.let_go()
        self.base.let_go()

    def _is_turned(self, row: int, other: int) -> bool:
        if self._columns[0]["role"][row] not in (PARAMETER, GRADIENT):
            return False
        return (self.raw.layout(row) == IN_OUT) != (self.base.layout(other) == IN_OUT)

    def _by_statistics(self, row: int, other: int) -> Gap | None:
        """A recording without tensors: its statistics are compared, which can only say that two tensors differ."""
        if self.raw.task == self.base.task == "tensor":
            return None
        self.raw.measure()
        self.base.measure()
        worst = 0.0
        for stat in ("max", "min", "mean", "norm"):
            one, two = self.raw.table[stat][row], self.base.table[stat][other]
            if one is None or two is None:
                return None
            atol, rtol = self.tolerance.of("float32")
            if not abs(one - two) <= max(atol, 1e-6 * abs(two)) + max(rtol, 1e-5) * abs(two):
                return Gap(False, f"{stat} {one:.6g} against {two:.6g}", abs(one - two), nan, nan, nan, nan)
            worst = max(worst, abs(one - two))
        return Gap(True, "", worst, nan, nan, nan, nan)

    def _missing_gradients(self) -> list[Finding]:
        """Parameters that belong together, of which only one got a gradient."""
        if GRADIENT_PHASE not in self.phases:
            return []
        sides = [_with_gradient(run) for run in (self.raw, self.base)]
        if not sides[0] or not sides[1]:
            return []
        found, seen = [], set()
        mine, theirs = self._columns
        for row, other, rule in self.matches.rows:
            if mine["role"][row] != PARAMETER or theirs["role"][other] != PARAMETER:
                continue
            names = [
                _parameter(columns, run, at) for columns, run, at in ((mine, self.raw, row), (theirs, self.base, other))
            ]
            if names[0] in seen:
                continue
            seen.add(names[0])
            has = names[0] in sides[0], names[1] in sides[1]
            if has[0] != has[1]:
                why = "only the raw model has a gradient here" if has[0] else "only the base model has a gradient here"
                mine_call, their_call = (f"{head}.{GRADIENTS}.0" for head, _ in names)
                gap = Gap(False, why, nan, nan, nan, nan, nan)
                one = Finding(
                    self.step,
                    GRADIENT_PHASE,
                    mine_call,
                    their_call,
                    "gradient",
                    names[0][1],
                    gap,
                    True,
                    rule=rule,
                    order=row,
                )
                found.append(one)
        return found


def only_places(found: list[Finding], places: tuple[str, ...]) -> list[Finding]:
    """The findings of these places; each of them decides."""
    kept = [one for one in found if one.place in places]
    for one in kept:
        one.decides = True
    return kept


def _columns(run: Values) -> dict[str, list[Any]]:
    return {name: run.table[name].to_list() for name in ("op", "role", "name", "kind", "shape", "dtype")}


def _phase(name: OpName) -> str:
    if name.direction == GRADIENTS:
        return GRADIENT_PHASE
    return BACKWARD_PHASE if name.direction == BACKWARD else FORWARD_PHASE


def _dtypes(one: str | None, other: str | None) -> str:
    mine, theirs = short_dtype(one or ""), short_dtype(other or "")
    return mine if mine == theirs else f"{mine}/{theirs}"


def _with_gradient(run: Values) -> set[tuple[str, str]]:
    found = set()
    for op, role, name in zip(*(run.table[column].to_list() for column in ("op", "role", "name")), strict=True):
        if role == GRADIENT:
            whole = parse_op(run.ops[op])
            found.add((f"{whole.prefix}.{_joined(whole.body, whole.cls)}", name.removeprefix(whole.text + ".")))
    return found


def _parameter(columns: dict[str, list[Any]], run: Values, row: int) -> tuple[str, str]:
    whole = parse_op(run.ops[columns["op"][row]])
    name = columns["name"][row].removeprefix(f"{whole.text}.parameters.")
    return f"{whole.prefix}.{_joined(whole.body, whole.cls)}", name


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))
