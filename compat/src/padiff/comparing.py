"""auto_diff, assign_weight and the checks, called as PaDiff's released and development versions are called.

What PaDiff answers with True or False is True or False here: old scripts compare with `== False`, and `is True`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padiff.layer_lists import LayerLists
from padiff.proxy import ProxyModel
from twinprobe._live import checks
from twinprobe._live.auto_diff import auto_diff as compare_models
from twinprobe._live.auto_diff import copy_all_weights, read_options
from twinprobe._live.frameworks.adapter import adapter_of, framework_of
from twinprobe._live.pairing.layer_map import LayerMap, as_layer_map
from twinprobe._live.running import Model, Options
from twinprobe._live.weights import copying
from twinprobe._report.console import say
from twinprobe._runs.run import DUMP, open_run
from twinprobe.errors import BadInput, TwinProbeError

_DEFAULTS = {"atol": 0, "rtol": 1e-7, "compare_mode": "mean"}
_RELEASED = {
    "layer", "module", "example_inp", "auto_weights", "options", "layer_map", "loss_fn", "optimizer", "steps",
}  # fmt: skip
_NAMED_ALIKE = {"auto_weights": "auto_init", "loss_fn": "loss_fns", "optimizer": "optimizers"}
_FAR = 1e-3  # relative norm from which elements that share a mean are said to differ


@dataclass
class _Asked:
    """What a call asks for, whichever its form: the base's first in every pair."""

    models: tuple[Any, Any]
    inputs: Any
    loss_fns: Any
    optimizers: Any
    copy_weights: bool
    layer_map: Any
    options: dict[str, Any]


def auto_diff(*given: Any, **named: Any) -> bool:
    """Compare two models; True when they agree.

    Released versions: ``auto_diff(layer, module, example_inp, auto_weights=True, options={}, layer_map=None,
    loss_fn=None, optimizer=None, steps=1)``, where the module is the reference and its weights go to the layer.
    Development version: ``auto_diff(base_model, raw_model, inputs, loss_fns=None, optimizers=None, auto_init=True,
    atol=0, rtol=1e-7, compare_mode="mean", diff_phase="both", single_step=False, steps=1)``, where base_model is the
    reference. Names, models of create_model, and what is given by position tell the two apart; where nothing does, a
    Paddle layer before a PyTorch module is the released form. The report says which model was written to.
    """
    asked = _released(*given, **named) if _is_released(given, named) else _development(*given, **named)
    if asked.inputs is None:
        raise BadInput("auto_diff needs inputs", hint="auto_diff(layer, module, (inputs of layer, inputs of module))")
    options = {**_DEFAULTS, **asked.options}
    if options.get("diff_phase") == "backward" and not options.get("single_step"):
        say('diff_phase="backward" needs single_step=True: both phases are compared')
        options["diff_phase"] = "both"
    chosen = read_options(options)  # before anything is written to
    inputs = _two(asked.inputs)
    layer_map = _with_mapped_layers(asked)
    if asked.copy_weights and not _copied(asked.models, inputs, layer_map, chosen):
        return False
    # What a black or white list leaves out; the model itself is always compared.
    unlisted = _layers(asked.models, lambda lists, path: bool(path) and not lists.wants(path))
    for model, given_inputs, loss in zip(asked.models, inputs, _two(asked.loss_fns), strict=True):
        if isinstance(model, ProxyModel):
            model.dump_pass(given_inputs, loss, backward=chosen.backward)
    result = compare_models(
        *map(_bare, asked.models), asked.inputs, auto_weights=False, layer_map=_extended(layer_map, unlisted),
        loss_fns=asked.loss_fns, optimizers=asked.optimizers, **options,
    )  # fmt: skip
    if result and chosen.tolerance.mode == "mean" and not chosen.quiet:
        far = [one for one in result.findings if one.decides and one.gap.same and one.gap.relative_norm > _FAR]
        if far:
            say(
                f"note: means agree, but elements of {len(far)} pairs of tensors do not, first {far[0].tensor} of "
                f'{far[0].raw} (relative norm {far[0].gap.relative_norm:.3g}): compare_mode="strict" compares elements'
            )
    return bool(result)


