"""What scripts call: PrecisionDebugger, ``with record(...)``, and the small functions beside them."""

from __future__ import annotations

import functools
import inspect
import os
import random
import sys
from abc import ABC
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar

import numpy as np

from twinprobe._record.config import load_config
from twinprobe._record.entries import Entry
from twinprobe._record.recorder import Recorder
from twinprobe.errors import BadInput, MissingPackage


@contextmanager
def needing(module: str, name: str, package: str) -> Iterator[None]:
    """Imports in this block need a framework; where it is missing, the error names the package to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise MissingPackage(f"twinprobe.{module} needs {name}", hint=f"pip install {package}") from None


class _Verb:
    """A method that also works on the class: there it acts on the one debugger of this process."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Debugger | None, owner: type[Debugger]) -> Any:
        @functools.wraps(self._function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._function(owner.current(), *args, **kwargs)

        return call if instance is None else MethodType(self._function, instance)


class Debugger(ABC):
    """Records what a program computes, between start() and stop(), step by step.

    Configured by ``config.json``, by keyword arguments, or both (the arguments win). One per process: creating it again
    returns the same one.
    """

    recorder_class: ClassVar[type[Recorder]]
    own_files: ClassVar[bool] = True
    """Whether optimizer.json and layout.json are written, which other tools' dumps do not have."""
    _current: ClassVar[Any] = None
    recorder: Any

    def __new__(cls, *_: Any, **__: Any) -> Debugger:
        recorder = getattr(cls._current, "recorder", None)
        if cls._current is None or (recorder is not None and recorder.engine.forked):  # the parent's, which is no use
            cls._current = super().__new__(cls)
        return cls._current  # type: ignore[no-any-return]

    def __init__(
        self, config_path: str | Path | None = None, task: str | None = None, dump_path: str | Path | None = None,
        level: str | None = None, step: list[int | str] | None = None, rank: list[int | str] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        if getattr(self, "recorder", None) is not None:
            return
        try:
            config = load_config(config_path, task=task, dump_path=dump_path, level=level, step=step, rank=rank, **more)
            if not self.own_files:
                config = replace(config, optimizer=False)
            self.recorder = self.recorder_class.of(config)
        except BaseException:
            type(self)._current = None
            raise
        self._points = SinglePoints(self.recorder)

    # Editors and help() read the signature of __new__ where a class has one.
    __new__.__signature__ = inspect.signature(__init__)  # type: ignore[attr-defined]

    @classmethod
    def current(cls) -> Any:
        """The one debugger of this process."""
        if cls._current is None:
            raise BadInput("there is no PrecisionDebugger in this process yet", hint="create one first")
        return cls._current

    @_Verb
    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Record from here on. ``model`` is a module or a list of them; levels L0 and mix need it."""
        self.recorder.start(model, token_range)

    @_Verb
    def stop(self) -> None:
        """Stop recording. A later start() before step() goes on with the same step."""
        self.recorder.stop()

    @_Verb
    def step(self) -> None:
        """The training step is over: later records go to the next step's folder."""
        self.recorder.next_step()
        self._points.next_step()

    @_Verb
    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Save one value, level ``debug``: nested lists and dicts are walked, gradients saved as ``<name>_grad``."""
        self._points.save(variable, name, save_backward)

    @_Verb
    def log(self, **scalars: Any) -> None:
        """Level ``watch``: numbers of your own for this step, e.g. ``log(loss=loss)``; nothing waits for a device."""
        if hasattr(self.recorder, "log"):
            self.recorder.log(**scalars)

    def flush(self) -> None:
        """Wait until everything recorded so far is on disk."""
        self.recorder.engine.flush()

    def close(self) -> None:
        """End the recording; a new PrecisionDebugger may be created afterwards. Happens at exit by itself."""
        if self.recorder.attached:
            self.recorder.stop()
        self.recorder.engine.close()
        if type(self)._current is self:
            type(self)._current = None


class Recording:
    """What ``record`` hands out: call ``step()`` at the end of each training step."""

    def __init__(self, recorder: Any, model: Any) -> None:
        self._recorder = recorder
        self._model = model
        self.path = recorder.config.dump_path

    def step(self) -> None:
        """Close this step and go on with the next."""
        self._recorder.next_step()
        self._recorder.start(self._model)

    def log(self, **scalars: Any) -> None:
        """Level ``watch``: numbers of your own for this step, e.g. ``log(loss=loss)``; nothing waits for a device."""
        if hasattr(self._recorder, "log"):
            self._recorder.log(**scalars)


@contextmanager
def recording(recorder_class: type[Recorder], model: Any, dump_path: str | Path, **options: Any) -> Iterator[Recording]:
    """Record everything inside the block; files are complete when it ends."""
    recorder = recorder_class.of(load_config(dump_path=dump_path, **options))
    recorder.start(model)
    try:
        yield Recording(recorder, model)
    finally:
        if recorder.engine.begun:
            recorder.engine.drop_unused_step()  # which the last step() began
            recorder.stop()
        recorder.engine.close()


class Verbs:
    """The functions beside the debugger. All of them but ``record`` act on the one debugger of this process."""

    def __init__(self, debugger: type[Debugger]) -> None:
        self._debugger = debugger

    def record(
        self, model: Any, dump_path: str | Path, *, level: str = "L1", task: str = "statistics", **more: Any
    ) -> AbstractContextManager[Recording]:
        """Record everything inside the block. All keys of config.json may be given; files are complete when it ends."""
        return recording(self._debugger.recorder_class, model, dump_path, level=level, task=task, **more)

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record one value, and its gradient, under a name (level debug)."""
        self._debugger.current().save(variable, name, save_backward)

    def module_dump(self, module: Any, dump_name: str) -> None:
        """Record this module as a whole, under this name, and nothing inside it, until module_dump_end()."""
        recorder = self._debugger.current().recorder
        if not isinstance(module, recorder.module_class):
            raise BadInput(f"module_dump got {type(module).__name__}, which is not a {recorder.module_title}")
        if not isinstance(dump_name, str) or not dump_name:
            raise BadInput(f"module_dump needs a name, not {dump_name!r}")
        recorder.modules.watch_whole(module, dump_name)

    def module_dump_end(self) -> None:
        """End what module_dump() began."""
        self._debugger.current().recorder.modules.end_whole()

    def register_custom_api(self, module: Any, api_name: str, api_prefix: str | None = None) -> None:
        """Record a function that the framework does not know, as ``<api_prefix>.<api_name>``."""
        original = getattr(module, api_name, None)
        if not callable(original):
            raise BadInput(f"{module!r} has no function '{api_name}'")
        if getattr(original, "_twinprobe_custom", False):
            return
        prefix = api_prefix or getattr(module, "__name__", type(module).__name__).rpartition(".")[2]
        api = self._debugger.recorder_class.custom_api(prefix, api_name)

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            debugger = self._debugger._current
            if debugger is None:
                return original(*args, **kwargs)
            return debugger.recorder.call_custom(api, original, args, kwargs, sys._getframe(1))

        recorded._twinprobe_custom = True  # type: ignore[attr-defined]
        setattr(module, api_name, recorded)


def seed_python(seed: int) -> None:
    """Check the seed; seed Python and NumPy."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 or seed > 0xFFFFFFFF:
        raise BadInput(f"seed is {seed!r}", hint="a number from 0 to 2^32 - 1")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)


def replace_dropout(functional: Any, names: tuple[str, ...]) -> None:
    """Make the dropout functions of a namespace pass their input on: their rate becomes 0."""
    for name in names:
        original = getattr(functional, name, None)
        if original is not None and not getattr(original, "_twinprobe_without_dropout", False):
            setattr(functional, name, _without_rate(original))


def _without_rate(original: Any) -> Any:
    @functools.wraps(original)
    def passing(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            args = (args[0], 0.0, *args[2:])
        else:
            kwargs["p"] = 0.0
        return original(*args, **kwargs)

    passing._twinprobe_without_dropout = True  # type: ignore[attr-defined]
    return passing


class SinglePoints:
    """One value under a name of the user's choosing, and its gradient when it comes: numbered per step and name.

    Works without start(): a save opens the step by itself.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._handles: list[Any] = []

    def save(self, variable: Any, name: str, save_backward: bool) -> None:
        """Record ``variable`` now as ``<name>.<count>.debug``."""
        if self._recorder.config.level != "debug":
            raise BadInput("save() needs level 'debug'", hint="set level to debug in the configuration")
        if not isinstance(name, str) or not name:
            raise BadInput(f"save() needs a name, not {name!r}")
        self._in_step(lambda: self._record(variable, name, save_backward))

    def next_step(self) -> None:
        """Counts start again; gradients of the last step no longer count."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._counts.clear()

    def _in_step(self, work: Callable[[], None]) -> None:
        engine = self._recorder.engine
        opened = False
        if not engine.active:
            if engine.begun:
                return  # this step or rank is not wanted
            opened = engine.begin()
            if not opened:
                engine.end()
                return
        try:
            work()
        finally:
            if opened:
                engine.end()

    def _record(self, variable: Any, name: str, save_backward: bool) -> None:
        self._recorder.work(f"saving {name}", self._emit, variable, name)
        if save_backward and self._recorder.grad_enabled():
            self._recorder.work(f"saving {name}", self._watch, variable, f"{name}_grad")

    def _emit(self, value: Any, name: str) -> None:
        recorder = self._recorder
        full = f"{name}.{self._counts[name]}.debug"
        self._counts[name] += 1
        recorder.wants(full)
        recorder.engine.emit(Entry(full, {"": recorder.capture(value)}, bare=True))

    def _watch(self, value: Any, name: str) -> None:
        if self._recorder.is_tensor(value):
            if self._recorder.needs_gradient(value):
                self._handles.append(value.register_hook(lambda gradient: self._gradient(gradient, name)))
        elif isinstance(value, dict):
            for key, item in value.items():
                self._watch(item, f"{name.removesuffix('_grad')}.{key}_grad")
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                self._watch(item, f"{name.removesuffix('_grad')}.{index}_grad")

    def _gradient(self, gradient: Any, name: str) -> None:
        self._in_step(lambda: self._recorder.work(f"saving {name}", self._emit, gradient, name))
