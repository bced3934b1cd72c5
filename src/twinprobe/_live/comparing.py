"""Two models (or a model and a recording), run and compared step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from twinprobe._live.console import Calls
from twinprobe._live.findings import (
    AFTER_PHASE,
    BACKWARD_PHASE,
    BEFORE_PHASE,
    FORWARD_PHASE,
    GRADIENT_PHASE,
    LOSS_PHASE,
    PHASE_ORDER,
    WEIGHT_PHASE,
    Finding,
    First,
    find_differences,
    find_first,
    settle_causes,
    shortened,
)
from twinprobe._live.frameworks.adapter import array_on_host
from twinprobe._live.kept_state import KeptState, copying, state_kept
from twinprobe._live.live_run import Values
from twinprobe._live.measuring import Calm, Found, differing
from twinprobe._live.options import BACKWARD, Options
from twinprobe._live.pairing.layer_map import LayerMap
from twinprobe._live.pairing.layers import Tree, mapped_paths, pair_by_names, pair_trees
from twinprobe._live.pairing.matching import Matches, match_runs
from twinprobe._live.recorders import aliases, collector_paused
from twinprobe._live.result import Result
from twinprobe._live.running import Masks, Model, Pass, check_optimizers, mode_notes, run_model
from twinprobe._live.weights.copying import match_group
from twinprobe._live.weights.layers import Slot, layer_at
from twinprobe._live.weights.matching import COUNTERS, Side
from twinprobe._live.weights.stores import Array
from twinprobe._measure.pair import squeezed
from twinprobe._measure.tolerance import Gap, Tolerance, compare, transposed
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.table import INPUT, PARAMETER
from twinprobe.errors import BadInput

# What two live models hold: buffers before and after each step, parameters after one of an optimizer.

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


# Copying weights between two live models whose layers have other names: how they run tells what belongs together.


def copy_all_weights(raw: Model, base: Model, layer_map: LayerMap, options: Options) -> list[str]:
    """The base model's weights, to the raw one; returns what the user should know."""
    from twinprobe._live.weights.assigning import copy_plain, copy_weights

    if layer_map.is_empty and copy_plain(raw.model, base.model):
        return []
    known = pair_by_names(raw.model, base.model, layer_map)
    if known:
        known = mapped_paths(raw.model, base.model, layer_map) + known
        return copy_weights(raw.model, base.model, layer_map, known=known).notices
    try:
        known = mapped_paths(raw.model, base.model, layer_map) + _pairs_by_running(raw, base, layer_map, options)
        return copy_weights(raw.model, base.model, layer_map, known=known).notices
    except BadInput:
        # What was defined in the same order is found without running, too; its error names what is in the way.
        return copy_weights(raw.model, base.model, layer_map).notices


def _pairs_by_running(raw: Model, base: Model, layer_map: LayerMap, options: Options) -> list[tuple[str, str]]:
    trees = Tree.of(raw.model, layer_map), Tree.of(base.model, layer_map)
    return pair_trees(*trees, _dry_run(raw, layer_map, options), _dry_run(base, layer_map, options))


def _dry_run(one: Model, layer_map: LayerMap, options: Options) -> Values:
    """A forward pass that changes nothing: no statistics of norms, no gradients. Its values mean nothing yet."""
    plain = replace(options, phase=FORWARD, random="eval", single_step=False)
    with _closed(layer_map) as simple:
        return run_model(one, plain, simple, None).run


@contextmanager
def _closed(layer_map: LayerMap) -> Iterator[LayerMap]:
    """The same map without groups and functions, which play no part in copying."""
    simple = LayerMap()
    simple.__dict__.update({**layer_map.__dict__, "groups": [], "apis": []})
    yield simple


PHASES = {
    FORWARD: frozenset({BEFORE_PHASE, FORWARD_PHASE, AFTER_PHASE}),
    BACKWARD: frozenset({LOSS_PHASE, BACKWARD_PHASE, GRADIENT_PHASE}),
    "both": frozenset(PHASE_ORDER),
}


_WATCHED = {"pytorch", "paddle"}  # frameworks whose recorder tells before something is written


@dataclass
class Story:
    """What has been found so far."""

    findings: list[Found] = field(default_factory=list)  # step by step
    notes: list[str] = field(default_factory=list)
    first: First | None = None
    runs: tuple[Values, Values] | None = None  # raw, base
    steps: int = 0


def compare_models(
    base: Model | Path,
    raw: Model | Path,
    layer_map: LayerMap,
    options: Options,
    *,
    auto_weights: bool,
    notes: list[str],
) -> Result:
    """Run what can be run and compare it."""
    models = [one for one in (base, raw) if isinstance(one, Model)]
    for one in models:
        check_optimizers(one, next((other for other in models if other is not one), None))
    if isinstance(base, Path) or isinstance(raw, Path):
        from twinprobe._live.recorded import compare_with_recording

        with state_kept(base, raw) as kept:
            return compare_with_recording(base, raw, layer_map, options, kept, auto_weights=auto_weights, notes=notes)
    with collector_paused(), state_kept(base, raw) as kept:
        return _compare_live(base, raw, layer_map, options, Story(notes=notes), kept, auto_weights)


