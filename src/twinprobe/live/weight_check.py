"""What two live models hold: buffers before and after each step, parameters after one of an optimizer."""

from __future__ import annotations

import json
from math import prod
from typing import Any

from twinprobe.live.findings import AFTER_PHASE, BEFORE_PHASE, WEIGHT_PHASE, Finding, shortened
from twinprobe.live.frameworks.common import array_on_host
from twinprobe.live.kept_state import KeptState
from twinprobe.live.layer_map import LayerMap
from twinprobe.live.live_run import Values
from twinprobe.live.matching import Matches
from twinprobe.live.running import Model
from twinprobe.live.weights.groups import match_group
from twinprobe.live.weights.layers import Slot, layer_at
from twinprobe.live.weights.layouts import Array
from twinprobe.live.weights.matching import COUNTERS
from twinprobe.live.weights.pairs import Side
from twinprobe.measure.tolerance import Gap, Tolerance, compare, squeezed, transposed
from twinprobe.runs.names import FORWARD, parse_op
from twinprobe.runs.table import INPUT, PARAMETER

_STATISTICS = ("running mean", "running variance")


def compare_parameters(
    raw: Model, base: Model, tested: Values, reference: Values, matches: Matches, tolerance: Tolerance, step: int
) -> list[Finding]:
    """Measure the parameters that belong together as they are now."""
    found, seen = [], set()
    sides = (raw, tested), (base, reference)
    columns = [run.columns for _, run in sides]
    for row, other_row, rule in matches.rows:
        rows = row, other_row
        if columns[0]["role"][rows[0]] != PARAMETER or columns[1]["role"][rows[1]] != PARAMETER:
            continue
        places = [_place(run, columns[at], rows[at]) for at, (_, run) in enumerate(sides)]
        if places[0] in seen:
            continue
        seen.add(places[0])
        held = [_held(model, *place) for (model, _), place in zip(sides, places, strict=True)]
        if held[0] is None or held[1] is None:
            continue
        (one, turned), (other, other_turned) = held
        gap = compare(transposed(one) if turned != other_turned else one, other, tolerance)
        names = [f"{run.ops[columns[at]['op'][rows[at]]]}" for at, (_, run) in enumerate(sides)]
        found.append(
            Finding(
                step,
                WEIGHT_PHASE,
                names[0],
                names[1],
                "parameter after the step",
                places[0][1],
                gap,
                True,
                str(list(one.shape)),
                str(list(other.shape)),
                one.dtype,
                rule,
                rows[0],
            )
        )
    return found


def _place(run: Values, columns: Any, row: int) -> tuple[str, str]:
    op = parse_op(run.ops[columns["op"][row]])
    return op.body, columns["name"][row].removeprefix(f"{op.text}.parameters.")


def _held(model: Model, path: str, name: str) -> Any:
    layer = model.paths.layer.get(path)
    parameter = model.adapter.parameters(layer).get(name) if layer is not None else None
    if parameter is None:
        return None
    return model.adapter.to_host(parameter), model.adapter.is_transposed(layer, name)


