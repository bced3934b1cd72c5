"""auto_diff: run two models on the same inputs and name the first layer that differs, forward and backward."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._live.comparing import compare_models
from twinprobe._live.console import Calls
from twinprobe._live.findings import INJECTED, Finding, First
from twinprobe._live.frameworks import framework_of
from twinprobe._live.options import BOTH, FORWARD, PHASES, Options, read_options, read_tolerance, refuse_older_form
from twinprobe._live.pairing.layer_map import LayerMap, as_layer_map
from twinprobe._live.result import Result
from twinprobe._live.running import Model, two_calls
from twinprobe._measure.tolerance import Gap, Tolerance, compare
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput, did_you_mean

_MISSING: Any = object()
_SWAPPED = (
    "auto_weights=True no longer makes the second model the reference: since 0.2.0 auto_diff(base, raw, inputs) always "
    "copies the first model's weights to the second. Give the reference first; leave auto_weights=True out to silence "
    "this; `from padiff import auto_diff` (twinprobe-compat) keeps PaDiff's order"
)


@dataclass
class _Asked:
    """What a call of auto_diff asks for, in the order of its arguments."""

    models: tuple[Any, Any]
    calls: tuple[Any, Any]
    losses: tuple[Any, Any]
    optimizers: tuple[Any, Any]
    base: int  # which of the two is the reference
    auto_weights: bool
    layer_map: LayerMap
    options: Options
    notes: list[str]


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
    asked = _Asked(
        models=(base, raw),
        calls=two_calls(inputs),
        losses=_two(loss_fns, "loss_fns"),
        optimizers=_two(optimizers, "optimizers"),
        base=_reference(base, raw),
        auto_weights=_flag(auto_weights),
        layer_map=as_layer_map(layer_map),
        options=read_options(options),
        notes=[],
    )
    _settle_steps(asked)
    result = _compare(asked)
    if asked.options.report is not None:
        result.save(asked.options.report, asked.options.formats)
    if not asked.options.quiet:
        result.show()
    return result


def _compare(asked: _Asked) -> Result:
    places = asked.base, 1 - asked.base
    sides: list[Any] = []
    for place, role in zip(places, ("base", "raw"), strict=True):
        model = asked.models[place]
        if isinstance(model, str | Path):
            sides.append(Path(model))
            continue
        one = Model(role, model, asked.calls[place], asked.losses[place], asked.optimizers[place])
        sides.append(one)
    base, raw = sides
    if isinstance(base, Model) and isinstance(raw, Model) and (base.inputs is None or raw.inputs is None):
        raise BadInput("auto_diff got no inputs", hint="auto_diff(base, raw, inputs)")
    if asked.models[0] is asked.models[1] and not isinstance(base, Path):
        asked.notes.append("both models are one object: they can only differ by chance")
    _check_layers(asked, base, raw)
    result = compare_models(
        base, raw, asked.layer_map, asked.options, auto_weights=asked.auto_weights, notes=asked.notes
    )
    result.weights_copied = asked.auto_weights and isinstance(raw, Model)
    return result


def _check_layers(asked: _Asked, base: Any, raw: Any) -> None:
    known: set[int] = set()
    for side in (base, raw):
        if isinstance(side, Model):
            known |= side.paths.of.keys()
    for layer in asked.layer_map.layers():
        if id(layer) not in known:
            raise BadInput(
                f"the LayerMap names a {type(layer).__name__} that is in neither model",
                hint="make the map from the very models that are compared",
            )


def _settle_steps(asked: _Asked) -> None:
    """Steps need optimizers, and optimizers need gradients."""
    options = asked.options
    has_optimizer = asked.optimizers[0] is not None
    if options.single_step or options.phase == FORWARD:
        why = "single_step" if options.single_step else 'diff_phase="forward"'
        if has_optimizer or options.steps > 1:
            asked.notes.append(f"{why} runs one step and no optimizer")
        asked.optimizers = (None, None)
        asked.options = replace(options, steps=1)
    elif options.steps > 1 and not has_optimizer:
        asked.notes.append("without optimizers every step is the same: one is run")
        asked.options = replace(options, steps=1)


def _reference(first: Any, second: Any) -> int:
    """The place of the reference: the first, unless only the second is a recording, which nothing is written to."""
    recorded = [isinstance(one, str | Path) for one in (first, second)]
    for one, is_recorded in zip((first, second), recorded, strict=True):
        if not is_recorded and framework_of(one) is None:
            raise BadInput(
                f"auto_diff got a {type(one).__name__}",
                hint="give two models (torch Module, paddle Layer, mindspore Cell) or the folder of a recording",
            )
    return int(recorded == [False, True])


def _two(value: Any, name: str) -> tuple[Any, Any]:
    """One for each model, in the order of the models; a single function serves both."""
    if value is None:
        return None, None
    if isinstance(value, list | tuple):
        if len(value) != 2 or any(one is None for one in value):
            raise BadInput(f"{name} holds {len(value)}", hint=f"{name}=[of the first model, of the second]")
        return value[0], value[1]
    if name == "loss_fns" and callable(value):
        return value, value
    raise BadInput(f"{name} is a {type(value).__name__}", hint=f"{name}=[of the first model, of the second]")


def _flag(value: Any) -> bool:
    if value is _MISSING:
        return True
    if not isinstance(value, bool):
        raise BadInput(f"auto_weights is {value!r}", hint="True or False")
    return value


# Two recordings against each other: everything, or only the parameters, or only their gradients.

_KEYS = ("atol", "rtol", "compare_mode", "equal_nan")
_PLACES = {"parameter": ("parameter",), "gradient": ("gradient",), "both": ("parameter", "gradient")}


def check_report(
    base: str | Path,
    raw: str | Path,
    cfg: Mapping[str, Any] | None = None,
    diff_phase: str = BOTH,
    *,
    quiet: bool = False,
) -> Result:
    """Compare two recordings: all steps and all ranks, forward and backward. True when they agree."""
    if diff_phase not in PHASES:
        raise BadInput(f"diff_phase is {diff_phase!r}", hint=f"allowed: {', '.join(PHASES)}")
    return _shown(_compare_recordings(base, raw, cfg, diff_phase), quiet)


def check_weights(
    base: str | Path, raw: str | Path, cfg: Mapping[str, Any] | None = None, *, quiet: bool = False
) -> Result:
    """Compare the recorded parameters."""
    return _shown(_compare_recordings(base, raw, cfg, FORWARD, _PLACES["parameter"]), quiet)


def check_grads(
    base: str | Path, raw: str | Path, cfg: Mapping[str, Any] | None = None, *, quiet: bool = False
) -> Result:
    """Compare the recorded gradients of the parameters."""
    return _shown(_compare_recordings(base, raw, cfg, BOTH, _PLACES["gradient"]), quiet)


def check_params(
    base: str | Path, raw: str | Path, cfg: Mapping[str, Any] | None = None, *, quiet: bool = False
) -> Result:
    """Compare the recorded parameters and their gradients."""
    return _shown(_compare_recordings(base, raw, cfg, BOTH, _PLACES["both"]), quiet)


def _compare_recordings(
    base: str | Path, raw: str | Path, cfg: Mapping[str, Any] | None, phase: str, places: tuple[str, ...] = ()
) -> Result:
    for key in cfg or {}:
        if key not in _KEYS:
            hint = f"{did_you_mean(key, _KEYS)}known: {', '.join(_KEYS)}"
            raise BadInput(f"unknown key {key!r} in cfg", hint=hint)
    options = Options(tolerance=read_tolerance(cfg or {}), phase=phase, only=places)
    return compare_models(Path(base), Path(raw), LayerMap(), options, auto_weights=False, notes=[])


def _shown(result: Result, quiet: bool) -> Result:
    if not quiet:
        result.show()
    return result


# Two data loaders, batch by batch: whatever a batch is made of.

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
    for number, (one, other) in enumerate(zip_longest(raw, base, fillvalue=_END)):
        if one is _END or other is _END:
            which = "base" if one is _END else "raw"
            findings.append(_finding(number, "batch", Gap(False, f"only the {which} loader has a batch {number}", nan)))
        else:
            batches += 1
            findings += _compare_batch(number, one, other, tolerance)
        differing = [finding for finding in findings if finding.step == number and finding.differs]
        if differing:
            first = First(number, PHASE, differing[0].raw, differing[0].base, INJECTED, differing[0].gap.why, differing)
            break
    if not batches and first is None:
        from twinprobe.errors import NothingToCompare

        raise NothingToCompare("both loaders are empty")
    result = Result("base loader", "raw loader", [findings], first, Calls([], {}), Calls([], {}), batches)
    if not quiet:
        result.show()
    return result


def _compare_batch(number: int, raw: Any, base: Any, tolerance: Tolerance) -> list[Finding]:
    sides = dict(_leaves(raw, "")), dict(_leaves(base, ""))
    found = []
    for name in sides[0] | sides[1]:
        if name not in sides[0] or name not in sides[1]:
            which = "raw" if name in sides[0] else "base"
            found.append(_finding(number, name, Gap(False, f"only the {which} batch has {name}", nan)))
            continue
        one, other = sides[0][name], sides[1][name]
        if isinstance(one, HostTensor) and isinstance(other, HostTensor):
            gap = compare(one, other, tolerance)
        else:
            same = type(one) is type(other) and bool(one == other)
            gap = Gap(same, "" if same else f"{one!r} against {other!r}"[:200], nan)
        found.append(_finding(number, name, gap))
    return found


def _finding(number: int, name: str, gap: Gap) -> Finding:
    return Finding(number, PHASE, f"batch {number}", f"batch {number}", "data", name or "batch", gap, True)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every array, number and text of a batch by its place; lists and tuples count alike."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}".lstrip("."))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield from _leaves(getattr(value, one.name), f"{name}.{one.name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _leaves(item, f"{name}.{at}".lstrip("."))
    else:
        yield name, _hosted(value)


def _hosted(value: Any) -> Any:
    framework = type(value).__module__.partition(".")[0]
    if framework in ("torch", "paddle", "mindspore") and hasattr(value, "shape"):
        from importlib import import_module

        return import_module(f"twinprobe._live.frameworks.{framework}").adapter.to_host(value)
    if isinstance(value, bool | int | float | np.generic | np.ndarray):
        array = np.asarray(value)
        if array.dtype.name in STORAGE:
            return HostTensor(array.dtype.name, array.shape, np.ascontiguousarray(array).reshape(-1))
    return value
