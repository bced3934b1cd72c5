"""Gradients of parameters, read where a backward pass left them: without a hook on each of thousands of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from twinprobe.live.memory import MemoryEngine
from twinprobe.record.parameter_groups import emit_gradients
from twinprobe.record.rows import Note
from twinprobe.runs.names import BACKWARD

OwnParameters = Callable[[Any], Mapping[str, Any]]  # of a watched module; some may be None
TakeNote = Callable[[Any, str, Any], Note]  # of a module, the name of its parameter, and the gradient


class LeftGradients:
    """Takes the place of the hooks on parameters where a run begins without gradients.

    A second pass adds to what the first one left, so its gradients are the sums of both.
    """

    def __init__(self, recorder: Any, parameters: OwnParameters, note: TakeNote) -> None:
        self._recorder = recorder
        self._parameters = parameters
        self._note = note
        self._infos: list[Any] = []
        self._read = False

    def attach(self, infos: Iterable[Any]) -> None:
        """Read the own parameters of these modules."""
        self._infos, self._read = list(infos), False

    def detach(self) -> None:
        """Read what a pass left that touched no watched module."""
        if not self._read:
            self.flush()
        self._infos = []

    def flush(self) -> None:
        """A pass is over: note what it left, in the order in which the modules ran backward."""
        recorder = self._recorder
        if not recorder.active:
            return
        recorder.wants("")  # tensors are kept
        for info in sorted(self._infos, key=_turn(recorder.engine)):
            notes = {}
            for name, one in self._parameters(info).items():
                gradient = None if one is None else one.grad
                if gradient is not None:
                    notes[name] = self._note(info.module, name, gradient)
            if notes:
                self._read = True
                emit_gradients(recorder, info.prefix, notes)


def _turn(engine: MemoryEngine) -> Callable[[Any], int]:
    """When a module was done with its backward; one of which nothing is known comes last."""
    mark = f".{BACKWARD}."
    turns = {name.rpartition(mark)[0] + ".": at for at, name in enumerate(engine.rows.names) if mark in name}
    return lambda info: turns.get(info.prefix, len(engine.rows.names))
