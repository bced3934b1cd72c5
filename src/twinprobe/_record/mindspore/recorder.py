"""MindSpore in PyNative mode: its recorder, its debugger and the functions beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from twinprobe._record.calls import Site, outside_compiled
from twinprobe._record.config import RecordConfig
from twinprobe._record.debugger import Debugger, Verbs, replace_dropout, seed_python
from twinprobe._record.eager.apis import Replaced, around, calling
from twinprobe._record.eager.host_rows import HostRows
from twinprobe._record.eager.recorder import EagerRecorder
from twinprobe._record.eager.updates import Group
from twinprobe._record.engine import Engine
from twinprobe._record.entries import NOT_MINE, Leaf, logger
from twinprobe._record.mindspore.framework import (
    GraphExecutor,
    JitExecutor,
    MindSporeTensors,
    PrimitiveSites,
    dtype_names,
    executor,
    first_of,
    function_sites,
    memory_of,
    writing_sites,
)
from twinprobe._record.mindspore.gradients import AliasWatch, NodeIndex, NodeWatch, is_differentiable
from twinprobe._record.perturb import ON_CPU, HostPerturbation
from twinprobe._record.watch.eager import EagerWatcher
from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput

_GRAPH_MODE = 0
_HANDING_OUT = ("asnumpy", "numpy", "__array__", "__dlpack__")  # arrays of the tensors' own memory


def is_jitted(cell: Any) -> bool:
    """Whether ``construct`` was given to mindspore.jit."""
    construct = getattr(cell.construct, "__func__", cell.construct)
    code = getattr(construct, "__code__", None)
    return code is not None and code.co_name == "staging_specialize" and hasattr(construct, "__wrapped__")


class MindSporeRecorder(EagerRecorder):
    """Cells, tensors, gradients and functions of MindSpore."""

    name = "mindspore"
    container = "Cell"
    module_class = nn.Cell
    module_title = "mindspore.nn.Cell"
    tensor_class = ms.Tensor
    tensor_types = (ms.Tensor, ms.Parameter)
    scanned = ("mindspore.nn.layer", "mindspore.mint.nn.layer")
    grad_enabled = staticmethod(executor.requires_grad)

    def __init__(self, config: RecordConfig, make_engine: Callable[[RecordConfig, Any], Engine] = Engine) -> None:
        super().__init__(config, make_engine)
        self.rows.widens = True
        self.uses_nodes = hasattr(ms.Tensor, "_grad_node")
        self._index = NodeIndex()
        self._primitives = PrimitiveSites()
        self._jit_calls: set[str] = set()  # functions given to mindspore.jit that were warned of

    def make_cache(self, rows: HostRows) -> MindSporeTensors:
        return MindSporeTensors(rows)

    @staticmethod
    def watcher(config: RecordConfig) -> Any:
        return MindSporeWatcher(config)

    @staticmethod
    def settings() -> dict[str, Any]:
        settings: dict[str, Any] = {"version": ms.__version__, "device": ms.get_context("device_target")}
        with suppress(Exception):  # each name came with some version
            settings["deterministic"] = ms.get_context("deterministic") == "ON"
            settings["threads"] = ms.get_context("runtime_num_threads")
        return {**settings, "autocast": None}

    def make_perturbation(self, seed: int) -> HostPerturbation:
        device = ms.get_context("device_target")
        if device != "CPU" or not hasattr(ms.Tensor, "data_ptr") or not hasattr(ms.Tensor, "stride"):
            raise BadInput(f"perturb changes host memory, which this MindSpore on {device} does not show", hint=ON_CPU)
        return HostPerturbation(seed, ms.Tensor, memory_of)

    @staticmethod
    def rank() -> int | None:
        from mindspore.communication import GlobalComm, get_rank

        return int(get_rank()) if GlobalComm.INITED else None

    def special(self, value: Any, key: str | None) -> Any:
        if isinstance(value, ms.Type) if hasattr(ms, "Type") else type(value).__module__.startswith("mindspore._c"):
            return Leaf({"type": "mindspore.dtype", "value": str(value)} if key in {"dtype", "output_dtype"} else {})
        return NOT_MINE

    def check_models(self, model: Any) -> list[Any]:
        if isinstance(getattr(model, "__self__", None), nn.Cell):  # mindspore.jit(cell) is a method of the cell
            model = model.__self__
        return super().check_models(model)

    def find_subfolder(self, models: list[Any]) -> str:
        compiled = [(path, cell) for model in models for path, cell, is_one in self.watched_modules(model) if is_one]
        for path, cell in compiled:
            logger.warning(
                "%s (%s) runs as a compiled graph, which Python cannot observe: only its inputs and outputs are "
                "recorded, under pynative/; no graph/ folder is produced. To see inside, use MindSpore's own kernel "
                "dump, which 'compare' can read",
                path,
                type(cell).__name__,
            )
        return "pynative" if compiled else ""

    @staticmethod
    def watched_modules(model: Any) -> Iterator[tuple[str, Any, bool]]:
        if ms.get_context("mode") == _GRAPH_MODE or is_jitted(model):  # compiled as a whole: itself the boundary
            return iter([("network", model, True)])
        return outside_compiled(model.cells_and_names(), is_jitted)

    def own_parameters(self, module: Any, deep: bool) -> Mapping[str, Any]:
        named = module.parameters_and_names() if deep else module._params.items()
        return {name: parameter for name, parameter in named if parameter is not None}

    def needs_gradient(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad) if isinstance(tensor, ms.Parameter) else is_differentiable(tensor)

    def find_sites(self) -> Iterable[Site]:
        return function_sites()

    def before_call(self, name: str, args: Any, kwargs: Any, in_place: bool) -> NodeWatch | AliasWatch:
        if self.uses_nodes:
            return NodeWatch(self, self._index, name, args, kwargs)
        return AliasWatch(self, name, args, kwargs, args[0] if in_place and args else None)

    def add_gradients(self, parts: list[Any]) -> Any:
        return functools.reduce(lambda total, part: total + part, parts)

    def pass_hooks(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterable[Replaced]:
        return [Replaced(type(executor), "grad", around(begin, end))]

    def call_hooks(self, models: list[Any]) -> Iterable[Any]:
        return self._primitives.replaced(models, self)

    def writing_sites(self) -> Iterable[Site]:
        recorded = {(id(site.owner), site.attribute) for site in self.sites()} if self.records_apis else set()
        return [site for site in writing_sites() if (id(site.owner), site.attribute) not in recorded]

    def write_hooks(self) -> Iterable[Any]:
        for name in _HANDING_OUT:
            if hasattr(ms.Tensor, name):
                yield Replaced(ms.Tensor, name, around(self.memory_exposed))
        if JitExecutor is not None:
            yield Replaced(JitExecutor, "__call__", calling(self._call_jit))
        if GraphExecutor is not None:
            yield Replaced(GraphExecutor, "__call__", around(lambda: None, self.row_cache.forget))
        if not self.records_apis:  # else call_hooks() stands before the primitives
            yield from self._primitives.replaced([], self)

    def _call_jit(self, original: Any, executor: Any, args: Any, kwargs: Any) -> Any:
        """A compiled function may write to anything. Each one is reported once."""
        name = getattr(getattr(executor, "fn", None), "__qualname__", "")
        if name and getattr(executor, "obj", None) is None and name not in self._jit_calls:
            self._jit_calls.add(name)
            logger.warning(
                "%s is given to mindspore.jit and runs as a compiled graph: no call inside it is recorded", name
            )
        try:
            return original(executor, *args, **kwargs)
        finally:
            self.row_cache.forget()

    def suspend_hooks(self) -> Iterable[Replaced]:
        # A compiler reads the source of the functions it meets: it must meet the framework's own.
        make = around(self.originals_back, self.wrappers_back)
        return [Replaced(owner, "compile", make) for owner in (JitExecutor, GraphExecutor) if hasattr(owner, "compile")]

    def update_hooks(self) -> Iterable[Any]:
        for kind in _OPTIMIZERS:
            yield Replaced(kind, "__call__", calling(self._step))
        if _Clipping is not None:
            yield Replaced(_Clipping, "__call__", calling(self._clip))

    def _step(self, original: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Optimizers are cells, called with the gradients."""
        gradients = args[0] if args else next(iter(kwargs.values()), ())
        held = [id(parameter) for parameter in optimizer.parameters]
        return self.updates.step(
            optimizer,
            lambda: dict(zip(held, gradients, strict=False)) if isinstance(gradients, tuple | list) else {},
            lambda: groups_of_a_step(optimizer),
            lambda: original(optimizer, *args, **kwargs),
        )

    def _clip(self, original: Any, cell: Any, args: Any, kwargs: Any) -> Any:
        gradients = args[0] if args else next(iter(kwargs.values()), ())
        self.updates.clipping(lambda: self.updates.norm(gradients))
        return original(cell, *args, **kwargs)


