"""create_model of PaDiff's development version: a model that records itself, written by TwinProbe's recorder."""

from __future__ import annotations

import functools
import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import twinprobe.live
from padiff.layer_lists import LayerLists
from twinprobe.errors import BadInput

_root = [Path("padiff_dump")]


def set_dump_root_path(path: str | Path) -> None:
    """Where models made from now on write."""
    _root[0] = Path(path)


def get_dump_root_path() -> str:
    """Where models made from now on write."""
    return str(_root[0])


def create_model(model: Any, name: str | None = None, dump_freq: int = 1) -> ProxyModel:
    """A model that records what it computes, every dump_freq-th step, into a new folder below the root path."""
    return model if isinstance(model, ProxyModel) else ProxyModel(model, name or type(model).__name__, dump_freq)


class ProxyModel:
    """Call it as the model; `backward(loss)` and `try_dump()` end a step. Everything else is the model's."""

    def __init__(self, model: Any, name: str, dump_freq: int = 1) -> None:
        self.model = model
        self.name = name
        self.dump_path = str(_new_folder(_root[0], name))
        self._every = dump_freq
        self._step = 0
        self._recording = False
        self._lists = LayerLists(model)
        # A class of its own for each model: the recorder allows one debugger per class and process.
        own = type("PrecisionDebugger", (_debugger_class(model),), {"_current": None})
        self._debugger = own(task="tensor", level="L0", dump_path=self.dump_path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["model"], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._recording and self._step % self._every == 0:
            self._lists.apply(self._debugger.recorder)
            self._debugger.start(self.model)
            self._recording = True
        return self.model(*args, **kwargs)

    def backward(self, loss: Any) -> None:
        """loss.backward(), recorded."""
        loss.backward()

    def try_dump(self, path: str | Path | None = None) -> None:
        """End a step; what it recorded is on disk, and at `path` too if given."""
        if self._recording:
            self._debugger.stop()
            self._recording = False
        self._debugger.step()
        self._debugger.flush()
        if path is not None:
            shutil.copytree(Path(self.dump_path) / f"step{self._step}", path)
        self._step += 1

    # One recording holds it all: what layers took and gave, parameters and their gradients.
    dump_report = dump_params = dump_weights = dump_grads = try_dump

    def update_black_list(self, layers: Any, mode: str = "all") -> None:
        """Record nothing of these layers, of what is inside them, or of both."""
        self._lists.add(self._lists.black, layers, mode)

    def update_white_list(self, layers: Any, mode: str = "self") -> None:
        """Record these layers and no others; a black list does not count any more."""
        self._lists.add(self._lists.white, layers, mode)

    def update_black_list_with_class(self, layer_class: Any, mode: str = "all") -> None:
        """The black list, for every layer of a class."""
        self._lists.add_class(self._lists.black, layer_class, mode)

    def update_white_list_with_class(self, layer_class: Any, mode: str = "self") -> None:
        """The white list, for every layer of a class."""
        self._lists.add_class(self._lists.white, layer_class, mode)

    def set_layer_map(self, *_: Any, **__: Any) -> None:
        """Not answered: a LayerMap does it for both models at once."""
        raise BadInput("layers are mapped with a LayerMap", hint="auto_diff(base, raw, inputs, layer_map=...)")

    auto_layer_map = update_unassigned_weights_list = set_layer_map


@functools.wraps(twinprobe.live.auto_diff)
def auto_diff(first: Any, second: Any, *args: Any, **kwargs: Any) -> Any:
    return twinprobe.live.auto_diff(_bare(first), _bare(second), *args, **kwargs)


def assign_weight(first: Any, second: Any, layer_map: Any = None) -> bool:
    """Released versions: second's weights to first. With models of create_model: first's to second, as there."""
    if isinstance(first, ProxyModel) and isinstance(second, ProxyModel):
        first, second = second, first
    return twinprobe.live.assign_weight(_bare(first), _bare(second), layer_map)


def _bare(model: Any) -> Any:
    return model.model if isinstance(model, ProxyModel) else model


def _debugger_class(model: Any) -> Any:
    for name, base in (("torch", "Module"), ("paddle", "Layer")):
        framework = sys.modules.get(name)
        if framework is not None and isinstance(model, getattr(framework.nn, base)):
            return __import__(f"twinprobe.{name}", fromlist=["PrecisionDebugger"]).PrecisionDebugger
    raise BadInput(f"create_model got a {type(model).__name__}", hint="give a paddle.nn.Layer or a torch.nn.Module")


def _new_folder(root: Path, name: str) -> Path:
    """A folder that nobody has written to: another model of the same name is not overwritten."""
    for number in itertools.count():
        folder = root / (f"{name}_{number}" if number else name)
        if not folder.exists():
            folder.mkdir(parents=True)
            return folder
    raise AssertionError