class Buffers:
    """The buffers of two live models over all steps, running statistics of norms among them."""

    def __init__(self, raw: Model, base: Model, layer_map: LayerMap, tolerance: Tolerance, kept: KeptState) -> None:
        self._models = raw, base
        self._kept = kept[raw], kept[base]
        self._holding = tuple({path for path, _ in one.buffers} for one in self._kept)
        self._groups = layer_map.groups
        self._tolerance = tolerance
        frameworks = [one.adapter.name for one in (raw, base)]
        self._paddle = frameworks.index("paddle") if frameworks.count("paddle") == 1 else None
        self._variances: dict[
            str, tuple[Array, Array]
        ] = {}  # of Paddle: as they are, as the other framework means them
        self._alone: list[str] = []
        self._converted: dict[str, None] = {}

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        found = [f"buffers of one model only, not compared: {shortened(self._alone)}"] if self._alone else []
        if self._converted:
            found.append(
                "Paddle keeps the biased variance of each batch, the other framework the unbiased one; they agree but "
                f"for that, and the models will differ by it in evaluation: {shortened(list(self._converted))}"
            )
        return found

    def compare(self, tested: Values, reference: Values, matches: Matches, step: int) -> list[Finding]:
        """The buffers that belong together, as the first step found them and as this one left them."""
        if not any(self._holding):
            return []
        order = {name: at for at, name in enumerate(tested.ops)}
        found = []
        for calls, slots in self._pairs(matches):
            now = [kept.store.read(slot.held.tensor) for kept, slot in zip(self._kept, slots, strict=True)]
            gaps = {AFTER_PHASE: self._gap(slots, now)}
            if step == 0:
                gaps[BEFORE_PHASE] = self._gap(slots, [self._before(at, slot) for at, slot in enumerate(slots)])
            if self._paddle is not None and slots[self._paddle].alias == "running variance":
                run = (tested, reference)[self._paddle]
                gaps[AFTER_PHASE] = self._by_one_meaning(slots, now, gaps[AFTER_PHASE], run)
            # A cache of another size is no fault: what is computed with it is compared.
            decides = calls[0] not in matches.doubtful and squeezed(slots[0].shape) == squeezed(slots[1].shape)
            mine, theirs = (slot.held for slot in slots)
            shapes = str(list(mine.shape)), str(list(theirs.shape))
            name, dtype = mine.name.rpartition(".")[2], self._kept[0].store.dtype(mine.tensor)
            found += [
                Finding(step, phase, *calls, "buffer", name, gap, decides, *shapes, dtype, order=order.get(calls[0], 0))
                for phase, gap in gaps.items()
            ]
        return found

    def _before(self, at: int, slot: Slot) -> Array:
        path, _, name = slot.held.name.rpartition(".")
        held = self._kept[at].buffers.get((path, name))
        return self._kept[at].store.read(slot.held.tensor) if held is None else held[2]

    def _gap(self, slots: tuple[Slot, Slot], values: list[Array]) -> Gap:
        dtypes = [kept.store.dtype(slot.held.tensor) for kept, slot in zip(self._kept, slots, strict=True)]
        # Narrow types are read as float32: their own bounds count.
        bounds = Tolerance(*self._tolerance.of(*dtypes), self._tolerance.mode, self._tolerance.equal_nan)
        one, other = (array_on_host(slot.view.of(array)) for slot, array in zip(slots, values, strict=True))
        return compare(one, other, bounds)

    def _pairs(self, matches: Matches) -> list[tuple[tuple[str, str], tuple[Slot, Slot]]]:
        """The two calls and the two buffers of each pair."""
        found: dict[tuple[object, object], tuple[tuple[str, str], tuple[Slot, Slot]]] = {}
        calls_of: dict[str, tuple[str, str]] = {}
        for calls in matches.calls.items():
            mine, theirs = map(parse_op, calls)
            if not (mine.is_module and theirs.is_module) or mine.body in calls_of:
                continue
            calls_of[mine.body] = calls
            if mine.body not in self._holding[0] and theirs.body not in self._holding[1]:
                continue
            ones, others = self._slots(0, mine.body), self._slots(1, theirs.body)
            for name in filter(others.__contains__, ones):
                found[ones[name].held.key, others[name].held.key] = calls, (ones[name], others[name])
            alone = [slot for name, slot in (ones | others).items() if (name in ones) != (name in others)]
            self._alone += [
                slot.held.name for slot in alone if slot.alias not in COUNTERS and slot.held.name not in self._alone
            ]
        target, source = (Side(one.model, kept.store) for one, kept in zip(self._models, self._kept, strict=True))
        paths = self._models[0].paths.of
        for group in self._groups:
            match = match_group(target, source, group)
            last = next((paths[id(layers[-1])] for layers in (group.one, group.other) if id(layers[-1]) in paths), "")
            for pair in match.copies if match is not None and last in calls_of else ():
                if all(map(_is_state, pair)):
                    found.setdefault((pair[0].held.key, pair[1].held.key), (calls_of[last], pair))
        return list(found.values())

    def _slots(self, at: int, path: str) -> dict[str, Slot]:
        layer = layer_at(self._kept[at].store, self._models[at].paths.layer[path], path)
        return {slot.alias: slot for slot in layer.weights if _is_state(slot)}

    def _by_one_meaning(self, slots: tuple[Slot, Slot], now: list[Array], gap: Gap, run: Values) -> Gap:
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
        corrected = self._gap(slots, [meant if at == self._paddle else one for at, one in enumerate(now)])
        if not corrected.same:
            return gap
        self._converted[name] = None
        return corrected


def _is_state(slot: Slot) -> bool:
    return slot.held.is_buffer or (not slot.held.trainable and slot.alias in _STATISTICS)


def _samples(run: Values, path: str, channels: int) -> list[int]:
    """Over how many numbers each call of a norm took its statistics."""
    columns = [run.columns[name] for name in ("op", "role", "shape")]
    found: dict[int, int] = {}
    for op, role, shape in zip(*columns, strict=True):
        if role == INPUT and op not in found and shape:
            name = parse_op(run.ops[op])
            if name.is_module and name.body == path and name.direction == FORWARD:
                found[op] = prod(json.loads(shape)) // channels
    return list(found.values())
