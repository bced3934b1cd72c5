"""Running one model under the recorder, with every state put back afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from twinprobe.errors import BadInput, TwinProbeError
from twinprobe.live.frameworks import Adapter, adapter_of
from twinprobe.live.frameworks.adapter import Loss, Outcome
from twinprobe.live.inputs import prepare_call
from twinprobe.live.layer_map import LayerMap
from twinprobe.live.live_run import Values, live_run
from twinprobe.live.options import Options
from twinprobe.live.random_ops import Masks
from twinprobe.live.scene import Paths, apply_map
from twinprobe.runs.host_tensor import HostTensor


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
            outcome = adapter.run(model, call, one.loss, backward=options.backward)
    apply_map(engine, one.paths, layer_map)
    run = live_run(engine, title=f"{one.role} {one.title}", framework=adapter.name, to_host=adapter.to_host)
    if not run.ops:
        raise BadInput(f"the {one.role} model {one.title} gave no tensor: nothing to compare")
    problems = [f"the recorder met {cause} in the {one.role} model" for cause in engine.problems.counts]
    return Pass(run, _loss(adapter, outcome), problems)


def _loss(adapter: Adapter, outcome: Outcome) -> HostTensor | None:
    if outcome.loss is None:
        return None
    if not adapter.is_tensor(outcome.loss):
        raise BadInput(f"loss_fn gave a {type(outcome.loss).__name__}", hint="it must return a scalar tensor")
    return adapter.to_host(outcome.loss)


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
