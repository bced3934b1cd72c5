"""MindSpore in PyNative mode, as the shared recorder sees it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import mindspore as ms
from mindspore import nn, ops

from twinprobe._record.config import RecordConfig
from twinprobe._record.debugger import check_models
from twinprobe._record.eager.adapter import Site
from twinprobe._record.eager.apis import Replaced, around, nothing
from twinprobe._record.eager.gradients import AliasWatch, Crossings
from twinprobe._record.eager.host_rows import HostRows, KnownRows, save_array
from twinprobe._record.eager.recorder import EagerRecorder
from twinprobe._record.eager.tools import EagerDebugger, Verbs
from twinprobe._record.engine import Engine
from twinprobe._record.mindspore.nodes import NodeGraph
from twinprobe._record.mindspore.sites import PrimitiveSites, function_sites, writing_sites
from twinprobe._record.mindspore.tensors import GraphExecutor, JitExecutor, MindSporeTensors, executor
from twinprobe._record.render import NOT_MINE
from twinprobe._record.rows import Leaf, Note
from twinprobe._record.tools import replace_dropout, seed_python
from twinprobe._record.writer import logger

# Cells that run as compiled graphs: found before the recording begins, said by name, seen from outside only.

_GRAPH_MODE = 0


def is_jitted(cell: Any) -> bool:
    """Whether ``construct`` was given to mindspore.jit."""
    construct = getattr(cell.construct, "__func__", cell.construct)
    code = getattr(construct, "__code__", None)
    return code is not None and code.co_name == "staging_specialize" and hasattr(construct, "__wrapped__")


def in_graph_mode() -> bool:
    """Whether every cell is compiled."""
    return bool(ms.get_context("mode") == _GRAPH_MODE)


def watched_cells(model: Any) -> Iterator[tuple[str, Any, bool]]:
    """The cells to watch: path, cell, and whether it is the boundary of a compiled region.

    Nothing inside a compiled region is seen. A model that is compiled as a whole is itself the boundary.
    """
    if in_graph_mode() or is_jitted(model):
        yield "network", model, True
        return
    inside: list[str] = []
    for path, cell in model.cells_and_names():
        if not path or any(path.startswith(f"{one}.") for one in inside):
            continue
        compiled = is_jitted(cell)
        if compiled:
            inside.append(path)
        yield path, cell, compiled


def warn_of(models: list[Any]) -> bool:
    """Say which cells are compiled; True if there is one."""
    found = [(path, cell) for model in models for path, cell, compiled in watched_cells(model) if compiled]
    for path, cell in found:
        logger.warning(
            "%s (%s) runs as a compiled graph, where Python sees nothing: only what goes in and comes out is recorded, "
            "under pynative/; no graph/ folder is produced. For the inside use MindSpore's own kernel dump, whose "
            "folders 'compare' reads",
            path,
            type(cell).__name__,
        )
    return bool(found)


class JitCalls:
    """Functions given to mindspore.jit that a recorded program calls: each is said once, and may write to anything."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after
        self._said: set[str] = set()

    def watch(self) -> list[Replaced]:
        """Stand before the compiled code; returns handles with remove()."""
        found = [(JitExecutor, self._function), (GraphExecutor, around(nothing, self._after))]
        return [Replaced(owner, "__call__", make) for owner, make in found if owner is not None]

    def _function(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self._say(executor)
            try:
                return original(executor, *args, **kwargs)
            finally:
                self._after()

        return call

    def _say(self, executor: Any) -> None:
        name = getattr(getattr(executor, "fn", None), "__qualname__", "")
        if name and getattr(executor, "obj", None) is None and name not in self._said:
            self._said.add(name)
            logger.warning(
                "%s is given to mindspore.jit and runs as a compiled graph: no call inside it is recorded", name
            )


def around_compilation(aside: Callable[[], None], back: Callable[[], None]) -> list[Replaced]:
    """A compiler reads the source of the functions it meets: it must meet the framework's own."""
    owners = [one for one in (JitExecutor, GraphExecutor) if one is not None and hasattr(one, "compile")]
    return [Replaced(owner, "compile", around(aside, back)) for owner in owners]


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


# PrecisionDebugger, record, seeds and the small helpers, for MindSpore.

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


class PrecisionDebugger(EagerDebugger):
    """Records what a MindSpore program computes, between start() and stop(), step by step."""

    @staticmethod
    def make_recorder(config: Any) -> EagerRecorder:
        return make_recorder(config)


_verbs = Verbs(PrecisionDebugger, make_recorder)
record, save = _verbs.record, _verbs.save
module_dump, module_dump_end = _verbs.module_dump, _verbs.module_dump_end
register_custom_api = _verbs.register_custom_api


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:
    """Seed Python, NumPy and MindSpore; ``mode`` asks for deterministic kernels, ``rm_dropout`` makes dropout pass its
    input on."""
    seed_python(seed)
    ms.set_seed(seed)
    if mode:
        setter = getattr(ms, "set_deterministic", None)
        setter(True) if setter is not None else ms.set_context(deterministic="ON")
    if rm_dropout:
        replace_dropout(ms.ops, _DROPOUTS)
        if hasattr(ms, "mint"):
            replace_dropout(ms.mint.nn.functional, _DROPOUTS)
        _silence_dropout_cells()


def _silence_dropout_cells() -> None:
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d"):
        kind: Any = getattr(ms.nn, name, None)
        if kind is not None and not getattr(kind.construct, "_twinprobe_without_dropout", False):
            kind.construct = _passing


def _passing(_self: Any, x: Any) -> Any:
    return x


_passing._twinprobe_without_dropout = True  # type: ignore[attr-defined]
