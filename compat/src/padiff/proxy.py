"""create_model of PaDiff's development version: a model that records itself, written by TwinProbe's recorder."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from padiff.layer_lists import LayerLists
from twinprobe._live.frameworks.adapter import adapter_of, framework_of
from twinprobe._live.pairing.layer_map import LayerMap, special_layers
from twinprobe._live.running import prepare_call
from twinprobe._measure.statistics import statistics
from twinprobe._record.writer import TENSOR_FOLDER, DumpFolder
from twinprobe._report.console import say
from twinprobe._runs.dtypes import widened
from twinprobe.errors import BadInput

_WORK = ".recording"  # what a report has gathered so far, below a model's dump path
_root = [str(Path(sys.path[0], "padiff_dump"))]  # beside the script, as PaDiff has it

# The recorder would name the working folder; what a user asked for is in step_N/rank_N.
logging.getLogger("twinprobe.record").addFilter(
    lambda record: record.levelno > logging.INFO or f"{os.sep}{_WORK}" not in record.getMessage()
)


def set_dump_root_path(path: str | Path) -> None:
    """Where models made from now on write."""
    _root[0] = str(path)


def get_dump_root_path() -> str:
    """Where models made from now on write."""
    return _root[0]


def create_model(model: Any, name: str | None = None, dump_freq: int = 1) -> ProxyModel:
    """A model that records what it computes, every dump_freq-th step, into a new folder below the root path."""
    return model if isinstance(model, ProxyModel) else ProxyModel(model, name or type(model).__name__, dump_freq)


class ProxyModel:
    """Call it as the model; `backward(loss)` and `try_dump()` end a step. Everything else is the model's."""

    def __init__(self, model: Any, name: str, dump_freq: int = 1) -> None:
        framework = framework_of(model)
        if framework not in ("torch", "paddle"):
            raise BadInput(
                f"create_model got a {type(model).__name__}", hint="give a paddle.nn.Layer or a torch.nn.Module"
            )
        self.model = model
        self.name = name
        self.framework = framework
        self.dump_path = str(_new_folder(Path(_root[0]), name))
        self.dump_freq = dump_freq
        self.step = 0
        self.layer_map: list[Any] = []
        self.lists = LayerLists(model)
        self._recording = False
        self._work = Path(self.dump_path, _WORK)
        # A class of its own for each model: the recorder allows one debugger per class and process.
        package = __import__(f"twinprobe.{framework}", fromlist=["PrecisionDebugger"])
        own = type("PrecisionDebugger", (package.PrecisionDebugger,), {"_current": None})
        self._debugger = own(task="tensor", level="L0", dump_path=self._work)
        # A step that nobody ends would leave the framework's own functions replaced when the proxy is gone.
        weakref.finalize(self, self._debugger.close).atexit = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["model"], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.step % self.dump_freq == 0:
            self._start()
        return self.model(*args, **kwargs)

    def backward(self, loss: Any) -> None:
        """loss.backward(), recorded."""
        loss.backward()

    def parameters(self, recursively: bool | None = None) -> Any:
        """The model's own `parameters()`; with `recursively`, PaDiff's wrappers, whose `grad()` is a method."""
        if recursively is None:
            return self.model.parameters()
        word = "recurse" if self.framework == "torch" else "include_sublayers"
        return map(ProxyParam, self.model.parameters(**{word: recursively}))

    # -- what is recorded -------------------------------------------------------------------------------------------

    def update_black_list(self, layers: Any, mode: str = "all") -> None:
        """Record nothing of these layers, of what is inside them, or of both."""
        self.lists.add(self.lists.black, layers, mode)

    def update_white_list(self, layers: Any, mode: str = "self") -> None:
        """Record these layers and no others; a black list does not count any more."""
        self.lists.add(self.lists.white, layers, mode)

    def update_black_list_with_class(self, layer_class: Any, mode: str = "self") -> None:
        """The black list, for every layer of a class."""
        self.lists.add_class(self.lists.black, layer_class, mode)

    def update_white_list_with_class(self, layer_class: Any, mode: str = "self") -> None:
        """The white list, for every layer of a class."""
        self.lists.add_class(self.lists.white, layer_class, mode)

    def update_unassigned_weights_list(self, layers: Any, mode: str = "self") -> None:
        """Neither copy nor dump the weights of these layers, of what is inside them, or of both."""
        self.lists.add(self.lists.unassigned, layers, mode)

    def set_layer_map(self, layers: Any) -> None:
        """These layers are compared as wholes with those that the other model maps, in the order of definition."""
        wanted = list(layers) if isinstance(layers, list | tuple | set) else [layers]
        self.lists.add(self.lists.mapped, wanted, "sublayers")  # refuses what is no layer of this model
        mine = [layer for _, layer in adapter_of(self.model).modules(self.model)]
        self.layer_map = [layer for layer in mine if any(layer is one for one in wanted)]

    def auto_layer_map(self, model_place: str) -> bool:
        """Map the attention, recurrent and batch norm layers; `model_place` is "base" or "raw"."""
        if model_place not in ("base", "raw"):
            raise BadInput(f"auto_layer_map got {model_place!r}", hint='"base" or "raw"')
        self.layer_map = special_layers(self.model, LayerMap())
        self.lists.add(self.lists.mapped, self.layer_map, "all")
        for layer in self.layer_map:
            say(f"{model_place} model {self.name}: {type(layer).__name__} is mapped")
        return True

    # -- what is written --------------------------------------------------------------------------------------------

    def try_dump(self, dump_path: str | Path | None = None) -> None:
        """End a step; every dump_freq-th one is written to `dump_path`, or `step_N/rank_N` below the model's own."""
        if self.step % self.dump_freq == 0:
            folder = Path(dump_path or Path(self.dump_path, f"step_{self.step}", self._rank))
            self.dump_params(folder)
            self.dump_report(folder)
        self.clear_report()
        self.step += 1

    def clear_report(self) -> None:
        """Forget what has been recorded since the last time."""
        self._stop()
        self._debugger.flush()
        shutil.rmtree(self._work / f"step{self._debugger.recorder.engine.step_number}", ignore_errors=True)
        self._debugger.step()
        with suppress(OSError):
            self._work.rmdir()

    def dump_report(self, dump_path: str | Path | None = None) -> None:
        """Write what has been recorded since the last clear_report or try_dump."""
        self._stop()
        self._debugger.flush()
        recorded = list(self._work.glob(f"step{self._debugger.recorder.engine.step_number}/*"))
        if not recorded:
            say(f"{self.name}: nothing has been recorded in step {self.step}, so there is no report to dump")
            return
        folder = self._folder(dump_path)
        shutil.rmtree(folder / TENSOR_FOLDER, ignore_errors=True)  # an earlier report's; nothing else is touched
        shutil.copytree(recorded[0], folder, dirs_exist_ok=True, copy_function=_link)

    def dump_params(self, dump_path: str | Path | None = None) -> None:
        """Write weights and gradients as they are now."""
        self._dump_parameters(self._folder(dump_path) / "params")

    def dump_weights(self, dump_path: str | Path | None = None) -> None:
        """Write weights as they are now."""
        self._dump_parameters(self._folder(dump_path) / "weights", gradients=False)

    def dump_grads(self, dump_path: str | Path | None = None) -> None:
        """Write the weights' gradients as they are now."""
        self._dump_parameters(self._folder(dump_path) / "grads")

    def dump_pass(self, inputs: Any, loss: Any, *, backward: bool) -> None:
        """Run once and write it to `auto_diff`, where PaDiff's auto_diff leaves its files. The model stays as it is."""
        adapter = adapter_of(self.model)
        folder = Path(self.dump_path, "auto_diff")
        self.clear_report()
        try:
            with _kept_state(self.model):
                self._start()
                adapter.run(self.model, prepare_call(inputs, adapter, self.model), loss, backward=backward)
                self.dump_report(folder)
                self.dump_params(folder)
                self.dump_grads(folder)
        finally:  # nothing stays on a model that raised
            self.clear_report()

    @property
    def _rank(self) -> str:
        return f"rank_{self._debugger.recorder.rank() or 0}"

    def _folder(self, path: str | Path | None) -> Path:
        return Path(path) if path is not None else Path(self.dump_path, self._rank)

    def _start(self) -> None:
        if not self._recording:
            self.lists.apply(self._debugger.recorder)
            self._debugger.start(self.model)
            self._recording = True

    def _stop(self) -> None:
        if self._recording:
            self._debugger.stop()
            self._recording = False

    def _dump_parameters(self, folder: Path, *, gradients: bool = True) -> None:
        """A run of its own: the weights now may not be those that the report was made with."""
        shutil.rmtree(folder, ignore_errors=True)
        adapter = adapter_of(self.model)
        header = {"task": "tensor", "level": "L0", "framework": adapter.name, "dump_data_dir": str(folder.absolute())}
        run = DumpFolder(folder, header)
        left_out = self.lists.unassigned | self.lists.mapped
        for path, layer in adapter.modules(self.model):
            own = {} if path in left_out else adapter.parameters(layer)
            prefix = ".".join(filter(None, ("Module", path, type(layer).__name__)))
            turned = {name for name in own if adapter.is_transposed(layer, name)}
            name = f"{prefix}.forward.0"
            leaves = {
                one: _leaf(run, f"{name}.parameters.{one}", tensor, adapter.to_host, turned=one in turned)
                for one, tensor in own.items()
            }
            run.add(name, json.dumps({"input_args": [], "input_kwargs": {}, "output": [], "parameters": leaves}))
            name = f"{prefix}.parameters_grad.0"
            found = {one: _gradient(tensor) for one, tensor in own.items()} if gradients else {}
            notes = {
                one: [_leaf(run, f"{name}.{one}", tensor, adapter.to_host, turned=one in turned)]
                for one, tensor in found.items()
                if tensor is not None
            }
            if notes:
                run.add(name, json.dumps(notes))
        run.close({})


