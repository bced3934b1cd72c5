"""auto_diff: run two models on the same inputs and name the first layer that differs, forward and backward."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.live.comparing import compare_models
from twinprobe.live.frameworks import framework_of
from twinprobe.live.inputs import two_calls
from twinprobe.live.layer_map import LayerMap, as_layer_map
from twinprobe.live.options import FORWARD, Options, read_options, refuse_older_form
from twinprobe.live.result import Result
from twinprobe.live.running import Model

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