# Optimizers. What MindSpore's call their settings, and what PyTorch's do: runs of both are compared.

_new_adam = first_of("mindspore.experimental.optim.adam:Adam")
_new_optimizer = first_of("mindspore.experimental.optim.optimizer:Optimizer")  # with groups, as PyTorch has them
_OPTIMIZERS = tuple(kind for kind in (nn.Optimizer, _new_optimizer) if kind is not None)
_Clipping = first_of("mindspore.ops.function.clip_func:_ClipByGlobalNorm")  # what clip_by_global_norm makes and calls
_SETTINGS = {
    "beta1": "betas.0", "beta2": "betas.1", "eps": "eps", "momentum": "momentum", "dampening": "dampening",
    "nesterov": "nesterov", "use_nesterov": "nesterov", "use_amsgrad": "amsgrad", "loss_scale": "loss_scale",
}  # fmt: skip
_USUAL = {"use_nesterov": False, "loss_scale": 1.0}  # PyTorch has no such settings


def groups_of(optimizer: Any) -> list[Group]:
    """The parameters of an optimizer with their settings; those of nn.Optimizer may each have their own."""
    if not isinstance(optimizer, nn.Optimizer):
        return [Group(list(group["params"]), dict(_plain(group))) for group in optimizer.param_groups]
    decay = optimizer.get_weight_decay() if hasattr(optimizer, "get_weight_decay") else optimizer.weight_decay
    values = {name: _number(getattr(optimizer, name, None)) for name in _SETTINGS}
    values = {name: value for name, value in values.items() if value is not None and value != _USUAL.get(name)}
    shared = {_SETTINGS[name]: value for name, value in values.items()}
    parameters = list(optimizer.parameters)
    rates, decays = (
        [_number(item) for item in value] if isinstance(value, tuple | list) else [_number(value)] * len(parameters)
        for value in (optimizer.get_lr(), decay)
    )
    filters = getattr(optimizer, "decay_flags", None) or [True] * len(parameters)
    groups: list[Group] = []
    for parameter, rate, own_decay, decays_it in zip(parameters, rates, decays, filters, strict=False):
        settings = {"lr": rate, "weight_decay": own_decay if decays_it else 0.0, **shared}
        if not groups or groups[-1].settings != settings:
            groups.append(Group([], settings))
        groups[-1].parameters.append(parameter)
    return groups


