"""The recorder of PyTorch: module hooks, the function mode, gradients and the registry of tensors, tied together."""

from __future__ import annotations

import functools
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import IO, Any

import torch
from torch.utils.hooks import RemovableHandle

from twinprobe._record.calls import Api, ModuleInfo, tensors_in
from twinprobe._record.config import RecordConfig
from twinprobe._record.debugger import Debugger, Verbs, replace_dropout, seed_python
from twinprobe._record.engine import Engine
from twinprobe._record.entries import Capturer, Entry, Leaf, Note, remark_of, with_total_norm
from twinprobe._record.recorder import GradientWatch, Group, ParameterGradients, Recorder
from twinprobe._record.torch.autograd import FUNCTION, REGISTER, Edge, Graph, sequence_number, without_handle
from twinprobe._record.torch.collectives import Collectives, ReducedGradients
from twinprobe._record.torch.function_mode import ApiMode
from twinprobe._record.torch.hooks import CompiledFunctions, ModuleHooks, UpdateHooks, has_fast_path, watched_modules
from twinprobe._record.torch.host import host_digest, host_tensor
from twinprobe._record.torch.optimizer import Updates
from twinprobe._record.torch.placements import FLAT, PipelineStages, Placements, flattened
from twinprobe._record.torch.tensors import TensorRegistry, WatchMode, silence
from twinprobe._record.torch.values import TorchPerturbation, TorchValues, make_api, process_rank, rounding_settings
from twinprobe._runs.names import TOTAL_NORM
from twinprobe._runs.tensors.elements import HostTensor

_is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
_set_grad_enabled: Callable[[bool], Any] = torch._C._set_grad_enabled

# The parents of what runs inside an optimizer's step or gradient clipping.

OPTIMIZER = "optimizer"
CLIP_GRAD = "clip_grad"


# The function that computes the norm all gradients have together: clip_grad_norm_ itself where there is no such one.
_NORMS = ("_get_total_norm", "get_total_norm", "clip_grad_norm_")


