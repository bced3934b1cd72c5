"""auto_diff: run two models on the same inputs and name the first layer that differs, forward and backward."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from twinprobe._align.auto.fingerprints import APART
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
    FirstDifference,
    Judgement,
    differing,
    first_difference,
    in_order,
    judge_runs,
)
from twinprobe._live.frameworks.adapter import framework_of
from twinprobe._live.live_run import LiveRun, read_run
from twinprobe._live.measuring import Buffers, find_differences
from twinprobe._live.pairing.layer_map import LayerMap, Paths, as_layer_map
from twinprobe._live.pairing.layers import LayerTree, mapped_paths, pair_by_names, pair_trees
from twinprobe._live.pairing.matching import Matches, match_runs
from twinprobe._live.result import FORMATS, Calls, Result
from twinprobe._live.running import (
    BOTH,
    PHASES,
    RANDOM,
    KeptState,
    Masks,
    Model,
    Options,
    check_optimizers,
    copying,
    mode_notes,
    recorded_masks,
    run_model,
    settings_of_layers,
    state_kept,
    two_calls,
)
from twinprobe._live.updates import Updates
from twinprobe._live.weights.copying import copy_plain, copy_weights
from twinprobe._measure.tolerance import MODES, STRICT, Tolerance, compare
from twinprobe._record.memory.engine import aliases, collector_paused, keep_freed_memory
from twinprobe._runs.names import BACKWARD, FORWARD, parse_op
from twinprobe._runs.run import open_run
from twinprobe.errors import BadInput, did_you_mean

_MISSING: Any = object()
_SWAPPED = (
    "auto_weights=True no longer makes the second model the reference: since 0.2.0 auto_diff(base, raw, inputs) always "
    "copies the first model's weights to the second. Give the reference first; leave auto_weights=True out to silence "
    "this; `from padiff import auto_diff` (twinprobe-compat) keeps PaDiff's order"
)


def auto_diff(
    base: Any,
    raw: Any,
    inputs: Any = None,
    *older: Any,
    auto_weights: Any = _MISSING,
    layer_map: Any = None,
    loss_fns: Any = None,
    optimizers: Any = None,
    **options: Any,
) -> Result:
    """Run two models on the same inputs and compare everything they compute.

    ``base`` is the reference and is never written to; ``raw`` gets its weights first, unless ``auto_weights=False``.
    One of them may be the folder of a recording, in either place; it is the reference then. ``inputs`` is
    ``(of base, of raw)`` or one for both; a dict is keyword arguments, a tuple positional ones. Losses and optimizers
    come in the same order. The result is true when the models agree. docs/auto_diff.md lists the options.
    """
    _refuse_older_form(older, options)
    auto_init = options.pop("auto_init", _MISSING)
    if auto_weights is True and not isinstance(base, str | Path) and not isinstance(raw, str | Path):
        warnings.warn(_SWAPPED, FutureWarning, stacklevel=2)
    elif auto_init is not _MISSING:
        warnings.warn("auto_init is called auto_weights", FutureWarning, stacklevel=2)
        auto_weights = auto_init
    given = [(base, raw), two_calls(inputs), _two(loss_fns, "loss_fns"), _two(optimizers, "optimizers")]
    if _is_only_second_recorded(base, raw):  # a recording is always the base: nothing can be written to it
        given = [(second, first) for first, second in given]
    auto_weights = True if auto_weights is _MISSING else auto_weights
    if not isinstance(auto_weights, bool):
        raise BadInput(f"auto_weights is {auto_weights!r}", hint="True or False")
    chosen_map, chosen = as_layer_map(layer_map), read_options(options)
    notes: list[str] = []
    runs_once = chosen.single_step or chosen.phase == FORWARD
    has_optimizer = given[3][0] is not None
    if runs_once:
        if has_optimizer or chosen.steps > 1:
            why = "single_step" if chosen.single_step else 'diff_phase="forward"'
            notes.append(f"{why} runs one step and no optimizer")
        given[3] = None, None
    elif chosen.steps > 1 and not has_optimizer:
        notes.append("without optimizers every step is the same: one is run")
        runs_once = True
    if runs_once:
        chosen = replace(chosen, steps=1)
    golden, target = (
        Path(model) if isinstance(model, str | Path) else Model(role, model, *rest)
        for role, model, *rest in zip(("base", "raw"), *given, strict=True)
    )
    live = [side for side in (golden, target) if isinstance(side, Model)]
    if len(live) == 2 and any(side.inputs is None for side in live):
        raise BadInput("auto_diff needs inputs", hint="auto_diff(base, raw, inputs)")
    if base is raw and live:
        notes.append("both models are the same object: they can differ only by chance")
    chosen_map.refuse_strangers({layer for side in live for layer in side.paths.of})
    result = compare_sides(Comparison(golden, target, chosen_map, chosen, auto_weights, notes))
    result.weights_copied = auto_weights and isinstance(target, Model)
    if chosen.report is not None:
        result.save(chosen.report, chosen.formats)
    return shown(result, chosen.quiet)


def _is_only_second_recorded(first: Any, second: Any) -> bool:
    recorded = [isinstance(model, str | Path) for model in (first, second)]
    for model, is_recorded in zip((first, second), recorded, strict=True):
        if not is_recorded and framework_of(model) is None:
            raise BadInput(
                f"auto_diff got a {type(model).__name__}",
                hint="give two models (torch Module, paddle Layer, mindspore Cell) or the folder of a recording",
            )
    return recorded == [False, True]


def _two(value: Any, name: str) -> tuple[Any, Any]:
    """One for each model, in the order of the models; a single function serves both."""
    if value is None:
        return None, None
    if isinstance(value, list | tuple):
        if len(value) != 2 or any(part is None for part in value):
            raise BadInput(f"{name} holds {len(value)}", hint=f"{name}=[of the first model, of the second]")
        return value[0], value[1]
    if name == "loss_fns" and callable(value):
        return value, value
    raise BadInput(f"{name} is a {type(value).__name__}", hint=f"{name}=[of the first model, of the second]")


_PHASES_OF = {
    FORWARD: frozenset({BEFORE_PHASE, FORWARD_PHASE, AFTER_PHASE}),
    BACKWARD: frozenset({LOSS_PHASE, BACKWARD_PHASE, GRADIENT_PHASE}),
    BOTH: frozenset(PHASE_ORDER),
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
    first: FirstDifference | None = None
    runs: tuple[LiveRun, LiveRun] | None = None  # raw, base
    steps: int = 0
    noise: int = 0  # pairs that are beyond the default tolerance and within what rounding explains
    worst: float = 0.0  # of their relative errors

    def add(
        self, findings: Findings, more: list[Finding], raw: LiveRun, base: LiveRun, judgement: Judgement
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


def shown(result: Result, quiet: bool) -> Result:
    """The result, printed unless the user wants it quiet."""
    if not quiet:
        result.show()
    return result


def compare_sides(comparison: Comparison) -> Result:
    """Compare two models, two recordings, or one of each. Models keep nothing of it but copied weights."""
    sides = comparison.base, comparison.raw
    models = [side for side in sides if isinstance(side, Model)]
    for model in models:
        check_optimizers(model, next((partner for partner in models if partner is not model), None))
    if len(models) == 2:
        keep_freed_memory()
        with collector_paused(), state_kept(models) as kept:
            _compare_models(comparison, kept)
    else:
        with state_kept(models) as kept:
            _compare_with_recording(comparison, kept)
    return comparison.result()


def _compare_models(comparison: Comparison, kept: KeptState) -> None:
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
    first = comparison.first
    caused = first is not None and first.phase == WEIGHT_PHASE  # gradients agree, the updates do not
    settings = updates.settings_that_differ(with_effect=caused) if updates is not None else ""
    if settings and first is not None and caused:
        comparison.first = replace(first, why=f"{settings} ({first.why})")
    elif settings:
        comparison.notes.append(settings)
    if comparison.first is not None:
        comparison.first = _with_settings(comparison.first, comparison)


def _with_settings(first: FirstDifference, comparison: Comparison) -> FirstDifference:
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
    why = first.why
    if words.startswith("p: "):  # another rate of a dropout needs no other random numbers
        why = re.sub("random numbers differ; .*? differs", "the output differs", why)
    argument = re.match(r"(?:input|output|parameters)\.[\w.]+: ", why)
    start = argument.end() if argument else 0
    return replace(first, why=f"{why[:start]}the layers were built with {words}; {why[start:]}") if words else first


def _one_step(
    comparison: Comparison, base: Model, raw: Model, kept: KeptState, buffers: Buffers, updates: Updates | None,
    step: int,
) -> None:  # fmt: skip
    options, layer_map = comparison.options, comparison.layer_map
    phases = _PHASES_OF[options.phase]
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
        matches, findings, judgement = _compare_runs(
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


def _compare_runs(
    comparison: Comparison, raw: LiveRun, base: LiveRun, paths: tuple[Paths | None, Paths | None], step: int
) -> tuple[Matches, Findings, Judgement]:
    """Pair, measure and judge what two runs have recorded. Their tensors are released."""
    options = comparison.options
    matches = match_runs(raw, base, comparison.layer_map, *paths)
    lost = aliases.drop_changed()
    if lost:
        comparison.notes.append(
            f"{lost} tensors were overwritten by code that cannot be observed: they are not compared"
        )
    findings = find_differences(raw, base, matches, options.tolerance, step, _PHASES_OF[options.phase])
    # Weights may be stored in another order: no rounding moves them so far.
    far = (one for one in differing(findings) if one.place == "parameter" and one.gap.relative_norm > APART)
    apart = {raw.columns["op"][one.order] for one in far} if raw.in_memory and base.in_memory else set()
    if apart:
        matches = match_runs(raw, base, comparison.layer_map, *paths, apart=apart)
        findings = find_differences(raw, base, matches, options.tolerance, step, _PHASES_OF[options.phase])
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
        return copy_weights(raw.model, base.model, layer_map, known=mapped + named, allow_missing=True).notices
    try:
        trees = LayerTree.of(raw.model, layer_map), LayerTree.of(base.model, layer_map)
        pairs = pair_trees(*trees, _dry_run(raw, layer_map, options), _dry_run(base, layer_map, options))
        return copy_weights(raw.model, base.model, layer_map, known=mapped + pairs, allow_missing=True).notices
    except BadInput:
        # What was defined in the same order is found without running, too; its error names what is in the way.
        return copy_weights(raw.model, base.model, layer_map, allow_missing=True).notices


def _dry_run(side: Model, layer_map: LayerMap, options: Options) -> LiveRun:
    """A forward pass that changes nothing: no statistics of norms, no gradients. Its values are not compared."""
    # Groups and functions play no part in copying.
    simple = LayerMap()
    simple.__dict__.update({**layer_map.__dict__, "groups": [], "apis": []})
    plain = replace(options, phase=FORWARD, random="eval", single_step=False)
    return run_model(side, plain, simple, None).run


def _compare_with_recording(comparison: Comparison, kept: KeptState) -> None:
    """Compare a model, run step by step, with what another left on disk; or two recordings."""
    from twinprobe._live.recorded import recorded_runs  # few comparisons need it

    base, raw, options = comparison.base, comparison.raw, comparison.options
    assert isinstance(base, Path)
    if options.single_step:
        comparison.notes.append("single_step needs two live models: the recording is compared as it is")
    if isinstance(raw, Path):
        _compare_recordings(comparison, base, raw)
        return
    recorded = recorded_runs(base)
    runs: dict[int, Path] = {}
    for run in recorded:
        runs.setdefault(run.step, run.path)
    if len(runs) < len(recorded):  # a live model is one rank
        comparison.notes.append(
            f"the recording holds {len(recorded)} runs of {len(runs)} steps: the first of each is compared"
        )
    begin = min(runs)
    if max(runs) - begin >= options.steps:
        comparison.notes.append(f"{base} holds {len(runs)} steps; steps={max(runs) - begin + 1} compares all of them")
    for step in range(begin, min(begin + options.steps, max(runs) + 1)):
        if step in runs:
            _compare_recorded_step(comparison, raw, read_run(open_run(runs[step])), step, kept)
        else:  # not recorded, but what comes after depends on it
            comparison.notes += run_model(raw, options, comparison.layer_map, None).problems
        if raw.optimizer is not None:
            kept.steps += 1
            raw.adapter.step(raw.model, raw.optimizer)
        if comparison.first is not None:
            break


def _compare_recorded_step(comparison: Comparison, raw: Model, reference: LiveRun, step: int, kept: KeptState) -> None:
    from twinprobe._live.recorded import inputs_of, load_weights

    options, layer_map = comparison.options, comparison.layer_map
    comparison.notes += reference.notes
    if raw.inputs is None:
        raw.inputs = inputs_of(reference, raw)
    if comparison.steps == 0:
        if comparison.auto_weights:
            with copying(kept, raw, str(reference.path)):
                load_weights(raw, reference, layer_map, comparison.notes)
        kept.keep_buffers()
    masks = recorded_masks(reference, options.seed) if options.random in ("auto", "masks") else None
    tested = run_model(raw, options, layer_map, masks)
    comparison.notes += tested.problems
    _add_recorded(comparison, tested.run, reference, raw.paths, step)


def _compare_recordings(comparison: Comparison, base: Path, raw: Path) -> None:
    from twinprobe._live.recorded import recorded_runs

    sides = recorded_runs(base), recorded_runs(raw)
    if len(sides[0]) != len(sides[1]):
        raise BadInput(
            f"holds {len(sides[1])} runs, {base} holds {len(sides[0])}",
            where=raw, hint="record the same steps and ranks",
        )  # fmt: skip
    for golden, target in zip(*sides, strict=True):
        if golden.label != target.label:
            raise BadInput(
                f"holds {target.label} where {base} holds {golden.label}",
                where=raw, hint="record the same steps and ranks, or give the folders of two steps",
            )  # fmt: skip
    for golden, target in zip(*sides, strict=True):
        _add_recorded(comparison, read_run(open_run(target.path)), read_run(open_run(golden.path)), None, golden.step)
        if comparison.first is not None:
            break


def _add_recorded(comparison: Comparison, tested: LiveRun, reference: LiveRun, paths: Paths | None, step: int) -> None:
    options = comparison.options
    matches, findings, judgement = _compare_runs(comparison, tested, reference, (paths, None), step)
    if options.only:  # each of them decides
        findings = [replace(finding, decides=True) for finding in findings if finding.place in options.only]
    if not findings:
        raise BadInput(
            "nothing in it could be compared", where=reference.path,
            hint="record it with level mix or L0 and, for element-wise comparison, task tensor",
        )  # fmt: skip
    if comparison.steps == 0:
        comparison.notes += matches.notes
        if reference.task != "tensor":
            comparison.notes.append("the recording holds statistics only: equal statistics do not prove equal tensors")
    comparison.add(findings, [], tested, reference, judgement)


# Old options that are accepted and have no effect.
_SILENT = {"cmd", "debug", "use_cuda"}
_OPTIONS = (
    "atol", "rtol", "compare_mode", "equal_nan", "diff_phase", "single_step", "steps", "random", "seed", "apis",
    "quiet", "report", "formats",
)  # fmt: skip


def read_options(given: Mapping[str, Any]) -> Options:
    """Check the user's options; unknown names are refused with the nearest known one."""
    for name in given:
        if name not in _OPTIONS and name not in _SILENT:
            hint = f"{did_you_mean(name, (*_OPTIONS, *_KEYWORDS))}known: {', '.join(_OPTIONS)}"
            raise BadInput(f"unknown option {name!r}", where="auto_diff", hint=hint)
    tolerance = read_tolerance(given)
    steps = given.get("steps", 1)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise BadInput(f"steps is {steps!r}", where="auto_diff", hint="a whole number from 1 up")
    seed = given.get("seed", 1234)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadInput(f"seed is {seed!r}", hint="a whole number")
    report = given.get("report")
    formats = given.get("formats", Options.formats)
    formats = (formats,) if isinstance(formats, str) else tuple(formats)
    for name in formats:
        if name not in FORMATS:
            raise BadInput(f"formats holds {name!r}", where="auto_diff", hint=f"known: {', '.join(FORMATS)}")
    return Options(
        tolerance=tolerance,
        phase=_choice(given, "diff_phase", PHASES, BOTH),
        single_step=_flag(given, "single_step", False),
        steps=steps,
        random=_choice(given, "random", RANDOM, "auto"),
        seed=seed,
        apis=_flag(given, "apis", True),
        quiet=_flag(given, "quiet", False),
        report=Path(report) if report is not None else None,
        formats=formats,
    )