def assign_weight(*given: Any, **named: Any) -> bool:
    """Released versions: `assign_weight(layer, module, layer_map)` copies the module's weights to the layer.

    Development version: `assign_weight(base_model, raw_model)` copies base_model's to raw_model. They are told apart
    as in auto_diff. False, with the reason printed, where weights do not fit.
    """
    if len(given) == 3:
        given, named = given[:2], {"layer_map": given[2], **named}
    asked = _released(*given, **named) if _is_released(given, named) else _development(*given, **named)
    layer_map = _with_mapped_layers(asked)
    base, raw = asked.models
    written = copying.assign_weight(_bare(raw), _bare(base), _extended(layer_map, _unassigned(asked.models)))
    if written:
        say(_words_of_copy(_bare(base), _bare(raw)))
    return written


def check_report(
    report_path_0: str | Path, report_path_1: str | Path, cfg: Mapping[str, Any] | None = None, diff_phase: str = "both"
) -> bool:
    """Whether two reports agree, every step and rank of them."""
    return bool(checks.check_report(report_path_0, report_path_1, {**_DEFAULTS, **(cfg or {})}, diff_phase))


def check_params(
    report_path_0: str | Path, report_path_1: str | Path, cfg: Mapping[str, Any] | None = None
) -> bool:  # fmt: skip
    """Whether the weights and gradients that dump_params or try_dump wrote agree."""
    return _check("params", checks.check_params, report_path_0, report_path_1, cfg)


def check_weights(
    report_path_0: str | Path, report_path_1: str | Path, cfg: Mapping[str, Any] | None = None
) -> bool:  # fmt: skip
    """Whether the weights that dump_weights wrote agree."""
    return _check("weights", checks.check_weights, report_path_0, report_path_1, cfg)


def check_grads(
    report_path_0: str | Path, report_path_1: str | Path, cfg: Mapping[str, Any] | None = None
) -> bool:  # fmt: skip
    """Whether the gradients that dump_grads wrote agree."""
    return _check("grads", checks.check_grads, report_path_0, report_path_1, cfg)


def check_dataloader(first_loader: Iterable[Any], second_loader: Iterable[Any], **options: Any) -> bool:
    """Whether two loaders give the same batches, and as many."""
    return bool(checks.check_dataloader(first_loader, second_loader, **{**_DEFAULTS, **options}))


# -- the two forms ---------------------------------------------------------------------------------------------


