"""PrecisionDebugger: the interface that training scripts already use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from twinprobe._record.config import RecordConfig, load_config
from twinprobe._record.tools import SinglePoints
from twinprobe.errors import BadInput


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


# What start() is given, checked.


def check_models(model: Any, level: str, kind: Any, called: str) -> list[Any]:
    """The modules to watch; refuses what is none."""
    models = list(model) if isinstance(model, list | tuple) else [] if model is None else [model]
    for one in models:
        if not isinstance(one, kind):
            raise BadInput(f"start(model=...) got {type(one).__name__}, which is no {called}")
    if not models and level in {"L0", "mix"}:
        raise BadInput(f"level {level} records {called} calls: call start(model=...)")
    return models


def check_token_range(token_range: Any) -> None:
    """A pair of counts from 0 on, first not after last."""
    if token_range is None:
        return
    ok = isinstance(token_range, list | tuple) and len(token_range) == 2
    if not ok or not all(isinstance(one, int) and one >= 0 for one in token_range) or token_range[0] > token_range[1]:
        raise BadInput(f"token_range is {token_range!r}", hint="two numbers from 0 on, first and last token")


# ``with record(model, "run_a"):`` -- the short way.


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


@contextmanager
def recording(
    make: Callable[[RecordConfig], Any], model: Any, dump_path: str | Path, **options: Any
) -> Iterator[Recording]:
    """Record everything inside the block; files are complete when it ends."""
    recorder = make(load_config(dump_path=dump_path, **options))
    recorder.start(model)
    try:
        yield Recording(recorder, model)
    finally:
        if recorder.engine.begun:
            recorder.engine.drop_unused_step()  # which the last step() began
            recorder.stop()
        recorder.engine.close()
