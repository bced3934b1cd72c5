"""PaddlePaddle in dynamic mode: its recorder, its debugger and the functions beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import paddle

from twinprobe._record.calls import CORE, Api, Site, outside_compiled
from twinprobe._record.config import RecordConfig
from twinprobe._record.debugger import Debugger, Verbs, replace_dropout, seed_python
from twinprobe._record.eager.apis import Patches, Replaced, around, calling
from twinprobe._record.eager.host_rows import HostRows, RowCache
from twinprobe._record.eager.recorder import EagerRecorder
from twinprobe._record.eager.updates import Group
from twinprobe._record.engine import Engine
from twinprobe._record.entries import NOT_MINE, Leaf, Note, logger
from twinprobe._record.paddle.framework import PaddleTensors, all_sites, unrecorded_writes
from twinprobe._record.paddle.gradients import UseGraph, UseWatch, custom_layers, operation_sites, wrapped, writes
from twinprobe._record.perturb import ON_CPU, HostPerturbation
from twinprobe._record.recorder import held_by
from twinprobe._record.watch.eager import EagerWatcher
from twinprobe._runs.dtypes import dtype_name
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput

_IN_OUT = "in_out"
_TRANSPOSED = paddle.nn.Linear  # weight is [in, out] here, [out, in] in PyTorch and MindSpore
_HANDING_OUT = ("get_tensor", "value", "__dlpack__", "__cuda_array_interface__")  # writes to this memory go unseen
_PLACES = (paddle.CPUPlace, paddle.CUDAPlace, paddle.base.core.Place)
_BACKWARD = ((paddle.Tensor, "backward"), (paddle.autograd, "backward"), (paddle, "grad"))  # functions that run a pass
_STATIC = frozenset({"StaticFunction", "SymbolicStaticFunction", "ASTStaticFunction"})


def is_static(layer: Any) -> bool:
    """Whether calling this layer runs a traced program."""
    return type(layer.forward).__name__ in _STATIC


class PaddleRecorder(EagerRecorder):
    """Layers, tensors, gradients and functions of Paddle."""

    name = "paddle"
    module_class = paddle.nn.Layer
    module_title = "paddle.nn.Layer"
    tensor_class = paddle.Tensor
    tensor_types = (paddle.Tensor, paddle.base.framework.EagerParamBase)
    scanned = ("paddle.nn.layer", "paddle.incubate.nn.layer")
    grad_enabled = staticmethod(paddle.is_grad_enabled)

    def __init__(self, config: RecordConfig, make_engine: Callable[[RecordConfig, Any], Engine] = Engine) -> None:
        super().__init__(config, make_engine)
        self._graph = UseGraph(self)
        self._operations = Patches(lambda site: wrapped(site, self, self._graph), "paddle", ("paddle.",))
        home, name = paddle.nn.utils, "clip_grad_norm_"
        self._clipping_sites = [Site(home, name, getattr(home, name), Api("Utils.", CORE))]
        self._clipping = Patches(self._clip, "paddle", ("paddle.nn.utils",))

    def make_cache(self, rows: HostRows) -> RowCache:
        return PaddleTensors(rows)

    @staticmethod
    def watcher(config: RecordConfig) -> Any:
        return PaddleWatcher(config)

    @staticmethod
    def settings() -> dict[str, Any]:
        flag_values = paddle.base.core.globals()
        names = {
            "cudnn_deterministic": "FLAGS_cudnn_deterministic",
            "tf32_matmul": "FLAGS_allow_tf32_op_override",
            "mkldnn": "FLAGS_use_mkldnn",
            "threads": "FLAGS_paddle_num_threads",
        }
        flags = {key: flag_values[flag] for key, flag in names.items() if flag in flag_values.keys()}  # noqa: SIM118
        tracer = paddle.base.framework._dygraph_tracer()
        on = tracer is not None and tracer._amp_level != paddle.base.core.AmpLevel.O0
        autocast = str(tracer._amp_dtype) if on else None
        return {"version": paddle.__version__, "device": paddle.get_device(), **flags, "autocast": autocast}

    def make_perturbation(self, seed: int) -> HostPerturbation:
        if paddle.get_device() != "cpu":
            raise BadInput(f"perturb changes host memory, and Paddle runs on {paddle.get_device()}", hint=ON_CPU)
        return HostPerturbation(seed, paddle.Tensor, lambda tensor: (tensor.data_ptr(), tuple(tensor.strides)))

    @staticmethod
    def rank() -> int | None:
        distributed = paddle.distributed
        return int(distributed.get_rank()) if distributed.is_initialized() else None

    def tracing(self) -> bool:
        return not paddle.in_dynamic_mode()

    def special(self, value: Any, key: str | None) -> Any:
        if isinstance(value, paddle.dtype):
            return Leaf({"type": "paddle.dtype", "value": str(value)} if key == "dtype" else {})
        return Leaf({}) if isinstance(value, _PLACES) else NOT_MINE

    def find_subfolder(self, models: list[Any]) -> str:
        for path, layer, traced in (watched for model in models for watched in self.watched_modules(model)):
            if traced:
                logger.warning(
                    "%s (%s) was given to paddle.jit.to_static and runs as a program, which Python cannot observe: "
                    "only its inputs and outputs are recorded",
                    path,
                    type(layer).__name__,
                )
        return ""

    @staticmethod
    def watched_modules(model: Any) -> Iterator[tuple[str, Any, bool]]:
        if is_static(model):  # traced as a whole: itself the boundary
            return iter([("network", model, True)])
        return outside_compiled(model.named_sublayers(), is_static)

    def own_parameters(self, module: Any, deep: bool) -> Mapping[str, Any]:
        named = module.named_parameters() if deep else module._parameters.items()
        return {name: parameter for name, parameter in named if parameter is not None}

    def layout_of(self, module: Any, name: str) -> str | None:
        *path, last = name.split(".")
        for part in path:  # a parameter inside a traced layer
            module = getattr(module, part, None)
        return _IN_OUT if last == "weight" and isinstance(module, _TRANSPOSED) else None

    def mark_layouts(self, prefix: str, args: list[Any], kwargs: Mapping[str, Any]) -> None:
        if prefix == "Functional.linear.":
            weight = args[1] if len(args) > 1 else kwargs.get("weight")
            if isinstance(weight, Note):
                weight.extra = {**(weight.extra or {}), "layout": _IN_OUT}

    def needs_gradient(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def find_sites(self) -> Iterable[Site]:
        return all_sites()

    def before_call(self, name: str, args: Any, kwargs: Any, _in_place: bool) -> UseWatch:
        return self._graph.before(name, args, kwargs)

    def hold_gradient(self, part: Any) -> Any:
        # Paddle adds later parts to this one, in its memory.
        with paddle.no_grad():
            return part.clone() if part.is_dense() else part

    def add_gradients(self, parts: list[Any]) -> Any:
        total = parts[0]
        with paddle.no_grad():
            for part in parts[1:]:
                total = total + part
        return total

    def pass_hooks(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterable[Replaced]:
        return [Replaced(owner, name, around(begin, end)) for owner, name in _BACKWARD]

    def writing_sites(self) -> Iterable[Site]:
        if not self.records_apis:
            yield from (site for site in self.sites() if site.api.in_place)
        yield from unrecorded_writes()
        if not self.backward:  # else use_hooks() stands before all operations
            yield from (site for site in operation_sites() if writes(site.attribute))

    def write_hooks(self) -> Iterable[Replaced]:
        names = [name for name in _HANDING_OUT if hasattr(paddle.Tensor, name)]
        return [Replaced(paddle.Tensor, name, around(self.memory_exposed)) for name in names]

    def use_hooks(self) -> Iterable[Any]:
        self._operations.attach(operation_sites())
        return [self._operations, custom_layers(self, self._graph)]

    def update_hooks(self) -> Iterable[Any]:
        yield from optimizer_steps(self._step)
        yield Replaced(paddle.nn.clip.ClipGradBase, "__call__", calling(self._clip_inside))
        self._clipping.attach(self._clipping_sites)
        yield self._clipping

    def _step(self, original: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        return self.updates.step(
            optimizer,
            lambda: {id(parameter): gradient_of(parameter) for parameter in held_by(optimizer)},
            lambda: groups_of(optimizer),
            lambda: original(optimizer, *args, **kwargs),
        )

    def _clip_inside(self, original: Any, clipper: Any, args: Any, kwargs: Any) -> Any:
        pairs = args[0] if args else next(iter(kwargs.values()))
        return self.updates.clip_inside(pairs, lambda: original(clipper, *args, **kwargs))

    def _clip(self, site: Site) -> Any:
        @functools.wraps(site.original)
        def clip(*args: Any, **kwargs: Any) -> Any:
            norm = site.original(*args, **kwargs)
            self.updates.clipping(lambda: float(norm))
            return norm

        return clip


# Optimizers. What Paddle's call their settings, and what PyTorch's do: runs of both are compared.

_SETTINGS = {
    "_beta1": "betas.0", "_beta2": "betas.1", "_epsilon": "eps", "_momentum": "momentum", "_rho": "rho",
    "regularization": "weight_decay", "_weight_decay": "weight_decay", "_regularization_coeff": "weight_decay",
    "_lamb_weight_decay": "weight_decay", "_use_nesterov": "nesterov", "_amsgrad": "amsgrad",
}  # fmt: skip


def gradient_of(parameter: Any) -> Any:
    """The gradient that an optimizer uses; None where there is none."""
    main = getattr(parameter, "main_grad", None)
    return parameter.grad if main is None else main


def groups_of(optimizer: Any) -> list[Group]:
    """The parameters of an optimizer with their settings; a parameter may scale the learning rate by its attribute."""
    rate = float(optimizer.get_lr())
    shared = [(key, getattr(optimizer, name, None)) for name, key in _SETTINGS.items()]
    groups = [group for group in getattr(optimizer, "_param_groups", None) or () if isinstance(group, dict)]
    made = []
    for group in groups or [{"params": held_by(optimizer)}]:
        settings: dict[str, Any] = {"weight_decay": 0.0}
        own = [("weight_decay", group.get(name)) for name in ("regularization_coeff", "weight_decay")]
        plain = {key: getattr(value, "_coeff", value) for key, value in (*shared, *own) if value is not None}
        settings |= {key: value for key, value in plain.items() if isinstance(value, bool | int | float)}
        alike: dict[tuple[float, bool], list[Any]] = {}  # a group hands its scale on to its parameters
        for parameter in group["params"]:
            scale = (getattr(parameter, "optimize_attr", None) or group).get("learning_rate", 1.0)
            wanted = getattr(optimizer, "_apply_decay_param_fun", None)  # of AdamW
            excluded = getattr(optimizer, "_exclude_from_weight_decay_fn", None)  # of Lamb
            decays = (wanted is None or wanted(parameter.name)) and not (excluded is not None and excluded(parameter))
            alike.setdefault((float(scale), bool(decays)), []).append(parameter)
        made += [Group(held, {"lr": rate * scale, **settings, **({} if decays else {"weight_decay": 0.0})})
                 for (scale, decays), held in alike.items()]  # fmt: skip
    return made


def with_subclasses(kind: Any) -> list[Any]:
    """A class and everything derived from it."""
    return [kind, *(derived for child in kind.__subclasses__() for derived in with_subclasses(child))]


def optimizer_steps(step: Callable[[Any, Any, Any, Any], Any]) -> Iterator[Replaced]:
    """Have ``step`` called in place of every optimizer's own; ``minimize`` may call ``step``."""
    for kind in with_subclasses(paddle.optimizer.Optimizer):
        for name in ("step", "minimize"):
            if name in vars(kind):
                yield Replaced(kind, name, calling(step))