def groups_of_a_step(optimizer: Any) -> list[Group]:
    """The same for the step that begins, in PyTorch's meaning of the settings.

    The kernel of both Adams adds eps before it corrects the bias of the second moment, PyTorch after it: eps is what
    PyTorch would need.
    """
    groups = groups_of(optimizer)
    steps = _number(optimizer.state_step) if _new_adam is not None and isinstance(optimizer, _new_adam) else None
    if isinstance(optimizer, nn.Adam) or steps is not None:
        for group in groups:  # no two share their settings
            beta = group.settings["betas.1"]
            power = _number(optimizer.beta2_power) * beta if steps is None else beta ** (steps + 1)
            group.settings["eps"] /= (1.0 - power) ** 0.5
    return groups


def _plain(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a group that are numbers, or several of them."""
    for key, value in group.items():
        several = isinstance(value, list | tuple)
        for place, item in enumerate(value if several else [value]) if key != "params" else ():
            number = _number(item)
            if number is not None:
                yield (f"{key}.{place}" if several else key), number


def _number(value: Any) -> Any:
    """A setting as a number or a flag; None for anything else."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, ms.Tensor):
        # The program gave 0.1, not the float32 nearest to it.
        return float(str(value.asnumpy().reshape(-1)[0])) if value.size == 1 else None
    return value if isinstance(value, bool | int | float) else None


# Watching: a few numbers for each step.

_tensors = MindSporeTensors(HostRows(values=True, digest=None))
_no_grad = first_of("mindspore.graph.api:_no_grad", "mindspore.common.api:_no_grad")


_STATISTICS = ("moving_mean", "moving_variance")  # of a batch norm: parameters that nothing trains


class MindSporeWatcher(EagerWatcher):
    """Cells, optimizers (which are cells too) and backward passes of MindSpore."""

    recorder = MindSporeRecorder
    containers = (nn.SequentialCell, nn.CellList)
    optimizers = _OPTIMIZERS

    def quiet(self) -> Any:
        return _no_grad()

    def dtype(self, tensor: Any) -> str:
        return dtype_names(tensor)[1]

    def on_host(self, tensor: Any) -> HostTensor | None:
        name = dtype_names(tensor)[1]
        if ms.get_context("device_target") != "CPU" or name not in STORAGE:
            return None
        array = np.ascontiguousarray(_tensors.read(tensor, name))
        return HostTensor(name, tuple(tensor.shape), array.reshape(-1))

    def parameters_of(self, model: Any) -> Iterable[tuple[str, Any]]:
        return [(name, parameter) for name, parameter in model.parameters_and_names() if parameter.requires_grad]

    def buffers_of(self, model: Any) -> Iterable[tuple[str, Any, str]]:
        for path, cell in model.cells_and_names():
            names = [name for name in (*_STATISTICS, *getattr(cell, "_buffers", ())) if hasattr(cell, name)]
            yield from ((f"{path}.{name}".lstrip("."), cell, name) for name in names)

    def random_state(self) -> bytes:
        return bytes(ms.get_rng_state().asnumpy())

    def settings_of(self, optimizer: Any) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = []  # groups that follow one another may be the same
        for group in groups_of(optimizer):
            seen += [] if group.settings in seen else [group.settings]
        return seen

    def called(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(module, _OPTIMIZERS) and args:
            gradients = args[0] if isinstance(args[0], tuple | list) else ()
            pairs = zip(module.parameters, gradients, strict=False)
            return self.update(module, pairs, lambda: original(module, *args, **kwargs))
        return super().called(original, module, args, kwargs)

    def hooks(self) -> Iterable[Any]:
        kind = type(executor)
        yield Replaced(kind, "end_graph", calling(self._end_graph))
        yield Replaced(kind, "grad", calling(self._backward))

    def _end_graph(self, original: Any, runner: Any, args: Any, kwargs: Any) -> Any:
        """The differentiated function has ended: its first result is the loss."""
        output = args[1]
        self.work(self.saw_loss, output[0] if isinstance(output, tuple | list) and output else output)
        return original(runner, *args, **kwargs)

    def _backward(self, original: Any, runner: Any, args: Any, kwargs: Any) -> Any:
        with self.in_pass():
            return original(runner, *args, **kwargs)


_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


class PrecisionDebugger(Debugger):
    """Records what a MindSpore program computes, between start() and stop(), step by step."""

    recorder_class = MindSporeRecorder


_verbs = Verbs(PrecisionDebugger)
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
        for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d"):
            if hasattr(ms.nn, name):
                getattr(ms.nn, name).construct = lambda _self, x: x
