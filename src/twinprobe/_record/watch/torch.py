"""Watching PyTorch: statistics on the device, without waiting for it."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from twinprobe._record.config import RecordConfig
from twinprobe._record.recorder import held_by
from twinprobe._record.torch.hooks import (
    CompiledBoundary,
    UpdateHooks,
    has_fast_path,
    is_compiling,
    keep_hooks_out_of_copies,
    watched_modules,
)
from twinprobe._record.torch.optimizer import Cycle, settings_in
from twinprobe._record.torch.tensors import DEVICE_TYPES, silence
from twinprobe._record.torch.values import process_rank, rounding_settings
from twinprobe._record.watch import Read, Watcher
from twinprobe._record.watch.torch_statistics import (
    FLOATS,
    DevicePass,
    Digests,
    HostPass,
    norms_and_largest,
    output_statistics,
)
from twinprobe._runs.watch import DIGEST

_is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
_set_grad_enabled: Callable[[bool], Any] = torch._C._set_grad_enabled
_in_backward: Callable[[], int] = torch._C._current_graph_task_id  # -1 outside
_PLAIN = (bool, int, float)
_PLAIN_TENSORS = {torch.Tensor, torch.nn.Parameter}
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class TorchWatcher(Watcher):
    """Hooks on the model, on all optimizers and on backward(); a small tensor of numbers for each step."""

    rank = staticmethod(process_rank)
    tensor_class = torch.Tensor

    def __init__(self, config: RecordConfig) -> None:
        super().__init__(config)
        self._backward: Any = None
        self._parameters: list[tuple[str, torch.nn.Parameter]] = []
        self._values: list[tuple[list[int], torch.Tensor]] = []  # series of this step, and their numbers
        self._on_host = HostPass()
        self._passes: dict[torch.device, DevicePass | None] = {}
        self._places: dict[str, dict[str, tuple[int, int]]] = {}  # series of a parameter and of its gradient
        self._settings: tuple[dict[str, Any], list[tuple[int, float]]] = {}, []
        self.cycle = Cycle()
        # Of each optimizer: the parameters whose gradients are noted when it steps.
        self._updates: weakref.WeakKeyDictionary[Any, list[tuple[str, torch.nn.Parameter]]]
        self._updates = weakref.WeakKeyDictionary()
        self._digests = Digests()
        self._host: dict[torch.device, list[Any]] = {}
        self._version: int | None = None
        self._late = False  # a step with a closure is running: its gradients are computed inside it

    # -- attaching --------------------------------------------------------------------------------------------------

    def attach(self, models: Any) -> None:
        self._parameters, self._buffers = [], []
        blocks: list[str] = []
        for prefix, model in self.named_models(models, torch.nn.Module, "torch.nn.Module"):
            named = {f"{prefix}{name}": (module, compiled) for name, module, compiled in watched_modules(model)}
            if all(module is not model for module, _ in named.values()):
                self._hook_entry(model, None)
            chosen = set(self.listed(named)) if self.config.names else _blocks(model, named)
            blocks += [name for name in named if name in chosen]
            # What a trainer calls may be the model or, as Lightning's training_step does, what it consists of.
            entries = {id(model), *(id(child) for child in model.children())}
            for name, (module, _) in named.items():
                series = self._block(_unwrapped(name) or "model") if name in chosen else None
                if id(module) in entries:
                    self._hook_entry(module, series)
                elif series is not None:
                    self._hook(module, None, series)
            self._parameters += [(prefix + _unwrapped(name), parameter) for name, parameter in model.named_parameters()]
            self._buffers += [
                (prefix + _unwrapped(f"{path}.{name}" if path else name), module, name)
                for path, module in model.named_modules()
                for name, buffer in module._buffers.items()
                if buffer is not None and buffer.is_floating_point() and name not in module._non_persistent_buffers_set
            ]
        self.refuse_unmatched(blocks, (name for model in self._models for name, _ in model.named_modules() if name))
        keep_hooks_out_of_copies(self)
        self.cycle.follow(parameter for _, parameter in self._parameters)
        self._handles.append(UpdateHooks(self._before_update, self._after_update))
        self._backward = original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self.work(self.saw_loss, tensors)
            return original(tensors, *args, **kwargs)

        backward.__doc__, backward.__wrapped__ = original.__doc__, original  # type: ignore[attr-defined]
        torch.autograd.backward = backward

    def detach(self) -> None:
        keep_hooks_out_of_copies(self, False)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._backward is not None and getattr(torch.autograd.backward, "__wrapped__", None) is self._backward:
            torch.autograd.backward = self._backward
        self._backward = None

    def _hook_entry(self, module: torch.nn.Module, series: Any) -> None:
        def before(module: Any, args: Any, kwargs: Any) -> None:
            self.work(self.enter, module, _is_grad_enabled(), args, kwargs)

        def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            if series is not None:
                series(module, args, kwargs, output)
            self.work(self._leave, module, output)

        self._hook(module, before, after)

    def _hook(self, module: torch.nn.Module, before: Any, after: Any) -> None:
        if getattr(module, "_compiled_call_impl", None) is not None:  # compiled in place, and hooks would be with it
            self._handles.append(CompiledBoundary(module, before or (lambda *_: None), after))
            return
        if before is not None:
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=before is not None))

    # -- what the hooks do ------------------------------------------------------------------------------------------

    @property
    def in_backward(self) -> bool:
        return _in_backward() >= 0

    def work(self, act: Callable[..., None], *args: Any) -> None:
        gradients = _is_grad_enabled()
        if gradients:
            _set_grad_enabled(False)
        try:
            with silence():
                act(*args)
        except Exception as error:
            self.problems.note("watching", error)
        finally:
            if gradients:
                _set_grad_enabled(True)

    def enter(self, model: Any, trains: bool, args: Any, kwargs: Any) -> None:
        if is_compiling():
            self._depth += 1
        else:
            super().enter(model, trains, args, kwargs)

    def is_over(self, model: Any) -> bool:
        before, self._version = self._version, next((one._version for _, one in self._parameters), None)
        if not self.step.forwards or not (self.step.ended or self._is_whole(model)):
            return False
        # Gradients that accumulate, or parameters that the program updates by itself?
        return self.step.ended or not self.step.backward or self._version != before

    def _is_whole(self, module: Any) -> bool:
        """Whether this is what start() was given, and no part of it."""
        return any(module is model for model in self._models)

    def _leave(self, module: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth or not self._observing:
            return
        self._observing = False
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and self._is_whole(module):
            self.note_loss("output", loss)

    def _block(self, name: str) -> Any:
        """The hook that measures the output of one module."""
        measure = self.output_watch(name)

        def after(_module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
            if self._observing:
                self.work(measure, output)

        return after

    def precision(self, tensor: Any) -> float | None:
        return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() and tensor.numel() else None

    def note_output(self, places: list[int], tensor: Any) -> None:
        values = _local(tensor.detach())
        if not self._once(values.device, [(places, values)]):
            self._values += [([place], value) for place, value in zip(places, output_statistics(values), strict=True)]

    def note_loss(self, seen: str, loss: Any) -> None:
        super().note_loss(seen, loss.detach())

    def note_tensor(self, name: str, tensor: Any) -> None:
        self._values.append(([self.series(name)], tensor.detach().clone()))

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.begin_update(optimizer):
            return
        # With a closure, as Lightning has one, forward and backward are still to come.
        self._late = any(callable(argument) for argument in (*args[1:], *kwargs.values()))
        if (self.active or self.step.forwards or self._parts) and self.wanted:
            self.work(self._note_update, optimizer)

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        if not self.attached or not self.cycle.holds(optimizer):
            return
        if self._late:
            self._late = False
            if self.step.backward and self.wanted:
                self.work(self._note_gradients, optimizer)
        self.end_update(optimizer)

    def _note_update(self, optimizer: Any) -> None:
        if not self._noted:
            self.note_parameters()
        if not self._late:
            self._note_gradients(optimizer)

    def trained(self) -> Iterator[tuple[str, Any]]:
        return (pair for pair in self._parameters if pair[1].requires_grad)

    def _note_gradients(self, optimizer: Any) -> None:
        if optimizer not in self._updates:
            held = {id(one) for one in held_by(optimizer)}
            if not self._updates:  # what no optimizer holds is noted with the first
                every = held | {id(one) for other in self.cycle.all_alive() for one in held_by(other)}
                held |= {id(parameter) for _, parameter in self._parameters} - every
            self._updates[optimizer] = [pair for pair in self._parameters if id(pair[1]) in held]
        held_here = self._updates[optimizer]
        gradients = [(name, parameter.grad) for name, parameter in held_here if parameter.grad is not None]
        self.note_gradients(optimizer, gradients)

    def settings_of(self, optimizer: Any) -> list[dict[str, Any]]:
        return [_numbers(group) for group in optimizer.param_groups]

    def note_norms(self, kind: str, tensors: list[tuple[str, Any]]) -> None:
        # A few kernels for all of them.
        places = self._places.setdefault(kind, {})
        groups: dict[tuple[torch.device, torch.dtype], list[tuple[Sequence[int], torch.Tensor]]] = {}
        for name, tensor in tensors:
            here = tensor if type(tensor) in _PLAIN_TENSORS else _local(tensor)
            if not here.is_floating_point() or here.layout is not torch.strided or not here.numel():
                continue
            place = places.get(name)
            if place is None:
                place = places[name] = self.series(f"{kind}.{name}.norm"), self.series(f"{kind}.{name}.max")
            groups.setdefault((here.device, here.dtype), []).append((place, here))
        for (device, _), measured in groups.items():
            if device.type != "meta" and not self._once(device, measured):
                norms, largest = norms_and_largest([tensor for _, tensor in measured])
                self._values.append(([place[0] for place, _ in measured], norms))
                self._values.append(([place[1] for place, _ in measured], largest))

    def _once(self, device: torch.device, tensors: list[tuple[Sequence[int], torch.Tensor]]) -> bool:
        """Whether these were measured by a pass that reads each tensor once."""
        if device.type not in DEVICE_TYPES:
            on_host: bool = device.type == "cpu"
            if on_host:
                self._on_host.measure(tensors)
            return on_host
        if device not in self._passes:
            self._passes[device] = DevicePass(device) if find_spec("triton") else None
        device_pass = self._passes[device]
        if device_pass is None or not all(tensor.dtype in FLOATS and tensor.is_contiguous() for _, tensor in tensors):
            return False
        try:
            device_pass.measure(tensors)
        except Exception as error:  # a machine on which Triton cannot compile
            self._passes[device] = None
            self.problems.note("measuring on the device; PyTorch's own kernels do it from here on", error)
            return False
        return True

    def note_settings(self) -> None:
        self.note("random.cpu", zlib.crc32(torch.get_rng_state().numpy()) % DIGEST)
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            self.note("random.cuda", zlib.crc32(torch.cuda.get_rng_state().numpy()) % DIGEST)
        backends = torch.backends.cuda
        kernels = {"flash_sdp": backends.flash_sdp_enabled(), "math_sdp": backends.math_sdp_enabled(),
                   "mem_efficient_sdp": backends.mem_efficient_sdp_enabled()}  # fmt: skip
        settings = rounding_settings() | kernels
        if settings != self._settings[0]:
            numbers = [
                (self.series(f"setting.{name}"), float(value if isinstance(value, _PLAIN) else _code(value)))
                for name, value in settings.items()
            ]
            self._settings = settings, numbers
        self.step.numbers += self._settings[1]

    def note_input(self, name: str, tensor: Any) -> None:
        tensor = _local(tensor.detach())
        digests = self._digests.of(tensor)
        if digests is None:
            return
        series = [self.series(f"{name}.samples"), self.series(f"{name}.digest")]
        if isinstance(digests, torch.Tensor):
            self._values.append((series, digests))
        else:
            self.step.numbers += zip(series, digests, strict=True)
        if tensor.is_floating_point():
            self._values.append(([self.series(f"{name}.norm")], torch.linalg.vector_norm(tensor, dtype=torch.float32)))

    # -- the end of a step ------------------------------------------------------------------------------------------

    def hand_over(self, losses: list[Any]) -> None:
        # All that one device has in one copy.
        measured = self._on_host.collect()
        arriving = [device_pass.collect() for device_pass in self._passes.values() if device_pass is not None]
        if self.wanted:
            self._values += [([self.series("loss")], loss) for loss in losses]
            by_device: dict[torch.device, tuple[list[int], list[torch.Tensor]]] = {}
            for places, values in self._values:
                here = _local(values)
                if here.is_cpu:
                    self.step.numbers += zip(places, here.reshape(-1).tolist(), strict=True)
                    continue
                series, tensors = by_device.setdefault(here.device, ([], []))
                series += places
                tensors.append(here.reshape(-1))
            for device, (series, tensors) in by_device.items():
                self.step.pending.append(self._sent(device, series, torch.cat(tensors)))
            self.step.pending += [*arriving, lambda: measured]
        self._values = []

    def _sent(self, device: torch.device, series: list[int], values: torch.Tensor) -> Read:
        """How to get these numbers one step later, when they have long arrived."""
        if device.type != "cuda":
            return lambda: (series, np.array(values.cpu().numpy(), dtype=np.float64))
        spare = self._host.setdefault(device, [])
        host, event = spare.pop() if spare else (values[:0], torch.cuda.Event())
        if len(host) < len(values) or host.dtype != values.dtype:
            host = torch.empty(2 * len(values), dtype=values.dtype, pin_memory=True)
        length = len(values)
        host[:length].copy_(values, non_blocking=True)
        event.record()

        def read() -> tuple[list[int], NDArray[np.float64]]:
            event.synchronize()
            numbers = np.array(host[:length].numpy(), dtype=np.float64)
            spare.append((host, event))
            return series, numbers

        return read


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    """The numbers among the settings of a group of parameters: ``lr``, ``betas.0`` and so on."""
    return {
        key: value
        for key, value in settings_in(group)
        if isinstance(value, _PLAIN) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    }


def _unwrapped(name: str) -> str:
    """A name without the parts that wrappers put into it, so that it is the same in a run without them."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _code(value: Any) -> int:
    """A setting that is a text, as a number."""
    return 0 if value is None else zlib.crc32(str(value).encode()) % DIGEST


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a distributed tensor: asking for the whole would start an exchange between ranks."""
    if type(tensor) in _PLAIN_TENSORS:  # most are, and asking them for what they do not have is slow
        return tensor
    local = getattr(tensor, "_local_tensor", None)
    return tensor if local is None else local


def _blocks(model: torch.nn.Module, named: dict[str, tuple[torch.nn.Module, bool]]) -> set[str]:
    """What a ModuleList or a Sequential holds, the outermost of them; compiled regions count as a whole."""
    paths = {id(module): name for name, (module, _) in named.items()}
    compiled = {id(module) for module, is_boundary in named.values() if is_boundary}
    blocks: set[str] = set()

    def walk(module: torch.nn.Module, in_container: bool) -> None:
        container = isinstance(module, torch.nn.Sequential | torch.nn.ModuleList)
        if id(module) in compiled or (in_container and not container):
            blocks.add(paths.get(id(module), ""))
            return
        for child in module.children():
            walk(child, container)

    walk(model, False)
    blocks.discard("")
    # In evaluation some modules take another way when they are observed, which would change the numbers.
    blocks = {name for name in blocks if named[name][0].training or not has_fast_path(named[name][0])}
    return blocks or {name for name in named if name and "." not in name}
