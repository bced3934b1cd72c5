"""Every pair of tensors measured, as findings: what two runs recorded, and buffers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import nan, prod
from typing import cast

from twinprobe._align.turns import REORDERED, Candidate, find_turns
from twinprobe._live.findings import (
    AFTER_PHASE,
    BACKWARD_PHASE,
    BEFORE_PHASE,
    FORWARD_PHASE,
    GRADIENT_PHASE,
    PHASE_ORDER,
    SAME_NAN,
    AgreeingPairs,
    Finding,
    Findings,
    phase_of,
)
from twinprobe._live.frameworks.adapter import array_on_host
from twinprobe._live.frameworks.layouts import Array
from twinprobe._live.live_run import LiveRun, address_in
from twinprobe._live.pairing.layer_map import LayerMap
from twinprobe._live.pairing.matching import Matches
from twinprobe._live.running import KeptState, Model
from twinprobe._live.weights.copying import match_group
from twinprobe._live.weights.layers import Slot, layer_at
from twinprobe._live.weights.matching import COUNTERS
from twinprobe._measure.elements import ANY_ORDER, joined
from twinprobe._measure.elements import turned as turned_like
from twinprobe._measure.pair import squeezed
from twinprobe._measure.tolerance import (
    Gap,
    Gaps,
    HostPair,
    Places,
    Tolerance,
    compare,
    compare_all,
    compare_places,
    worth_kernel,
)
from twinprobe._record.entries import Note, Row
from twinprobe._runs.dtypes import dtype_name
from twinprobe._runs.names import FORWARD, GRADIENTS, OpName, listed, parse_op
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import DamagedTensor

Groups = dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
Pair = tuple[int, int, str]  # row of the raw run, row of the base, why they belong together
_ELEMENTS_AT_ONCE = 16 << 20
_STATISTICS = ("max", "min", "mean", "norm")
_PLACES = {INPUT: "input", PARAMETER: "parameter", OUTPUT: "output", GRADIENT: "gradient"}
_RUNNING = ("running mean", "running variance")
_BACKWARD_PLACES = {INPUT: "gradient of output", OUTPUT: "gradient of input"}


def find_differences(
    raw: LiveRun, base: LiveRun, matches: Matches, tolerance: Tolerance, step: int, phases: frozenset[str]
) -> Findings:
    """Measure every paired row of the phases that are asked for."""
    maker = _FindingMaker(raw, base, matches.doubtful, step)
    wanted = matches.rows
    if raw.plain or base.plain:
        wanted = [row for row in wanted if row[0] not in raw.plain and row[1] not in base.plain]
    if not phases >= frozenset(PHASE_ORDER):
        wanted = [row for row in wanted if maker.phase(row) in phases]
    gaps = PairGaps(raw, base, wanted, tolerance, matches.groups)
    if matches.equal and wanted and gaps.all_same:
        return AgreeingPairs(len(wanted), lambda: maker.findings(wanted, gaps))
    findings = maker.findings(wanted, gaps)
    for finding in findings:
        if finding.place == "input" and "NaN" in finding.gap.why and not parse_op(finding.raw).body:
            row, golden_row, _ = next(pair for pair in wanted if pair[0] == finding.order)
            hosts = raw.tensor(row), base.tensor(golden_row)
            if hosts[0] is not None and hosts[1] is not None:
                again = compare(hosts[0], hosts[1], replace(tolerance, equal_nan=True))
                if again.same:
                    finding.gap = replace(finding.gap, why=f"{finding.gap.why}, {SAME_NAN}")
    if GRADIENT_PHASE in phases and not matches.equal:
        findings += _missing_gradients(raw, base, matches.rows, step)
    return findings


class _FindingMaker:
    """Makes findings of measured pairs."""

    def __init__(self, raw: LiveRun, base: LiveRun, doubtful: set[str], step: int) -> None:
        self._ops = raw.ops, base.ops
        self._columns = raw.columns, base.columns
        self._doubtful = doubtful
        self._step = step

    def findings(self, rows: list[Pair], gaps: PairGaps) -> list[Finding]:
        """All pairs that could be measured."""
        measured = zip(rows, gaps.all(), strict=True)
        return [self._finding(*row, gap) for row, gap in measured if gap is not None]

    def phase(self, row: Pair) -> str:
        """In which phase a pair belongs."""
        return phase_of(self._ops[0][self._columns[0]["op"][row[0]]])

    def _finding(self, row: int, golden_row: int, rule: str, gap: Gap) -> Finding:
        raw, base = self._columns
        name = parse_op(self._ops[0][raw["op"][row]])
        phase = phase_of(name.text)
        role = raw["role"][row]
        places = _BACKWARD_PLACES if phase == BACKWARD_PHASE else _PLACES
        dtype, golden_dtype = dtype_name(raw["dtype"][row] or ""), dtype_name(base["dtype"][golden_row] or "")
        # Modules decide. Calls inside them, and pairs that are doubtful, help to find where.
        decides = name.text not in self._doubtful and (name.is_module or phase == GRADIENT_PHASE)
        if phase == FORWARD_PHASE:
            decides &= role == OUTPUT or (role == INPUT and not name.body)
        return Finding(
            self._step, phase, name.text, self._ops[1][base["op"][golden_row]], places.get(role, "value"),
            raw["name"][row].removeprefix(name.text + "."), gap, decides, raw["shape"][row] or "",
            base["shape"][golden_row] or "", dtype if dtype == golden_dtype else f"{dtype}/{golden_dtype}", rule, row,
        )  # fmt: skip


class PairGaps:
    """The gap of each pair. The same two tensors are measured once; a recording is read bit by bit."""

    def __init__(
        self, raw: LiveRun, base: LiveRun, rows: list[Pair], tolerance: Tolerance, groups: Groups | None = None
    ) -> None:
        self._runs, self._rows, self._tolerance = (raw, base), rows, tolerance
        self._groups = groups or {}
        self._known: list[Gap | None] = [None] * len(rows)
        self._measured: list[tuple[list[int], Gaps]] = []  # the pairs of each batch
        self._repeated: list[tuple[int, int]] = []  # pairs of the same two tensors as an earlier one
        self._measure_all()
        del self._runs  # the tensors must not live as long as the numbers

    @property
    def all_same(self) -> bool:
        """Whether every pair was measured and none differs."""
        measured = sum(len(pairs) for pairs, _ in self._measured) + len(self._repeated)
        known = [gap for gap in self._known if gap is not None]
        complete = measured + len(known) == len(self._known)
        return complete and all(gap.same for gap in known) and all(gaps.all_same for _, gaps in self._measured)

    def all(self) -> list[Gap | None]:
        """The gap of each pair; None where there was nothing to measure."""
        gaps_of_pairs = list(self._known)
        for pairs, gaps in self._measured:
            for pair, gap in zip(pairs, gaps.all(), strict=True):
                gaps_of_pairs[pair] = gap
        for pair, measured in self._repeated:
            gaps_of_pairs[pair] = gaps_of_pairs[measured]
        return gaps_of_pairs

    def _measure_all(self) -> None:
        """Most pairs of two live runs are float32 of one shape, at two addresses: they are taken together."""
        raw, base = self._runs
        turned_rows, golden_turned = raw.turned, base.turned
        notes, golden_notes = (run.live.value if run.live is not None else [] for run in self._runs)
        first: dict[tuple[Row | None, Row | None, bool], int] = {}
        pairs: list[int] = []
        places: list[tuple[int, int, int, int]] = []  # two addresses, elements, rows of a raw matrix to be turned
        host_pairs: list[int] = []
        hosts: list[HostPair] = []
        elements = 0
        for pair, (row, golden_row, rule) in enumerate(self._rows):
            # Put together in whichever way comes closest, turned or not; or of elements in another order.
            is_fused = row in self._groups or rule.endswith(REORDERED)
            turned = (row in turned_rows) is not (golden_row in golden_turned) and not is_fused
            if notes and golden_notes and not is_fused:
                note, golden_note = notes[row], golden_notes[golden_row]
                measured = first.setdefault((note.row, golden_note.row, turned), pair)
                if measured != pair and note.row is not None and golden_note.row is not None:
                    self._repeated.append((pair, measured))
                    continue
                place = _place(note, golden_note, turned)
                if place is not None:
                    pairs.append(pair)
                    places.append(place)
                    continue
            tensors = self._tensors(pair)
            if tensors is not None:
                host_pairs.append(pair)
                hosts.append((*tensors, turned))
                elements += tensors[0].data.size
                if elements > _ELEMENTS_AT_ONCE:
                    self._measured.append((host_pairs, compare_all(hosts, self._tolerance, in_all=len(self._rows))))
                    host_pairs, hosts, elements = [], [], 0

        def hosts_of(place: int) -> tuple[HostTensor, HostTensor]:
            tensors = self._tensors(pairs[place])
            assert tensors is not None
            return tensors

        if worth_kernel(len(self._rows), sum(size for _, _, size, _ in places)) and places:
            columns = cast(Places, tuple(map(list, zip(*places, strict=True))))
            self._measured.append((pairs, compare_places(columns, hosts_of, self._tolerance)))
        else:
            host_pairs += pairs
            hosts += [(*hosts_of(place), bool(turning)) for place, (*_, turning) in enumerate(places)]
        self._measured.append((host_pairs, compare_all(hosts, self._tolerance, in_all=len(self._rows))))

    def _tensors(self, pair: int) -> tuple[HostTensor, HostTensor] | None:
        """The tensors of a pair; None where its gap is known without them, or nothing can be."""
        (raw, base), (row, golden_row, rule) = self._runs, self._rows[pair]
        try:
            if row in self._groups:
                return self._fused(*self._groups[row])
            target, golden = raw.tensor(row), base.tensor(golden_row)
        except DamagedTensor as damage:
            self._known[pair] = Gap(False, str(damage), nan, nan, nan, nan, nan)
            return None
        if target is not None and golden is not None:
            ways: Sequence[Sequence[int]] = [ANY_ORDER] if rule.endswith(REORDERED) else ()
            # Inside, a model may keep its axes in another order, or cut them otherwise: a convolution against a product
            # of patches, rows of tokens against [batch, tokens]. What the model itself takes and gives has one shape.
            alike = (row in raw.turned) is (golden_row in base.turned)  # else they are turned when they are measured
            if target.shape != golden.shape and alike and not self._is_of_model(row):
                ways = find_turns([Candidate(0, target.shape, golden.shape, False, False, "")]).get(0, ())
            return (turned_like(target, ways, golden) if ways else target), golden
        self._known[pair] = self._by_statistics(row, golden_row)
        return None

    def _is_of_model(self, row: int) -> bool:
        name = parse_op(self._runs[0].ops[self._runs[0].columns["op"][row]])
        return name.is_module and not name.body

    def _fused(self, rows: tuple[int, ...], golden_rows: tuple[int, ...]) -> tuple[HostTensor, HostTensor] | None:
        """The one tensor of one side and the several of the other, put together; None where some were not kept."""
        (raw, base) = self._runs
        targets, goldens = [raw.tensor(row) for row in rows], [base.tensor(row) for row in golden_rows]
        if None in (*targets, *goldens):
            return None
        return put_together(cast(list[HostTensor], targets), cast(list[HostTensor], goldens))

    def _by_statistics(self, row: int, golden_row: int) -> Gap | None:
        """A recording without tensors: its statistics are compared, which can only say that two tensors differ."""
        raw, base = self._runs
        if raw.task == base.task == "tensor":
            return None
        raw.measure()
        base.measure()
        worst = 0.0
        for stat in _STATISTICS:
            target, golden = raw.table[stat][row], base.table[stat][golden_row]
            if target is None or golden is None:
                return None
            atol, rtol = self._tolerance.of("float32")
            if not abs(target - golden) <= max(atol, 1e-6 * abs(golden)) + max(rtol, 1e-5) * abs(golden):
                why = f"{stat} {target:.6g} against {golden:.6g}"
                return Gap(False, why, abs(target - golden), nan, nan, nan, nan)
            worst = max(worst, abs(target - golden))
        return Gap(True, "", worst, nan, nan, nan, nan)


def put_together(targets: list[HostTensor], goldens: list[HostTensor]) -> tuple[HostTensor, HostTensor]:
    """Both sides as one tensor each; either may come in several parts."""
    whole = targets[0] if len(targets) == 1 else joined(targets, goldens[0])
    return whole, goldens[0] if len(goldens) == 1 else joined(goldens, whole)


def _place(note: Note, golden: Note, turned: bool) -> tuple[int, int, int, int] | None:
    """The addresses and size of two tensors for the kernel; None where it cannot compare them."""
    if note.row is None or golden.row is None:
        return None
    address, golden_address = note.row.address or address_in(note), golden.row.address or address_in(golden)
    if not address or not golden_address or (address | golden_address) & 3:
        return None
    size, turning = _fitting(note.shape, golden.shape, turned)
    return (address, golden_address, size, turning) if size else None


@lru_cache(maxsize=1024)
def _fitting(shape: tuple[int, ...], golden_shape: tuple[int, ...], turned: bool) -> tuple[int, int]:
    """How many elements the kernel would compare, and the rows of a matrix that it must turn; no elements where it does
    not take two tensors of these shapes."""
    size = prod(shape)
    if size < 2 or (turned and len(shape) > 2) or (shape[::-1] if turned else shape) != golden_shape:
        return 0, 0
    return size, shape[0] if turned and len(shape) == 2 else 0


def _missing_gradients(raw: LiveRun, base: LiveRun, rows: list[Pair], step: int) -> Iterator[Finding]:
    """Each such parameter once, by the pairs of parameters among these rows."""
    sides = _with_gradient(raw), _with_gradient(base)
    if not sides[0] or not sides[1]:
        return
    for row, (call, name), (partner, partner_name), rule in parameter_pairs(raw, base, rows):
        has = (call.body, name) in sides[0], (partner.body, partner_name) in sides[1]
        if has[0] != has[1]:
            run, at = (raw, sides[0][call.body, name]) if has[0] else (base, sides[1][partner.body, partner_name])
            # MindSpore has zeros for what no result depends on.
            if (given := run.tensor(at)) is not None and not given.data.any():
                continue
            why = f"only the {'raw' if has[0] else 'base'} model has a gradient here"
            tested, golden = (
                ".".join(filter(None, (op.prefix, op.body, op.cls, GRADIENTS, "0"))) for op in (call, partner)
            )
            gap = Gap(False, why, nan, nan, nan, nan, nan)
            yield Finding(step, GRADIENT_PHASE, tested, golden, "gradient", name, gap, True, rule=rule, order=row)


def parameter_pairs(
    raw: LiveRun, base: LiveRun, rows: list[Pair]
) -> Iterator[tuple[int, tuple[OpName, str], tuple[OpName, str], str]]:
    """The pairs of parameters among these rows, each parameter once: the raw row, call and name of both, the rule."""
    seen: set[tuple[str, str]] = set()
    roles = raw.columns["role"], base.columns["role"]
    for row, golden_row, rule in rows:
        if roles[0][row] == roles[1][golden_row] == PARAMETER:
            call, name = parameter_of(raw, row)
            if (call.body, name) not in seen:
                seen.add((call.body, name))
                yield row, (call, name), parameter_of(base, golden_row), rule


def _with_gradient(run: LiveRun) -> dict[tuple[str, str], int]:
    parameters = {}
    columns = zip(*(run.columns[column] for column in ("op", "role", "name")), strict=True)
    for row, (op, role, name) in enumerate(columns):
        if role == GRADIENT:
            whole = parse_op(run.ops[op])
            parameters[whole.body, name.removeprefix(whole.text + ".")] = row
    return parameters


def parameter_of(run: LiveRun, row: int) -> tuple[OpName, str]:
    """The call and the name of a recorded parameter."""
    call = parse_op(run.ops[run.columns["op"][row]])
    return call, run.columns["name"][row].removeprefix(f"{call.text}.parameters.")


class Buffers:
    """The buffers of two live models over all steps, running statistics of norms among them."""

    def __init__(self, raw: Model, base: Model, layer_map: LayerMap, tolerance: Tolerance, kept: KeptState) -> None:
        self._models = raw, base
        self._kept = kept.buffers[raw.role], kept.buffers[base.role]
        self._holding = tuple({path for path, _ in buffers} for buffers in self._kept)
        self._groups = layer_map.groups
        self._tolerance = tolerance
        frameworks = [side.adapter.name for side in (raw, base)]
        self._paddle = frameworks.index("paddle") if frameworks.count("paddle") == 1 else None
        # Of Paddle, by name: as they are, and as the other framework means them.
        self._variances: dict[str, tuple[Array, Array]] = {}
        self._alone: list[str] = []
        self._converted: dict[str, None] = {}

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        notes = [f"buffers of one model only, not compared: {listed(self._alone)}"] if self._alone else []
        if self._converted:
            notes.append(
                "Paddle keeps the biased variance of each batch, the other framework the unbiased one; they agree but "
                f"for that, and the models will differ by it in evaluation: {listed(list(self._converted))}"
            )
        return notes

    def compare(self, tested: LiveRun, reference: LiveRun, matches: Matches, step: int) -> list[Finding]:
        """The buffers that belong together, as the first step found them and as this one left them."""
        if not any(self._holding):
            return []
        order = {name: index for index, name in enumerate(tested.ops)}
        findings = []
        for calls, slots in self._pairs(matches):
            now = [side.adapter.read(slot.held.tensor) for side, slot in zip(self._models, slots, strict=True)]
            gaps = {AFTER_PHASE: self._gap(slots, now)}
            if step == 0:
                gaps[BEFORE_PHASE] = self._gap(slots, [self._before(index, slot) for index, slot in enumerate(slots)])
            if self._paddle is not None and slots[self._paddle].alias == "running variance":
                run = (tested, reference)[self._paddle]
                gaps[AFTER_PHASE] = self._by_one_meaning(slots, now, gaps[AFTER_PHASE], run)
            # A cache of another size is no fault: what is computed with it is compared.
            decides = calls[0] not in matches.doubtful and squeezed(slots[0].shape) == squeezed(slots[1].shape)
            held, shapes = slots[0].held, (str(list(slots[0].held.shape)), str(list(slots[1].held.shape)))
            name, dtype = held.name.rpartition(".")[2], self._models[0].adapter.dtype(held.tensor)
            findings += [
                Finding(step, phase, *calls, "buffer", name, gap, decides, *shapes, dtype, order=order.get(calls[0], 0))
                for phase, gap in gaps.items()
            ]
        return findings

    def _before(self, side: int, slot: Slot) -> Array:
        path, _, name = slot.held.name.rpartition(".")
        held = self._kept[side].get((path, name))
        return self._models[side].adapter.read(slot.held.tensor) if held is None else held[2]

    def _gap(self, slots: tuple[Slot, Slot], values: list[Array]) -> Gap:
        dtypes = [side.adapter.dtype(slot.held.tensor) for side, slot in zip(self._models, slots, strict=True)]
        # Narrow types are read as float32: their own bounds count.
        bounds = Tolerance(*self._tolerance.of(*dtypes), self._tolerance.mode, self._tolerance.equal_nan)
        target, golden = (array_on_host(slot.view.of(array)) for slot, array in zip(slots, values, strict=True))
        return compare(target, golden, bounds)

    def _pairs(self, matches: Matches) -> list[tuple[tuple[str, str], tuple[Slot, Slot]]]:
        """The two calls and the two buffers of each pair."""
        pairs: dict[tuple[object, object], tuple[tuple[str, str], tuple[Slot, Slot]]] = {}
        calls_of: dict[str, tuple[str, str]] = {}
        for calls in matches.calls.items():
            target, golden = map(parse_op, calls)
            if not (target.is_module and golden.is_module) or target.body in calls_of:
                continue
            calls_of[target.body] = calls
            if target.body not in self._holding[0] and golden.body not in self._holding[1]:
                continue
            targets, goldens = self._slots(0, target.body), self._slots(1, golden.body)
            for name in filter(goldens.__contains__, targets):
                pairs[targets[name].held.key, goldens[name].held.key] = calls, (targets[name], goldens[name])
            alone = [slot for name, slot in (targets | goldens).items() if not (name in targets and name in goldens)]
            self._alone += [
                slot.held.name for slot in alone if slot.alias not in COUNTERS and slot.held.name not in self._alone
            ]
        for group in self._groups:
            match = match_group(self._models[0].model, self._models[1].model, group)
            last = group.last_in(self._models[0].paths)
            for pair in match.copies if match is not None and last in calls_of else ():
                if all(map(_is_state, pair)):
                    pairs.setdefault((pair[0].held.key, pair[1].held.key), (calls_of[last], pair))
        return list(pairs.values())

    def _slots(self, side: int, path: str) -> dict[str, Slot]:
        layer = layer_at(self._models[side].paths.layer[path], path)
        return {slot.alias: slot for slot in layer.weights if _is_state(slot)}

    def _by_one_meaning(self, slots: tuple[Slot, Slot], now: list[Array], gap: Gap, run: LiveRun) -> Gap:
        """Paddle averages the biased variances of the batches, the other frameworks the unbiased ones."""
        assert self._paddle is not None
        name = slots[self._paddle].held.name
        path = name.rpartition(".")[0]
        values = now[self._paddle].copy()
        before, meant = self._variances.get(name) or (self._before(self._paddle, slots[self._paddle]),) * 2
        samples = _samples(run, path, values.size)
        momentum = getattr(self._models[self._paddle].paths.layer[path], "_momentum", None)
        if momentum is not None and len(set(samples)) == 1 and samples[0] > 1 and (values != before).any():
            share = momentum ** len(samples)
            added = (values - share * before) * (samples[0] / (samples[0] - 1))
            meant = (share * meant + added).astype(values.dtype)
        self._variances[name] = values, meant
        if gap.same:
            return gap
        corrected = self._gap(slots, [meant if index == self._paddle else array for index, array in enumerate(now)])
        if not corrected.same:
            return gap
        self._converted[name] = None
        return corrected


def _is_state(slot: Slot) -> bool:
    return slot.held.is_buffer or (not slot.held.trainable and slot.alias in _RUNNING)


def _samples(run: LiveRun, path: str, channels: int) -> list[int]:
    """How many numbers each call of a norm computed its statistics from."""
    columns = [run.columns[name] for name in ("op", "role", "shape")]
    samples: dict[int, int] = {}
    for op, role, shape in zip(*columns, strict=True):
        if role == INPUT and op not in samples and shape:
            name = parse_op(run.ops[op])
            if name.is_module and name.body == path and name.direction == FORWARD:
                samples[op] = prod(json.loads(shape)) // channels
    return list(samples.values())
