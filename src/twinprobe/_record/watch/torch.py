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
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from twinprobe._record.calls import tensors_in
from twinprobe._record.config import RecordConfig
from twinprobe._record.torch.hooks import CompiledBoundary, has_fast_path, keep_hooks_out_of_copies, watched_modules
from twinprobe._record.torch.optimizer import Cycle
from twinprobe._record.torch.tensors import DEVICE_TYPES, silence
from twinprobe._record.torch.values import process_rank, rounding_settings
from twinprobe._record.watch import Read, Watcher, named_inputs
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
# torch.compiler has it since 2.3.
_is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", torch._utils.is_compiling)
_PLAIN = (bool, int, float)
_PLAIN_TENSORS = {torch.Tensor, torch.nn.Parameter}
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


class TorchWatcher(Watcher):
    """Hooks on the model, on all optimizers and on backward(); a small tensor of numbers for each step."""

    rank = staticmethod(process_rank)

    def __init__(self, config: RecordConfig) -> None:
        super().__init__(config)
        self._backward: Any = None
        self._parameters: list[tuple[str, torch.nn.Parameter]] = []
        self._buffers: list[tuple[str, dict[str, Any], str]] = []  # a module may replace the tensor
        self._values: list[tuple[list[int], torch.Tensor]] = []  # series of this step, and their numbers
        self._on_host = HostPass()
        self._passes: dict[torch.device, DevicePass | None] = {}
        self._places: dict[str, dict[str, tuple[int, int]]] = {}  # series of a parameter and of its gradient
        self._settings: tuple[dict[str, Any], list[tuple[int, float]]] = {}, []
        self.cycle = Cycle()
        # Of each optimizer: the number of its first group, and the parameters whose gradients are noted when it steps.
        self._updates: weakref.WeakKeyDictionary[Any, tuple[int, list[tuple[str, torch.nn.Parameter]]]]
        self._updates = weakref.WeakKeyDictionary()
        self._groups = 0
        self._graded: set[str] = set()  # parameters whose gradients are noted in this step
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
                (prefix + _unwrapped(f"{path}.{name}" if path else name), module._buffers, name)
                for path, module in model.named_modules()
                for name, buffer in module._buffers.items()
                if buffer is not None and buffer.is_floating_point() and name not in module._non_persistent_buffers_set
            ]
        self.refuse_unmatched(blocks, (name for model in self._models for name, _ in model.named_modules() if name))
        keep_hooks_out_of_copies(self)
        self.cycle.follow(parameter for _, parameter in self._parameters)
        self._handles += [
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        self._backward = original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._work(self._saw_backward, tensors)
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
            self._work(self._enter, module, args, kwargs)

        def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            if series is not None:
                series(module, args, kwargs, output)
            self._work(self._leave, module, output)

        self._hook(module, before, after)

    def _hook(self, module: torch.nn.Module, before: Any, after: Any) -> None:
        if getattr(module, "_compiled_call_impl", None) is not None:  # compiled in place, and hooks would be with it
            self._handles.append(CompiledBoundary(module, before or (lambda *_: None), after))
            return
        if before is not None:
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=before is not None))

    # -- what the hooks do ------------------------------------------------------------------------------------------

    def _work(self, act: Callable[..., None], *args: Any) -> None:
        """Run the watcher's own work: without gradients or modes; errors are noted, never raised into the training."""
        gradients = _is_grad_enabled()
        if gradients:
            _set_grad_enabled(False)
        try:
            with silence():
                act(gradients, *args)
        except Exception as error:
            self.problems.note("watching", error)
        finally:
            if gradients:
                _set_grad_enabled(True)

    def _enter(self, gradients: bool, module: Any, args: Any, kwargs: Any) -> None:
        self._depth += 1
        if self._depth > 1 or not self.active or _in_backward() >= 0 or _is_compiling():
            return
        if self.has_optimizer and not gradients:  # an evaluation in the midst of a training
            return
        step = self.step
        if not self.has_optimizer and self._is_over(step, module):
            self.end_step()
            step = self.step
        self._observing = self.wanted
        first = not step.forwards
        step.forwards += 1
        self._version = self._first_version()
        if not self._observing:
            return
        if first:
            self._note_settings()
            if not self.has_optimizer:  # no hook will announce the update
                self._note_parameters()
        if first or any(module is model for model in self._models):
            for name, tensor in named_inputs(args, kwargs, torch.Tensor):
                self._note_input(f"input.{name}", _local(tensor.detach()))

    def _is_over(self, step: Any, module: Any) -> bool:
        """Without an optimizer: whether the step before this call of the model has ended."""
        if not step.forwards or (not step.ended and not any(module is model for model in self._models)):
            return False
        if step.ended or not step.backward:
            return True
        # Gradients that accumulate, or parameters that the program updates by itself?
        return self._first_version() != self._version

    def _first_version(self) -> int | None:
        return next((parameter._version for _, parameter in self._parameters), None)

    def _leave(self, _gradients: bool, module: Any, output: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth or not self._observing:
            return
        self._observing = False
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and any(module is model for model in self._models):
            self._note_loss("output", loss)

    def _block(self, name: str) -> Any:
        """The hook that measures the output of one module."""
        ids = [self.series(f"output.{name}.{kind}") for kind in ("norm", "max", "mean")]
        self.keep_residue(name)
        eps = self.series(f"output.{name}.eps")

        def measure(_gradients: bool, output: Any) -> None:
            tensor = next(iter(tensors_in(output, torch.Tensor, [])), None)
            if tensor is None or not tensor.is_floating_point() or not tensor.numel():
                return
            values = _local(tensor.detach())
            self.step.numbers.append((eps, torch.finfo(values.dtype).eps))
            if not self._once(values.device, [(ids, values)]):
                self._values += [
                    ([series], value) for series, value in zip(ids, output_statistics(values), strict=True)
                ]

        def after(_module: Any, _args: Any, _kwargs: Any, output: Any) -> None:
            if self._observing:
                self._work(measure, output)

        return after

    def _saw_backward(self, _gradients: bool, tensors: Any) -> None:
        if not (self.active or self.step.forwards) or _in_backward() >= 0:
            return
        self.step.backward = True
        if isinstance(tensors, torch.Tensor) and tensors.numel() == 1 and self.wanted:
            self._note_loss("backward", tensors)

    def _note_loss(self, seen: str, loss: torch.Tensor) -> None:
        """A loss of this step. Several, where gradients accumulate, become their mean."""
        self._losses.setdefault(seen, []).append(loss.detach())

    def log(self, **scalars: Any) -> None:
        for name, value in scalars.items():
            if not isinstance(value, torch.Tensor):
                self.note(name, value)
            elif name == "loss":
                self._note_loss("log", value)
            else:
                self._values.append(([self.series(name)], value.detach()))

    def _before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.attached or not self.cycle.holds(optimizer):
            return
        if self.cycle.repeats(optimizer):
            self._noted = False
            self._graded.clear()
            self.end_parts()
        self.has_optimizer = True
        # With a closure, as Lightning has one, forward and backward are still to come.
        self._late = any(callable(argument) for argument in (*args[1:], *kwargs.values()))
        if self.active or self.step.forwards or self._parts:
            self._work(self._note_update, optimizer, not self._late)

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        if not self.attached or not self.cycle.holds(optimizer):
            return
        if self._late:
            self._late = False
            if self.step.backward and self.wanted:
                self._work(self._note_gradients, optimizer)
        if self.cycle.completes(optimizer):
            self.end_step()
        elif _in_backward() < 0:  # many optimizers may step in one backward pass, which is never cut into two steps
            self._work(self._hand_over)
            self.end_part()

    def _note_update(self, _gradients: bool, optimizer: Any, with_gradients: bool) -> None:
        if not self.wanted:
            return
        if not self._noted:
            self._note_parameters()
        if with_gradients:
            self._note_gradients(False, optimizer)

    def _note_parameters(self) -> None:
        """The parameters that this step's forward has used."""
        self._noted = True
        self._measure("parameter", [pair for pair in self._parameters if pair[1].requires_grad])

    def _note_buffers(self, _gradients: bool) -> None:
        """The running statistics that this step's forward has left."""
        held = [(name, home.get(key)) for name, home, key in self._buffers]
        self._measure("buffer", [(name, buffer) for name, buffer in held if isinstance(buffer, torch.Tensor)])

    def _note_gradients(self, _gradients: bool, optimizer: Any) -> None:
        """What an update uses: gradients as exchanged between ranks, unscaled and clipped; rates, other settings."""
        if optimizer not in self._updates:
            held = _held_by(optimizer)
            if not self._updates:  # what no optimizer holds is noted with the first
                every = held.union(*map(_held_by, self.cycle.all_alive()))
                held |= {id(parameter) for _, parameter in self._parameters} - every
            self._updates[optimizer] = self._groups, [pair for pair in self._parameters if id(pair[1]) in held]
            self._groups += len(optimizer.param_groups)
        first, own = self._updates[optimizer]
        gradients = [(name, parameter.grad) for name, parameter in own if parameter.grad is not None]
        if len(self._updates) > 1:  # two may hold the same parameter
            gradients = [pair for pair in gradients if pair[0] not in self._graded]
            self._graded.update(name for name, _ in gradients)
        self._measure("gradient", gradients)
        for group, key, value in _settings(optimizer):
            name = f"group.{first + group}.{key}"
            if isinstance(value, torch.Tensor):
                self._values.append(([self.series(name)], value.detach().clone()))
            else:
                self.note(name, value)

    def _measure(self, kind: str, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """The norm and the largest magnitude of each, a few kernels for all of them."""
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

    def _note_settings(self) -> None:
        """The state of the generators of random numbers, and what changes the rounding of results."""
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

    def _note_input(self, name: str, tensor: torch.Tensor) -> None:
        """Digests of one input, and of real numbers the norm."""
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

    def end_step(self) -> None:
        if self._buffers and self.wanted and (self.step.forwards or self._parts):
            self._work(self._note_buffers)
        self._work(self._hand_over)
        self._noted = False
        self._graded.clear()
        super().end_step()

    def _hand_over(self, _gradients: bool) -> None:
        """Send this step's numbers to the host, all that one device has in one copy."""
        if self.wanted and not self._noted and self.step.forwards:
            self._note_parameters()
        measured = self._on_host.collect()
        arriving = [device_pass.collect() for device_pass in self._passes.values() if device_pass is not None]
        if self.wanted:
            for seen in ("log", "output", "backward"):
                if self._losses.get(seen):
                    self._values += [([self.series("loss")], loss) for loss in self._losses[seen]]
                    break
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
        self._values, self._losses = [], {}

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


def _settings(optimizer: Any) -> Iterator[tuple[int, str, Any]]:
    """The numbers in the groups of an optimizer: group, ``lr`` or ``betas.1``, value."""
    for index, group in enumerate(optimizer.param_groups):
        for key, setting in group.items():
            if key in ("params", "param_names"):
                continue
            several = isinstance(setting, list | tuple)
            for place, value in enumerate(setting if several else [setting]):
                if isinstance(value, _PLAIN) or (isinstance(value, torch.Tensor) and value.numel() == 1):
                    yield index, (f"{key}.{place}" if several else key), value


def _held_by(optimizer: Any) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


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
