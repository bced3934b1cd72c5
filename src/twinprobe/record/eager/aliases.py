"""A call's own share of its inputs' gradients, by an identity function in front of each of them.

A hook on a tensor shows the sum over everything that used it. What one call contributes is seen only where that call
alone uses the tensor: on an alias that hands the gradient on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from twinprobe.record.eager.flatten import replaced, tensors_in
from twinprobe.record.eager.gradients import Crossing, Crossings

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
