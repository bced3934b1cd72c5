"""Small helpers that scripts call: seeds, whole-module records, custom APIs."""

from __future__ import annotations

import functools
import os
import random
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import numpy as np

from twinprobe._record.rows import Entry
from twinprobe.errors import BadInput

Record = Callable[[Any, tuple[Any, ...], dict[str, Any], FrameType], Any]


def seed_python(seed: int) -> None:
    """Check the seed; seed Python and NumPy."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 or seed > 0xFFFFFFFF:
        raise BadInput(f"seed is {seed!r}", hint="a number from 0 to 2^32 - 1")
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)


def replace_dropout(functional: Any, names: tuple[str, ...], rate: str = "p") -> None:
    """Make the dropout functions of a namespace pass their input on: their rate becomes 0."""
    for name in names:
        original = getattr(functional, name, None)
        if original is not None and not getattr(original, "_twinprobe_without_dropout", False):
            setattr(functional, name, _without_rate(original, rate))


def _without_rate(original: Any, rate: str) -> Any:
    @functools.wraps(original)
    def passing(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:
            args = (args[0], 0.0, *args[2:])
        else:
            kwargs[rate] = 0.0
        return original(*args, **kwargs)

    passing._twinprobe_without_dropout = True  # type: ignore[attr-defined]
    return passing


def whole_module(recorder: Any, module: Any, dump_name: str, kind: type, called: str) -> None:
    """Record this module as a whole, under this name, and nothing inside it."""
    if not isinstance(module, kind):
        raise BadInput(f"module_dump got {type(module).__name__}, which is no {called}")
    if not isinstance(dump_name, str) or not dump_name:
        raise BadInput(f"module_dump needs a name, not {dump_name!r}")
    recorder.modules.watch_whole(module, dump_name)


def custom_api(module: Any, api_name: str, api_prefix: str | None, make: Callable[[str, str], Record]) -> None:
    """Record a function that the framework does not know, as ``<api_prefix>.<api_name>``.

    ``make`` gets prefix and name and gives what calls and records the function.
    """
    original = getattr(module, api_name, None)
    if not callable(original):
        raise BadInput(f"{module!r} has no function '{api_name}'")
    if getattr(original, "_twinprobe_custom", False):
        return
    record = make(api_prefix or getattr(module, "__name__", type(module).__name__).rpartition(".")[2], api_name)

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        return record(original, args, kwargs, sys._getframe(1))

    recorded._twinprobe_custom = True  # type: ignore[attr-defined]
    setattr(module, api_name, recorded)


# Single-point saves: one value under a name of the user's choosing, and its gradient when it comes.


class SinglePoints(ABC):
    """Numbers saves per step and name. Works without start(): a save opens the step by itself."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._handles: list[Any] = []

    @abstractmethod
    def working(self, doing: str) -> AbstractContextManager[Any]:
        """What the recorder works in: nobody watches it, its errors are noted and not raised."""

    @abstractmethod
    def is_tensor(self, value: Any) -> bool: ...

    @abstractmethod
    def gets_gradient(self, tensor: Any) -> bool: ...

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
        self._emit(variable, name)
        if save_backward:
            with self.working(f"saving {name}"):
                self._watch(variable, f"{name}_grad")

    def _emit(self, value: Any, name: str) -> None:
        recorder = self._recorder
        full = f"{name}.{self._counts[name]}.debug"
        self._counts[name] += 1
        with self.working(f"saving {name}"):
            recorder.wants(full)
            recorder.engine.emit(Entry(full, {"": recorder.capture(value)}, bare=True))

    def _watch(self, value: Any, name: str) -> None:
        if self.is_tensor(value):
            if self.gets_gradient(value):
                self._handles.append(value.register_hook(lambda gradient: self._gradient(gradient, name)))
        elif isinstance(value, dict):
            for key, item in value.items():
                self._watch(item, f"{name.removesuffix('_grad')}.{key}_grad")
        elif isinstance(value, list | tuple):
            for at, item in enumerate(value):
                self._watch(item, f"{name.removesuffix('_grad')}.{at}_grad")

    def _gradient(self, gradient: Any, name: str) -> None:
        self._in_step(lambda: self._emit(gradient, name))
