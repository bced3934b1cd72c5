"""Two models (or a model and a recording), run and compared step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinprobe.live.aliases import aliases
from twinprobe.live.calm import Calm, Found, differing
from twinprobe.live.causes import First, find_first, settle_causes
from twinprobe.live.findings import (
    AFTER_PHASE,
    BACKWARD_PHASE,
    BEFORE_PHASE,
    FORWARD_PHASE,
    GRADIENT_PHASE,
    LOSS_PHASE,
    PHASE_ORDER,
    Finding,
    find_differences,
    shortened,
)
from twinprobe.live.garbage import collector_paused
from twinprobe.live.kept_state import KeptState, copying, state_kept
from twinprobe.live.layer_map import LayerMap
from twinprobe.live.live_run import Values
from twinprobe.live.matching import Matches, match_runs
from twinprobe.live.options import BACKWARD, FORWARD, Options
from twinprobe.live.random_ops import Masks
from twinprobe.live.result import Result
from twinprobe.live.running import Model, Pass, check_optimizers, mode_notes, run_model
from twinprobe.live.trees import Calls
from twinprobe.live.weight_check import Buffers, compare_parameters
from twinprobe.live.weight_pairs import copy_all_weights
from twinprobe.measure.tolerance import compare

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
        from twinprobe.live.recorded import compare_with_recording

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
        from twinprobe.live.single_step import run_fed

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
