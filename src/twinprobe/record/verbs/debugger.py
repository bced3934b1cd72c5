"""PrecisionDebugger: the interface that training scripts already use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from twinprobe.errors import BadInput
from twinprobe.record.config import RecordConfig, load_config
from twinprobe.record.verbs.single_points import SinglePoints


class _Verb:
    """A method that also works on the class: there it acts on the one debugger of this process."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Debugger | None, owner: type[Debugger]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._function(instance or owner.current(), *args, **kwargs)

        call.__doc__ = self.__doc__
        return call


class Debugger(ABC):
    """Records what a program computes, between start() and stop(), step by step.

    Configured by ``config.json``, by keyword arguments, or both (the arguments win). One per process: creating it again
    returns the same one.
    """

    _current: ClassVar[Any] = None
    recorder: Any

    def __new__(cls, *_: Any, **__: Any) -> Debugger:
        recorder = getattr(cls._current, "recorder", None)
        if cls._current is None or (recorder is not None and recorder.engine.forked):  # the parent's, which is no use
            cls._current = super().__new__(cls)
        return cls._current  # type: ignore[no-any-return]

    def __init__(
        self,
        config_path: str | Path | None = None,
        task: str | None = None,
        dump_path: str | Path | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
        rank: list[int | str] | None = None,
        **more: Any,
    ) -> None:
        if getattr(self, "recorder", None) is not None:
            return
        try:
            config = load_config(config_path, task=task, dump_path=dump_path, level=level, step=step, rank=rank, **more)
            self.recorder = self.make_recorder(config)
        except BaseException:
            type(self)._current = None
            raise
        self._points = self.make_points(self.recorder)

    @staticmethod
    @abstractmethod
    def make_recorder(config: RecordConfig) -> Any:
        """The framework's own recorder."""

    @staticmethod
    @abstractmethod
    def make_points(recorder: Any) -> SinglePoints:
        """What saves single values for it."""

    @classmethod
    def current(cls) -> Any:
        """The one debugger of this process."""
        if cls._current is None:
            raise BadInput("there is no PrecisionDebugger in this process yet", hint="create one first")
        return cls._current

    def _start(self, model: Any = None, token_range: Any = None) -> None:
        """Record from here on. ``model`` is a module or a list of them; levels L0 and mix need it."""
        self.recorder.start(model, token_range)

    def _stop(self) -> None:
        """Stop recording. A later start() before step() goes on with the same step."""
        self.recorder.stop()

    def _step(self) -> None:
        """The training step is over: later records go to the next step's folder."""
        self.recorder.next_step()
        self._points.next_step()

    def _save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Save one value, level ``debug``: nested lists and dicts are walked, gradients saved as ``<name>_grad``."""
        self._points.save(variable, name, save_backward)

    def flush(self) -> None:
        """Wait until everything recorded so far is on disk."""
        self.recorder.engine.flush()

    def close(self) -> None:
        """End the recording; a new PrecisionDebugger may be created afterwards. Happens at exit by itself."""
        if self.watching():
            self.recorder.stop()
        self.recorder.engine.close()
        if type(self)._current is self:
            type(self)._current = None

    def watching(self) -> bool:
        """Whether anything is being watched now."""
        return bool(self.recorder.attached)

    start = _Verb(_start)
    stop = _Verb(_stop)
    step = _Verb(_step)
    save = _Verb(_save)
