"""What live comparison asks of a framework: one adapter each, with the same verbs, imported when it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from twinprobe._live.frameworks.layouts import Array, Layout, Rules
from twinprobe._record.calls import ModuleInfo, tensors_in
from twinprobe._record.config import RecordConfig
from twinprobe._record.memory.engine import MemoryEngine, RecorderPool
from twinprobe._runs.dtypes import STORAGE, widened
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput

Loss = Callable[[Any], Any]
OnGradient = Callable[[HostTensor], HostTensor | None]
NewMask = Callable[[tuple[int, ...], float], Any]


@dataclass
class Call:
    """What a model is called with."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class Adapter(Protocol):
    """The verbs of one framework. Nothing here compares or prints."""

    name: str  # as recordings spell it
    title: str
    package: str  # that its own classes lie in
    container: str = "Module"
    tensor_class: Any
    # Under which attributes its modules keep their parameters, the modules inside and the names of unsaved buffers.
    parameters_at: str = "_parameters"
    modules_at: str = "_modules"
    unsaved_at: str = "_non_persistent_buffers_set"
    statistics: tuple[str, ...] = ()  # running ones, which some frameworks keep among the parameters
    # Optimizers of its own, and how they forget the gradients; any other optimizer is a function.
    optimizer_class: Any = ()
    forgets_by: str = ""
    # Tensors to arrays of NumPy and back, where nothing else is needed.
    numpy: Any = None
    from_numpy: Any = None
    bfloat16: Any = None

    def is_tensor(self, value: Any) -> bool:
        """Whether this is a tensor of the framework."""
        return isinstance(value, self.tensor_class)

    def modules(self, model: Any) -> Iterator[tuple[str, Any]]:
        """All modules with their paths in the order of definition, the model itself first under ""."""

    def parameters(self, module: Any) -> dict[str, Any]:
        """A module's own parameters."""
        return {name: tensor for name, tensor in getattr(module, self.parameters_at).items() if tensor is not None}

    def is_transposed(self, _module: Any, _name: str, /) -> bool:
        """Whether this parameter is stored [in, out]."""
        return False

    @property
    def pool(self) -> RecorderPool:
        """The recorders of the framework, kept between runs."""

    @contextmanager
    def recording(self, model: Any, *, backward: bool, apis: bool) -> Iterator[MemoryEngine]:
        """Record a model, itself included, while the block runs. Nothing is left on the model afterwards."""
        # Whole tensors of everything, kept in memory and not measured.
        modes, level = frozenset({"all"} if backward else {"forward"}), "mix" if apis else "L0"
        config = RecordConfig(Path(), task="tensor", level=level, data_mode=modes, summary_mode="none")
        with self.pool.borrow(config) as recorder:
            engine = recorder.engine
            recorder.modules.watch(model, f"{recorder.container}.{type(model).__name__}.")
            try:
                recorder.start(model)
                for info in recorder.modules.infos.values():
                    self.prepare(recorder, info)
                yield engine
            finally:
                recorder.stop()

    def prepare(self, _recorder: Any, info: ModuleInfo, /) -> None:
        """Recording of a module begins: what the framework's own layers call inside is left out."""
        info.closed = self.is_whole(info.module)

    def run(self, model: Any, call: Call, loss: Loss | None, *, backward: bool) -> Any:
        """One forward pass; with ``backward`` also the loss (the mean of the output by default), which is returned, and
        its gradients."""
        output = model(*call.args, **call.kwargs)
        if not backward:
            return None
        total = (loss or self.mean_of_means)(output)
        total.backward()
        return total

    def tensors_in(self, value: Any) -> list[Any]:
        """Every tensor inside a value, in the order in which it is recorded."""
        return tensors_in(value, self.tensor_class, [])

    def mean_of_means(self, output: Any) -> Any:
        """The loss where none is given: the mean of the means of all outputs that depend on something."""
        means = [mean for mean in map(self.float_mean, self.tensors_in(output)) if mean is not None]
        if not means:
            raise BadInput(
                "no output of the model depends on its parameters, so there is nothing to run backward from",
                hint='give loss_fn, or diff_phase="forward"',
            )
        total = means[0]
        for mean in means[1:]:
            total = total + mean
        return total / len(means)

    def float_mean(self, tensor: Any) -> Any:
        """The mean of a tensor as float32; None where it depends on nothing."""

    def take_gradients(self, modules: Iterable[Any], /) -> list[tuple[Any, Any]]:
        """Take their gradients from the parameters, to be given back with ``set_gradients``."""

    def set_gradients(self, gradients: list[tuple[Any, Any]], /) -> None:
        """Give these parameters their gradients back."""

    def clear_gradients(self, model: Any, modules: Iterable[Any], /) -> None:
        """Forget the gradients that a model's modules have from earlier passes."""

    def gradient(self, _model: Any, parameter: Any, /) -> Any:
        """The gradient that the last pass gave a parameter; None where it has none."""
        return parameter.grad

    def settings(self, _optimizer: Any, /) -> list[tuple[list[Any], dict[str, Any]]]:
        """The parameters that share their settings, and these settings; nothing where the optimizer is a function."""
        return []

    def is_whole(self, module: Any) -> bool:
        """Whether the framework itself has this layer: what it calls inside adds nothing to its output."""
        return not getattr(module, self.modules_at) and type(module).__module__.startswith(f"{self.package}.")

    def step(self, _model: Any, optimizer: Any, /) -> None:
        """Let the optimizer change the parameters, then forget the gradients."""
        if isinstance(optimizer, self.optimizer_class):
            optimizer.step()
            getattr(optimizer, self.forgets_by)()
        else:
            optimizer()

    def to_host(self, value: Any) -> HostTensor:
        """A tensor, or what a recorder kept of one, in host memory."""
        if isinstance(value, np.ndarray):
            return array_on_host(value)
        name, array = self.dtype(value), self.numpy(value)
        flat = np.ascontiguousarray(array).reshape(-1)  # bfloat16 may come in any type of its width
        return HostTensor(
            name, array.shape, flat if flat.dtype == np.dtype(STORAGE[name]) else flat.view(STORAGE[name])
        )

    def tensor(self, host: HostTensor, _model: Any = None, /) -> Any:
        """A new tensor of the framework, where the model's parameters are if one is given."""
        array = np.array(host.data).reshape(host.shape)
        narrow = host.dtype == "bfloat16"
        made = self.from_numpy(widened(array) if narrow else array)
        return made.astype(self.bfloat16) if narrow else made

    def like(self, tensor: Any, other: Any) -> Any:
        """The tensor in the dtype, and on the device, of another."""
        return tensor.astype(other.dtype)

    def copied(self, tensor: Any) -> Any:
        """A copy of an input that a run may change."""

    def seed(self, number: int) -> None:
        """Make random numbers repeatable."""

    def random_state(self) -> Any:
        """The state of the random generators, for ``set_random_state``."""

    def set_random_state(self, state: Any) -> None:
        """Put the random generators back."""

    def dropouts(self, new_mask: NewMask) -> AbstractContextManager[None]:
        """While the block runs, every dropout multiplies with a mask from ``new_mask(shape, p)``."""

    def around_calls(self, model: Any, before: Any, after: Any) -> AbstractContextManager[None]:
        """While the block runs, ``before(module, args, kwargs)`` gives what each module is called with, ahead of the
        recorder, and ``after(module, output)`` what it returns, behind the recorder."""

    def substitute(self, tensor: Any, value: HostTensor, on_gradient: OnGradient) -> Any:
        """A tensor with other values in the place of this one; its gradient passes through ``on_gradient``."""

    # What copying weights needs to know.

    def weights(self, module: Any) -> dict[str, Any]:
        """Parameters and saved buffers that belong to the module itself, by attribute."""
        held, buffers = self.parameters(module), getattr(module, "_buffers", None)
        if not buffers:
            return held
        unsaved = getattr(module, self.unsaved_at, ())
        return held | {name: tensor for name, tensor in buffers.items() if tensor is not None and name not in unsaved}

    def state(self, module: Any) -> dict[str, Any]:
        """What a forward pass may change in the module itself: all buffers, and running statistics."""
        own, buffers = getattr(module, self.parameters_at), getattr(module, "_buffers", None) or {}
        running = ((name, own.get(name)) for name in self.statistics)
        held = {name: tensor for name, tensor in buffers.items() if tensor is not None}
        return held | {name: tensor for name, tensor in running if tensor is not None and not self.trainable(tensor)}

    def children(self, module: Any) -> dict[str, Any]:
        """Modules directly below, by attribute."""
        return {name: child for name, child in getattr(module, self.modules_at).items() if child is not None}

    @cached_property
    def rules(self) -> Rules:
        """The layouts of the classes that are known, the first that fits first."""

    def layout(self, module: Any) -> Layout | None:
        """Where a layer of a known class keeps its weights."""
        rule = next((rule for classes, rule in self.rules if isinstance(module, classes)), None)
        return rule(module) if callable(rule) else rule

    def trainable(self, tensor: Any) -> bool:
        """Whether training changes it."""

    def is_buffer(self, module: Any, name: str) -> bool:
        """Whether the attribute is a buffer that the user registered, not a parameter."""
        return name not in getattr(module, self.parameters_at)

    def key(self, tensor: Any) -> object:
        """Equal for two tensors that are the same memory."""
        return id(tensor)

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The shape as plain numbers."""
        return tuple(tensor.shape)

    def dtype(self, tensor: Any) -> str:
        """The dtype in NumPy's words, or bfloat16."""

    def read(self, tensor: Any) -> Array:
        """The values; bfloat16 and narrower as float32, which holds them exactly."""

    def memory(self, _tensor: Any, /) -> Array | None:
        """The tensor's own memory, to be written to; None where that is not possible or would go unnoticed."""
        return None

    def write(self, tensor: Any, values: Array) -> None:
        """Set the values in place, in the tensor's own dtype and on its own device."""


