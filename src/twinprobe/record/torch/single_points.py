"""Single-point saves: one value under a name of the user's choosing, and its gradient when it comes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from twinprobe.errors import BadInput
from twinprobe.record.rows import Entry
from twinprobe.record.torch.quiet import Quiet

if TYPE_CHECKING:
    from twinprobe.record.torch.recorder import TorchRecorder


class SinglePoints:
    """Numbers saves per step and name. Works without start(): a save opens the step by itself."""

    def __init__(self, recorder: TorchRecorder) -> None:
        self._recorder = recorder
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._handles: list[Any] = []

    def save(self, variable: Any, name: str, save_backward: bool) -> None:
        """Record ``variable`` now as ``<name>.<count>.debug``."""
        recorder = self._recorder
        if recorder.config.level != "debug":
            raise BadInput("save() needs level 'debug'", hint="set level to debug in the configuration")
        if not isinstance(name, str) or not name:
            raise BadInput(f"save() needs a name, not {name!r}")
        opened = False
        if not recorder.engine.active:
            if recorder.engine.begun:
                return  # this step or rank is not wanted
            opened = recorder.engine.begin()
            if not opened:
                recorder.engine.end()
                return
        try:
            with Quiet():
                self._record(variable, name, save_backward)
        finally:
            if opened:
                recorder.engine.end()

    def next_step(self) -> None:
        """Counts start again; gradients of the last step no longer count."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._counts.clear()

    def _record(self, variable: Any, name: str, save_backward: bool) -> None:
        self._emit(variable, name)
        if save_backward:
            self._watch(variable, f"{name}_grad")

    def _emit(self, value: Any, name: str) -> None:
        recorder = self._recorder
        full = f"{name}.{self._counts[name]}.debug"
        self._counts[name] += 1
        try:
            recorder.wants(full)
            captured = recorder.capture(value)
            recorder.engine.emit(Entry(full, {"": ("", captured)}, bare=True))
        except Exception as error:
            recorder.trouble(f"saving {name}", error)

    def _watch(self, value: Any, name: str) -> None:
        if isinstance(value, torch.Tensor):
            if value.requires_grad and torch.is_grad_enabled():
                self._handles.append(value.register_hook(lambda gradient: self._gradient(gradient, name)))
        elif isinstance(value, dict):
            for key, item in value.items():
                self._watch(item, f"{name.removesuffix('_grad')}.{key}_grad")
        elif isinstance(value, list | tuple):
            for at, item in enumerate(value):
                self._watch(item, f"{name.removesuffix('_grad')}.{at}_grad")

    def _gradient(self, gradient: torch.Tensor, name: str) -> None:
        recorder = self._recorder
        engine = recorder.engine
        opened = False
        try:
            with Quiet(), torch.no_grad():
                if not engine.active and not engine.begun:
                    opened = engine.begin()
                if engine.active:
                    self._emit(gradient, name)
        except Exception as error:
            recorder.trouble(f"saving {name}", error)
        finally:
            if opened:
                engine.end()
