"""Two live models, run and compared step by step. A recording in the place of one is the subject of recorded.py."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from twinprobe._live.findings import (
    AFTER_PHASE,
    BACKWARD_PHASE,
    BEFORE_PHASE,
    FORWARD_PHASE,
    GRADIENT_PHASE,
    LOSS_PHASE,
    PHASE_ORDER,
    WEIGHT_PHASE,
    AgreeingPairs,
    Finding,
    Findings,
    First,
    Judgement,
    differing,
    first_difference,
    in_order,
    judge_runs,
)
from twinprobe._live.live_run import Values
from twinprobe._live.measuring import find_differences
from twinprobe._live.model_state import Buffers, KeptState, copying
from twinprobe._live.options import BACKWARD, FORWARD, Options
from twinprobe._live.pairing.layer_map import LayerMap, Paths
from twinprobe._live.pairing.layers import LayerTree, mapped_paths, pair_by_names, pair_trees
from twinprobe._live.pairing.matching import Matches, match_runs
from twinprobe._live.result import Calls, Result
from twinprobe._live.running import Masks, Model, mode_notes, run_model, settings_of_layers
from twinprobe._live.updates import Updates
from twinprobe._live.weights.copying import copy_plain, copy_weights
from twinprobe._measure.tolerance import compare
from twinprobe._record.memory.recorders import aliases
from twinprobe._runs.names import parse_op
from twinprobe.errors import BadInput

PHASES = {
    FORWARD: frozenset({BEFORE_PHASE, FORWARD_PHASE, AFTER_PHASE}),
    BACKWARD: frozenset({LOSS_PHASE, BACKWARD_PHASE, GRADIENT_PHASE}),
    "both": frozenset(PHASE_ORDER),
}
_WATCHED = {"pytorch", "paddle"}  # frameworks whose recorder tells before something is written


@dataclass
class Comparison:
    """What is compared and how, and what has been found so far."""

    base: Model | Path
    raw: Model | Path
    layer_map: LayerMap
    options: Options
    auto_weights: bool = False
    notes: list[str] = field(default_factory=list)
    findings: list[Findings] = field(default_factory=list)  # step by step
    first: First | None = None
    runs: tuple[Values, Values] | None = None  # raw, base
    steps: int = 0
    noise: int = 0  # pairs that are beyond the default tolerance and within what rounding explains
    worst: float = 0.0  # of their relative errors

    def add(
        self, findings: Findings, more: list[Finding], raw: Values, base: Values, judgement: Judgement
    ) -> None:  # fmt: skip
        """Add the findings of a step to the rest; the first difference is what the judge claims."""
        self.runs = raw, base
        self.steps += 1
        if isinstance(findings, AgreeingPairs) and not differing(more):
            self.findings.append(AgreeingPairs(len(findings) + len(more), lambda: in_order([*more, *findings])))
            return
        together = in_order([*more, *findings])
        self.findings.append(together)
        self.first = first_difference(together, raw, base, judgement.claim)

    def result(self) -> Result:
        """The result of all steps."""
        assert self.runs is not None
        base, raw = (side.title if isinstance(side, Model) else str(side) for side in (self.base, self.raw))
        raw_calls, base_calls = (Calls(run.ops, run.parents) for run in self.runs)
        notes = list(dict.fromkeys(self.notes))
        if self.noise:
            notes.append(
                f"{self.noise} pairs of tensors are further apart than the default tolerance, but by no more than "
                f"rounding explains (worst: {self.worst:.1e} of its norm); atol and rtol set a tolerance of your own"
            )
        return Result(base, raw, self.findings, self.first, base_calls, raw_calls, self.steps, notes)


def compare_live(comparison: Comparison, kept: KeptState) -> None:
    """Run both models step by step until something differs."""
    base, raw, options = comparison.base, comparison.raw, comparison.options
    assert isinstance(base, Model)
    assert isinstance(raw, Model)
    if comparison.auto_weights:
        with copying(kept, raw, base.title):
            comparison.notes += copy_all_weights(raw, base, comparison.layer_map, options)
    kept.keep_buffers()  # not before the weights are copied: running statistics are among them, and stay
    buffers = Buffers(raw, base, comparison.layer_map, options.tolerance, kept)
    trained = raw.optimizer is not None and base.optimizer is not None
    updates = Updates(raw, base, options) if trained else None
    for step in range(options.steps):
        _one_step(comparison, base, raw, kept, buffers, updates, step)
        if comparison.first is not None:
            break
    settings = updates.settings_that_differ() if updates is not None else ""
    if settings:
        words = f"a setting of the optimizer differs: {settings}"
        first = comparison.first
        if first is not None and first.phase == WEIGHT_PHASE:  # gradients agree, the updates do not
            comparison.first = replace(first, why=f"{words} ({first.why})")
        else:
            comparison.notes.append(words)
    if comparison.first is not None:
        comparison.first = _with_settings(comparison.first, comparison)


def _with_settings(first: First, comparison: Comparison) -> First:
    """The first difference, with what the layer there was built with in one model only."""
    base, raw = comparison.base, comparison.raw
    assert isinstance(base, Model)
    assert isinstance(raw, Model)
    if first.phase == WEIGHT_PHASE or comparison.runs is None:
        return first
    paths = []
    for run, name in zip(comparison.runs, (first.raw, first.base), strict=True):
        around: str | None = name
        while around is not None and around != "loss" and not parse_op(around).is_module:
            around = run.parents.get(around)
        paths.append(parse_op(around).body if around is not None else "?")
    words = settings_of_layers(raw, base, paths[0], paths[1])
    return replace(first, why=f"the layers were built with {words}; {first.why}") if words else first


def _one_step(
    comparison: Comparison, base: Model, raw: Model, kept: KeptState, buffers: Buffers, updates: Updates | None,
    step: int,
) -> None:  # fmt: skip
    options, layer_map = comparison.options, comparison.layer_map
    phases = PHASES[options.phase]
    frameworks = {base.adapter.name, raw.adapter.name}
    # Two generators never agree, and MindSpore's dropouts each have their own.
    one_generator = len(frameworks) == 1 and "mindspore" not in frameworks
    masked = options.random == "masks" or (options.random == "auto" and not one_generator)
    masks = Masks(options.seed) if masked else None
    with aliases.held_until_compared(allowed=options.backward and frameworks <= _WATCHED):
        reference = run_model(base, options, layer_map, masks)
        more: list[Finding] = []
        if options.single_step:
            from twinprobe._live.single_step import run_fed  # few comparisons need it

            tested, more = run_fed(raw, reference, base, options, layer_map, masks, kept)
        else:
            tested = run_model(raw, options, layer_map, masks)
        matches, findings, judgement = compare_runs(
            comparison, tested.run, reference.run, (raw.paths, base.paths), step
        )
    if LOSS_PHASE in phases and tested.loss is not None and reference.loss is not None:
        gap = compare(tested.loss, reference.loss, options.tolerance)
        decides = gap.same or not judgement.explains(gap)
        more.append(Finding(step, LOSS_PHASE, "loss", "loss", "loss", "loss", gap, decides, dtype=tested.loss.dtype))
    if updates is not None:
        kept.steps += 1
        updates.begin(tested.run, reference.run, matches)
        raw.adapter.step(raw.model, raw.optimizer)
        base.adapter.step(base.model, base.optimizer)
        more += updates.compare(tested.run, reference.run, matches, step)
    notes = comparison.notes
    if AFTER_PHASE in phases:
        for finding in buffers.compare(tested.run, reference.run, matches, step):
            finding.decides &= finding.gap.same or not judgement.explains(finding.gap)
            more.append(finding)
        notes += buffers.notes
    if step == 0:
        if options.random != "eval":
            notes += mode_notes(base, raw, matches.calls)
        notes += [*matches.notes, *(masks.notes if masks is not None else [])]
    notes += [*reference.problems, *tested.problems]
    comparison.add(findings, more, tested.run, reference.run, judgement)


def compare_runs(
    comparison: Comparison, raw: Values, base: Values, paths: tuple[Paths | None, Paths | None], step: int
) -> tuple[Matches, Findings, Judgement]:
    """Pair, measure and judge what two runs have recorded. Their tensors are let go."""
    options = comparison.options
    matches = match_runs(raw, base, comparison.layer_map, *paths)
    lost = aliases.drop_changed()
    if lost:
        comparison.notes.append(
            f"{lost} tensors were overwritten by code that cannot be observed: they are not compared"
        )
    findings = find_differences(raw, base, matches, options.tolerance, step, PHASES[options.phase])
    for run in (raw, base):
        if run.in_memory:
            run.__dict__["step"] = step  # no folder tells
    # After a step, parameters were compared by their updates: they are no news, nor is what follows from them.
    judgement = judge_runs(raw, base, matches, findings, options, updated=step > 0)
    comparison.noise += judgement.noise
    comparison.worst = max(comparison.worst, judgement.worst)
    raw.release()
    base.release()
    return matches, findings, judgement


def copy_all_weights(raw: Model, base: Model, layer_map: LayerMap, options: Options) -> list[str]:
    """Copy the base model's weights to the raw one; returns what the user should know.

    Where layers have other names, running both models tells which of them belong together.
    """
    if layer_map.is_empty and copy_plain(raw.model, base.model):
        return []
    mapped = mapped_paths(raw.model, base.model, layer_map)
    named = pair_by_names(raw.model, base.model, layer_map)
    if named:
        return copy_weights(raw.model, base.model, layer_map, known=mapped + named).notices
    try:
        trees = LayerTree.of(raw.model, layer_map), LayerTree.of(base.model, layer_map)
        pairs = pair_trees(*trees, _dry_run(raw, layer_map, options), _dry_run(base, layer_map, options))
        return copy_weights(raw.model, base.model, layer_map, known=mapped + pairs).notices
    except BadInput:
        # What was defined in the same order is found without running, too; its error names what is in the way.
        return copy_weights(raw.model, base.model, layer_map).notices


def _dry_run(side: Model, layer_map: LayerMap, options: Options) -> Values:
    """A forward pass that changes nothing: no statistics of norms, no gradients. Its values mean nothing yet."""
    # Groups and functions play no part in copying.
    simple = LayerMap()
    simple.__dict__.update({**layer_map.__dict__, "groups": [], "apis": []})
    plain = replace(options, phase=FORWARD, random="eval", single_step=False)
    return run_model(side, plain, simple, None).run
