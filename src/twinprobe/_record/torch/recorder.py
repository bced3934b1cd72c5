"""One recording of PyTorch: module hooks, the function mode, gradients and the tensor book, tied together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from twinprobe._record.bench_check import BenchCheck
from twinprobe._record.config import RecordConfig
from twinprobe._record.debugger import check_models, check_token_range
from twinprobe._record.engine import Engine
from twinprobe._record.render import Capturer, remark_of, unrecorded
from twinprobe._record.rows import Entry, GradientWatch, Group, Leaf, Note, ParameterGroups
from twinprobe._record.torch.autograd import Crossing, Graph, OneNode, guarded
from twinprobe._record.torch.collectives import Collectives
from twinprobe._record.torch.compiled import CompiledFunctions
from twinprobe._record.torch.function_mode import ApiMode
from twinprobe._record.torch.hooks import ModuleHooks
from twinprobe._record.torch.host import host_digest
from twinprobe._record.torch.tensors import Quiet, TensorBook, WatchMode
from twinprobe._record.torch.values import TorchValues, tensors_in
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    from twinprobe._record.torch.hooks import ModuleInfo

# What runs inside an optimizer's step or gradient clipping, and what an optimizer does to memory.

OPTIMIZER = "optimizer"
CLIP_GRAD = "clip_grad"


class OptimizerScope:
    """Knows whether an optimizer is at work. Parameters change there, so rows are forgotten afterwards."""

    def __init__(self, recorder: TorchRecorder) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._inside = 0

    def attach(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._inside = 0

    def loose_parent(self, frame: FrameType | None = None) -> str | None:
        """The parent of a call outside every module: the optimizer, clipping, a recomputing backward, or none."""
        if self._inside:
            self._recorder.engine.link(OPTIMIZER, None)
            return OPTIMIZER
        if frame is not None and frame.f_code.co_filename.endswith("clip_grad.py"):
            self._recorder.engine.link(CLIP_GRAD, None)
            return CLIP_GRAD
        return self._recorder.graph.enclosing()

    def _before(self, *_: Any) -> None:
        self._inside += 1
        self._recorder.safely("measuring before an optimizer's step", self._recorder.book.settle)

    def _after(self, *_: Any) -> None:
        self._inside = max(0, self._inside - 1)
        self._recorder.safely("measuring after an optimizer's step", self._recorder.book.forget)


# Hooks on the parameters of PyTorch.


class ParameterGradients(ParameterGroups):
    """Each hook sees the gradient of one backward pass, summed over all uses, before accumulation."""

    def __init__(self, recorder: TorchRecorder) -> None:
        super().__init__(recorder)
        self._waiting: set[int] = set()

    def attach(self, infos: Iterable[ModuleInfo]) -> None:
        """Watch the own parameters of every watched module."""
        for info in infos:
            own = info.module._parameters
            named = [(name, one) for name, one in own.items() if one is not None and one.requires_grad]
            if not named or info.compiled:
                continue
            group = self._group(info.module, info.prefix, len(named))
            for name, parameter in named:
                hook = partial(guarded, self._recorder.graph, self._arrived, group, name, id(parameter))
                self._handles.append(parameter.register_hook(hook))

    def flush(self) -> None:
        """The pass is over: emit what came, even where some gradients did not."""
        self._waiting.clear()
        super().flush()

    def _arrived(self, group: Group, name: str, parameter: int, gradient: torch.Tensor) -> None:
        recorder = self._recorder
        if not recorder.active or recorder.muted:
            return
        if parameter in self._waiting:  # a pass inside a pass: this one will be added to the first
            recorder.book.settle()
        self._waiting.add(parameter)
        recorder.graph.note_pass()
        self._take(group, name, recorder.note_parameter_gradient, gradient)


class TorchRecorder:
    """Starts and stops observing. Implements what the engine asks of a framework."""

    name = "pytorch"
    tensor_suffix = ".pt"

    def __init__(self, config: RecordConfig, make_engine: Callable[[RecordConfig, Any], Engine] = Engine) -> None:
        structure = config.task == "structure"
        digest = config.digest
        self.config = config
        self.engine = make_engine(config, self)
        self.book = TensorBook(values=config.measures, digest=digest)
        self.values = TorchValues(self.book, digest)
        keeps_tensors = config.task == "tensor" or bool(config.tensor_names)
        note = self.values.tensor if keeps_tensors else self.book.note
        self.capture = Capturer(self.values, self.failed, {torch.Tensor: note, torch.nn.Parameter: note})
        self.graph = Graph(self)
        self.forward = config.wants("forward")
        self.backward = config.wants("backward") and not structure
        self.inputs = config.wants("input")
        self.outputs = config.wants("output")
        self.muted = 0
        self.paused = False
        self.optimizer = OptimizerScope(self)
        self.modules = ModuleHooks(self)
        self.parameters: GradientWatch = ParameterGradients(self)
        self.collectives = Collectives(self)
        self.mode = ApiMode(self) if config.level in {"L1", "mix"} else WatchMode(self)
        self.compiled = CompiledFunctions(self.mode)
        self.distributed = False
        self._keep_all = config.task == "tensor"
        self.takes_all = self.engine.filter.takes_all
        if config.bench_path is not None:
            self.engine.bench = BenchCheck(config.bench_path, config.diff_nums, _md5, self._keep_no_more)
        self._parents: dict[str, str | None] = {}

    # -- what the engine asks ---------------------------------------------------------------------------------------

    @property
    def deferred(self) -> bool:
        return self.book.deferred

    def rank(self) -> int | None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return None

    def _keep_no_more(self) -> None:
        self._keep_all = False

    def save_tensor(self, payload: Any, stream: IO[bytes]) -> None:
        torch.save(payload, stream)

    def collect(self) -> Callable[[], None] | None:
        return self.book.collect()

    def let_go(self) -> None:
        self.book.let_go()

    # -- the verbs --------------------------------------------------------------------------------------------------

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Begin observing; ``model`` is a module or several."""
        models = check_models(model, self.config.level, torch.nn.Module, "torch.nn.Module")
        check_token_range(token_range)
        if token_range is not None and not models:
            raise BadInput("token_range counts the calls of a model: call start(model=..., token_range=...)")
        if not self.engine.begin() or self.config.level == "debug":
            return
        try:
            with Quiet():
                self._observe(models, isinstance(model, list | tuple), token_range)
        except Exception as error:
            self._release()
            self.engine.active = False
            self.trouble("starting; this step is not recorded", error)
        except BaseException:
            self._release()
            raise

    def _observe(self, models: list[torch.nn.Module], several: bool, token_range: Any) -> None:
        level = self.config.level
        self.paused = token_range is not None
        if models and level in {"L0", "mix"}:
            self.modules.attach(models, several)
            if self.backward:
                self.watch_parameters()
        infos = self.modules.infos.values()
        if not infos or any(info.fast or info.compiled for info in infos):
            self.modules.fast_paths.look_over(models)
        if token_range is not None:
            self.modules.watch_tokens(models, token_range)
        self.optimizer.attach()
        if level in {"L1", "mix"}:
            self.collectives.attach()
        self.distributed = self.rank() is not None
        self.mode.attach()
        self.compiled.attach()
        self.book.may_wait = True

    def watch_parameters(self) -> None:
        """Wait for the gradients of all watched modules' parameters."""
        self.parameters.attach(self.modules.infos.values())

    def stop(self) -> None:
        """Stop observing; every hook and mode is gone afterwards."""
        try:
            with Quiet():
                self._release()
        finally:
            self.engine.end()

    def _release(self) -> None:
        self.book.may_wait = False
        for part in (
            self.mode.detach, self.compiled.detach, self.graph.close, self.parameters.detach, self.modules.detach,
            self.collectives.detach, self.optimizer.detach,
        ):  # fmt: skip
            self.safely("stopping", part)
        self._parents.clear()
        self.paused = False

    def next_step(self) -> None:
        """Later records belong to the next step; stops first if that was forgotten."""
        if self.mode.attached or self.modules.attached:
            self.stop()
        self.engine.next_step()

    def trouble(self, doing: str, error: BaseException) -> None:
        """An error inside the recorder: noted, never raised."""
        self.engine.problems.note(doing, error)

    def safely(self, doing: str, act: Callable[..., Any], *what: Any) -> None:
        """``act(*what)``, whose errors are the recorder's own and never the training's."""
        try:
            act(*what)
        except Exception as error:
            self.trouble(doing, error)

    def failed(self, value: Any, error: Exception) -> Any:
        """What stands for a value that could not be captured: for a tensor, what can be said of it without a look."""
        self.trouble("recording a value", error)
        if not issubclass(type(value), torch.Tensor):  # isinstance would ask the value itself
            return unrecorded(value, error)
        try:
            kind, shape = str(value.dtype), tuple(int(size) for size in value.shape)
            return Note("torch.Tensor", kind, shape, None, value.requires_grad, False, None, _mark(error))
        except Exception:
            return unrecorded(value, error)

    def mark(self, doing: str, error: Exception, parts: dict[str, Any] | None) -> dict[str, Any] | None:
        """An error inside the recorder, about one call: noted, and said in the call's entry too. Returns its parts."""
        self.trouble(doing, error)
        if parts is None and not (self.takes_all and self.forward):
            return None
        return {**(parts or {}), "remark": Leaf({"type": "str", "value": remark_of(error)})}

    # -- what hooks and mode share ----------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return self.engine.active and not self.paused

    def wants(self, name: str, ancestors: Iterable[str] = ()) -> bool:
        """Whether scope and list ask for this call; sets whether its real tensors are kept."""
        if self.takes_all:
            self.values.save = self._keep_all
            return self.engine.active
        if not self.engine.wants(name, ancestors):
            return False
        self.values.save = self._keep_all or self.engine.filter.wants_tensors(name)
        return True

    def backward_begins(self, name: str) -> None:
        """The first gradient of a call arrived."""
        if not self.takes_all:
            self.engine.filter.entering(name)

    def note_gradient(self, name: str, gradient: torch.Tensor) -> Any:
        """Note a gradient that belongs to the backward of a call."""
        if self.paused or self.muted or not self.wants(name, () if self.takes_all else self.ancestors(name)):
            return None
        return self.capture(gradient)

    def note_parameter_gradient(self, gradient: torch.Tensor) -> Any:
        """Note a gradient on its way into ``.grad``. What waits shares its memory, which stays as it is until the pass
        ends, unless gradients are exchanged between ranks."""
        note = self.capture(gradient)
        if self.distributed:
            self.book.settle()
        return note

    def link(self, child: str, parent: str | None, backward: str | None = None) -> None:
        """Note a call's parent, and with it the parent that its backward will have."""
        self.engine.link(child, parent)
        if backward is not None:
            self._parents[backward] = parent

    def backward_parent(self, name: str) -> str | None:
        """The mirror of the forward tree: the backward of the enclosing module call."""
        parent = self._parents.get(name)
        return parent.replace(".forward.", ".backward.") if parent and parent.startswith("Module.") else None

    def pass_begins(self) -> None:
        """The first gradient of a backward pass is there."""

    def pass_ended(self) -> None:
        """A whole backward pass is over; from here on ``.grad`` may be written."""
        self.book.settle()
        self.parameters.flush()

    def before_foreign_code(self) -> None:
        """The backward of a custom autograd function comes next: its kernels may write to gradients."""
        self.book.settle()

    def watch_gradients(self, name: str, edges: list[Any], output: Any, since: int, depth: int = -1) -> None:
        """Wait for the gradients of a finished call. Where that fails, its backward is an entry that says so."""
        try:
            self.graph.install(name, edges, tensors_in(output, []), since, depth)
        except Exception as error:
            self.engine.emit(Entry(name, self.mark("preparing to see gradients", error, {}) or {}))

    def emit_forward(self, name: str, parts: dict[str, Any]) -> None:
        """Hand over a forward entry; keys that were not asked for are absent."""
        self.engine.emit(Entry(name, parts))

    def backward_ended(self, crossing: Crossing | OneNode) -> None:
        """All gradients of a call that will come have come."""
        name = crossing.name
        if not self.paused and self.wants(name, () if self.takes_all else self.ancestors(name)):
            self.engine.link(name, self.backward_parent(name))
            parts = {}
            if self.inputs:
                parts["input"] = crossing.incoming
            if self.outputs:
                parts["output"] = _without_last_nulls(crossing.outgoing)
            self.engine.emit(Entry(name, parts))
        if not self.takes_all:
            self.engine.filter.leaving(name)

    def ancestors(self, name: str) -> Iterable[str]:
        """Enclosing backward calls, innermost first."""
        parent = self.backward_parent(name)
        while parent is not None:
            yield parent
            parent = self.backward_parent(parent)


def _without_last_nulls(items: list[Any]) -> list[Any]:
    end = len(items)
    while end and items[end - 1] is None:
        end -= 1
    return items[:end]


def _mark(error: Exception) -> dict[str, Any]:
    return {"remark": remark_of(error)}


def _md5(tensor: torch.Tensor) -> Any:
    return host_digest(tensor, "md5")
