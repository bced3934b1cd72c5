"""One recorded call run again from its own arguments: is it off by itself, and on which side?

The reference is the same call in float64. What a side recorded is measured against the reference from that side's own
inputs, so that differences which came in with the inputs do not count.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._judge.deviation import Isolated, bools
from twinprobe._judge.flow import Flow, trace
from twinprobe._judge.inherited import ROUNDING
from twinprobe._judge.noise import expected_errors
from twinprobe._judge.operations import Family, operation_of
from twinprobe._judge.rules import SUSPICIOUS
from twinprobe._lazy import polars as pl
from twinprobe._replay.functions import Bound, bind, check_fit, check_shapes, run_bound, with_slots
from twinprobe._replay.recorded import ROOM, Call, CannotReplay, Slot, backward_of, mapped, read_calls, slots_in
from twinprobe._runs.dtypes import EPSILON, dtype_name
from twinprobe._runs.names import BACKWARD, FORWARD
from twinprobe._runs.run import TENSORS, Run
from twinprobe._runs.table import OUTPUT, TENSOR
from twinprobe.errors import BadInput, MissingPackage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from twinprobe._judge.verdicts import Evidence, Judged

Expected = Mapping[str, float]  # by the name of a value: the relative error that it may have from equal inputs
SECONDS = 60.0  # that compare spends on replaying, unless the user gives another number
_MOST_REASONS = 3
_APPROXIMATE = (
    Family.SMOOTH,
    Family.EXPONENT,
    Family.RELATIVE,
    Family.ROOT,
    Family.NORM,
    Family.ATTENTION,
    Family.LOSS,
)
_APPROXIMATION = 2 * 2.0**-23
_WORST_ROW = 2.0  # the worst of many rows may be this many times as far off as an average one
_FEW_NUMBERS = 64
# Families whose calls may draw random numbers: they are run twice, and left out if the results differ.
_DRAWING = (Family.RANDOM, Family.ATTENTION)
_DRAWING_NAMES = frozenset({"rrelu", "rrelu_", "fractional_max_pool2d", "fractional_max_pool3d", "gumbel_softmax"})


@dataclass(frozen=True, slots=True)
class Error:
    """How far one side's value is from the float64 reference of its own inputs."""

    relative: float
    eps: float
    """In epsilons of the value's dtype."""
    times: float
    """In multiples of what the operation may lose by itself."""
    may_eps: float
    """That, in epsilons."""
    here_eps: float
    """The same call in the same dtype on this machine's processor, for comparison."""
    devices_eps: dict[str, float] = field(default_factory=dict)
    """The same on other devices of this machine."""


@dataclass(frozen=True, slots=True)
class Value:
    """One result of the call: an output, or the gradient of an input."""

    name: str
    dtype: str
    shape: list[int]
    target: Error | None = None
    golden: Error | None = None


@dataclass(repr=False)
class Replay:
    """One call, run again on both sides. ``off`` says which side is off by itself: target, golden, both or neither."""

    call: str
    golden_call: str
    function: str
    values: list[Value]
    reasons: dict[str, str]
    """Why a side, or its backward call, could not be run again."""
    way: int = 0
    """Which of the ways to make the call fits; see ``functions.bind``."""

    @property
    def off(self) -> str:
        """Which side differs from its own reference by more than the operation may lose."""
        sides = [any(error is not None and error.times > SUSPICIOUS for error in errors)
                 for errors in ([v.target for v in self.values], [v.golden for v in self.values])]  # fmt: skip
        return {(True, True): "both", (True, False): "target", (False, True): "golden"}.get(
            (sides[0], sides[1]), "neither"
        )

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        if not self.values:
            return f"{self.call} cannot be replayed: {'; '.join(dict.fromkeys(self.reasons.values()))}"
        if self.off == "neither":
            return f"{self.call} is within what {self.function} may lose, on both sides"
        who = {"both": "both sides are", "target": "the target is", "golden": "golden is"}[self.off]
        return f"{self.call}: {who} off by itself"

    def __repr__(self) -> str:
        return f"<Replay: {self.sentence}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, texts and numbers."""
        return {
            "call": self.call, "golden_call": self.golden_call, "function": self.function, "off": self.off,
            "sentence": self.sentence, "values": [asdict(value) for value in self.values], "reasons": self.reasons,
        }  # fmt: skip

    @property
    def summary(self) -> str:
        """The answer, and the errors of both sides value by value."""
        lines = [self.sentence]
        for value in self.values:
            lines.append(f"  {value.name}  {value.dtype} {value.shape}")
            for who, error in (("target", value.target), ("golden", value.golden)):
                if error is not None:
                    mark = "  <- off" if error.times > SUSPICIOUS else ""
                    others = "".join(f", {name} {_short(eps)} eps" for name, eps in error.devices_eps.items())
                    lines.append(
                        f"    {who}  {_short(error.eps)} eps, {_short(error.times)} times what it may lose "
                        f"(here: {_short(error.here_eps)} eps{others}){mark}"
                    )
        if self.values:
            lines += [f"  not replayed, {what}: {reason}" for what, reason in self.reasons.items()]
        return "\n".join(lines)


