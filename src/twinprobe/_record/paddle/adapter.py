"""PaddlePaddle in dynamic mode, as the shared recorder sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import paddle

from twinprobe._record.config import RecordConfig
from twinprobe._record.debugger import check_models
from twinprobe._record.eager.adapter import Site
from twinprobe._record.eager.apis import Patches, Replaced, around
from twinprobe._record.eager.gradients import Crossings
from twinprobe._record.eager.host_rows import HostRows, KnownRows, save_array
from twinprobe._record.eager.recorder import EagerRecorder
from twinprobe._record.eager.tools import EagerDebugger, Verbs
from twinprobe._record.engine import Engine
from twinprobe._record.paddle.gradients import CustomLayers, Operations, UseGraph, UseWatch, operation_sites, writes
from twinprobe._record.paddle.sites import all_sites, unrecorded_writes
from twinprobe._record.paddle.tensors import PaddleTensors
from twinprobe._record.render import NOT_MINE
from twinprobe._record.rows import Leaf, Note
from twinprobe._record.tools import replace_dropout, seed_python
from twinprobe._record.writer import logger

IN_OUT = "in_out"
_TRANSPOSED = (paddle.nn.Linear,)  # weight is [in, out] here, [out, in] in PyTorch and MindSpore
_HANDING_OUT = ("get_tensor", "value", "__dlpack__", "__cuda_array_interface__")  # nobody sees what is written there
_PLACES = (paddle.CPUPlace, paddle.CUDAPlace, paddle.base.core.Place)


class _Attached:
    """Patches in place, until remove()."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def remove(self) -> None:
        self._patches.detach()


