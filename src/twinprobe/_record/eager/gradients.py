"""The gradients of one call: what arrived at its outputs, what it handed to its inputs, and when all of it has come."""

from __future__ import annotations

from typing import Any


class Crossing:
    """One call as a backward pass meets it.

    ``incoming`` has one slot per output tensor, ``outgoing`` one per differentiable input. It finishes by itself when
    all expected gradients have come, or from Crossings when the pass is over.
    """

    __slots__ = (
        "_crossings", "_missing", "_parts", "awaited", "begun", "done", "handles", "incoming", "name", "outgoing",
    )  # fmt: skip

    def __init__(self, crossings: Crossings, name: str, inputs: int) -> None:
        self.name = name
        self.incoming: list[Any] = []
        self.outgoing: list[Any] = [None] * inputs
        self.awaited = 1  # outputs whose gradients may come
        self.begun = False
        self.done = False
        self.handles: list[Any] = []
        self._crossings = crossings
        self._parts: dict[int, list[Any]] = {}
        self._missing: dict[int, int] = {}

    def expect(self, index: int, parts: int = 1) -> None:
        """Input ``index`` will get its gradient in so many parts more."""
        self._missing[index] = self._missing.get(index, 0) + parts

    def give_up(self, index: int) -> None:
        """The gradient of this input cannot be told."""
        self._missing.pop(index, None)
        self._parts.pop(index, None)

    def arrive(self, output: int, gradient: Any) -> None:
        """The gradient of an output is known."""
        if self.done or gradient is None:
            return
        self._begin()
        self.incoming[output] = self._crossings.recorder.note_gradient(self.name, gradient)
        self.awaited -= 1
        if not self._missing and self.awaited <= 0:
            self.finish()

    def leave(self, index: int, gradient: Any) -> None:
        """A part of an input's gradient is known; None when this part turned out to be nothing."""
        left = None if self.done else self._missing.get(index)
        if left is None:
            return
        self._begin()
        if left == 1 and index not in self._parts:  # the common case: all in one part
            if gradient is not None:
                self.outgoing[index] = self._crossings.recorder.note_gradient(self.name, gradient)
        else:
            if gradient is not None:
                self._parts.setdefault(index, []).append(gradient)
            if left > 1:
                self._missing[index] = left - 1
                return
            self._settle(index)
        del self._missing[index]
        if not self._missing:
            self.finish()

    def finish(self) -> None:
        """Everything that will come has come."""
        if self.done:
            return
        self.done = True
        for index in list(self._parts):
            self._settle(index)
        for handle in self.handles:
            handle.remove()
        self._crossings.end(self)
        del self.incoming, self.outgoing, self.handles, self._parts, self._missing  # hooks may stay, and with them this

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            self._crossings.recorder.backward_begins(self.name)

    def _settle(self, index: int) -> None:
        parts = self._parts.pop(index, None)
        if parts:
            recorder = self._crossings.recorder
            gradient = parts[0] if len(parts) == 1 else recorder.add_gradients(parts)
            self.outgoing[index] = recorder.note_gradient(self.name, gradient)


class Crossings:
    """All calls whose gradients have not come yet."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self._waiting: dict[Crossing, None] = {}

    def add(self, crossing: Crossing) -> None:
        """Wait for this call's gradients."""
        self._waiting[crossing] = None

    def end(self, crossing: Crossing) -> None:
        """All that will come has come."""
        self._waiting.pop(crossing, None)
        if crossing.begun:
            self.recorder.backward_ended(crossing)

    def pass_ended(self) -> None:
        """A backward pass is over: what it began, it finished."""
        for crossing in [one for one in self._waiting if one.begun]:
            crossing.finish()

    def close(self) -> None:
        """No more gradients will come."""
        for crossing in list(self._waiting):
            crossing.finish()
        self._waiting.clear()