def _short(number: float) -> str:
    return f"{number:.3g}" if isfinite(number) else "inf"


def replay_pair(
    target: Call, golden: Call | None, *, room: int = ROOM, devices: Sequence[str] = (),
    expected: Sequence[Expected] | None = None,
) -> Replay:  # fmt: skip
    """Run a call of both runs again, forward and backward, each from its own arguments.

    ``expected``: the expectations of target and golden, where they are known already.
    """
    _need_torch()
    if expected is None:
        expected = [expectations(call.run, [call.name])[call.name] if call else {} for call in (target, golden)]
    reasons: dict[str, str] = {}
    errors_of: dict[str, dict[str, tuple[str, list[int], Error]]] = {}
    function, way = "", 0
    # What a module was constructed with is confirmed by golden's own output.
    for who, call, may in (("golden", golden, expected[1]), ("target", target, expected[0])):
        if call is None:
            continue
        try:
            side = SideReplay(call, may, room, None if who == "golden" or not errors_of else way)
            function, way = side.bound.function.written, side.way
            errors_of[who] = side.measure(devices)
            if side.no_backward:
                reasons[f"{who}'s backward call"] = side.no_backward
        except CannotReplay as error:
            reasons[who] = str(error)
    names = dict.fromkeys(name for errors in errors_of.values() for name in errors)
    values = []
    for name in names:
        dtype, shape, _ = next(errors[name] for errors in errors_of.values() if name in errors)
        of = {who: errors[name][2] for who, errors in errors_of.items() if name in errors}
        values.append(Value(name, dtype, shape, of.get("target"), of.get("golden")))
    return Replay(target.name, golden.name if golden else "", function, values, reasons, way)


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingPackage("replaying a call needs PyTorch", hint="pip install torch") from None


