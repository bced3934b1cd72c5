"""Watching MindSpore and Paddle: the common part. Each framework extends it beside its recorder."""

from __future__ import annotations

import functools
import math
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.statistics import statistics
from twinprobe._record.calls import tensors_in
from twinprobe._record.config import RecordConfig
from twinprobe._record.eager.apis import Replaced, calling
from twinprobe._record.recorder import OptimizerCycle
from twinprobe._record.watch import MOST_ELEMENTS, ODD, Watcher, mixed_digests, named_inputs
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.watch import DIGEST

_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class EagerWatcher(Watcher):
    """The common part of MindSpore and Paddle: module calls are seen by replacing the base class's ``__call__``.

    Tensors in host memory are measured at once. On a device a few kernels measure them, and their results are read one
    step later.
    """

    recorder: ClassVar[Any]  # the framework's recorder: its classes, settings, ranks and modules
    containers: ClassVar[tuple[type, ...]]  # which hold blocks
    optimizers: ClassVar[tuple[type, ...]]

    def __init__(self, config: RecordConfig) -> None:
        super().__init__(config)
        self._entries: set[int] = set()
        self._blocks: dict[int, Any] = {}
        self.parameters: dict[str, Any] = {}
        self._buffers: list[tuple[str, Any, str]] = []  # a module may replace the tensor
        self.cycle = _Cycle(self)
        self._first_groups: dict[int, int] = {}  # by the id of an optimizer: the number of its first group
        self._groups = 0
        self._graded: set[str] = set()  # parameters whose gradients are noted in this step
        self._updating = self.passes = 0  # of optimizers' steps, of backward passes
        self._fingerprint: Any = None

    # -- what a framework knows -------------------------------------------------------------------------------------

    @abstractmethod
    def quiet(self) -> Any:
        """A context without gradients."""

    @abstractmethod
    def on_host(self, tensor: Any) -> HostTensor | None:
        """The elements of a tensor in host memory; None where it is on a device, or holds nothing to measure."""

    @abstractmethod
    def dtype(self, tensor: Any) -> str:
        """``float32``, whatever the framework calls it."""

    @abstractmethod
    def parameters_of(self, model: Any) -> Iterable[tuple[str, Any]]:
        """The trainable parameters by name."""

    @abstractmethod
    def buffers_of(self, model: Any) -> Iterable[tuple[str, Any, str]]:
        """Saved values that no optimizer trains: name in PyTorch's words, the module that holds it, its attribute."""

    @abstractmethod
    def random_state(self) -> bytes:
        """The state of the generator of random numbers."""

    @abstractmethod
    def settings_of(self, optimizer: Any) -> Iterable[tuple[str, Any]]:
        """What an update uses: ``0.lr`` and so on, by group."""

    @abstractmethod
    def hooks(self) -> Iterable[Any]:
        """Hook optimizers' steps and backward passes as well. Returns handles with remove()."""

    def rank(self) -> int | None:
        return cast("int | None", self.recorder.rank())

    # -- attaching --------------------------------------------------------------------------------------------------

    def attach(self, models: Any) -> None:
        base = self.recorder.module_class
        self._blocks, self.parameters, self._buffers = {}, {}, []
        candidates: list[str] = []
        for prefix, model in self.named_models(models, base, self.recorder.module_title):
            named = {prefix + path: module for path, module, _ in self.recorder.watched_modules(model)}
            candidates += named
            for name in self._chosen(named):
                self._blocks[id(named[name])] = self._block(name)
            self.parameters |= {prefix + name: parameter for name, parameter in self.parameters_of(model)}
            self._buffers += [(prefix + name, home, attribute) for name, home, attribute in self.buffers_of(model)]
        self.refuse_unmatched(candidates, candidates)
        self.cycle.follow(self.parameters.values())
        self._entries = {id(model) for model in self._models}
        self._handles = [Replaced(base, "__call__", calling(self.called)), *self.hooks()]

    def detach(self) -> None:
        for handle in reversed(self._handles):
            handle.remove()
        self._handles = []

    def _chosen(self, named: dict[str, Any]) -> list[str]:
        """The modules whose outputs are measured: those of the list, otherwise the outermost that a container holds."""
        if self.config.names:
            return self.listed(named)
        blocks: list[str] = []
        for name, module in named.items():
            around = named.get(name.rpartition(".")[0])
            inside = any(name.startswith(f"{block}.") for block in blocks)
            if isinstance(around, self.containers) and not isinstance(module, self.containers) and not inside:
                blocks.append(name)
        return blocks or [name for name in named if name and "." not in name]

    # -- what is called ---------------------------------------------------------------------------------------------

    def called(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """A module is called."""
        key = id(module)
        entry = key in self._entries
        block = self._blocks.get(key)
        if (block is None and not entry) or self.passes:  # in a pass: recomputed
            return original(module, *args, **kwargs)
        if entry:
            self._depth += 1
            self.work(self._enter, bool(self.recorder.grad_enabled()), args, kwargs)
        try:
            output = original(module, *args, **kwargs)
            if block is not None and self._observing:
                self.work(block, output)
            return output
        finally:
            if entry:
                self._depth -= 1
                self._observing = self._observing and self._depth > 0

    @contextmanager
    def in_pass(self) -> Iterator[None]:
        """A backward pass runs in this block: modules that are called in it are recomputed."""
        self.passes += 1
        try:
            yield
        finally:
            self.passes -= 1

    def work(self, act: Callable[..., None], *args: Any) -> None:
        """Run the watcher's own work: without gradients; errors are noted, never raised into the training."""
        try:
            with self.quiet():
                act(*args)
        except Exception as error:
            self.problems.note("watching", error)

    def _enter(self, trains: bool, args: Any, kwargs: Any) -> None:
        if self._depth > 1 or not self.active or (self.has_optimizer and not trains):
            return
        if not self.has_optimizer and self._is_over():
            self.end_step()
        self._observing = self.wanted
        first, self.step.forwards = not self.step.forwards, self.step.forwards + 1
        if not self._observing:
            return
        if first:
            self.note("random.cpu", zlib.crc32(self.random_state()) % DIGEST)
            for name, value in self.recorder.settings().items():
                plain = isinstance(value, bool | int | float)
                self.note(f"setting.{name}", value if plain else zlib.crc32(str(value).encode()) % DIGEST)
            if not self.has_optimizer:  # no hook will announce the update
                self.note_parameters()
        for name, tensor in named_inputs(args, kwargs, self.recorder.tensor_class):
            host = self.on_host(tensor)
            if host is None or not host.data.size:
                continue
            samples, whole = digests(host)
            self.note(f"input.{name}.samples", samples)
            self.note(f"input.{name}.digest", whole)
            if host.dtype in _EPS:
                self.note(f"input.{name}.norm", statistics(host).norm)

    def _is_over(self) -> bool:
        """Without an optimizer: whether the step before this call of the model has ended."""
        before, self._fingerprint = self._fingerprint, None
        if not self.step.forwards:
            return False
        if self.step.ended or not self.step.backward:
            return True
        # Gradients that accumulate, or parameters that the program updates by itself?
        host = self.on_host(next(iter(self.parameters.values()))) if self.parameters else None
        self._fingerprint = None if host is None else zlib.crc32(host.data.tobytes())
        return before is not None and before != self._fingerprint

    def _block(self, name: str) -> Callable[[Any], None]:
        places = [self.series(f"output.{name}.{kind}") for kind in ("norm", "max", "mean")]
        self.keep_residue(name)
        eps = self.series(f"output.{name}.eps")

        def measure(output: Any) -> None:
            tensor = next(iter(tensors_in(output, self.recorder.tensor_class, [])), None)
            if tensor is not None and self.dtype(tensor) in _EPS:
                self.step.numbers.append((eps, _EPS[self.dtype(tensor)]))
                self.measure(places, tensor)

        return measure

    def measure(self, places: Sequence[int], tensor: Any) -> None:
        """Norm, largest magnitude and perhaps the mean of a tensor, for these series."""
        host = self.on_host(tensor)
        if host is None:
            for place, number in zip(places, self.on_device(tensor), strict=False):
                self.step.pending.append(functools.partial(_arrived, place, number))
        elif host.data.size:
            high, low, mean, norm = (float(value or 0) for value in statistics(host)[:4])
            self.step.numbers += zip(places, (norm, max(abs(high), abs(low)), mean), strict=False)

    @staticmethod
    def on_device(tensor: Any) -> tuple[Any, Any, Any]:
        """Norm, largest magnitude and mean, as tensors that the device still computes."""
        wide = tensor.astype("float32")
        return (wide * wide).sum().sqrt(), wide.abs().max(), wide.mean()

    def saw_loss(self, loss: Any) -> None:
        """A backward pass begins at this tensor."""
        if self.passes or not (self.active or self.step.forwards):
            return
        self.step.backward = True
        if self.wanted and isinstance(loss, self.recorder.tensor_class) and math.prod(loss.shape) == 1:
            self._losses.setdefault("backward", []).append(loss)

    def log(self, **scalars: Any) -> None:
        for name, value in scalars.items():
            tensor = isinstance(value, self.recorder.tensor_class)
            if name == "loss" and tensor:
                self._losses.setdefault("log", []).append(value)
            else:
                self.note(name, float(np.asarray(value.numpy()).reshape(-1)[0]) if tensor else value)

    # -- updates ----------------------------------------------------------------------------------------------------

    def update(self, optimizer: Any, gradients: Iterable[tuple[Any, Any]], act: Callable[[], Any]) -> Any:
        """An optimizer makes a step, with pairs of parameters and gradients."""
        if self._updating or not self.attached or not self.cycle.holds(optimizer):
            return act()
        if self.cycle.repeats(optimizer):
            self._noted = False
            self._graded.clear()
            self.end_parts()
        self.has_optimizer = True
        self._updating += 1
        try:
            if (self.active or self.step.forwards or self._parts) and self.wanted:
                self.work(self._note_update, optimizer, gradients)
            return act()
        finally:
            self._updating -= 1
            if self.cycle.completes(optimizer):
                self.end_step()
            else:
                self._hand_over()
                self.end_part()

    @abstractmethod
    def held_by(self, optimizer: Any) -> Iterable[Any]:
        """The parameters of an optimizer."""

    def _note_update(self, optimizer: Any, gradients: Iterable[tuple[Any, Any]]) -> None:
        if not self._noted:
            self.note_parameters()
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for parameter, gradient in gradients:
            name = names.get(id(parameter))
            if name is not None and gradient is not None and name not in self._graded:  # two may hold the same
                self._graded.add(name)
                self.measure([self.series(f"gradient.{name}.{kind}") for kind in ("norm", "max")], gradient)
        settings = [(*key.split(".", 1), value) for key, value in self.settings_of(optimizer)]
        if id(optimizer) not in self._first_groups:
            self._first_groups[id(optimizer)] = self._groups
            self._groups += len({group for group, _, _ in settings})
        for group, key, value in settings:
            self.note(f"group.{self._first_groups[id(optimizer)] + int(group)}.{key}", value)

    def note_parameters(self) -> None:
        """The parameters that this step's forward has used."""
        self._noted = True
        for name, parameter in self.parameters.items():
            self.measure([self.series(f"parameter.{name}.{kind}") for kind in ("norm", "max")], parameter)

    def end_step(self) -> None:
        if self._buffers and self.wanted and (self.step.forwards or self._parts):
            self.work(self._note_buffers)
        self._hand_over()
        self._noted = False
        self._graded.clear()
        super().end_step()

    def _note_buffers(self) -> None:
        """The running statistics that this step's forward has left."""
        for name, home, attribute in self._buffers:
            buffer = getattr(home, attribute, None)
            if isinstance(buffer, self.recorder.tensor_class) and self.dtype(buffer) in _EPS:
                self.measure([self.series(f"buffer.{name}.{kind}") for kind in ("norm", "max")], buffer)

    def _hand_over(self) -> None:
        """What is known at the end of a step, or of an optimizer's part of it."""
        if self.wanted:
            if not self._noted and self.step.forwards:
                self.work(self.note_parameters)
            for loss in self._losses.get("log") or self._losses.get("backward") or []:
                self.step.pending.append(functools.partial(_arrived, self.series("loss"), loss))
        self._losses = {}


class _Cycle(OptimizerCycle):
    """Of the optimizers that a watcher knows."""

    def __init__(self, watcher: EagerWatcher) -> None:
        super().__init__()
        self._watcher = watcher

    def held_by(self, optimizer: Any) -> Iterable[Any]:
        return self._watcher.held_by(optimizer)

    def is_optimizer(self, candidate: Any) -> bool:
        return issubclass(type(candidate), self._watcher.optimizers)


def _arrived(place: int, tensor: Any) -> tuple[list[int], NDArray[np.float64]]:
    return [place], np.asarray(tensor.numpy(), dtype=np.float64).reshape(-1)[:1]


def digests(tensor: HostTensor) -> tuple[int, int]:
    """Two digests of an input: of its samples in any order, and of its elements in their order."""
    samples = tensor.shape[0] if tensor.shape else 1
    values = np.ascontiguousarray(tensor.data).reshape(samples, -1)
    if values.size > MOST_ELEMENTS:
        values = np.ascontiguousarray(values[:, :: 1 + values.size // MOST_ELEMENTS])
    bits = values.view({1: np.uint8, 2: np.int16, 4: np.int32}.get(values.itemsize, np.int64)).astype(np.int64)
    weights = np.arange(1, max(bits.shape) + 1, dtype=np.int64) * ODD | 1
    of_samples, whole = mixed_digests(bits, weights)
    return int(of_samples), int(whole)
