"""Single-point saves: one value under a name of the user's choosing, and its gradient when it comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.record.rows import Entry


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