class SideReplay:
    """One side's call: loaded, bound to a function, and run in float64."""

    def __init__(self, call: Call, expected: Expected, room: int, way: int | None) -> None:
        self.call, self.expected, self.room = call, expected, room
        call.load(room)
        self.recorded = [slot.value for slot in slots_in(call.outputs)]
        if not any(_is_float(value) for value in self.recorded):
            raise CannotReplay("it returns integers only")
        if call.leaving and len(call.leaving) < len(_differentiable(call)):
            _join_equal(call)
        self.no_backward = ""
        self.backward = bool(call.leaving) and any(isinstance(slot, Slot) for slot in call.arriving)
        if self.backward and len(call.leaving) != len(_differentiable(call)):
            self.no_backward, self.backward = "the recorded gradients do not belong to its inputs one by one", False
        self.bound, self.way, self.reference = self._confirmed(bind(call), way)

    def _confirmed(self, ways: list[Bound], way: int | None) -> tuple[Bound, int, tuple[list[Any], list[Any]]]:
        """The way to make the call that the recorded result confirms, its number, and the reference."""
        tried: list[tuple[float, int, tuple[list[Any], list[Any]]]] = []
        trouble = ""
        for index, bound in enumerate(ways):
            if way is not None and index != way:
                continue
            try:
                check_shapes(bound, self.recorded, self.room)
                made = self._run(bound, reference=True)
                check_fit(made[0], self.recorded)
            except CannotReplay as error:
                trouble = trouble or str(error)
                continue
            pairs = enumerate(zip(self.recorded, made[0], strict=True))
            off = max(_error(value, result, self.expected.get(f"output.{index}", np.nan)).times
                      for index, (value, result) in pairs if _is_float(value))  # fmt: skip
            tried.append((off, index, made))
            if off <= SUSPICIOUS:
                break
        if not tried:
            raise CannotReplay(trouble)
        off, index, made = min(tried, key=lambda result: result[0])
        if way is None and len(ways) > 1 and self.call.op.is_module and off > SUSPICIOUS:
            cls = self.call.op.cls
            raise CannotReplay(f"{cls}: what it was constructed with is not recorded, and no usual value fits")
        return ways[index], index, made

    def measure(self, devices: Sequence[str]) -> dict[str, tuple[str, list[int], Error]]:
        """By name of the value: its dtype, shape and error."""
        import torch

        wanted, (reference, gradients) = self.backward, self.reference
        if operation_of(self.call.op).family in _DRAWING or self.call.op.body in _DRAWING_NAMES:
            again, _ = self._run(self.bound, reference=True, backward=False, seed=1)
            pairs = zip(map(torch.nan_to_num, reference), map(torch.nan_to_num, again), strict=True)
            if not all(torch.equal(*pair) for pair in pairs):
                raise CannotReplay("it draws random numbers, which are not recorded")
        here = self._attempt(wanted, "cpu")
        others = {device: self._attempt(wanted, device) for device in devices}
        errors: dict[str, tuple[str, list[int], Error]] = {}
        made_of = {f"output.{index}": pair for index, pair in enumerate(zip(self.recorded, reference, strict=True))}
        kept = [slot.value if isinstance(slot, Slot) else None for slot in self.call.leaving] if wanted else []
        made_of |= {f"backward.output.{index}": pair for index, pair in enumerate(zip(kept, gradients, strict=False))}
        for name, (value, made) in made_of.items():
            if value is None or made is None or not _is_float(value) or value.shape != made.shape:
                continue
            part, index = int(name.startswith("backward")), int(name.rpartition(".")[2])
            runs = [
                run[part][index] if run is not None and index < len(run[part]) else None
                for run in (here, *others.values())
            ]
            error = _error(value, made, self.expected.get(name, np.nan), *runs)
            if error.times > SUSPICIOUS:  # what is left of large numbers may be all noise: ask the call itself
                moved = self._moved(value, wanted)[part][index]
                error = _error(value, made, self.expected.get(name, np.nan), *runs, moved=moved)
            error = replace(error, devices_eps=dict(zip(others, error.devices_eps.values(), strict=True)))
            errors[name] = dtype_name(value.dtype), list(value.shape), error
        return errors

    def _moved(self, value: Any, backward: bool) -> tuple[list[Any], list[Any]]:
        """The reference from inputs that are changed by half a unit in the last place of the value's dtype."""
        import torch

        epsilon = EPSILON.get(dtype_name(value.dtype), 2.0**-52)
        random = torch.Generator().manual_seed(0)

        def move(slot: Slot) -> Slot:
            if not slot.value.is_floating_point():
                return slot
            drawn = torch.rand(slot.value.shape, generator=random, dtype=torch.float64) - 0.5
            return replace(slot, value=slot.value.double() * (1 + epsilon * drawn))

        bound, arriving = with_slots(self.bound, self.call.arriving if backward else [], move)
        return run_bound(bound, arriving, reference=True, room=self.room)

    def _attempt(self, backward: bool, device: str) -> tuple[list[Any], list[Any]] | None:
        """The call in its own dtype; None where this device cannot do it."""
        try:
            return self._run(self.bound, reference=False, backward=backward, device=device)
        except CannotReplay:
            return None

    def _run(
        self, bound: Bound, *, reference: bool, backward: bool | None = None, device: str = "cpu", seed: int = 0
    ) -> tuple[list[Any], list[Any]]:
        arriving = self.call.arriving if (self.backward if backward is None else backward) else []
        return run_bound(bound, arriving, reference=reference, device=device, seed=seed, room=self.room)