# What a model derives from: (package, base class).
FRAMEWORKS = {"torch": ("torch.nn", "Module"), "paddle": ("paddle.nn", "Layer"), "mindspore": ("mindspore.nn", "Cell")}


def framework_of(value: object) -> str | None:
    """Which framework a model belongs to; None where it is no model. Imports nothing: a model's framework is loaded."""
    for name, (package, base) in FRAMEWORKS.items():
        module = sys.modules.get(package)
        if module is not None and isinstance(value, getattr(module, base)):
            return name
    return None


def adapter_of(model: object) -> Adapter:
    """The adapter of a model's framework."""
    name = framework_of(model)
    if name is None:
        raise BadInput(
            f"{type(model).__name__} is not a model",
            hint="expected a torch.nn.Module, paddle.nn.Layer or mindspore.nn.Cell, or the folder of a recording",
        )
    return adapter_named(name)


@cache
def adapter_named(framework: str) -> Adapter:
    """The adapter of torch, paddle or mindspore."""
    return cast(Adapter, import_module(f"twinprobe._live.frameworks.{framework}").adapter)


@contextmanager
def calls_around(kind: Any, modules: Iterator[tuple[str, Any]], before: Any, after: Any) -> Iterator[None]:
    """Run functions before and after every call of these modules, all of them of this class."""
    original = kind.__call__
    inside = {id(module) for _, module in modules}

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in inside:
            return original(module, *args, **kwargs)
        args, kwargs = before(module, args, kwargs) or (args, kwargs)
        output = original(module, *args, **kwargs)
        replacement = after(module, output)
        return output if replacement is None else replacement

    with replaced([(kind, "__call__", call)]):
        yield


@contextmanager
def replaced(places: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """While the block runs, each of these owners has something else under this name."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, made in places:
            setattr(owner, name, made)
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


class Substitution:
    """A differentiable function of a framework that returns other values in the place of a tensor's."""

    @staticmethod
    def forward(ctx: Any, _tensor: Any, value: Any, on_gradient: OnGradient, owner: Adapter) -> Any:
        ctx.on_gradient, ctx.owner = on_gradient, owner
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return passed_on(ctx, gradient), None, None, None


def passed_on(ctx: Any, gradient: Any) -> Any:
    """The gradient that flows on from a substituted tensor: another one where ``on_gradient`` gives one."""
    replacement = ctx.on_gradient(ctx.owner.to_host(gradient))
    return gradient if replacement is None else ctx.owner.like(ctx.owner.tensor(replacement), gradient)


@cache
def numpy_name(dtype: np.dtype[Any]) -> str:
    """The name of an array's dtype; numpy builds it on every access."""
    return str(dtype.name)


def array_on_host(value: np.ndarray) -> HostTensor:
    """An array as the kernels take it."""
    flat = value if value.flags.c_contiguous else np.ascontiguousarray(value)
    return HostTensor(numpy_name(value.dtype), value.shape, flat.reshape(-1))
