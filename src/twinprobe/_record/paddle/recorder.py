"""PaddlePaddle in dynamic mode: its recorder, its debugger and the functions beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import paddle

from twinprobe._record.calls import Site, outside_compiled
from twinprobe._record.config import RecordConfig
from twinprobe._record.debugger import Debugger, Verbs, replace_dropout, seed_python
from twinprobe._record.eager.apis import Patches, Replaced, around
from twinprobe._record.eager.host_rows import HostRows, KnownRows
from twinprobe._record.eager.recorder import EagerRecorder
from twinprobe._record.engine import Engine
from twinprobe._record.paddle.gradients import CustomLayers, UseGraph, UseWatch, operation_sites, wrapped, writes
from twinprobe._record.paddle.sites import all_sites, unrecorded_writes
from twinprobe._record.paddle.tensors import PaddleTensors
from twinprobe._record.perturb import ON_CPU, HostPerturbation
from twinprobe._record.render import NOT_MINE
from twinprobe._record.rows import Leaf, Note
from twinprobe._record.writer import logger
from twinprobe.errors import BadInput

_IN_OUT = "in_out"
_TRANSPOSED = paddle.nn.Linear  # weight is [in, out] here, [out, in] in PyTorch and MindSpore
_HANDING_OUT = ("get_tensor", "value", "__dlpack__", "__cuda_array_interface__")  # nobody sees what is written there
_PLACES = (paddle.CPUPlace, paddle.CUDAPlace, paddle.base.core.Place)
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

    def make_known(self, rows: HostRows) -> KnownRows:
        return PaddleTensors(rows)

    def settings(self) -> dict[str, Any]:
        known = paddle.base.core.globals()
        names = {
            "cudnn_deterministic": "FLAGS_cudnn_deterministic",
            "tf32_matmul": "FLAGS_allow_tf32_op_override",
            "mkldnn": "FLAGS_use_mkldnn",
            "threads": "FLAGS_paddle_num_threads",
        }
        found = {key: known[flag] for key, flag in names.items() if flag in known.keys()}  # noqa: SIM118
        tracer = paddle.base.framework._dygraph_tracer()
        on = tracer is not None and tracer._amp_level != paddle.base.core.AmpLevel.O0
        autocast = str(tracer._amp_dtype) if on else None
        return {"version": paddle.__version__, "device": paddle.get_device(), **found, "autocast": autocast}

    def make_perturbation(self, seed: int) -> HostPerturbation:
        if paddle.get_device() != "cpu":
            raise BadInput(f"perturb changes host memory, and Paddle runs on {paddle.get_device()}", hint=ON_CPU)
        return HostPerturbation(seed, paddle.Tensor, lambda tensor: (tensor.data_ptr(), tuple(tensor.strides)))

    def rank(self) -> int | None:
        distributed = paddle.distributed
        return int(distributed.get_rank()) if distributed.is_initialized() else None

    def tracing(self) -> bool:
        return not paddle.in_dynamic_mode()

    def special(self, value: Any, key: str | None) -> Any:
        if isinstance(value, paddle.dtype):
            return Leaf({"type": "paddle.dtype", "value": str(value)} if key == "dtype" else {})
        return Leaf({}) if isinstance(value, _PLACES) else NOT_MINE

    def find_subfolder(self, models: list[Any]) -> str:
        for path, layer, traced in (one for model in models for one in self.watched_modules(model)):
            if traced:
                logger.warning(
                    "%s (%s) was given to paddle.jit.to_static and runs as a program, where Python sees nothing: only "
                    "what goes in and comes out is recorded",
                    path,
                    type(layer).__name__,
                )
        return ""

    def watched_modules(self, model: Any) -> Iterator[tuple[str, Any, bool]]:
        if is_static(model):  # traced as a whole: itself the boundary
            return iter([("network", model, True)])
        return outside_compiled(model.named_sublayers(), is_static)

    def own_parameters(self, module: Any, deep: bool) -> Mapping[str, Any]:
        found = module.named_parameters() if deep else module._parameters.items()
        return {name: one for name, one in found if one is not None}

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

    def add_gradients(self, parts: list[Any]) -> Any:
        total = parts[0]
        with paddle.no_grad():
            for part in parts[1:]:
                total = total + part
        return total

    def pass_hooks(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterable[Replaced]:
        make = around(begin, end)
        owners = ((paddle.Tensor, "backward"), (paddle.autograd, "backward"), (paddle, "grad"))
        return [Replaced(owner, name, make) for owner, name in owners]

    def writing_sites(self) -> Iterable[Site]:
        if not self.records_apis:
            yield from (site for site in self.sites() if site.api.in_place)
        yield from unrecorded_writes()
        if not self.backward:  # else use_hooks() stands before all operations
            yield from (site for site in operation_sites() if writes(site.attribute))

    def write_hooks(self) -> Iterable[Replaced]:
        return [
            Replaced(paddle.Tensor, name, self.handing_out) for name in _HANDING_OUT if hasattr(paddle.Tensor, name)
        ]

    def use_hooks(self) -> Iterable[Any]:
        self._operations.attach(operation_sites())
        return [self._operations, CustomLayers(self, self._graph)]


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
        known = {name: 1 for name in wanted if paddle.base.core.globals().is_public(name)}
        paddle.set_flags(known)
    if rm_dropout:
        replace_dropout(paddle.nn.functional, _DROPOUTS)
