"""A call's own share of its inputs' gradients, by an identity function in front of every use of a tensor.

A hook on a tensor shows the sum over everything that used it. So each operation gets an alias of its own of each tensor
it uses: the same memory, and the gradient handed on unchanged. What a layer or an API call contributes is the sum over
the operations inside it. An alias per use, and not one per layer, keeps the order in which Paddle adds gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import paddle
from paddle.autograd import PyLayer

from twinprobe.record.eager.flatten import replaced, tensors_in
from twinprobe.record.eager.gradients import Crossing, Crossings

Heard = Callable[[Any], None]
_transpose = paddle._C_ops.transpose
_register_hook = paddle.Tensor.register_hook
_is_floating_point = paddle.Tensor.is_floating_point
_is_complex = paddle.Tensor.is_complex
_Tensor = paddle.Tensor
_float32 = paddle.float32
_differentiable: dict[Any, bool] = {}  # by dtype


class _Share(PyLayer):  # type: ignore[misc]  # paddle is not followed by mypy
    """The same memory as a new tensor; tells what flows back through it and hands it on unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, heard: Heard | None) -> Any:
        ctx.heard = heard
        return _transpose(tensor, _axes(tensor.ndim))  # Paddle takes the tensor itself for an in-place result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if ctx.heard is not None:
            ctx.heard(gradient)
        return gradient


@cache
def _axes(count: int) -> list[int]:
    return list(range(count))


share = _Share.apply  # bound before PyLayer.apply itself is watched


def is_tensor(value: Any) -> bool:
    """Whether this is a Paddle tensor."""
    return isinstance(value, _Tensor)


def is_differentiable(tensor: Any) -> bool:
    """Whether a tensor could carry a gradient by its element type."""
    dtype = tensor.dtype
    if dtype is _float32:
        return True
    known = _differentiable.get(dtype)
    if known is None:
        known = _differentiable[dtype] = bool(_is_floating_point(tensor) or _is_complex(tensor))
    return known


class UseGraph:
    """Knows which calls are under way, and tells them of every use of their inputs."""

    def __init__(self) -> None:
        self.guard: Any = None
        self.frames: list[UseWatch] = []

    def before(self, crossings: Crossings, name: str, args: Any, kwargs: Any) -> UseWatch:
        """A call begins."""
        frame = UseWatch(self, crossings, name, args, kwargs)
        self.frames.append(frame)
        return frame

    def aliased(self, args: Any, kwargs: Any, *, in_place: bool) -> tuple[Any, Any]:
        """The arguments of one operation with aliases in their place. What is written to in place stays itself."""
        kept = next((one for one in tensors_in(args, is_tensor, [])), None) if in_place else None
        if kept is not None:
            for frame in self.frames:
                frame.spoil(kept)
        made: dict[int, Any] = {}

        def swap(value: Any) -> Any:
            if not isinstance(value, _Tensor) or value is kept or value.stop_gradient or not value.is_dense():
                return value
            alias = made.get(id(value))
            if alias is None:
                heard = self._listener(value)
                # To a leaf that nobody asks about, each use hands its part in the same order without an alias too.
                alias = made[id(value)] = value if heard is None and value.is_leaf else share(value, heard)
            return alias

        return replaced(tuple(args), swap), replaced(kwargs, swap)

    def _listener(self, tensor: Any) -> Heard | None:
        key = id(tensor)
        users = None
        for frame in self.frames:
            place = frame.places.get(key)
            if place is not None:
                users = [*users, (frame.crossing, place)] if users else [(frame.crossing, place)]
        if users is None:
            return None
        for crossing, index in users:
            crossing.expect(index)

        def heard(gradient: Any) -> None:
            with self.guard():
                for crossing, index in users:
                    crossing.leave(index, gradient)

        return heard


class UseWatch:
    """One call of a layer or an API between its start and its end."""

    def __init__(self, graph: UseGraph, crossings: Crossings, name: str, args: Any, kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self.places: dict[int, int] = {}
        self._graph = graph
        self._crossings = crossings
        self._inputs = tensors_in((args, kwargs), is_tensor, [])  # held, so that their numbers stay theirs
        for tensor in self._inputs:
            if is_differentiable(tensor):
                self.places.setdefault(id(tensor), len(self.places))
        self.crossing = Crossing(crossings, name, len(self.places))

    def spoil(self, tensor: Any) -> None:
        """An input was written to in place: its gradient from before that cannot be told any more."""
        index = self.places.pop(id(tensor), None)
        if index is not None:
            self.crossing.give_up(index)

    def after(self, outputs: list[Any]) -> None:
        """The call ended: wait for the gradients of what it made itself."""
        self.cancel()
        crossing, guard = self.crossing, self._graph.guard
        own = {id(one) for one in self._inputs}
        crossing.incoming = [None] * len(outputs)
        awaited = 0
        for at, tensor in enumerate(outputs):
            if tensor.stop_gradient or (id(tensor) in own and id(tensor) in self.places):
                continue
            awaited += 1

            def arrived(gradient: Any, at: int = at) -> None:
                with guard():
                    crossing.arrive(at, gradient)

            _register_hook(tensor, arrived)  # stays, silent once the crossing is done: removing one in a hook crashes
        if awaited:
            crossing.awaited = awaited
            self._crossings.add(crossing)

    def cancel(self) -> None:
        """The call is over."""
        frames = self._graph.frames
        while frames and frames.pop() is not self:
            continue