def _compare_live(
    base: Model,
    raw: Model,
    layer_map: LayerMap,
    options: Options,
    story: Story,
    kept: KeptState,
    auto_weights: bool,
) -> Result:
    if auto_weights:
        with copying(kept, raw, base.title):
            story.notes += copy_all_weights(raw, base, layer_map, options)
    kept.keep_buffers()
    buffers = Buffers(raw, base, layer_map, options.tolerance, kept)
    for step in range(options.steps):
        _one_step(base, raw, layer_map, options, step, story, kept, buffers)
        story.steps = step + 1
        if story.first is not None:
            break
    return finish(story, base.title, raw.title)


def _one_step(
    base: Model,
    raw: Model,
    layer_map: LayerMap,
    options: Options,
    step: int,
    story: Story,
    kept: KeptState,
    buffers: Buffers,
) -> None:
    masks = _masks(base, raw, options)
    with aliases.held_until_compared(allowed=options.backward and {base.adapter.name, raw.adapter.name} <= _WATCHED):
        tested, reference, matches, found, more = _run_and_compare(base, raw, layer_map, options, step, masks, kept)
    if raw.optimizer is not None and base.optimizer is not None:
        kept.steps += 1
        raw.adapter.step(raw.model, raw.optimizer)
        base.adapter.step(base.model, base.optimizer)
        more += compare_parameters(raw, base, tested.run, reference.run, matches, options.tolerance, step)
    if AFTER_PHASE in PHASES[options.phase]:
        more += buffers.compare(tested.run, reference.run, matches, step)
        story.notes += buffers.notes
    if step == 0:
        if options.random != "eval":
            story.notes += mode_notes(base, raw, matches.calls)
        story.notes += [*matches.notes, *alone_notes(matches), *(masks.notes if masks is not None else [])]
    story.notes += [*reference.problems, *tested.problems]
    add_findings(story, found, more, tested.run, reference.run, matches)


def _run_and_compare(
    base: Model, raw: Model, layer_map: LayerMap, options: Options, step: int, masks: Masks | None, kept: KeptState
) -> tuple[Pass, Pass, Matches, Found, list[Finding]]:
    reference = run_model(base, options, layer_map, masks)
    if options.single_step:
        from twinprobe._live.single_step import run_fed

        tested, fed = run_fed(raw, reference, base, options, layer_map, masks, kept)
    else:
        tested, fed = run_model(raw, options, layer_map, masks), []
    matches = match_runs(tested.run, reference.run, layer_map, raw.paths, base.paths)
    phases = PHASES[options.phase]
    lost = aliases.drop_changed()
    if lost:
        tested.problems.append(f"{lost} tensors were written to by code that cannot be watched: they are not compared")
    found = find_differences(tested.run, reference.run, matches, options.tolerance, step, phases)
    tested.run.release()
    reference.run.release()
    more = fed
    if LOSS_PHASE in phases:
        more += compare_losses(tested, reference, options, step)
    return tested, reference, matches, found, more


def add_findings(story: Story, found: Found, more: list[Finding], raw: Values, base: Values, matches: Matches) -> None:
    """Judge the findings of a step and add them to the rest."""
    story.runs = raw, base
    if isinstance(found, Calm) and not differing(more):
        story.findings.append(Calm(len(found) + len(more), lambda: _in_order([*more, *found])))
        return
    together = _in_order([*more, *found])
    settle_causes(together, raw)
    story.findings.append(together)
    story.first = find_first(together, raw, base, (matches.raw_alone, matches.base_alone))


def _in_order(found: list[Finding]) -> list[Finding]:
    return sorted(found, key=lambda one: (PHASE_ORDER.index(one.phase), one.order))


def compare_losses(tested: Pass, reference: Pass, options: Options, step: int) -> list[Finding]:
    """The two losses as one finding."""
    if tested.loss is None or reference.loss is None:
        return []
    gap = compare(tested.loss, reference.loss, options.tolerance)
    return [Finding(step, LOSS_PHASE, "loss", "loss", "loss", "loss", gap, True, dtype=tested.loss.dtype)]


def finish(story: Story, base: str, raw: str) -> Result:
    """The result of all steps."""
    assert story.runs is not None
    tested, reference = story.runs
    notes = list(dict.fromkeys(story.notes))
    calls = Calls.of(reference), Calls.of(tested)
    return Result(base, raw, story.findings, story.first, *calls, story.steps, notes)


def _masks(base: Model, raw: Model, options: Options) -> Masks | None:
    names = {base.adapter.name, raw.adapter.name}
    # Two generators never agree, and MindSpore's dropouts each have their own.
    alike = len(names) == 1 and "mindspore" not in names
    if options.random == "masks" or (options.random == "auto" and not alike):
        return Masks(options.seed)
    return None


def alone_notes(matches: Matches) -> list[str]:
    found = []
    for who, names in (("raw", matches.raw_alone), ("base", matches.base_alone)):
        modules = [name for name in names if name.startswith(("Module.", "Cell."))]
        if modules:
            found.append(f"only in the {who} model, not compared: {shortened(modules)}")
    return found
