"""Module calls, seen by replacing the base class's ``__call__``: no hook stays behind. Gradients of one call."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from twinprobe._record.calls import ModuleCall, ModuleInfo, ModuleWatch
from twinprobe._record.eager.apis import Replaced, calling


class CallWatch(ModuleWatch):
    """Watches the calls of modules of one base class."""

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._roots: tuple[Any, ...] = ()
        self._root: Any = None
        self._tokens: tuple[int, int] | None = None
        self._handle: Replaced | None = None
        self._without_gradient: dict[str, list[int]] = {}

    @property
    def attached(self) -> bool:
        return self._handle is not None

    def attach(self) -> None:
        """Replace ``__call__``."""
        self._handle = Replaced(self._recorder.module_class, "__call__", calling(self._called))

    def watch_roots(self, models: list[Any]) -> None:
        """Between two calls of a model its caller may refill the memory of its inputs: forget all rows there."""
        self._roots = tuple(models)

    def watch_tokens(self, models: list[Any], token_range: tuple[int, int]) -> None:
        """Record only while the model runs for the tokens first..last of a generation loop."""
        self._root, self._tokens, self._token = models[0] if models else None, token_range, -1

    def detach(self) -> None:
        """Put ``__call__`` back and forget every module."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._root = self._tokens = None
        self._roots = ()
        self.infos.clear()
        self.calls.clear()
        self._without_gradient.clear()

    # -- one call ---------------------------------------------------------------------------------------------------

    def _called(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        for root in self._roots:
            if module is root:
                recorder.row_cache.forget()
        if module is self._root and self._tokens is not None:
            return self._count_token(original, module, args, kwargs)
        info = self.infos.get(id(module))
        if info is None or not recorder.listening():
            return original(module, *args, **kwargs)
        return self._record(info, original, args, kwargs, sys._getframe(2))

    def _count_token(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        assert self._tokens is not None
        self._token += 1
        self._recorder.paused = not self._tokens[0] <= self._token <= self._tokens[1]
        try:
            return original(module, *args, **kwargs)
        finally:
            self._recorder.paused = True

    def _record(self, info: ModuleInfo, original: Any, args: Any, kwargs: Any, frame: Any) -> Any:
        recorder = self._recorder
        in_api, recorder.in_api = recorder.in_api, info.closed
        call = ModuleCall(info, recorder.engine.count(info.prefix), self.calls[-1] if self.calls else None)
        call.frame = id(sys._getframe())  # between this one and the caller's there are only our own
        self.calls.append(call)
        try:
            recorder.work("recording a module's inputs", self._enter, call, args, kwargs, frame)
            watch = call.watch
            if watch is not None:
                args, kwargs = watch.args, watch.kwargs
            recorder.muted += info.whole
            try:
                output = original(info.module, *args, **kwargs)
            except BaseException:
                recorder.work("recording a module's outputs", self._leave, call, None, True)
                raise
            finally:
                recorder.muted -= info.whole
            if recorder.perturbation is not None and recorder.perturbs_module(info):
                own = recorder.own_parameters(info.module, True)
                recorder.work("perturbing", recorder.perturbation.after, output, (args, kwargs, own))
            recorder.work("recording a module's outputs", self._leave, call, output, False)
            return output
        finally:
            recorder.in_api = in_api
            while self.calls and self.calls.pop() is not call:
                continue

    def _enter(self, call: ModuleCall, args: Any, kwargs: Any, frame: FrameType) -> None:
        recorder, prefix = self._recorder, call.info.prefix
        if recorder.backward:
            # A module recomputed in backward takes the number of the forward that ran without gradients.
            if not recorder.grad_enabled():
                self._without_gradient.setdefault(prefix, []).append(call.number)
            elif recorder.passes and self._without_gradient.get(prefix):
                call.backward = f"{prefix}backward.{self._without_gradient[prefix].pop()}"
        super()._enter(call, args, kwargs, frame)


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
        """The gradient of this input cannot be determined."""
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
                held = self._crossings.recorder.hold_gradient(gradient)
                self._parts.setdefault(index, []).append(held)
            if left > 1:
                self._missing[index] = left - 1
                return
            self._settle(index)
        del self._missing[index]
        if not self._missing:
            self.finish()

    def finish(self) -> None:
        """No more gradients will arrive."""
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
        """No more gradients will arrive."""
        self._waiting.pop(crossing, None)
        if crossing.begun:
            self.recorder.backward_ended(crossing)

    def pass_ended(self) -> None:
        """A backward pass is over: what it began, it finished."""
        for crossing in [crossing for crossing in self._waiting if crossing.begun]:
            crossing.finish()

    def close(self) -> None:
        """No more gradients will come."""
        for crossing in list(self._waiting):
            crossing.finish()
        self._waiting.clear()
