"""Running one model under the recorder, with every state put back afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from twinprobe.errors import BadInput, TwinProbeError
from twinprobe.live.frameworks import Adapter, adapter_of
from twinprobe.live.frameworks.adapter import Loss
from twinprobe.live.inputs import prepare_call
from twinprobe.live.layer_map import LayerMap
from twinprobe.live.live_run import Values, live_run
from twinprobe.live.options import Options
from twinprobe.live.random_ops import Masks
from twinprobe.live.scene import Paths, apply_map
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.names import parse_op


@dataclass
class Model:
    """One of the two models: what it is, what it is called with, its loss and its optimizer."""

    role: str
    model: Any
    inputs: Any
    loss: Loss | None = None
    optimizer: Any = None

    def __post_init__(self) -> None:
        self.adapter: Adapter = adapter_of(self.model)
        self.paths = Paths.find(self.adapter, self.model)

    @property
    def title(self) -> str:
        return f"{type(self.model).__name__} ({self.adapter.title})"


@dataclass
class Pass:
    """What one pass left: the recorded run, and the loss."""

    run: Values
    loss: HostTensor | None
    problems: list[str]


Around = Callable[[], AbstractContextManager[None]]


def run_model(
    one: Model, options: Options, layer_map: LayerMap, masks: Masks | None, around: Around | None = None
) -> Pass:
    """One forward (and backward) pass of a model, recorded."""
    adapter, model = one.adapter, one.model
    call = prepare_call(one.inputs, adapter, model)
    adapter.clear_gradients(model, one.paths.layer.values())
    with ExitStack() as stack:
        stack.enter_context(_random(one, options, masks))
        engine = stack.enter_context(
            adapter.recording(model, backward=options.backward, apis=options.apis or bool(layer_map.apis))
        )
        stack.enter_context(around() if around is not None else nullcontext())
        with _naming(one):
            outcome = adapter.run(model, call, _own_loss(one), backward=options.backward)
    apply_map(engine, one.paths, layer_map)
    run = live_run(engine, title=f"{one.role} {one.title}", framework=adapter.name, to_host=adapter.to_host)
    if not run.ops:
        raise BadInput(f"the {one.role} model {one.title} gave no tensor: nothing to compare")
    problems = [f"the recorder met {cause} in the {one.role} model" for cause in engine.problems.counts]
    return Pass(run, None if outcome.loss is None else adapter.to_host(outcome.loss), problems)


def mode_notes(base: Model, raw: Model, calls: Mapping[str, str]) -> list[str]:
    """Where one model trains and the other does not. ``calls`` are the paired ones, raw -> base."""
    modes = [{one.adapter.training(layer) for layer in one.paths.layer.values()} for one in (base, raw)]
    if modes[0] == modes[1] and len(modes[0]) == 1:
        return []
    shown = {True: "training", False: "evaluation"}
    roots = [one.adapter.training(one.model) for one in (base, raw)]
    if roots[0] != roots[1]:
        return [f"the base model is in {shown[roots[0]]} mode, the raw model in {shown[roots[1]]} mode"]
    found = []
    for mine, theirs in calls.items():
        layers = [one.paths.layer.get(parse_op(name).body) for one, name in ((raw, mine), (base, theirs))]
        if parse_op(mine).is_module and layers[0] is not None and layers[1] is not None:
            mode, other = raw.adapter.training(layers[0]), base.adapter.training(layers[1])
            if mode != other:
                found.append(f"{parse_op(mine).body} ({shown[mode]} against {shown[other]})")
    return [f"layers in training mode in one model only: {', '.join(dict.fromkeys(found))}"] if found else []


_FRAMEWORKS = {"torch": "pytorch", "paddle": "paddle", "mindspore": "mindspore"}


def check_optimizers(one: Model, other: Model | None) -> None:
    """Refuse an optimizer that is not one of this model, before anything runs."""
    optimizer = one.optimizer
    if optimizer is None:
        return
    who = f"the optimizer for the {one.role} model {one.title}"
    hint = "optimizers=[of the first model, of the second]"
    packages = [kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__]
    framework = next((_FRAMEWORKS[name] for name in packages if name in _FRAMEWORKS), None)
    if framework is None:
        if not callable(optimizer):
            raise BadInput(f"{who} is a {type(optimizer).__name__}", hint=f"{hint}: optimizers, or functions")
        return
    if framework != one.adapter.name:
        raise BadInput(f"{who} is one of another framework ({type(optimizer).__name__}): are they swapped?", hint=hint)
    held = {id(parameter) for parameter in _parameters_of(optimizer)}
    own, theirs = (
        {id(tensor) for layer in model.paths.layer.values() for tensor in model.adapter.parameters(layer).values()}
        for model in (one, other or one)
    )
    if held and held.isdisjoint(own):
        whose = "the parameters of the other model" if held & theirs else "none of the parameters of this model"
        raise BadInput(f"{who} holds {whose}", hint=hint)


def _parameters_of(optimizer: Any) -> list[Any]:
    groups = getattr(optimizer, "param_groups", None) or getattr(optimizer, "_param_groups", None)
    if groups and all(isinstance(group, dict) for group in groups):
        return [parameter for group in groups for parameter in group.get("params", ())]
    return list(getattr(optimizer, "_parameter_list", None) or getattr(optimizer, "parameters", None) or ())


def _own_loss(one: Model) -> Loss | None:
    """The loss function, whose errors are not the model's."""
    given = one.loss
    if given is None:
        return None

    def loss(output: Any) -> Any:
        who = f"the loss_fn of the {one.role} model {one.title}"
        try:
            value = given(output)
        except Exception as error:
            raise BadInput(
                f"{who} failed: {type(error).__name__}: {error}",
                hint="the error above is its own; it is called with the model's output",
            ) from error
        if not one.adapter.is_tensor(value):
            raise BadInput(f"{who} gave a {type(value).__name__}", hint="it must return a scalar tensor")
        return value

    return loss


@contextmanager
def _naming(one: Model) -> Iterator[None]:
    try:
        yield
    except TwinProbeError:
        raise
    except Exception as error:
        raise BadInput(
            f"the {one.role} model {one.title} failed: {type(error).__name__}: {error}",
            hint="the error above is the model's own; are its inputs in the right order?",
        ) from error


@contextmanager
def _random(one: Model, options: Options, masks: Masks | None) -> Iterator[None]:
    """The same random numbers for both models, and the program's own afterwards."""
    adapter = one.adapter
    modules = [module for _, module in adapter.modules(one.model)] if options.random == "eval" else []
    before = [adapter.training(module) for module in modules]
    state = adapter.random_state() if options.random != "off" else None
    try:
        if options.random == "eval":
            for module in modules:
                adapter.set_training(module, False)
        if options.random != "off":
            adapter.seed(options.seed)
        with adapter.dropouts(masks.begin()) if masks is not None else nullcontext():
            yield
    finally:
        if state is not None:
            adapter.set_random_state(state)
        if options.random == "eval":
            for module, training in zip(modules, before, strict=True):
                adapter.set_training(module, training)
