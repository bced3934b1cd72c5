"""What two live models hold: buffers are compared, and what a comparison changes is put back.

Gradients and buffers are as before afterwards, but buffers stay where optimizers have moved the models on. Copied
weights stay: a second copy of a model, for the rare error, would cost every comparison its memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from twinprobe._live.findings import AFTER_PHASE, BEFORE_PHASE, Finding
from twinprobe._live.frameworks.adapter import array_on_host
from twinprobe._live.frameworks.layouts import Array
from twinprobe._live.live_run import Values
from twinprobe._live.pairing.layer_map import LayerMap
from twinprobe._live.pairing.matching import Matches
from twinprobe._live.running import Model
from twinprobe._live.weights.copying import match_group
from twinprobe._live.weights.layers import Slot, layer_at
from twinprobe._live.weights.matching import COUNTERS
from twinprobe._measure.pair import squeezed
from twinprobe._measure.tolerance import Gap, Tolerance, compare
from twinprobe._report.console import say
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.table import INPUT
from twinprobe.errors import TwinProbeError, listed

Kept = dict[tuple[str, str], tuple[Any, Any, Array]]  # path and name of a buffer -> layer, tensor, values


class KeptState:
    """What the models held before they were compared, and in which way they are not what they were."""

    def __init__(self, models: list[Model]) -> None:
        self._models = models
        self._gradients = [side.adapter.take_gradients(side.paths.layer.values()) for side in models]
        self.buffers: dict[str, Kept] = {side.role: {} for side in models}
        self.steps = 0  # of their optimizers
        self.copied = ""  # what copying weights has done so far

    def keep_buffers(self) -> None:
        """The models are about to run."""
        for side in self._models:
            for path, layer in side.paths.layer.items():
                for name, tensor in side.adapter.state(layer).items():
                    self.buffers[side.role][path, name] = layer, tensor, np.array(side.adapter.read(tensor))

    def put_back_buffers(self, side: Model) -> None:
        """As if the model had not run."""
        adapter = side.adapter
        for (_, name), (layer, tensor, values) in self.buffers[side.role].items():
            if adapter.state(layer).get(name) is not tensor:  # replaced, not written to
                setattr(layer, name, tensor)
            if not np.array_equal(adapter.read(tensor), values, equal_nan=values.dtype.kind in "fc"):
                adapter.write(tensor, values)

    def put_back(self) -> None:
        """The comparison is over: its gradients are no concern of the user."""
        for side in self._models:  # where the models share parameters, nothing may be cleared after the first is set
            side.adapter.clear_gradients(side.model, side.paths.layer.values())
        for side, gradients in zip(self._models, self._gradients, strict=True):
            side.adapter.set_gradients(gradients)
            if not self.steps:
                self.put_back_buffers(side)

    @property
    def changed(self) -> str:
        """What stays otherwise than it was."""
        taken = f"the optimizers have changed the weights {self.steps} times" if self.steps else ""
        return "; ".join(filter(None, (self.copied, taken)))


@contextmanager
def state_kept(models: list[Model]) -> Iterator[KeptState]:
    """Put back what a comparison changes in the models, whatever ends it."""
    kept = KeptState(models)
    try:
        yield kept
    except BaseException as error:
        if kept.changed:
            _add_note(error, kept.changed)
        raise
    finally:
        kept.put_back()


@contextmanager
def copying(kept: KeptState, target: Model, source: str) -> Iterator[None]:
    """Weights are copied in this block: all of them, or none where it raises an error of our own."""
    kept.copied = f"{target.title} may hold some of the weights of {source}"
    try:
        yield
    except TwinProbeError:
        kept.copied = ""
        raise
    kept.copied = f"{target.title} holds the weights of {source} now"


def _add_note(error: BaseException, text: str) -> None:
    if isinstance(error, TwinProbeError):
        error.hint = f"{error.hint}; {text}" if error.hint else text
    elif hasattr(error, "add_note"):
        error.add_note(text)
    else:  # before Python 3.11
        say(text)


_STATISTICS = ("running mean", "running variance")


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

    def compare(self, tested: Values, reference: Values, matches: Matches, step: int) -> list[Finding]:
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
        corrected = self._gap(slots, [meant if index == self._paddle else array for index, array in enumerate(now)])
        if not corrected.same:
            return gap
        self._converted[name] = None
        return corrected


def _is_state(slot: Slot) -> bool:
    return slot.held.is_buffer or (not slot.held.trainable and slot.alias in _STATISTICS)


def _samples(run: Values, path: str, channels: int) -> list[int]:
    """How many numbers each call of a norm computed its statistics from."""
    columns = [run.columns[name] for name in ("op", "role", "shape")]
    samples: dict[int, int] = {}
    for op, role, shape in zip(*columns, strict=True):
        if role == INPUT and op not in samples and shape:
            name = parse_op(run.ops[op])
            if name.is_module and name.body == path and name.direction == FORWARD:
                samples[op] = prod(json.loads(shape)) // channels
    return list(samples.values())
