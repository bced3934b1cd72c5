"""The gradients of one call: what arrived at its outputs, what it handed to its inputs, and when all of it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from twinprobe._record.eager.modules import ModuleInfo, replaced, tensors_in
from twinprobe._record.rows import Group, ParameterGroups


class Owner(Protocol):
    """Who wants the gradients."""

    def note_gradient(self, name: str, gradient: Any) -> Any: ...
    def add_gradients(self, parts: list[Any]) -> Any: ...
    def backward_begins(self, name: str) -> None: ...
    def backward_ended(self, crossing: Crossing) -> None: ...


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
        self.incoming[output] = self._crossings.owner.note_gradient(self.name, gradient)
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
                self.outgoing[index] = self._crossings.owner.note_gradient(self.name, gradient)
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
            self._crossings.owner.backward_begins(self.name)

    def _settle(self, index: int) -> None:
        parts = self._parts.pop(index, None)
        if parts:
            owner = self._crossings.owner
            gradient = parts[0] if len(parts) == 1 else owner.add_gradients(parts)
            self.outgoing[index] = owner.note_gradient(self.name, gradient)


class Crossings:
    """All calls whose gradients have not come yet."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._waiting: dict[Crossing, None] = {}

    def add(self, crossing: Crossing) -> None:
        """Wait for this call's gradients."""
        self._waiting[crossing] = None

    def end(self, crossing: Crossing) -> None:
        """All that will come has come."""
        self._waiting.pop(crossing, None)
        if crossing.begun:
            self.owner.backward_ended(crossing)

    def pass_ended(self) -> None:
        """A backward pass is over: what it began, it finished."""
        for crossing in [one for one in self._waiting if one.begun]:
            crossing.finish()

    def close(self) -> None:
        """No more gradients will come."""
        for crossing in list(self._waiting):
            crossing.finish()
        self._waiting.clear()


# A call's own share of its inputs' gradients, by an identity function in front of each of them.
#
# A hook on a tensor shows the sum over everything that used it. What one call contributes is seen only where that
# call alone uses the tensor: on an alias that hands the gradient on unchanged.

Heard = Callable[[Any], None]


class Aliasing(Protocol):
    """What a framework must offer."""

    def is_tensor(self, value: Any) -> bool: ...
    def differentiable(self, tensor: Any) -> bool: ...
    def can_alias(self, tensor: Any) -> bool: ...
    def alias(self, tensor: Any, heard: Heard) -> Any: ...
    def listen(self, tensor: Any, heard: Heard) -> bool: ...


class AliasWatch:
    """One call: inputs replaced by aliases before, hooks on the outputs after."""

    def __init__(self, framework: Aliasing, crossings: Crossings, name: str, args: Any, kwargs: Any) -> None:
        inputs = tensors_in((args, kwargs), framework.is_tensor, [])
        self._framework = framework
        self._crossings = crossings
        self._places: dict[int, int] = {}
        for tensor in filter(framework.differentiable, inputs):
            self._places.setdefault(id(tensor), len(self._places))
        self.crossing = Crossing(crossings, name, len(self._places))
        self.args = args
        self.kwargs = kwargs

    def divert(self, kept: Any = None) -> None:
        """Replace the inputs that get a gradient by aliases; ``kept`` is written to in place and stays itself."""
        framework, crossing = self._framework, self.crossing
        made: dict[int, Any] = {}

        def swap(value: Any) -> Any:
            if not framework.is_tensor(value) or value is kept or not framework.can_alias(value):
                return value
            index = self._places.get(id(value))
            if index is None:
                return value
            alias = made.get(id(value))
            if alias is None:
                alias = made[id(value)] = framework.alias(value, lambda gradient: crossing.leave(index, gradient))
                crossing.expect(index)
            return alias

        self.args = replaced(tuple(self.args), swap)
        self.kwargs = replaced(dict(self.kwargs), swap)

    def after(self, outputs: list[Any]) -> None:
        """Wait for the gradients of these outputs."""
        crossing = self.crossing
        crossing.incoming = [None] * len(outputs)
        crossing.awaited = 0
        for at, tensor in enumerate(outputs):
            crossing.awaited += self._framework.listen(tensor, partial(crossing.arrive, at))
        if crossing.awaited:
            self._crossings.add(crossing)

    def cancel(self) -> None:
        """The call failed; nothing is waited for."""


# Hooks on the parameters of MindSpore and Paddle.


class ParameterGradients(ParameterGroups):
    """Each hook sees the gradient of one backward pass, summed over all uses."""

    def attach(self, infos: Iterable[ModuleInfo]) -> None:
        """Watch the own parameters of every watched module."""
        adapter = self._recorder.adapter
        for info in infos:
            own = adapter.parameters(info.module, info.compiled)
            named = {name: one for name, one in own.items() if adapter.needs_gradient(one)}
            if not named:
                continue
            group = self._group(info.module, info.prefix, len(named))
            for name, parameter in named.items():
                self._handles.append(parameter.register_hook(partial(self._arrived, group, name)))

    def _arrived(self, group: Group, name: str, gradient: Any) -> None:
        recorder = self._recorder
        if recorder.active and not recorder.muted:
            note = recorder.parameter_gradient
            doing = "recording a parameter's gradient"
            recorder.work(doing, self._take, group, name, note, group.module, name, gradient)
