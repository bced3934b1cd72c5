"""auto_diff: run two models on the same inputs and name the first layer that differs, forward and backward."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._live.comparing import Comparison, compare_live
from twinprobe._live.findings import INJECTED, Finding, First
from twinprobe._live.frameworks.adapter import FRAMEWORKS, adapter_named, array_on_host, framework_of
from twinprobe._live.model_state import state_kept
from twinprobe._live.options import BOTH, FORWARD, PHASES, Options, read_options, read_tolerance, refuse_older_form
from twinprobe._live.pairing.layer_map import LayerMap, as_layer_map
from twinprobe._live.result import Calls, Result
from twinprobe._live.running import Model, check_optimizers, two_calls
from twinprobe._measure.tolerance import Gap, Tolerance, compare
from twinprobe._record.memory.recorders import collector_paused, keep_freed_memory
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput, NothingToCompare, did_you_mean

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
    refuse_older_form(older, options)
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
    result = _compare(Comparison(golden, target, chosen_map, chosen, auto_weights, notes))
    result.weights_copied = auto_weights and isinstance(target, Model)
    if chosen.report is not None:
        result.save(chosen.report, chosen.formats)
    return _shown(result, chosen.quiet)


def _compare(comparison: Comparison) -> Result:
    sides = comparison.base, comparison.raw
    models = [side for side in sides if isinstance(side, Model)]
    for model in models:
        check_optimizers(model, next((partner for partner in models if partner is not model), None))
    if len(models) == 2:
        keep_freed_memory()
        with collector_paused(), state_kept(models) as kept:
            compare_live(comparison, kept)
    else:
        from twinprobe._live.recorded import compare_with_recording  # few comparisons need it

        with state_kept(models) as kept:
            compare_with_recording(comparison, kept)
    return comparison.result()


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


Folder = str | Path  # of a recording
Config = Mapping[str, Any] | None  # the keys below
_KEYS = ("atol", "rtol", "compare_mode", "equal_nan")


def check_report(
    base: Folder, raw: Folder, cfg: Config = None, diff_phase: str = BOTH, *, quiet: bool = False
) -> Result:
    """Compare two recordings: all steps and all ranks, forward and backward. True when they agree."""
    if diff_phase not in PHASES:
        raise BadInput(f"diff_phase is {diff_phase!r}", hint=f"allowed: {', '.join(PHASES)}")
    return _shown(_compare_recordings(base, raw, cfg, diff_phase), quiet)


def check_weights(base: Folder, raw: Folder, cfg: Config = None, *, quiet: bool = False) -> Result:
    """Compare the recorded parameters."""
    return _shown(_compare_recordings(base, raw, cfg, FORWARD, ("parameter",)), quiet)


def check_grads(base: Folder, raw: Folder, cfg: Config = None, *, quiet: bool = False) -> Result:
    """Compare the recorded gradients of the parameters."""
    return _shown(_compare_recordings(base, raw, cfg, BOTH, ("gradient",)), quiet)


def check_params(base: Folder, raw: Folder, cfg: Config = None, *, quiet: bool = False) -> Result:
    """Compare the recorded parameters and their gradients."""
    return _shown(_compare_recordings(base, raw, cfg, BOTH, ("parameter", "gradient")), quiet)


def _compare_recordings(base: Folder, raw: Folder, cfg: Config, phase: str, places: tuple[str, ...] = ()) -> Result:
    for key in cfg or {}:
        if key not in _KEYS:
            hint = f"{did_you_mean(key, _KEYS)}known: {', '.join(_KEYS)}"
            raise BadInput(f"unknown key {key!r} in cfg", hint=hint)
    options = Options(tolerance=read_tolerance(cfg or {}), phase=phase, only=places)
    return _compare(Comparison(Path(base), Path(raw), LayerMap(), options))


def _shown(result: Result, quiet: bool) -> Result:
    if not quiet:
        result.show()
    return result


PHASE = "data"
_END: Any = object()


def check_dataloader(
    base: Iterable[Any], raw: Iterable[Any], atol: float | None = None, rtol: float | None = None,
    compare_mode: str = "strict", *, equal_nan: bool = False, quiet: bool = False,
) -> Result:  # fmt: skip
    """Compare the batches of two loaders. True when all are equal and neither loader is longer."""
    tolerance = read_tolerance({"atol": atol, "rtol": rtol, "compare_mode": compare_mode, "equal_nan": equal_nan})
    findings: list[Finding] = []
    first: First | None = None
    batches = 0
    for number, (target, golden) in enumerate(zip_longest(raw, base, fillvalue=_END)):
        if target is _END or golden is _END:
            which = "base" if target is _END else "raw"
            findings.append(_finding(number, "batch", Gap(False, f"only the {which} loader has a batch {number}", nan)))
        else:
            batches += 1
            findings += _compare_batch(number, target, golden, tolerance)
        differing = [finding for finding in findings if finding.step == number and finding.differs]
        if differing:
            first = First(number, PHASE, differing[0].raw, differing[0].base, INJECTED, differing[0].gap.why, differing)
            break
    if not batches and first is None:
        raise NothingToCompare("both loaders are empty")
    no_calls = Calls([], {})
    return _shown(Result("base loader", "raw loader", [findings], first, no_calls, no_calls, batches), quiet)


def _compare_batch(number: int, raw: Any, base: Any, tolerance: Tolerance) -> list[Finding]:
    sides = dict(_leaves(raw, "")), dict(_leaves(base, ""))
    findings = []
    for name in sides[0] | sides[1]:
        if name not in sides[0] or name not in sides[1]:
            which = "raw" if name in sides[0] else "base"
            findings.append(_finding(number, name, Gap(False, f"only the {which} batch has {name}", nan)))
            continue
        target, golden = sides[0][name], sides[1][name]
        if isinstance(target, HostTensor) and isinstance(golden, HostTensor):
            gap = compare(target, golden, tolerance)
        else:
            same = type(target) is type(golden) and bool(target == golden)
            gap = Gap(same, "" if same else f"{target!r} against {golden!r}"[:200], nan)
        findings.append(_finding(number, name, gap))
    return findings


def _finding(number: int, name: str, gap: Gap) -> Finding:
    return Finding(number, PHASE, f"batch {number}", f"batch {number}", "data", name or "batch", gap, True)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every array, number and text of a batch by its place; lists and tuples count alike."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}".lstrip("."))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{name}.{field.name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{name}.{index}".lstrip("."))
    else:
        yield name, _hosted(value)


def _hosted(value: Any) -> Any:
    framework = type(value).__module__.partition(".")[0]
    if framework in FRAMEWORKS and hasattr(value, "shape"):
        return adapter_named(framework).to_host(value)
    if isinstance(value, bool | int | float | np.generic | np.ndarray):
        array = np.asarray(value)
        if array.dtype.name in STORAGE:
            return array_on_host(array)
    return value