def read_tolerance(given: Mapping[str, Any]) -> Tolerance:
    """atol, rtol, compare_mode and equal_nan."""
    bounds = {}
    for name in ("atol", "rtol"):
        value = given.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise BadInput(f"{name} is {value!r}", hint="a number from 0 up")
            bounds[name] = float(value)
    mode = _choice(given, "compare_mode", MODES, STRICT)
    return Tolerance(bounds.get("atol"), bounds.get("rtol"), mode, _flag(given, "equal_nan", False))


_KEYWORDS = ("auto_weights", "layer_map", "loss_fns", "optimizers")
# Until 0.1.0 these made the second model the reference, which is the one that keeps its weights.
_OLDER_FORM = {
    "options": "give its entries as keywords", "loss_fn": "it is called loss_fns",
    "optimizer": "it is called optimizers", "reference": "the reference is first",
}  # fmt: skip


def _refuse_older_form(positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """An older call would overwrite the other model's weights now: it is refused, with what to write instead."""
    older = [f"{name}= ({now})" for name, now in _OLDER_FORM.items() if name in named]
    if positional:
        older.insert(0, "more than three arguments by position")
    if older:
        raise BadInput(
            f"auto_diff no longer takes {', '.join(older)}: since 0.2.0 the first model is always the reference and "
            "the second gets its weights",
            hint="write auto_diff(base, raw, (inputs of base, inputs of raw), ...); a script written for PaDiff keeps "
            "its calls with `from padiff import auto_diff` (twinprobe-compat)",
        )


def _choice(given: Mapping[str, Any], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.get(name, default)
    if value not in allowed:
        raise BadInput(f"{name} is {value!r}", hint=f"allowed: {', '.join(allowed)}")
    return str(value)


def _flag(given: Mapping[str, Any], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise BadInput(f"{name} is {value!r}", hint="True or False")
    return value
