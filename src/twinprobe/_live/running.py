"""Running a model under the recorder, and putting back what a comparison changes in it.

Gradients and buffers are as before afterwards, but buffers stay where optimizers have moved the models on. Copied
weights stay: a second copy of a model, for the rare error, would cost every comparison its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._judge.operations import differing_settings
from twinprobe._live.frameworks.adapter import FRAMEWORKS, Adapter, Call, Loss, adapter_named, adapter_of, array_on_host
from twinprobe._live.frameworks.layouts import Array
from twinprobe._live.live_run import LiveRun, live_run
from twinprobe._live.pairing.layer_map import LayerMap, Paths, apply_map
from twinprobe._measure.elements import FLOAT64, numbers
from twinprobe._measure.tolerance import STRICT, Tolerance
from twinprobe._record.recorder import built_with, held_by
from twinprobe._report.console import say
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.names import BACKWARD, FORWARD, parse_op
from twinprobe._runs.table import INPUT, OUTPUT, TENSOR
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput, TwinProbeError

BOTH = "both"
PHASES = (BOTH, FORWARD, BACKWARD)
RANDOM = ("auto", "seed", "masks", "eval", "off")


@dataclass(frozen=True)
class Options:
    """How two models are run and compared."""

    tolerance: Tolerance = field(default_factory=Tolerance)
    phase: str = BOTH
    single_step: bool = False
    steps: int = 1
    random: str = "auto"
    seed: int = 1234
    apis: bool = True
    quiet: bool = False
    report: Path | None = None
    formats: tuple[str, ...] = ("csv", "json", "html")
    only: tuple[str, ...] = ()  # places; empty for all

    @property
    def default_tolerance(self) -> bool:
        """Whether the user named no bounds, and elements are compared."""
        return (self.tolerance.atol, self.tolerance.rtol, self.tolerance.mode) == (None, None, STRICT)

    @property
    def backward(self) -> bool:
        """Whether gradients are wanted."""
        return self.phase != FORWARD


def two_calls(inputs: Any) -> tuple[Any, Any]:
    """What the first and the second model get: a tuple or list of two is one for each, anything else is for both."""
    if isinstance(inputs, tuple | list) and type(inputs) in (tuple, list):
        if len(inputs) == 2:
            return inputs[0], inputs[1]
        raise BadInput(
            f"inputs is a {type(inputs).__name__} of {len(inputs)}",
            hint="give (inputs of the first model, inputs of the second), or one dict, tensor or array for both",
        )
    return inputs, inputs


def prepare_call(inputs: Any, adapter: Adapter, model: Any) -> Call:
    """A call of a model: a dict is keyword arguments, a tuple positional ones, ``((args...), {kwargs})`` both.

    Arrays become tensors of the model's framework; tensors are copied, so that no run changes the user's.
    """
    if isinstance(inputs, tuple) and len(inputs) == 2 and type(inputs[0]) is tuple and type(inputs[1]) is dict:
        args, kwargs = inputs
    elif isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs):
        args, kwargs = (), dict(inputs)
    elif type(inputs) in (tuple, list):
        args, kwargs = tuple(inputs), {}
    else:
        args, kwargs = (inputs,), {}
    made: dict[int, Any] = {}  # one tensor given twice stays one tensor

    def change(value: Any) -> Any:
        if adapter.is_tensor(value):
            if id(value) not in made:
                made[id(value)] = adapter.copied(value)
            return made[id(value)]
        if isinstance(value, np.ndarray) and value.dtype.name in STORAGE:
            return adapter.tensor(array_on_host(value), model)
        framework, kind = type(value).__module__.partition(".")[0], type(value).__name__
        if framework in FRAMEWORKS and kind in ("Tensor", "Parameter", "EagerParamBase"):
            return adapter.tensor(adapter_named(framework).to_host(value), model)
        return value

    return Call(rebuilt(args, change), rebuilt(kwargs, change))


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every leaf changed; containers of other kinds stay as they are."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(rebuilt(item, change) for item in value)
    if kind is dict:
        return {key: rebuilt(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(rebuilt(item, change) for item in value))
    return change(value)


class Masks:
    """The n-th dropout of either model gets the n-th mask; the first model to ask for it settles it."""

    def __init__(self, seed: int, made: list[NDArray[np.float32]] | None = None) -> None:
        self._seed = seed
        self._made: list[NDArray[np.float32]] = made or []
        self.notes: list[str] = []

    def begin(self) -> Callable[[tuple[int, ...], float], Any]:
        """A model starts: its dropouts are counted from here."""
        counter = count()
        return lambda shape, p: self._mask(next(counter), tuple(int(size) for size in shape), float(p))

    def _mask(self, number: int, shape: tuple[int, ...], p: float) -> NDArray[np.float32]:
        if number < len(self._made) and self._made[number].shape == shape:
            return self._made[number]
        if number < len(self._made):
            self.notes.append(
                f"dropout {number + 1} has shape {list(shape)} in one model and {list(self._made[number].shape)} in "
                "the other: their masks differ"
            )
        generator = np.random.default_rng([self._seed, number])
        keep = generator.random(shape) >= p
        made: NDArray[np.float32] = keep.astype(np.float32) / np.float32(max(1 - p, 1e-12))
        if number == len(self._made):
            self._made.append(made)
        return made


def recorded_masks(run: LiveRun, seed: int) -> Masks | None:
    """The dropout masks of a recording, derived from inputs and outputs; None if it has none."""
    masks = []
    columns = [run.columns[name] for name in ("op", "role", "kind")]
    first: dict[tuple[int, int], int] = {}
    for row, (op, role, kind) in enumerate(zip(*columns, strict=True)):
        if kind == TENSOR:
            first.setdefault((op, role), row)

    def numbers_of(op: int, role: int) -> NDArray[Any] | None:
        host = run.tensor(first[op, role]) if (op, role) in first else None
        return None if host is None else numbers(host.dtype, host.data, FLOAT64).reshape(host.shape)

    for op, name in enumerate(run.ops):
        whole = parse_op(name)
        called = whole.cls if whole.is_module else whole.body.rpartition(".")[2]
        around = parse_op(run.parents.get(name) or "").cls
        if whole.direction != FORWARD or called.lower() != "dropout" or around == "Dropout":
            continue
        taken, given = numbers_of(op, INPUT), numbers_of(op, OUTPUT)
        if taken is not None and given is not None and taken.shape == given.shape:
            with np.errstate(all="ignore"):
                ratio = np.where(taken != 0, given / taken, np.nan)
            scale = np.nanmax(ratio) if np.isfinite(ratio).any() else 1.0
            # Where the input was zero, the mask is unknown, and does not matter.
            masks.append(np.where(np.isnan(ratio), scale, np.where(ratio != 0, scale, 0)).astype(np.float32))
    return Masks(seed, masks) if masks else None


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

    run: LiveRun
    loss: HostTensor | None
    problems: list[str]


Around = Callable[[], AbstractContextManager[None]]


def run_model(
    side: Model, options: Options, layer_map: LayerMap, masks: Masks | None, around: Around | None = None
) -> Pass:
    """One forward (and backward) pass of a model, recorded."""
    adapter, model = side.adapter, side.model
    call = prepare_call(side.inputs, adapter, model)
    adapter.clear_gradients(model, side.paths.layer.values())
    with ExitStack() as stack:
        stack.enter_context(_random(side, options, masks))
        engine = stack.enter_context(
            adapter.recording(model, backward=options.backward, apis=options.apis or bool(layer_map.apis))
        )
        stack.enter_context(around() if around is not None else nullcontext())
        try:
            loss = adapter.run(model, call, _own_loss(side), backward=options.backward)
        except TwinProbeError:
            raise
        except Exception as error:
            raise BadInput(
                f"the {side.role} model {side.title} failed: {type(error).__name__}: {error}",
                hint="the error above is the model's own; are its inputs in the right order?",
            ) from error
    apply_map(engine, side.paths, layer_map)
    run = live_run(engine, title=f"{side.role} {side.title}", framework=adapter.name, to_host=adapter.to_host)
    if not run.ops:
        raise BadInput(f"the {side.role} model {side.title} returned no tensor: nothing to compare")
    problems = [f"the recorder met {cause} in the {side.role} model" for cause in engine.problems.counts]
    return Pass(run, None if loss is None else adapter.to_host(loss), problems)


def mode_notes(base: Model, raw: Model, calls: Mapping[str, str]) -> list[str]:
    """Where one model trains and the other does not. ``calls`` are the paired ones, raw -> base."""
    modes = [{bool(layer.training) for layer in side.paths.layer.values()} for side in (base, raw)]
    if modes[0] == modes[1] and len(modes[0]) == 1:
        return []
    shown = {True: "training", False: "evaluation"}
    roots = [bool(side.model.training) for side in (base, raw)]
    if roots[0] != roots[1]:
        return [f"the base model is in {shown[roots[0]]} mode, the raw model in {shown[roots[1]]} mode"]
    apart = []
    for call, partner in calls.items():
        layers = [side.paths.layer.get(parse_op(name).body) for side, name in ((raw, call), (base, partner))]
        if parse_op(call).is_module and layers[0] is not None and layers[1] is not None:
            mode, golden_mode = bool(layers[0].training), bool(layers[1].training)
            if mode != golden_mode:
                apart.append(f"{parse_op(call).body} ({shown[mode]} against {shown[golden_mode]})")
    return [f"layers in training mode in one model only: {', '.join(dict.fromkeys(apart))}"] if apart else []


_SETTING = (bool, int, float, str, type(None))


def settings_of_layers(raw: Model, base: Model, path: str, partner: str) -> str:
    """What two layers were built with and differs: ``approximate: tanh against none``. Weights apart.

    Of two layers of one class, everything counts; of others, what has one meaning in all frameworks.
    """
    layers = raw.paths.layer.get(path), base.paths.layer.get(partner)
    if layers[0] is None or layers[1] is None:
        return ""
    if type(layers[0]) is not type(layers[1]):
        return "; ".join(differing_settings(built_with(layers[0]), built_with(layers[1])))
    target, golden = (
        {
            name: value for name, value in vars(layer).items()
            if isinstance(value, _SETTING) or (isinstance(value, tuple) and all(isinstance(v, _SETTING) for v in value))
        }
        for layer in layers
    )  # fmt: skip
    return "; ".join(differing_settings(target, golden, without=("training",))) if target != golden else ""


_FRAMEWORKS = {"torch": "pytorch", "paddle": "paddle", "mindspore": "mindspore"}


def check_optimizers(side: Model, partner: Model | None) -> None:
    """Refuse an optimizer that is not one of this model, before anything runs."""
    optimizer = side.optimizer
    if optimizer is None:
        return
    who = f"the optimizer for the {side.role} model {side.title}"
    hint = "optimizers=[of the first model, of the second]"
    packages = [kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__]
    framework = next((_FRAMEWORKS[name] for name in packages if name in _FRAMEWORKS), None)
    if framework is None:
        if not callable(optimizer):
            raise BadInput(f"{who} is a {type(optimizer).__name__}", hint=f"{hint}: optimizers, or functions")
        return
    if framework != side.adapter.name:
        raise BadInput(f"{who} is one of another framework ({type(optimizer).__name__}): are they swapped?", hint=hint)
    held = {id(parameter) for parameter in held_by(optimizer)}
    own, foreign = (
        {id(tensor) for layer in model.paths.layer.values() for tensor in model.adapter.parameters(layer).values()}
        for model in (side, partner or side)
    )
    if held and held.isdisjoint(own):
        whose = "the parameters of the other model" if held & foreign else "none of the parameters of this model"
        raise BadInput(f"{who} holds {whose}", hint=hint)


def _own_loss(side: Model) -> Loss | None:
    """The loss function, whose errors are not the model's."""
    given = side.loss
    if given is None:
        return None

    def loss(output: Any) -> Any:
        who = f"the loss_fn of the {side.role} model {side.title}"
        try:
            value = given(output)
        except Exception as error:
            raise BadInput(
                f"{who} failed: {type(error).__name__}: {error}",
                hint="the error above is its own; it is called with the model's output",
            ) from error
        if not side.adapter.is_tensor(value):
            raise BadInput(f"{who} returned a {type(value).__name__}", hint="it must return a scalar tensor")
        return value

    return loss


@contextmanager
def _random(side: Model, options: Options, masks: Masks | None) -> Iterator[None]:
    """The same random numbers for both models, and the program's own afterwards."""
    adapter = side.adapter
    modules = [module for _, module in adapter.modules(side.model)] if options.random == "eval" else []
    before = [module.training for module in modules]
    state = adapter.random_state() if options.random != "off" else None
    try:
        for module in modules:
            module.training = False
        if options.random != "off":
            adapter.seed(options.seed)
        with adapter.dropouts(masks.begin()) if masks is not None else nullcontext():
            yield
    finally:
        if state is not None:
            adapter.set_random_state(state)
        for module, training in zip(modules, before, strict=True):
            module.training = training


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
