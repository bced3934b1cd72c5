"""The recorder that all frameworks extend: starting and stopping, what is wanted, trees of calls, gradients."""

from __future__ import annotations

import gc
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, ClassVar, Protocol

from twinprobe._record.bench_check import BenchCheck
from twinprobe._record.calls import Api, ModuleInfo, wanted_ranks
from twinprobe._record.config import RecordConfig
from twinprobe._record.engine import Engine, Framework
from twinprobe._record.entries import Capturer, Entry, unrecorded
from twinprobe._record.perturb import Perturbation
from twinprobe._runs.names import QUANTIZED
from twinprobe.errors import BadInput


class Recorder(Framework):
    """Starts and stops observing. Each framework extends it."""

    container: ClassVar[str] = "Module"  # the first word of a module call's name
    module_class: ClassVar[Any]
    module_title: ClassVar[str]  # of that class, for messages
    grad_enabled: Callable[[], bool]
    capture: Capturer
    modules: Any
    parameters: GradientWatch
    watched_modules: Any  # path, module and whether it is compiled, for each module of a model

    def __init__(self, config: RecordConfig, make_engine: Callable[[RecordConfig, Any], Engine] = Engine) -> None:
        self.config = config
        self.engine = make_engine(config, self)
        self.forward = config.wants("forward")
        self.backward = config.wants("backward") and config.task != "structure"
        self.inputs = config.wants("input")
        self.outputs = config.wants("output")
        self.records_modules = config.level in {"L0", "mix"}
        self.records_apis = config.level in {"L1", "mix"}
        self.wanted_rank, self.tree_rank = wanted_ranks(config)
        self.takes_all = self.engine.filter.takes_all
        self.save = False  # whether real tensors of the call at hand are kept
        self.muted = 0  # inside so many modules that are recorded as a whole
        self.paused = False
        self.perturbation: Perturbation | None = None  # put there by start()
        self._keep_all = config.task == "tensor" or config.summaries
        self.shares_notes = self.takes_all and not self._keep_all  # those of one tensor in several calls
        self._parents: dict[str, str | None] = {}
        if config.bench_path is not None:
            self.engine.bench = BenchCheck(config.bench_path, config.diff_nums, self.checksum, self._stop_keeping)

    @classmethod
    def of(cls, config: RecordConfig) -> Any:
        """The recorder for this configuration, or the watcher, which has the same verbs."""
        return cls.watcher(config) if config.level == "watch" else cls(config)

    # -- what a framework knows -------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def watcher(config: RecordConfig) -> Any:
        """Watches every step at little cost."""

    @property
    @abstractmethod
    def attached(self) -> bool:
        """Whether anything is being watched."""

    def checksum(self, _payload: Any) -> Any:
        """The md5 of a host copy, where a device's own comes only when the step ends."""
        return None

    @staticmethod
    @abstractmethod
    def custom_api(kind: str, name: str) -> Api:
        """The name under which a function that the user registered is recorded."""

    @abstractmethod
    def call_custom(self, api: Api, original: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        """Call a function that the user registered, and record it if anything is being recorded."""

    @abstractmethod
    def is_tensor(self, value: Any) -> bool: ...

    @abstractmethod
    def needs_gradient(self, tensor: Any) -> bool: ...

    @abstractmethod
    def parameters_of(self, info: Any) -> Mapping[str, Any]:
        """Notes of a module's parameters as they are now."""

    @abstractmethod
    def watched_parameters(self, info: Any) -> Mapping[str, Any]:
        """The parameters of a module whose gradients are recorded."""

    @abstractmethod
    def before_call(self, name: str, args: Any, kwargs: Any, in_place: bool) -> Any:
        """Prepare to see the gradients of a call, whose backward has this name; None when it has none."""

    @abstractmethod
    def after_call(self, name: str, watch: Any, output: Any, depth: int = -1) -> None:
        """Wait for the gradients of a finished call; ``depth`` is that of a module call."""

    def call_failed(self, watch: Any) -> None:
        """A call raised: its gradients will not come."""

    def output_items(self, output: Any) -> tuple[Any, ...]:
        """What an API returned, one by one."""
        return output if type(output) is tuple else (output,)

    def mark_layouts(self, prefix: str, args: list[Any], kwargs: Mapping[str, Any]) -> None:
        """Mark weights among an API's noted arguments, or their gradients, that are laid out otherwise elsewhere."""

    def loose_parent(self, _frame: FrameType | None = None) -> str | None:
        """The parent of a call outside every module."""
        return None

    @abstractmethod
    def make_perturbation(self, seed: int) -> Perturbation:
        """What changes the results of recorded calls by half a unit in the last place."""

    @abstractmethod
    def note_parameter_gradient(self, module: Any, name: str, gradient: Any) -> Any:
        """Note the gradient of a module's parameter, summed over all uses."""

    # -- the verbs --------------------------------------------------------------------------------------------------

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Begin observing; ``model`` is a module or several."""
        models = self.check_models(model)
        _check_token_range(token_range, models)
        if self.config.level != "debug":
            self.subfolder = self.find_subfolder(models)
        if self.config.perturb is not None and self.perturbation is None:
            self.perturbation = self.make_perturbation(self.config.perturb + ((self.rank() or 0) << 32))
        if not self.engine.begin() or self.config.level == "debug":
            return
        try:
            self.paused = token_range is not None
            self._observe(models, isinstance(model, list | tuple), token_range)
            self.layers = {}
            for position, one in enumerate(models if self.config.optimizer else ()):
                front = f"{position}." if isinstance(model, list | tuple) else ""
                for path, module, _ in self.watched_modules(one):
                    if settings := built_with(module):
                        self.layers[front + path] = settings
        except Exception as error:
            self._release()
            self.engine.active = False
            self.trouble("starting; this step is not recorded", error)
        except BaseException:
            self._release()
            raise

    def check_models(self, model: Any) -> list[Any]:
        """The modules to watch; BadInput for anything else."""
        models = list(model) if isinstance(model, list | tuple) else [] if model is None else [model]
        for module in models:
            if not isinstance(module, self.module_class):
                raise BadInput(f"start(model=...) got {type(module).__name__}, which is not a {self.module_title}")
        if not models and self.records_modules:
            raise BadInput(f"level {self.config.level} records {self.module_title} calls: call start(model=...)")
        return models

    def find_subfolder(self, models: list[Any]) -> str:
        """A folder between the dump path and the step folders; empty for the usual layout."""
        del models
        return ""

    @abstractmethod
    def _observe(self, models: list[Any], several: bool, token_range: Any) -> None:
        """Put every hook in place."""

    def stop(self) -> None:
        """Stop observing; every hook is gone and every replaced function is back afterwards."""
        try:
            self._release()
        finally:
            self.engine.end()

    def _release(self) -> None:
        self._parents.clear()
        self.paused = False

    def next_step(self) -> None:
        """Later records belong to the next step; stops first if that was forgotten."""
        if self.attached:
            self.stop()
        self.engine.next_step()

    # -- errors -----------------------------------------------------------------------------------------------------

    def trouble(self, doing: str, error: BaseException) -> None:
        """An error inside the recorder: noted, never raised."""
        self.engine.problems.note(doing, error)

    @abstractmethod
    def work(self, doing: str, act: Callable[..., Any], *args: Any) -> Any:
        """``act(*args)`` as the recorder's own work: it is not recorded, and its errors are noted, not raised."""

    def failed(self, value: Any, error: Exception) -> Any:
        """The placeholder of a value that could not be captured."""
        self.trouble("recording a value", error)
        return unrecorded(value, error)

    # -- what the watchers share ------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return self.engine.active and not self.paused

    def wants(self, name: str, ancestors: Iterable[str] = ()) -> bool:
        """Whether scope and list ask for this call; sets whether its real tensors are kept."""
        if self.takes_all:
            self.save = self._keep_all
            return self.engine.active
        if not self.engine.wants(name, ancestors):
            return False
        self.save = self._keep_all or self.engine.filter.wants_tensors(name)
        return True

    def perturbs_module(self, info: ModuleInfo) -> bool:
        """Whether the results of a module are changed: only where no function inside of it is seen."""
        return not self.records_apis or info.compiled or info.whole

    def _stop_keeping(self) -> None:
        self._keep_all = self.save = False

    def emit_forward(self, name: str, parts: dict[str, Any]) -> None:
        """Hand over a forward entry; keys that were not asked for are absent."""
        self.engine.emit(Entry(name, parts))

    def link(self, child: str, parent: str | None, backward: str) -> None:
        """Note a call's parent, and with it the parent that its backward will have."""
        self.engine.link(child, parent)
        self._parents[backward] = parent

    def backward_parent(self, name: str) -> str | None:
        """The mirror of the forward tree: the backward of the enclosing module call."""
        parent = self._parents.get(name)
        return parent.replace(".forward.", ".backward.") if parent and parent.startswith(self.container) else None

    def ancestors(self, name: str) -> Iterable[str]:
        """Enclosing backward calls, innermost first."""
        parent = self.backward_parent(name)
        while parent is not None:
            yield parent
            parent = self.backward_parent(parent)

    # -- gradients --------------------------------------------------------------------------------------------------

    def backward_begins(self, name: str) -> None:
        """The first gradient of a call arrived."""
        if not self.takes_all:
            self.engine.filter.entering(name)

    def note_gradient(self, name: str, gradient: Any) -> Any:
        """Note a gradient that belongs to the backward of a call."""
        if self.paused or self.muted:
            return None
        if self.takes_all:
            self.save = self._keep_all
            return self.capture(gradient) if self.engine.active else None
        return self.capture(gradient) if self.wants(name, self.ancestors(name)) else None

    def backward_ended(self, crossing: Any) -> None:
        """All gradients of a call that will come have come."""
        name = crossing.name
        if not self.paused and self.wants(name, () if self.takes_all else self.ancestors(name)):
            self.engine.link(name, self.backward_parent(name))
            parts = {}
            if self.inputs:
                parts["input"] = crossing.incoming
            if self.outputs:
                outgoing = crossing.outgoing
                end = len(outgoing)
                while end and outgoing[end - 1] is None:
                    end -= 1
                parts["output"] = outgoing[:end]
            self.engine.emit(Entry(name, parts))
        if not self.takes_all:
            self.engine.filter.leaving(name)


# What layers were built with and no tensor shows, under one name for all frameworks.
_SETTINGS = {
    **{name: name for name in (
        "eps", "momentum", "p", "approximate", "negative_slope", "alpha", "kernel_size", "stride", "padding",
        "padding_mode", "pad_mode", "output_padding", "dilation", "groups", "num_groups", "ceil_mode", "dim",
        "align_corners", "scale_factor", "count_include_pad", "norm_type", "bidirectional", "dropout",
        "track_running_stats", "padding_idx", "batch_first",
    )},
    "epsilon": "eps", "variance_epsilon": "eps", "layer_norm_eps": "eps", "group": "groups", "ksize": "kernel_size",
    "axis": "dim",
}  # fmt: skip
_ASKED = frozenset(front + name for name in (*_SETTINGS, "mode") for front in ("", "_"))
_PLAIN = (bool, int, float, str)
_WITH_MODE = ("Upsample", "Dropout")  # elsewhere a mode is the kind of a layer


def built_with(layer: Any) -> dict[str, Any]:
    """What a layer was built with, in PyTorch's meaning: what it does not use now (in evaluation) is left out."""
    found: dict[str, Any] = {}
    own = vars(layer)
    for attribute in [one for one in own if one in _ASKED]:  # at each start, of thousands of layers
        name, value = _SETTINGS.get(attribute.lstrip("_")), own[attribute]
        if attribute.lstrip("_") == "mode" and any(word in type(layer).__name__ for word in _WITH_MODE):
            name, value = "mode", str(value).lower()
        if name == "padding_idx" and value in (None, -1):  # Paddle keeps -1 for none
            value = "none"
        if name is None or value is None:  # None: whatever is usual
            continue
        if isinstance(value, list | tuple) and value and all(isinstance(item, int | float) for item in value):
            value = _for_own_axes(layer, value)
            value = value[0] if len(set(value)) == 1 else str(list(value))  # one number for all axes
        if attribute == "_momentum" and isinstance(value, float):
            value = round(1.0 - value, 12)  # Paddle's batch norms say what is kept of their statistics
        if isinstance(value, _PLAIN):
            found[name] = value
    _say_padding_as_number(found)
    if isinstance(exclusive := getattr(layer, "exclusive", None), bool):  # Paddle says the opposite of others
        found["count_include_pad"] = not exclusive
    if "alpha" in found and "LeakyReLU" in type(layer).__name__:
        found["negative_slope"] = found.pop("alpha")
    if isinstance(found.get("approximate"), bool):
        found["approximate"] = "tanh" if found["approximate"] else "none"
    averages = any("BatchNorm" in parent.__name__ for parent in type(layer).__mro__)
    averages = found.pop("track_running_stats", True) is not False and averages
    training = getattr(layer, "training", True)
    if not (averages and training):
        found.pop("momentum", None)
    # A dropout that is left on shows by itself, unless a module drops in its own code.
    found |= {"training": bool(training)} if averages or found.get("dropout") else {}
    if not training:
        found.pop("p", None)
    # Weights are packed there: no parameter shows what it computes in.
    return found | ({QUANTIZED: True} if ".quantized." in type(layer).__module__ else {})


def _for_own_axes(layer: Any, value: Sequence[Any]) -> Sequence[Any]:
    """Without the axes that MindSpore puts in front: its Conv1d is two-dimensional, its pads may have one of depth."""
    axes = next((int(digit) for digit in "123" if type(layer).__name__.lower().endswith(f"{digit}d")), len(value))
    return value[-axes:] if len(value) == axes + 1 else value


def _say_padding_as_number(found: dict[str, Any]) -> None:
    """Padding by a word becomes a number where one says the same: "same" is one unless a stride or an even kernel
    makes the two ends unequal, or the size of the input decides."""
    mode = str(found.pop("pad_mode", "")).lower()
    if isinstance(padding := found.get("padding"), str) and padding.isalpha():
        mode = padding.lower()
    if mode == "valid":
        found["padding"] = 0
    if mode == "same":
        span: tuple[Any, ...] = (found.get("kernel_size"), found.get("stride", 1), found.get("dilation", 1))
        if span[0] == 1:
            found["padding"] = 0
        elif all(isinstance(size, int) for size in span) and span[1] == 1 and not span[2] * (span[0] - 1) % 2:
            found["padding"] = span[2] * (span[0] - 1) // 2
        else:
            found["padding"] = mode


def _check_token_range(token_range: Any, models: list[Any]) -> None:
    """A pair of counts from 0 on, first not after last."""
    if token_range is None:
        return
    is_pair = isinstance(token_range, list | tuple) and len(token_range) == 2
    is_pair = is_pair and all(isinstance(token, int) for token in token_range)
    if not is_pair or not 0 <= token_range[0] <= token_range[1]:
        raise BadInput(f"token_range is {token_range!r}", hint="two numbers from 0 up: the first and the last token")
    if not models:
        raise BadInput("token_range counts the calls of a model: call start(model=..., token_range=...)")


# Gradients of parameters by module: one entry for each module and backward pass.


class GradientWatch(Protocol):
    """Collects the gradients of watched modules' parameters."""

    def attach(self, infos: Iterable[Any]) -> None:
        """Collect those of these modules."""

    def flush(self) -> None:
        """A pass is over."""

    def detach(self) -> None:
        """Hand over what has come, and collect no more."""


class Group:
    """The parameters of one module and the gradients of this pass that have come."""

    __slots__ = ("expected", "found", "module", "prefix")

    def __init__(self, module: Any, prefix: str, expected: int) -> None:
        self.module = module
        self.prefix = prefix
        self.expected = expected
        self.found: dict[str, Any] = {}


class ParameterGradients:
    """The groups that are watched, and the hooks on their parameters."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._groups: list[Group] = []

    def detach(self) -> None:
        """Emit what came and remove every hook."""
        self.flush()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._groups.clear()

    def flush(self) -> None:
        """The pass is over: emit what came, even where some gradients did not."""
        for group in self._groups:
            if group.found:
                self._emit(group)

    def attach(self, infos: Iterable[Any]) -> None:
        """Watch the parameters of every watched module. Each hook sees the gradient of one backward pass, summed over
        all uses."""
        work = self._recorder.work
        for info in infos:
            named = self._recorder.watched_parameters(info)
            if named:
                group = Group(info.module, info.prefix, len(named))
                self._groups.append(group)
                for name, parameter in named.items():
                    hook = partial(work, "recording a parameter's gradient", self._arrived, group, name)
                    self._watch(parameter, hook)

    def _watch(self, parameter: Any, hook: Callable[[Any], None]) -> None:
        self._handles.append(parameter.register_hook(hook))

    def _arrived(self, group: Group, name: str, gradient: Any) -> None:
        recorder = self._recorder
        if not recorder.active or recorder.muted:
            return
        if name in group.found:  # a second gradient of a parameter is of another pass
            self._emit(group)
        recorder.wants("" if recorder.takes_all else f"{group.prefix}parameters_grad.")
        group.found[name] = recorder.note_parameter_gradient(group.module, name, gradient)
        if len(group.found) == group.expected:
            self._emit(group)

    def _emit(self, group: Group) -> None:
        gradients, group.found = group.found, {}
        emit_gradients(self._recorder, group.prefix, gradients)


def emit_gradients(recorder: Any, prefix: str, gradients: dict[str, Any]) -> None:
    """Hand over the gradients of one module, as the next pass of it."""
    front = f"{prefix}parameters_grad"
    name = f"{front}.{recorder.engine.count(front)}"
    if recorder.wants(name):
        recorder.engine.emit(Entry(name, gradients, boxed=True))


# Steps of a training: a model may have several optimizers.


def held_by(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer of any framework: in groups, or one after the other."""
    groups = getattr(optimizer, "param_groups", None) or getattr(optimizer, "_param_groups", None)
    if groups and all(isinstance(group, dict) for group in groups):
        return [parameter for group in groups for parameter in group.get("params", ())]
    return list(getattr(optimizer, "_parameter_list", None) or getattr(optimizer, "parameters", None) or ())


class OptimizerCycle(ABC):
    """Which optimizer's step is the last one of a training step: a model may have several optimizers.

    A step ends when every optimizer that holds parameters of the model has stepped. One that steps a second time before
    that begins a new step, and from then on those that stepped in the step before are waited for: so it is with an
    optimizer that is never used, or steps only now and then.
    """

    def __init__(self, lengths: Iterable[tuple[int, int]] = ()) -> None:
        """``lengths`` are those of an earlier run of the same program, see ``lengths``; they leave nothing to guess."""
        self._known = [length for length, times in lengths for _ in range(times)][::-1]
        self._own: set[int] = set()
        self._ours: weakref.WeakSet[Any] = weakref.WeakSet()
        self._awaited: set[int] | None = None
        self._stepped: list[int] = []
        self.lengths: list[list[int]] = []
        """How many steps of optimizers made each step so far, and how often in a row."""

    def follow(self, parameters: Iterable[Any]) -> None:
        """These are the model's parameters."""
        self._own = {id(one) for one in parameters}
        self._ours.clear()
        self._awaited = None
        self._stepped = []

    def holds(self, optimizer: Any) -> bool:
        """Whether this optimizer holds parameters of the model."""
        if optimizer in self._ours:
            return True
        found = any(id(one) in self._own for one in held_by(optimizer))
        if found:
            self._ours.add(optimizer)
        return found

    @abstractmethod
    def is_optimizer(self, candidate: Any) -> bool:
        """Whether any object is an optimizer whose steps are seen."""

    def all_alive(self) -> list[Any]:
        """The optimizers of the model."""
        return [one for one in gc.get_objects() if self.is_optimizer(one) and self.holds(one)]

    def repeats(self, optimizer: Any) -> bool:
        """Before an optimizer steps: whether the step has ended with what stepped before, and a new one has begun."""
        if self._known or id(optimizer) not in self._stepped:
            return False
        self._awaited = set(self._stepped)
        self._end()
        return True

    def completes(self, optimizer: Any) -> bool:
        """After an optimizer has stepped: whether that ends the step."""
        self._stepped.append(id(optimizer))
        if self._known:
            done = len(self._stepped) >= self._known[-1]
        else:
            if self._awaited is None:
                self._awaited = {id(one) for one in self.all_alive()}
            done = self._awaited.issubset(self._stepped)
        if done:
            self._end()
        return done

    @property
    def unfinished(self) -> bool:
        """Whether an optimizer has stepped since the last step ended."""
        return bool(self._stepped)

    def _end(self) -> None:
        length = len(self._stepped)
        if self.lengths and self.lengths[-1][0] == length:
            self.lengths[-1][1] += 1
        else:
            self.lengths.append([length, 1])
        if self._known:
            self._known.pop()
            self._awaited = set(self._stepped)
        self._stepped = []