class PaddleAdapter:
    """Layers, tensors, gradients and functions of Paddle."""

    name = "paddle"
    tensor_suffix = ".npy"
    container = "Module"
    module_class = paddle.nn.Layer
    tensor_types: tuple[type, ...] = (paddle.Tensor, paddle.base.framework.EagerParamBase)
    scanned: tuple[str, ...] = ("paddle.nn.layer", "paddle.incubate.nn.layer")

    def __init__(self, rows: HostRows) -> None:
        self._tensors = PaddleTensors(rows)
        self._sites: list[Site] | None = None
        self.graph = UseGraph()
        self.recorder: Any = None
        self._operations: Operations | None = None

    @property
    def known(self) -> KnownRows:
        return self._tensors

    def rank(self) -> int | None:
        distributed = paddle.distributed
        return int(distributed.get_rank()) if distributed.is_initialized() else None

    def grad_enabled(self) -> bool:
        return bool(paddle.is_grad_enabled())

    def tracing(self) -> bool:
        return not paddle.in_dynamic_mode()

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, paddle.Tensor)

    def note(self, tensor: Any, *, save: bool) -> Note:
        return self._tensors.note(tensor, save=save)

    note_sum = note

    def special(self, value: Any, key: str | None) -> Any:
        if isinstance(value, paddle.dtype):
            return Leaf({"type": "paddle.dtype", "value": str(value)} if key == "dtype" else {})
        if isinstance(value, _PLACES):
            return Leaf({})
        return NOT_MINE

    def check_models(self, model: Any, level: str) -> list[Any]:
        return check_models(model, level, self.module_class, "paddle.nn.Layer")

    def subfolder(self, models: list[Any]) -> str:
        for path, layer, traced in (one for model in models for one in self.modules(model)):
            if traced:
                logger.warning(
                    "%s (%s) was given to paddle.jit.to_static and runs as a program, where Python sees nothing: only "
                    "what goes in and comes out is recorded",
                    path,
                    type(layer).__name__,
                )
        return ""

    def modules(self, model: Any) -> Iterator[tuple[str, Any, bool]]:
        if is_static(model):
            yield "network", model, True
            return
        inside: list[str] = []
        for path, layer in model.named_sublayers():
            if any(path.startswith(f"{one}.") for one in inside):
                continue
            compiled = is_static(layer)
            if compiled:
                inside.append(path)
            yield path, layer, compiled

    def parameters(self, module: Any, deep: bool) -> Mapping[str, Any]:
        found = module.named_parameters() if deep else module._parameters.items()
        return {name: one for name, one in found if one is not None}

    def layout_of(self, module: Any, name: str) -> str | None:
        if "." not in name:
            return IN_OUT if name == "weight" and isinstance(module, _TRANSPOSED) else None
        *path, last = name.split(".")
        for part in path:  # a parameter inside a traced layer
            module = getattr(module, part, None)
        return IN_OUT if last == "weight" and isinstance(module, _TRANSPOSED) else None

    def mark(self, prefix: str, args: list[Any], kwargs: Mapping[str, Any]) -> None:
        if prefix == "Functional.linear.":
            weight = args[1] if len(args) > 1 else kwargs.get("weight")
            if isinstance(weight, Note):
                weight.extra = {**(weight.extra or {}), "layout": IN_OUT}

    def needs_gradient(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def sites(self) -> Iterable[Site]:
        if self._sites is None:
            self._sites = list(all_sites())
        return self._sites

    def before_call(self, crossings: Crossings, name: str, args: Any, kwargs: Any, _in_place: bool) -> UseWatch:
        return self.graph.before(crossings, name, args, kwargs)

    def pass_hooks(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterable[Replaced]:
        make = around(begin, end)
        return [
            Replaced(paddle.Tensor, "backward", make),
            Replaced(paddle.autograd, "backward", make),
            Replaced(paddle, "grad", make),
        ]

    def call_hooks(self, _models: list[Any]) -> Iterable[Replaced]:
        return []

    def writing_sites(self, recorded: bool) -> Iterable[Site]:
        if not recorded:
            yield from (site for site in self.sites() if site.api.in_place)
        yield from unrecorded_writes()
        if not self.recorder.backward:  # else use_hooks() stands before all operations
            yield from (site for site in operation_sites() if writes(site.attribute))

    def write_hooks(self) -> Iterable[Replaced]:
        make = around(self._handed_out)
        return [Replaced(paddle.Tensor, name, make) for name in _HANDING_OUT if hasattr(paddle.Tensor, name)]

    def _handed_out(self) -> None:
        if not self.recorder.busy:
            self._tensors.distrust()

    def use_hooks(self) -> Iterable[Any]:
        if self._operations is None:
            self._operations = Operations(self.recorder, self.graph)
            self._places = Patches(self._operations.wrap, "paddle", ("paddle.",))
        self._places.attach(operation_sites())
        return [_Attached(self._places), CustomLayers(self.recorder, self.graph)]

    def suspend_hooks(self, _aside: Callable[[], None], _back: Callable[[], None]) -> Iterable[Replaced]:
        return []  # a traced function runs Python code, where tracing() keeps the recorder silent

    def add(self, parts: list[Any]) -> Any:
        total = parts[0]
        with paddle.no_grad():
            for part in parts[1:]:
                total = total + part
        return total

    def save_tensor(self, payload: Any, stream: IO[bytes]) -> None:
        save_array(payload, stream)


def is_static(layer: Any) -> bool:
    """Whether calling this layer runs a traced program."""
    return type(layer.forward).__name__ in {"StaticFunction", "SymbolicStaticFunction", "ASTStaticFunction"}


def make_recorder(
    config: RecordConfig,
    make_engine: Callable[[RecordConfig, Any], Engine] = Engine,
    make_adapter: Callable[[HostRows], PaddleAdapter] = PaddleAdapter,
) -> EagerRecorder:
    """A recorder of Paddle programs."""
    recorder = EagerRecorder(config, make_adapter, make_engine)
    adapter: Any = recorder.adapter

    adapter.recorder = recorder
    adapter.graph.work = recorder.work
    return recorder


# PrecisionDebugger, record, seeds and the small helpers, for Paddle.

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


class PrecisionDebugger(EagerDebugger):
    """Records what a Paddle program computes, between start() and stop(), step by step."""

    @staticmethod
    def make_recorder(config: Any) -> EagerRecorder:
        return make_recorder(config)


_verbs = Verbs(PrecisionDebugger, make_recorder)
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
