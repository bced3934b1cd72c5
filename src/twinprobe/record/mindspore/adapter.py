"""MindSpore in PyNative mode, as the shared recorder sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import mindspore as ms
from mindspore import nn, ops

from twinprobe.record.config import RecordConfig
from twinprobe.record.eager.adapter import Site
from twinprobe.record.eager.aliases import AliasWatch
from twinprobe.record.eager.gradients import Crossings
from twinprobe.record.eager.host_rows import HostRows, save_array
from twinprobe.record.eager.known_rows import KnownRows
from twinprobe.record.eager.patches import Replaced, around
from twinprobe.record.eager.recorder import EagerRecorder
from twinprobe.record.engine import Engine
from twinprobe.record.leaves import NOT_MINE
from twinprobe.record.mindspore.compiled import JitCalls, around_compilation, warn_of, watched_cells
from twinprobe.record.mindspore.nodes import NodeGraph
from twinprobe.record.mindspore.sites import PrimitiveSites, function_sites, writing_sites
from twinprobe.record.mindspore.tensors import MindSporeTensors
from twinprobe.record.mindspore.versions import executor
from twinprobe.record.rows import Leaf, Note
from twinprobe.record.verbs.checks import check_models

_FLOATS = frozenset({"Float16", "Float32", "Float64", "BFloat16", "Complex64", "Complex128"})
_HANDING_OUT = ("asnumpy", "numpy", "__array__", "__dlpack__")  # arrays of the tensors' own memory
_HAS_NODES = hasattr(ms.Tensor, "_grad_node")


class HookBackwardGraph:
    """Aliases for versions whose tensors do not show their node: the framework's own identity with a hook."""

    def __init__(self) -> None:
        self.work: Any = None

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, ms.Tensor)

    def differentiable(self, tensor: Any) -> bool:
        return str(tensor.dtype) in _FLOATS

    def can_alias(self, tensor: Any) -> bool:
        return self.differentiable(tensor) and not isinstance(tensor, ms.Parameter)

    def alias(self, tensor: Any, heard: Callable[[Any], None]) -> Any:
        return ops.HookBackward(self._guarded(heard))(tensor)

    def listen(self, tensor: Any, heard: Callable[[Any], None]) -> bool:
        if not self.differentiable(tensor):
            return False
        tensor.register_hook(self._guarded(heard))
        return True

    def _guarded(self, heard: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(gradient: Any) -> None:
            self.work("recording gradients", heard, gradient[0] if isinstance(gradient, tuple) else gradient)

        return call


class MindSporeAdapter:
    """Cells, tensors, gradients and functions of MindSpore."""

    name = "mindspore"
    tensor_suffix = ".npy"
    container = "Cell"
    module_class = nn.Cell
    tensor_types: tuple[type, ...] = (ms.Tensor, ms.Parameter)
    scanned: tuple[str, ...] = ("mindspore.nn.layer", "mindspore.mint.nn.layer")

    def __init__(self, rows: HostRows) -> None:
        rows.widens = True
        self.tensors = MindSporeTensors(rows)
        self.aliases = HookBackwardGraph()
        self.graph = NodeGraph(self.is_tensor, self.aliases.differentiable)
        self.recorder: Any = None
        self.uses_nodes = _HAS_NODES
        self._sites: list[Site] | None = None
        self._primitives = PrimitiveSites()
        self._jit = JitCalls(self._forget)

    @property
    def known(self) -> KnownRows:
        return self.tensors

    def rank(self) -> int | None:
        from mindspore.communication import GlobalComm, get_rank

        return int(get_rank()) if GlobalComm.INITED else None

    def grad_enabled(self) -> bool:
        return bool(executor.requires_grad())

    def tracing(self) -> bool:
        return False  # compilation happens with every function put back

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, ms.Tensor)

    def note(self, tensor: Any, *, save: bool) -> Note:
        return self.tensors.note(tensor, save=save)

    note_sum = note

    def special(self, value: Any, key: str | None) -> Any:
        if isinstance(value, ms.Type) if hasattr(ms, "Type") else type(value).__module__.startswith("mindspore._c"):
            return Leaf({"type": "mindspore.dtype", "value": str(value)} if key in {"dtype", "output_dtype"} else {})
        return NOT_MINE

    def check_models(self, model: Any, level: str) -> list[Any]:
        if isinstance(getattr(model, "__self__", None), nn.Cell):  # mindspore.jit(cell) is a method of the cell
            model = model.__self__
        return check_models(model, level, nn.Cell, "mindspore.nn.Cell")

    def subfolder(self, models: list[Any]) -> str:
        return "pynative" if warn_of(models) else ""

    def modules(self, model: Any) -> Iterator[tuple[str, Any, bool]]:
        return watched_cells(model)

    def parameters(self, module: Any, deep: bool) -> Mapping[str, Any]:
        found = module.parameters_and_names() if deep else module._params.items()
        return {name: one for name, one in found if one is not None}

    def layout_of(self, _module: Any, _name: str) -> str | None:
        return None

    def mark(self, prefix: str, args: list[Any], kwargs: Mapping[str, Any]) -> None:
        """Weights are laid out as in PyTorch."""

    def needs_gradient(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad) if isinstance(tensor, ms.Parameter) else self.aliases.differentiable(tensor)

    def sites(self) -> Iterable[Site]:
        if self._sites is None:
            self._sites = list(function_sites())
        return self._sites

    def before_call(self, crossings: Crossings, name: str, args: Any, kwargs: Any, in_place: bool) -> Any:
        if self.uses_nodes:
            return self.graph.before(crossings, name, args, kwargs)
        watch = AliasWatch(self.aliases, crossings, name, args, kwargs)
        watch.divert(args[0] if in_place and args else None)
        return watch

    def pass_hooks(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterable[Replaced]:
        return [Replaced(type(executor), "grad", around(begin, end))]

    def call_hooks(self, models: list[Any]) -> Iterable[Any]:
        return self._primitives.replaced(models, self.recorder)

    def writing_sites(self, recorded: bool) -> Iterable[Site]:
        found = writing_sites()
        known = {(id(site.owner), site.attribute) for site in self.sites()} if recorded else set()
        return [site for site in found if (id(site.owner), site.attribute) not in known]

    def write_hooks(self) -> Iterable[Any]:
        taken = around(self._array_taken)
        arrays = [Replaced(ms.Tensor, name, taken) for name in _HANDING_OUT if hasattr(ms.Tensor, name)]
        watched = self.recorder.records_apis  # then call_hooks() stands before the primitives
        return [*arrays, *self._jit.watch(), *(() if watched else self._primitives.replaced([], self.recorder))]

    def _forget(self) -> None:
        self.tensors.forget()

    def _array_taken(self) -> None:
        if not self.recorder.busy:  # nobody sees what the program writes there
            self.known.distrust()

    def use_hooks(self) -> Iterable[Any]:
        return []

    def suspend_hooks(self, aside: Callable[[], None], back: Callable[[], None]) -> Iterable[Replaced]:
        return around_compilation(aside, back)

    def add(self, parts: list[Any]) -> Any:
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def save_tensor(self, payload: Any, stream: IO[bytes]) -> None:
        save_array(payload, stream)


def make_recorder(config: RecordConfig, make_engine: Callable[[RecordConfig, Any], Engine] = Engine) -> EagerRecorder:
    """A recorder of MindSpore programs."""
    recorder = EagerRecorder(config, MindSporeAdapter, make_engine)
    adapter: Any = recorder.adapter

    adapter.recorder = recorder
    adapter.graph.work = adapter.aliases.work = recorder.work
    adapter.graph.outermost = lambda: not recorder.modules.calls
    return recorder