def _differentiable(call: Call) -> list[Slot]:
    """The floating-point inputs of a call, each once: recorders note one gradient for each."""
    slots = {id(slot): slot for slot in (*slots_in(call.args), *slots_in(call.kwargs)) if _is_float(slot.value)}
    return list(slots.values())


def _join_equal(call: Call) -> None:
    """``x * x`` has one gradient: equal inputs become one and the same."""
    import torch

    distinct: list[Slot] = []

    def joined(leaf: Any) -> Any:
        if not isinstance(leaf, Slot) or not _is_float(leaf.value):
            return leaf
        alike = [
            slot
            for slot in distinct
            if (slot.shape, slot.dtype, slot.requires_grad) == (leaf.shape, leaf.dtype, leaf.requires_grad)
        ]
        equal = next((slot for slot in alike if torch.equal(slot.value, leaf.value)), None)
        if equal is None:
            distinct.append(leaf)
        return equal or leaf

    call.args, call.kwargs = mapped(call.args, joined), mapped(call.kwargs, joined)


def _error(recorded: Any, reference: Any, expected: float, *runs: Any, moved: Any = None) -> Error:
    """``runs``: what this machine makes of it, its processor first; ``moved``: from inputs that are moved a little."""
    epsilon = EPSILON.get(dtype_name(recorded.dtype), 2.0**-52)
    whole, worst, norm, rows = distance(recorded, reference)
    others = [distance(run.to(recorded.dtype), reference) if run is not None else None for run in runs]
    here = others[0] if others else None
    expected = expected if isfinite(expected) else 4 * ROUNDING * epsilon
    measured = [here, None if moved is None else distance(moved, reference)]
    noise = [distances for distances in measured if distances is not None and isfinite(distances[0])]
    may = max([expected * norm, *(distances[0] for distances in noise)])
    may_row = max([_WORST_ROW * expected * norm / rows**0.5, *(distances[1] for distances in noise)])
    times = max(_ratio(whole, may), _ratio(worst, _WORST_ROW * may_row) if rows > 1 else 0.0)
    eps = [_ratio(distances[0], norm * epsilon) if distances else float("nan") for distances in others]
    relative = _ratio(whole, norm)
    devices = {str(index): value for index, value in enumerate(eps[1:])}
    here_eps = eps[0] if eps else float("nan")
    return Error(relative, relative / epsilon, times, _ratio(may, norm * epsilon), here_eps, devices)