class OptimizerScope:
    """Knows whether an optimizer is at work. Parameters change there, so rows are forgotten afterwards."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._hooks: UpdateHooks | None = None
        self._wrapped: list[tuple[Any, str, Any]] = []
        self._models: list[torch.nn.Module] = []
        self._updates: Updates | None = None
        self._keeps = recorder.config.optimizer and recorder.config.measures
        self.inside = 0

    def attach(self, models: list[torch.nn.Module]) -> None:
        """Watch all optimizers and clipping; parameters get the names that they have in these models."""
        self._models = models
        self._hooks = UpdateHooks(self._before, self.finish)
        homes: list[tuple[Any, str]] = []
        if self._keeps:
            home = torch.nn.utils.clip_grad
            measuring = next(name for name in _NORMS if hasattr(home, name))
            homes.append((home, measuring))
            if measuring == "clip_grad_norm_":  # before torch 2.6, where programs call it by its other name
                homes.append((torch.nn.utils, measuring))
            sharded = sys.modules.get("torch.distributed.fsdp")
            if sharded is not None:
                homes.append((sharded.FullyShardedDataParallel, "clip_grad_norm_"))
        for home, name in homes:
            original = getattr(home, name)

            def clip(*args: Any, original: Any = original, **kwargs: Any) -> Any:
                norm = original(*args, **kwargs)
                self._note("noting the norm before clipping", "note_norm", norm)
                return norm

            self._wrapped.append((home, name, original))
            setattr(home, name, functools.wraps(original)(clip))

    def detach(self) -> None:
        if self._hooks is not None:
            self._hooks.remove()
        for home, name, original in self._wrapped:
            setattr(home, name, original)
        self._hooks = None
        self._wrapped.clear()
        self._models = []
        self._updates = None
        self.inside = 0

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        self.inside += 1
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._note_gradients(optimizer)
            self._recorder.work("letting an optimizer work", self._recorder.mode.rest)
            return None
        # Forward and backward are still to come, as with Lightning: there are gradients once the closure returns.
        followed = functools.wraps(closure)(functools.partial(self._evaluate, closure, optimizer, []))
        if "closure" in kwargs:
            return args, kwargs | {"closure": followed}
        return (args[0], followed, *args[2:]), kwargs

    def _evaluate(self, closure: Any, optimizer: Any, done: list[bool]) -> Any:
        self.inside -= 1  # the program's own code, no part of the optimizer
        try:
            loss = closure()
        finally:
            self.inside += 1
        if not done:  # LBFGS evaluates it again, with parameters that it has moved
            done.append(True)
            self._note_gradients(optimizer)
        return loss

    def _note_gradients(self, optimizer: Any) -> None:
        self._recorder.work("measuring before an optimizer's step", self._recorder.registry.settle)
        self._note("recording what an optimizer sees", "note_gradients", optimizer, self._models)

    def finish(self, optimizer: Any, *_: Any) -> None:
        """An optimizer has made its step."""
        self.inside = max(0, self.inside - 1)
        self._recorder.work("measuring after an optimizer's step", self._recorder.registry.forget)
        self._note("recording what an optimizer did", "note_parameters", optimizer)
        self._recorder.work("letting the program go on", self._recorder.mode.rest)

    def _note(self, doing: str, name: str, *args: Any) -> None:
        if self._keeps and self._recorder.active:
            self._updates = self._updates or Updates(self._recorder)
            self._recorder.work(doing, getattr(self._updates, name), *args)


class PassGradients(ParameterGradients):
    """Gradients of parameters, seen before accumulation."""

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._waiting: set[tuple[Group, str]] = set()
        self._key = RemovableHandle(OrderedDict()).id  # a number that no other hook has
        self._hooked: list[Any] = []

    def flush(self) -> None:
        self._waiting.clear()
        super().flush()

    def detach(self) -> None:
        super().detach()
        for parameter in self._hooked:
            hooks = parameter._backward_hooks
            if hooks is not None:
                hooks.pop(self._key, None)
        self._hooked.clear()

    def _watch(self, parameter: Any, hook: Callable[[Any], None]) -> None:
        plain = type(parameter) is torch.nn.Parameter and parameter.is_leaf
        if not plain or self._key in (parameter._backward_hooks or ()):  # or of two modules
            super()._watch(parameter, hook)
            return
        # What register_hook does, without a handle for each of the thousands that a large model has.
        if parameter._backward_hooks is None:
            parameter._backward_hooks = OrderedDict()
        parameter._backward_hooks[self._key] = hook
        self._hooked.append(parameter)

    def _arrived(self, group: Group, name: str, gradient: torch.Tensor) -> None:
        recorder = self._recorder
        if not recorder.active or recorder.muted:
            return
        if (group, name) in self._waiting:  # a pass inside a pass: this one will be added to the first
            recorder.registry.settle()
        self._waiting.add((group, name))
        recorder.graph.note_pass()
        super()._arrived(group, name, gradient)


class TorchRecorder(Recorder):
    """Modules, functions, tensors and gradients of PyTorch."""

    name = "pytorch"
    tensor_suffix = ".pt"
    module_class = torch.nn.Module
    module_title = "torch.nn.Module"
    grad_enabled = staticmethod(torch.is_grad_enabled)
    custom_api = staticmethod(make_api)
    watched_modules = staticmethod(watched_modules)
    rank = staticmethod(process_rank)
    settings = staticmethod(rounding_settings)
    make_perturbation = staticmethod(TorchPerturbation)

    def __init__(self, config: RecordConfig, make_engine: Callable[[RecordConfig, Any], Engine] = Engine) -> None:
        super().__init__(config, make_engine)
        self.registry = TensorRegistry(values=config.measures, digest=config.digest, sketch=config.sketches)
        self.values = TorchValues(self)
        copies = config.task == "tensor" or bool(config.tensor_names) or config.summaries
        note = self.values.tensor if copies else self.registry.note
        self.capture = Capturer(self.values, self.failed, {torch.Tensor: note, torch.nn.Parameter: note})
        self.graph = Graph(self)
        self.optimizer = OptimizerScope(self)
        self.pipeline: PipelineStages | None = None
        self.modules = ModuleHooks(self)
        self.parameters: GradientWatch = PassGradients(self)
        self.collectives = Collectives(self)
        self.reduced = ReducedGradients()
        self.mode = ApiMode(self) if self.records_apis else WatchMode(self)
        self.compiled = CompiledFunctions(self.mode)
        self.distributed = False
        self.flattened: dict[int, list[str]] = {}  # of FSDP1: see there

    # -- what the engine and the calls ask --------------------------------------------------------------------------

    @property
    def deferred(self) -> bool:
        return self.registry.deferred

    @property
    def attached(self) -> bool:
        return self.mode.attached or self.modules.attached

    @staticmethod
    def watcher(config: RecordConfig) -> Any:
        from twinprobe._record.watch.torch import TorchWatcher

        return TorchWatcher(config)

    def save_tensor(self, payload: Any, stream: IO[bytes]) -> None:
        torch.save(payload, stream)

    def host(self, payload: Any) -> HostTensor | None:
        return host_tensor(payload)

    def collect(self) -> Callable[[], None] | None:
        return self.registry.collect()

    def let_go(self) -> None:
        self.registry.let_go()

    def finished(self, update: Entry) -> Entry:
        return with_total_norm(update) if update.name.startswith(TOTAL_NORM) else update

    def checksum(self, payload: torch.Tensor) -> Any:
        return host_digest(payload, "md5")

    def call_custom(self, api: Api, original: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        return self.mode.custom(api, original, args, kwargs, frame)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def needs_gradient(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)

    def parameters_of(self, info: ModuleInfo) -> dict[str, Any]:
        module = info.module
        own = module._parameters
        if self.flattened:
            own = {name: one for name, one in own.items() if name != FLAT}
            own |= {name: getattr(module, name, None) for name in self.flattened.get(id(module), ())}
        notes = {name: self.capture(parameter) for name, parameter in own.items() if parameter is not None}
        if self.distributed and own:
            self.registry.settle()  # sharded parameters are freed without a trace when their module is left
        return notes

    def watched_parameters(self, info: ModuleInfo) -> dict[str, Any]:
        own = {} if info.compiled else info.module._parameters
        return {
            name: weight for name, weight in own.items() if weight is not None and weight.requires_grad and name != FLAT
        }

    def output_items(self, output: Any) -> tuple[Any, ...]:
        return output if isinstance(output, tuple) and not isinstance(output, torch.Size) else (output,)

    def loose_parent(self, frame: FrameType | None = None) -> str | None:
        """The parent of a call outside every module: the optimizer, clipping, a recomputing backward, or none."""
        if self.optimizer.inside:
            self.engine.link(OPTIMIZER, None)
            return OPTIMIZER
        if frame is not None and frame.f_code.co_filename.endswith("clip_grad.py"):
            self.engine.link(CLIP_GRAD, None)
            return CLIP_GRAD
        return self.graph.enclosing()

    # -- starting and stopping --------------------------------------------------------------------------------------

    def _observe(self, models: list[torch.nn.Module], several: bool, token_range: Any) -> None:
        with silence():
            if models and self.records_modules:
                self.modules.watch_models(models, several)
                if self.backward:
                    self.watch_parameters()
            infos = self.modules.infos.values()
            if not infos or any(info.compiled or has_fast_path(info.module) for info in infos):
                self.modules.fast_paths.look_over(models)
            if token_range is not None:
                self.modules.watch_tokens(models, token_range)
            self.optimizer.attach(models)
            self.distributed = self.rank() is not None
            if self.distributed:
                self.reduced.attach()
                self.flattened = flattened(models)
            if self.records_apis:
                self.collectives.attach()
            if self.distributed:
                self.pipeline = self.pipeline or PipelineStages(self)
                self.pipeline.attach()
                if self.config.optimizer and self.engine.places is None:
                    self.engine.places = Placements(self.pipeline.known, self.reduced.types)
            if self.backward and REGISTER not in vars(FUNCTION):
                setattr(FUNCTION, REGISTER, without_handle)
            self.mode.attach()
            self.compiled.attach()
            self.registry.may_wait = True

    def watch_parameters(self) -> None:
        """Wait for the gradients of all watched modules' parameters."""
        self.parameters.attach(self.modules.infos.values())

    def _release(self) -> None:
        self.registry.may_wait = False
        for part in (
            self.mode.detach, self.compiled.detach, self.graph.close, self.parameters.detach, self.modules.detach,
            self.collectives.detach, self.reduced.detach, self.optimizer.detach,
        ):  # fmt: skip
            self.work("stopping", part)
        if self.pipeline is not None:
            self.pipeline.detach()
        super()._release()

    # -- errors -----------------------------------------------------------------------------------------------------

    def work(self, doing: str, act: Callable[..., Any], *args: Any) -> Any:
        gradients = _is_grad_enabled()
        if gradients:
            _set_grad_enabled(False)
        try:
            with silence():
                return act(*args)
        except Exception as error:
            self.trouble(doing, error)
            return None
        finally:
            if gradients:
                _set_grad_enabled(True)

    def failed(self, value: Any, error: Exception) -> Any:
        """The placeholder of a value that could not be captured: for a tensor, its dtype and shape."""
        shown = super().failed(value, error)
        if issubclass(type(value), torch.Tensor):  # isinstance would ask the value itself
            with suppress(Exception):
                kind, shape = str(value.dtype), tuple(int(size) for size in value.shape)
                remark = {"remark": remark_of(error)}
                return Note("torch.Tensor", kind, shape, None, value.requires_grad, False, None, remark)
        return shown

    def mark(self, doing: str, error: Exception, parts: dict[str, Any] | None) -> dict[str, Any] | None:
        """An error inside the recorder, about one call: noted, and marked in its entry too. Returns its parts."""
        self.trouble(doing, error)
        if parts is None and not (self.takes_all and self.forward):
            return None
        return {**(parts or {}), "remark": Leaf({"type": "str", "value": remark_of(error)})}

    # -- gradients --------------------------------------------------------------------------------------------------

    def before_call(self, _name: str, args: Any, kwargs: Any, _in_place: bool) -> tuple[list[Edge | None], int]:
        return self.graph.edges((*args, *kwargs.values()) if kwargs else args), sequence_number()

    def after_call(self, name: str, watch: Any, output: Any, depth: int = -1) -> None:
        """Wait for the gradients of a finished call. Where that fails, its backward is an entry that says so."""
        edges, since = watch
        is_api = depth < 0
        if is_api and not any(edges):
            return
        try:
            outputs = [output] if type(output) is torch.Tensor else tensors_in(output, torch.Tensor, [])
            self.graph.install(name, edges, outputs, since, depth)
        except Exception as error:
            self.engine.emit(Entry(name, self.mark("preparing to see gradients", error, {}) or {}))
        if is_api and not self.modules.calls:
            self.graph.outermost_call_ended()

    def note_parameter_gradient(self, _module: Any, _name: str, gradient: torch.Tensor) -> Any:
        """Note a gradient on its way into ``.grad``. A waiting tensor shares its memory, which stays as it is until
        the pass ends, unless gradients are exchanged between ranks."""
        note = self.capture(gradient)
        if self.distributed:
            self.registry.settle()
        return note

    def pass_begins(self) -> None:
        """The first gradient of a backward pass is there."""

    def pass_ended(self) -> None:
        """A whole backward pass is over; from here on ``.grad`` may be written."""
        self.registry.settle()
        self.parameters.flush()


class PrecisionDebugger(Debugger):
    """Records what a PyTorch program computes, between start() and stop(), step by step.

    Configured by ``config.json``, by keyword arguments, or both (the arguments win). One per process: creating it again
    returns the same one.
    """

    recorder_class = TorchRecorder


_verbs = Verbs(PrecisionDebugger)
record, save = _verbs.record, _verbs.save
module_dump, module_dump_end = _verbs.module_dump, _verbs.module_dump_end
register_custom_api = _verbs.register_custom_api

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Seed Python, NumPy and PyTorch; ``mode`` asks for deterministic algorithms, ``rm_dropout`` makes dropout pass
    its input on."""
    seed_python(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    if mode:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    if rm_dropout:
        replace_dropout(torch.nn.functional, _DROPOUTS)