def _is_released(given: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    models = [*given[:2], *(named[name] for name in ("layer", "module", "base_model", "raw_model") if name in named)]
    if named.keys() - _RELEASED or any(isinstance(one, ProxyModel) for one in models):
        return False
    if named.keys() - {"steps"} or len(given) > 5:
        return True
    if len(given) > 3:
        return isinstance(given[3], bool)  # the development version takes loss functions there
    return [framework_of(one) for one in models] == ["paddle", "torch"]


def _released(
    layer: Any, module: Any, example_inp: Any = None, auto_weights: bool = True, options: Any = None,
    layer_map: Any = None, loss_fn: Any = None, optimizer: Any = None, steps: int = 1,
) -> _Asked:  # fmt: skip
    return _Asked(
        (module, layer), _turned(example_inp), _turned(loss_fn), _turned(optimizer), auto_weights, layer_map,
        {**(options or {}), "steps": steps},
    )  # fmt: skip


def _development(
    base_model: Any, raw_model: Any, inputs: Any = None, loss_fns: Any = None, optimizers: Any = None, **named: Any
) -> _Asked:
    # PaDiff ignores the released version's names here; scripts that have them mean what they say.
    for older, newer in _NAMED_ALIKE.items():
        if older in named:
            named.setdefault(newer, named.pop(older))
    options = {**(named.pop("options", None) or {}), **named}
    return _Asked(
        (base_model, raw_model), inputs, options.pop("loss_fns", loss_fns), options.pop("optimizers", optimizers),
        options.pop("auto_init", True), options.pop("layer_map", None), options,
    )  # fmt: skip


def _turned(pair: Any) -> Any:
    return pair[::-1] if isinstance(pair, list | tuple) and len(pair) == 2 else pair


def _two(pair: Any) -> tuple[Any, Any]:
    return (pair[0], pair[1]) if isinstance(pair, list | tuple) and len(pair) == 2 else (pair, pair)


def _bare(model: Any) -> Any:
    return model.model if isinstance(model, ProxyModel) else model


# -- layers ----------------------------------------------------------------------------------------------------


def _with_mapped_layers(asked: _Asked) -> LayerMap:
    """The call's own map, and what set_layer_map and auto_layer_map said of both models."""
    found = _extended(as_layer_map(asked.layer_map), [])
    mapped = [model.layer_map if isinstance(model, ProxyModel) else [] for model in asked.models]
    if len(mapped[0]) != len(mapped[1]):
        raise BadInput(
            f"the base model maps {len(mapped[0])} layers, the raw model {len(mapped[1])}",
            hint="give set_layer_map of both models the layers that belong together",
        )
    found.map = {one: other for one, other in zip(*mapped, strict=True) if found.partner(one) is not other}
    return found


def _extended(layer_map: LayerMap, left_out: list[Any]) -> LayerMap:
    made = LayerMap()
    made.__dict__.update({name: value.copy() for name, value in vars(layer_map).items()})
    made.ignore(left_out)
    return made


def _layers(models: Iterable[Any], is_wanted: Callable[[LayerLists, str], bool]) -> list[Any]:
    """The layers of models made by create_model whose lists and path answer yes."""
    return [
        layer
        for proxy in models
        if isinstance(proxy, ProxyModel)
        for path, layer in adapter_of(proxy.model).modules(proxy.model)
        if is_wanted(proxy.lists, path)
    ]


def _unassigned(models: Iterable[Any]) -> list[Any]:
    return _layers(models, lambda lists, path: path in lists.unassigned)


def _copied(models: tuple[Any, Any], inputs: tuple[Any, Any], layer_map: LayerMap, options: Options) -> bool:
    """The base's weights, to raw, as PaDiff does it: before anything runs, and False where they do not fit."""
    base, raw = (
        Model(role, _bare(model), given) for role, model, given in zip(("base", "raw"), models, inputs, strict=True)
    )
    try:
        notes = copy_all_weights(raw, base, _extended(layer_map, _unassigned(models)), options)
    except TwinProbeError as error:
        say(f"Weights were not copied: {error}")
        return False
    for line in () if options.quiet else (_words_of_copy(base.model, raw.model), *(f"note: {note}" for note in notes)):
        say(line)
    return True


def _words_of_copy(base: Any, raw: Any) -> str:
    titles = [f"{type(model).__name__} ({adapter_of(model).title})" for model in (base, raw)]
    return f"weights: copied from base {titles[0]} to raw {titles[1]}"


# -- dumps -----------------------------------------------------------------------------------------------------


def _check(part: str, check: Any, path_0: str | Path, path_1: str | Path, cfg: Mapping[str, Any] | None) -> bool:
    sides = [_parts(Path(path), part) for path in (path_0, path_1)]
    if sides[0].keys() != sides[1].keys():
        missing = sorted(sides[0].keys() ^ sides[1].keys())
        raise BadInput(
            f"{missing[0]} is in only one of {path_0} and {path_1}", hint="dump the same steps and ranks of both"
        )
    for place, folder in sides[0].items():
        other = sides[1][place]
        if part != "weights":
            runs = [one for one in (folder, other) if any(".parameters_grad." in op for op in open_run(one / DUMP).ops)]
            if len(runs) == 1:
                say(f"not aligned  only {runs[0]} holds gradients")
                return False
            if part == "grads" and not runs:
                continue  # no gradient equals no gradient
        if not check(folder, other, {**_DEFAULTS, **(cfg or {})}):
            return False
    return True


def _parts(path: Path, part: str) -> dict[str, Path]:
    """The folders of weights or gradients of every step and rank of a dump, by their place in it."""
    found = {
        str(run.parent.parent.relative_to(path)): run.parent
        for name in ("params", part)  # what try_dump wrote will do, but what was asked for goes first
        for place in ("", "rank_*/", "step_*/", "step_*/rank_*/")
        for run in path.glob(f"{place}{name}/{DUMP}")
    }
    if not found:
        raise BadInput(f"holds no {part}", where=path, hint=f"write them with dump_{part}() of a model of create_model")
    return dict(sorted(found.items(), key=lambda one: [int(number) for number in re.findall(r"\d+", one[0])]))