def _is_float(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole > 0 else float("inf")


def distance(recorded: Any, reference: Any) -> tuple[float, float, float, int]:
    """The norm of the difference, that of the worst row, the norm of the reference, and how many rows there are.

    Infinite where NaN or an infinity stands on one side only. Fill values of masks are left out where both agree.
    """
    import torch

    if recorded.is_complex():
        recorded, reference = torch.view_as_real(recorded), torch.view_as_real(reference.to(torch.complex128))
    largest = torch.finfo(recorded.dtype).max if recorded.is_floating_point() else float("inf")
    value, made = recorded.double(), reference.double()
    # What the dtype cannot hold is an infinity there, and rightly so.
    made = torch.where(made.abs() > largest, torch.copysign(torch.full_like(made, torch.inf), made), made)
    special = ~torch.isfinite(made) | ~torch.isfinite(value)
    agree = (torch.isnan(made) & torch.isnan(value)) | (made == value)
    if bool((special & ~agree).any()):
        return float("inf"), float("inf"), float(torch.nan_to_num(made, 0.0, 0.0, 0.0).norm()), 1
    left_out = special | ((made.abs() > largest / 4) & (value.abs() > largest / 4))
    difference = torch.where(left_out, 0.0, value - made)
    kept = torch.where(left_out, 0.0, made)
    rows = difference.reshape(-1, difference.shape[-1]) if difference.ndim > 1 else difference.reshape(1, -1)
    if rows.shape[1] * 4 < _FEW_NUMBERS:  # rows of a few numbers say nothing by themselves
        rows = difference.reshape(1, -1)
    worst = float(rows.norm(dim=1).max()) if rows.numel() else 0.0
    return float(difference.norm()), worst, float(kept.norm()), max(rows.shape[0], 1)


# What a call may lose by itself: the judge's own expectation, with inputs that do not differ.


def expectations(run: Run, calls: Sequence[str]) -> dict[str, dict[str, float]]:
    """By call: the relative error that its outputs, and its backward call's, may have from equal inputs."""
    places = {name: index for index, name in enumerate(run.ops)}
    names = [name for call in calls for name in (call, backward_of(run.op_names[places[call]])) if name in places]
    table = run.table.with_row_index("row").filter(pl.col("op").is_in([places[name] for name in names]))
    pairs = _beside_itself(table)
    flow = trace(run, pairs)
    tensor = (pairs["t_kind"] == TENSOR).to_numpy()
    epsilon = np.array([EPSILON.get(dtype_name(name or ""), 0.0) for name in pairs["t_dtype"]])
    nothing = np.zeros(pairs.height)
    noise = expected_errors(pairs, flow, nothing, np.where(tensor, epsilon, 0.0), estimated=nothing.astype(bool),
                            settings=run.settings)  # fmt: skip
    # Fast approximations of exp, erf and the like are good to about two epsilons of float32, whatever the dtype.
    approximate = np.array([operation_of(op).family in _APPROXIMATE for op in flow.ops] or [False])
    least = np.where(approximate[np.maximum(flow.of_row, 0)], _APPROXIMATION, 0.0)
    may = np.fmax(noise.expected, least)
    rows = _value_rows(flow, tensor)
    expected: dict[str, dict[str, float]] = {}
    for call in calls:
        expected[call] = {}
        for front, name in (("", call), ("backward.", backward_of(run.op_names[places[call]]))):
            for index, row in enumerate(rows.get(name, [])):
                expected[call][f"{front}output.{index}"] = float(may[row])
    return expected


def _value_rows(flow: Flow, tensor: NDArray[np.bool_]) -> dict[str, list[int]]:
    """By call: the rows of its output tensors; of a backward call also those of inputs without a gradient."""
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero((flow.role == OUTPUT) & (flow.of_row >= 0)).tolist():
        op = flow.ops[int(flow.of_row[row])]
        if tensor[row] or op.direction == BACKWARD:
            rows.setdefault(op.text, []).append(row)
    return rows


def _beside_itself(table: pl.DataFrame) -> pl.DataFrame:
    """Rows of a run's table as a pair table with itself."""
    own = table.drop("type")
    sides = [own.rename(lambda name, side=side: f"{side}_{name}") for side in "tg"]  # type: ignore[misc]
    return pl.concat(sides, how="horizontal")


# The suspects of a comparison, replayed within bounds of time and memory.


def isolate(
    target: Run, golden: Run, evidence: Evidence, judged: Judged, *, seconds: float = SECONDS, room: int = ROOM
) -> Isolated:
    """Replay the calls of two compared runs whose results differ, the most suspicious first, until the time is up."""
    until = time.monotonic() + seconds
    flow = judged.flow
    isolated = Isolated(*np.full((4, evidence.pairs.height), np.nan))
    if evidence.mode != TENSORS or flow is None:
        isolated.notes.append("nothing was replayed: that needs tensors on both sides, and no --rounding")
        return isolated
    _need_torch()
    suspects = _suspects(target, golden, evidence, judged, flow)
    sides = [(run, [names[index] for names in suspects]) for index, run in enumerate((target, golden))]
    try:
        calls = [read_calls(run, names) for run, names in sides if names]
    except BadInput as error:  # a run that was put together from several ranks, another tool's dump
        isolated.notes.append(f"nothing was replayed: {error}")
        return isolated
    expected = [expectations(run, names) for run, names in sides if names]
    rows = _value_rows(flow, bools(evidence.pairs["t_kind"] == TENSOR))
    reasons: dict[str, int] = {}
    done = 0
    for name, golden_name in suspects:
        if time.monotonic() > until:
            break
        done += 1
        own, golden_own = calls[0].pop(name, None), calls[1].pop(golden_name, None)  # their tensors go with them
        if own is None or golden_own is None:
            continue
        alike = _plain_parts(own) == _plain_parts(golden_own)  # gelu and silu may both be right, and yet differ
        result = replay_pair(own, golden_own, room=room, expected=(expected[0][name], expected[1][golden_name]))
        for reason in dict.fromkeys(result.reasons.values()) if not result.values else ():
            reasons[reason] = reasons.get(reason, 0) + 1
        for value in result.values:
            gave = rows.get(backward_of(own.op) if value.name.startswith("backward.") else name, [])
            index = int(value.name.rpartition(".")[2])
            if index < len(gave):
                isolated.note(gave[index], value.target, value.golden, clears=alike)
    _pass_outwards(isolated, flow)
    left = len(suspects) - done
    isolated.notes.append(f"{done:,} calls were replayed" + (f"; no time was left for {left:,} more" if left else ""))
    worst = sorted(reasons.items(), key=lambda item: -item[1])[:_MOST_REASONS]
    isolated.notes += [f"{count:,} of them could not be: {reason}" for reason, count in worst]
    return isolated


def _plain_parts(call: Call) -> tuple[Any, ...]:
    """What makes two calls the same apart from their tensors: the function and the plain arguments."""
    op = call.op
    arguments = mapped([call.args, call.kwargs], lambda leaf: "tensor" if isinstance(leaf, Slot) else leaf)
    return op.prefix, op.body if not op.is_module else "", op.cls, arguments


def _suspects(target: Run, golden: Run, evidence: Evidence, judged: Judged, flow: Flow) -> list[tuple[str, str]]:
    """The names of innermost calls whose results, or gradients, differ: in both runs, the most suspicious first."""
    assert judged.noise is not None
    golden_op = evidence.pairs["g_op"].fill_null(-1).to_numpy()
    outputs = (flow.role == OUTPUT) & (flow.of_row >= 0) & (golden_op >= 0)
    outputs &= bools(evidence.pairs["t_kind"] == TENSOR)
    counterpart = dict(zip(flow.of_row[outputs].tolist(), golden_op[outputs].tolist(), strict=True))
    times = np.nan_to_num(judged.noise.times, nan=0.0)
    suspicion = {beginning.call: np.inf for beginning in judged.beginnings}
    suspects: dict[int, float] = {}
    for row in np.flatnonzero(outputs & (np.nan_to_num(judged.error, nan=1.0) != 0)).tolist():
        call = int(flow.of_row[row])
        call = int(flow.twin[call]) if flow.ops[call].direction == BACKWARD else call
        if call in counterpart and flow.leaf[call] and flow.ops[call].direction == FORWARD:
            suspects[call] = max(suspects.get(call, 0.0), suspicion.get(call, float(times[row])))
    order = sorted(suspects, key=lambda call: (-suspects[call], call))
    return [(target.ops[call], golden.ops[counterpart[call]]) for call in order]


def _pass_outwards(isolated: Isolated, flow: Flow) -> None:
    """A module that returns the result of the last call inside it is as guilty as that call."""
    columns = (isolated.target_eps, isolated.target_times, isolated.golden_eps, isolated.golden_times)
    replayed = ~np.isnan(isolated.target_times) | ~np.isnan(isolated.golden_times)
    replayed_row: dict[tuple[int, int], int] = {}
    outputs = np.flatnonzero((flow.role == OUTPUT) & (flow.of_row >= 0)).tolist()
    for row in sorted(outputs, key=lambda row: int(flow.of_row[row])):  # inner calls come before those around them
        call, mark = int(flow.of_row[row]), int(flow.mark[row])
        inner = replayed_row.get((call, mark))
        if not replayed[row] and inner is not None:
            replayed[row] = True
            for values in columns:
                values[row] = values[inner]
        if replayed[row]:
            replayed_row[int(flow.parent[call]), mark] = row
