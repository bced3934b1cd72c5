"""PaddlePaddle in dynamic mode, as the shared recorder sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import paddle

from twinprobe.record.config import RecordConfig
from twinprobe.record.eager.adapter import Site
from twinprobe.record.eager.aliases import AliasWatch
from twinprobe.record.eager.gradients import Crossings
from twinprobe.record.eager.host_rows import HostRows, save_array
from twinprobe.record.eager.recorder import EagerRecorder, check_models
from twinprobe.record.leaves import NOT_MINE
from twinprobe.record.paddle.gradients import PaddleGraph
from twinprobe.record.paddle.sites import all_sites
from twinprobe.record.paddle.tensors import PaddleTensors
from twinprobe.record.rows import Leaf, Note

IN_OUT = "in_out"
_TRANSPOSED = (paddle.nn.Linear,)  # weight is [in, out] here, [out, in] in PyTorch and MindSpore
_PLACES = (paddle.CPUPlace, paddle.CUDAPlace, paddle.base.core.Place)


class Replaced:
    """A function replaced by another one, until remove()."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name, self._original = owner, name, getattr(owner, name)
        setattr(owner, name, make(self._original))

    def remove(self) -> None:
        """Put the original back."""
        setattr(self._owner, self._name, self._original)


class PaddleAdapter:
    """Layers, tensors, gradients and functions of Paddle."""

    name = "paddle"
    tensor_suffix = ".npy"
    container = "Module"
    module_class = paddle.nn.Layer
    scanned = ("paddle.nn.layer", "paddle.incubate.nn.layer")  # layers call functions by names of their own

    def __init__(self, rows: HostRows) -> None:
        self._tensors = PaddleTensors(rows)
        self._sites: list[Site] | None = None
        self.graph = PaddleGraph()

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

    def forget(self) -> None:
        self._tensors.forget()

    def special(self, value: Any, key: str | None) -> Any:
        if isinstance(value, paddle.dtype):
            return Leaf({"type": "paddle.dtype", "value": str(value)} if key == "dtype" else {})
        if isinstance(value, _PLACES):
            return Leaf({})
        return NOT_MINE

    def check_models(self, model: Any, level: str) -> list[Any]:
        return check_models(model, level, self.module_class, "paddle.nn.Layer")

    def subfolder(self, models: list[Any]) -> str:
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

    def parameters(self, module: Any) -> Mapping[str, Any]:
        return {name: one for name, one in module._parameters.items() if one is not None}

    def layout_of(self, module: Any, name: str) -> str | None:
        return IN_OUT if name == "weight" and isinstance(module, _TRANSPOSED) else None

    def needs_gradient(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def sites(self) -> Iterable[Site]:
        if self._sites is None:
            self._sites = list(all_sites())
        return self._sites

    def before_call(self, crossings: Crossings, name: str, args: Any, kwargs: Any, in_place: bool) -> AliasWatch:
        watch = AliasWatch(self.graph, crossings, name, args, kwargs)
        watch.divert(args[0] if in_place and args else None)
        return watch

    def pass_hooks(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterable[Replaced]:
        def around(original: Any) -> Any:
            @functools.wraps(original)
            def run(*args: Any, **kwargs: Any) -> Any:
                begin()
                try:
                    return original(*args, **kwargs)
                finally:
                    end()

            return run

        return [
            Replaced(paddle.Tensor, "backward", around),
            Replaced(paddle.autograd, "backward", around),
            Replaced(paddle, "grad", around),
        ]

    def call_hooks(self, models: list[Any]) -> Iterable[Replaced]:
        return []

    def suspend_hooks(self, aside: Callable[[], None], back: Callable[[], None]) -> Iterable[Replaced]:
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


def make_recorder(config: RecordConfig) -> EagerRecorder:
    """A recorder of Paddle programs."""
    recorder = EagerRecorder(config, PaddleAdapter)
    adapter: Any = recorder.adapter

    class _GradientGuard:
        def __enter__(self) -> None:
            self._quiet, self._guard = recorder.quiet(), recorder.guard("recording gradients")
            self._quiet.__enter__()
            self._no_grad = paddle.no_grad()
            self._no_grad.__enter__()

        def __exit__(self, *error: Any) -> Any:
            self._no_grad.__exit__(*error)
            self._quiet.__exit__()
            return self._guard.__exit__(*error)

    adapter.graph.guard = _GradientGuard
    return recorder
