"""Watching MindSpore and Paddle: the common part. Each framework extends it beside its recorder."""

from __future__ import annotations

import functools
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.statistics import statistics
from twinprobe._record.config import RecordConfig
from twinprobe._record.eager.apis import Replaced, calling
from twinprobe._record.recorder import OptimizerCycle
from twinprobe._record.watch import MOST_ELEMENTS, ODD, Watcher, mixed_digests
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
        self.tensor_class = self.recorder.tensor_class
        self.cycle = _Cycle(self)
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
                self._blocks[id(named[name])] = self.output_watch(name)
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
            self.work(self.enter, module, bool(self.recorder.grad_enabled()), args, kwargs)
        try:
            output = original(module, *args, **kwargs)
            if block is not None and self._observing:
                self.work(block, output)
            return output
        finally:
            if entry:
                self._depth = max(0, self._depth - 1)
                self._observing = self._observing and self._depth > 0

    @contextmanager
    def in_pass(self) -> Iterator[None]:
        """A backward pass runs in this block: modules that are called in it are recomputed."""
        self.passes += 1
        try:
            yield
        finally:
            self.passes -= 1

    @property
    def in_backward(self) -> bool:
        return self.passes > 0

    def work(self, act: Callable[..., None], *args: Any) -> None:
        try:
            with self.quiet():
                act(*args)
        except Exception as error:
            self.problems.note("watching", error)

    def note_settings(self) -> None:
        self.note("random.cpu", zlib.crc32(self.random_state()) % DIGEST)
        for name, value in self.recorder.settings().items():
            plain = isinstance(value, bool | int | float)
            self.note(f"setting.{name}", value if plain else zlib.crc32(str(value).encode()) % DIGEST)

    def note_input(self, name: str, tensor: Any) -> None:
        host = self.on_host(tensor)
        if host is None or not host.data.size:
            return
        samples, whole = digests(host)
        self.note(f"{name}.samples", samples)
        self.note(f"{name}.digest", whole)
        if host.dtype in _EPS:
            self.note(f"{name}.norm", statistics(host).norm)

    def is_over(self, _model: Any) -> bool:
        before, self._fingerprint = self._fingerprint, None
        if not self.step.forwards:
            return False
        if self.step.ended or not self.step.backward:
            return True
        # Gradients that accumulate, or parameters that the program updates by itself?
        host = self.on_host(next(iter(self.parameters.values()))) if self.parameters else None
        self._fingerprint = None if host is None else zlib.crc32(host.data.tobytes())
        return before is not None and before != self._fingerprint

    def precision(self, tensor: Any) -> float | None:
        return _EPS.get(self.dtype(tensor))

    def note_output(self, places: list[int], tensor: Any) -> None:
        self.measure(places, tensor)

    def note_norms(self, kind: str, tensors: list[tuple[str, Any]]) -> None:
        for name, tensor in tensors:
            self.measure([self.series(f"{kind}.{name}.{statistic}") for statistic in ("norm", "max")], tensor)

    def note_tensor(self, name: str, tensor: Any) -> None:
        self.note(name, np.asarray(tensor.numpy()).reshape(-1)[0])

    def trained(self) -> Iterable[tuple[str, Any]]:
        return self.parameters.items()

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

    # -- updates ----------------------------------------------------------------------------------------------------

    def update(self, optimizer: Any, gradients: Iterable[tuple[Any, Any]], act: Callable[[], Any]) -> Any:
        """An optimizer makes a step, with pairs of parameters and gradients."""
        if self._updating or not self.begin_update(optimizer):
            return act()
        self._updating += 1
        try:
            if (self.active or self.step.forwards or self._parts) and self.wanted:
                self.work(self._note_update, optimizer, gradients)
            return act()
        finally:
            self._updating -= 1
            self.end_update(optimizer)

    def _note_update(self, optimizer: Any, gradients: Iterable[tuple[Any, Any]]) -> None:
        if not self._noted:
            self.note_parameters()
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        named = [(names.get(id(parameter)), gradient) for parameter, gradient in gradients if gradient is not None]
        self.note_gradients(optimizer, [(name, gradient) for name, gradient in named if name is not None])

    def hand_over(self, losses: list[Any]) -> None:
        for loss in losses if self.wanted else ():
            self.step.pending.append(functools.partial(_arrived, self.series("loss"), loss))


class _Cycle(OptimizerCycle):
    """Of the optimizers that a watcher knows."""

    def __init__(self, watcher: EagerWatcher) -> None:
        super().__init__()
        self._watcher = watcher

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