# Watching: a few numbers for each step.

_tensors = PaddleTensors(HostRows(values=True, digest=None))


_STATISTICS = ("_mean", "_variance")  # of a batch norm: parameters that nothing trains


class PaddleWatcher(EagerWatcher):
    """Layers, optimizers and backward passes of Paddle."""

    recorder = PaddleRecorder
    containers = (paddle.nn.Sequential, paddle.nn.LayerList)
    optimizers = (paddle.optimizer.Optimizer,)

    def quiet(self) -> Any:
        return paddle.no_grad()

    def dtype(self, tensor: Any) -> str:
        return dtype_name(tensor.dtype)

    def on_host(self, tensor: Any) -> HostTensor | None:
        content = tensor._local_value() if tensor.is_dist() else tensor
        on_cpu = content.is_dense() and content.place.is_cpu_place()
        array = _tensors.read(content, dtype_name(content.dtype)) if on_cpu else None
        if array is None:
            return None
        return HostTensor(dtype_name(content.dtype), tuple(content.shape), np.ascontiguousarray(array).reshape(-1))

    def parameters_of(self, model: Any) -> Iterable[tuple[str, Any]]:
        return [(name, parameter) for name, parameter in model.named_parameters() if not parameter.stop_gradient]

    def buffers_of(self, model: Any) -> Iterable[tuple[str, Any, str]]:
        for path, layer in model.named_sublayers(include_self=True):
            unsaved = layer._non_persistable_buffer_names_set
            names = [name for name in (*_STATISTICS, *layer._buffers) if name not in unsaved]
            yield from ((f"{path}.{name}".lstrip("."), layer, name) for name in names if hasattr(layer, name))

    def random_state(self) -> bytes:
        # The state is the generator's words, after an address that changes from run to run.
        words = " ".join(map(str, paddle.get_rng_state("cpu"))).split()
        return " ".join(word for word in words if not word.startswith("0x")).encode()

    def settings_of(self, optimizer: Any) -> list[dict[str, Any]]:
        return [group.settings for group in groups_of(optimizer)]

    def hooks(self) -> Iterable[Any]:
        for owner, name in _BACKWARD:
            yield Replaced(owner, name, functools.partial(self._backward, name == "grad"))
        yield from optimizer_steps(self._step)

    def _backward(self, is_grad: bool, original: Any) -> Any:
        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not is_grad:  # paddle.grad may compute a penalty: its argument need not be the loss
                tensors = args[0] if args else kwargs.get("tensors")
                first = tensors[0] if isinstance(tensors, list | tuple) and len(tensors) == 1 else tensors
                self.work(self.saw_loss, first)
            with self.in_pass():
                return original(*args, **kwargs)

        return run

    def _step(self, original: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        gradients = ((parameter, gradient_of(parameter)) for parameter in held_by(optimizer))
        return self.update(optimizer, gradients, lambda: original(optimizer, *args, **kwargs))


_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


class PrecisionDebugger(Debugger):
    """Records what a Paddle program computes, between start() and stop(), step by step."""

    recorder_class = PaddleRecorder


_verbs = Verbs(PrecisionDebugger)
record, save = _verbs.record, _verbs.save
module_dump, module_dump_end = _verbs.module_dump, _verbs.module_dump_end
register_custom_api = _verbs.register_custom_api


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Seed Python, NumPy and Paddle; ``mode`` asks for deterministic algorithms, ``rm_dropout`` makes dropout pass
    its input on."""
    seed_python(seed)
    paddle.seed(seed)
    if mode:
        wanted = ("FLAGS_cudnn_deterministic", "FLAGS_embedding_deterministic")
        flags = {name: 1 for name in wanted if paddle.base.core.globals().is_public(name)}
        paddle.set_flags(flags)
    if rm_dropout:
        replace_dropout(paddle.nn.functional, _DROPOUTS)