class ProxyParam:
    """A parameter as PaDiff wraps it."""

    def __init__(self, param: Any) -> None:
        self.param = param

    def grad(self) -> Any:
        """The gradient as an array; None where there is none."""
        gradient = _gradient(self.param)
        return None if gradient is None else gradient.detach().cpu().numpy()


def _gradient(parameter: Any) -> Any:
    main = getattr(parameter, "main_grad", None)  # what Paddle accumulates in float32
    return parameter.grad if main is None else main


def _leaf(
    run: DumpFolder, name: str, tensor: Any, to_host: Callable[[Any], Any], *, turned: bool
) -> dict[str, Any]:  # fmt: skip
    host = to_host(tensor)
    array = np.asarray(host.data).reshape(host.shape)
    if host.dtype == "bfloat16":  # numpy has no such type; float32 holds the same numbers
        array = widened(array)
    found = statistics(host)
    return {
        "type": f"{type(tensor).__module__.partition('.')[0]}.Tensor", "dtype": str(tensor.dtype),
        "shape": list(host.shape), "Max": found.max, "Min": found.min, "Mean": found.mean, "Norm": found.norm,
        "requires_grad": True, "data_name": run.tensor(name, ".npy", array, lambda data, stream: np.save(stream, data)),
        **({"layout": "in_out"} if turned else {}),
    }  # fmt: skip


@contextmanager
def _kept_state(model: Any) -> Iterator[None]:
    """Without gradients inside; gradients, running statistics and random numbers as they were afterwards."""
    adapter = adapter_of(model)
    parameters = list(model.parameters())
    gradients = [None if one.grad is None else one.grad.clone() for one in parameters]
    state = {name: one.clone() if hasattr(one, "clone") else one for name, one in model.state_dict().items()}
    random = adapter.random_state()
    adapter.clear_gradients(model, [layer for _, layer in adapter.modules(model)])
    try:
        yield
    finally:
        adapter.set_random_state(random)
        model.load_state_dict(state) if hasattr(model, "load_state_dict") else model.set_state_dict(state)
        adapter.clear_gradients(model, [layer for _, layer in adapter.modules(model)])
        for one, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                one.grad = gradient


def _link(source: str, target: str) -> None:
    """Tensors are not written twice where the file system can help it."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _new_folder(root: Path, name: str) -> Path:
    """A folder that nobody has written to: another model of the same name is not overwritten."""
    for number in itertools.count():
        folder = root / (f"{name}_{number}" if number else name)
        if not folder.exists():
            folder.mkdir(parents=True)
            return folder
    raise AssertionError
