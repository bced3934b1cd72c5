"""The part that one call contributes to its inputs' gradients, by an identity function before every use of a tensor.

A hook on a tensor shows the sum over everything that used it. So each operation gets an alias of its own of each tensor
it uses: the same memory, and the gradient handed on unchanged. What a layer or an API call contributes is the sum over
the operations inside it. An alias per use, and not one per layer, keeps the order in which Paddle adds gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from types import BuiltinFunctionType
from typing import Any

import paddle
from paddle.autograd import PyLayer

from twinprobe._record.calls import FOCUS, Api, Site, replaced, tensors_in, words
from twinprobe._record.eager.apis import Replaced, writing
from twinprobe._record.eager.modules import Crossing

Heard = Callable[[Any], None]
User = tuple[Crossing, int]
_HEARING = "recording gradients"
_transpose = paddle._C_ops.transpose
_register_hook = paddle.Tensor._register_grad_hook  # without a handle to remove it by
_is_floating_point = paddle.Tensor.is_floating_point
_is_complex = paddle.Tensor.is_complex
_Tensor = paddle.Tensor
_float32 = paddle.float32
_differentiable: dict[Any, bool] = {}  # by dtype


@cache
def _axes(count: int) -> list[int]:
    return list(range(count))


def view_of(tensor: Any) -> Any:
    """A new tensor on the same memory, which stays allocated when the first tensor is freed."""
    return _transpose(tensor, _axes(tensor.ndim))


class LeafShare(PyLayer):  # type: ignore[misc]  # paddle is not followed by mypy
    """An alias of a leaf, whose gradient may be rows of a table, which no operation takes."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, heard: Heard | None) -> Any:
        ctx.heard = heard
        return view_of(tensor)  # Paddle takes the tensor itself for an in-place result

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if ctx.heard is not None:
            ctx.heard(gradient)
        return gradient


_share_leaf = LeafShare.apply  # bound before PyLayer.apply itself is watched


def share(tensor: Any, heard: Heard | None, may_be_rows: bool) -> Any:
    """A new tensor on the same memory; ``heard`` gets the gradient that flows back, which is passed on unchanged.

    A PyLayer only where it must be: with these, Paddle crashes in the second pass of a graph that is retained.
    """
    if may_be_rows and tensor.is_leaf:
        return _share_leaf(tensor, heard)
    alias = view_of(tensor)
    if heard is not None:
        _register_hook(alias, heard)
    return alias


def is_differentiable(tensor: Any) -> bool:
    """Whether a tensor could carry a gradient by its element type."""
    dtype = tensor.dtype
    if dtype is _float32:
        return True
    cached = _differentiable.get(dtype)
    if cached is None:
        cached = _differentiable[dtype] = bool(_is_floating_point(tensor) or _is_complex(tensor))
    return cached


class UseGraph:
    """Knows which calls are running, and reports every use of their inputs to them."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self._frames: list[UseWatch] = []
        self._users: dict[int, list[User]] = {}  # by the number of a tensor: the running calls that took it

    def before(self, name: str, args: Any, kwargs: Any) -> UseWatch:
        """A call begins."""
        frame = UseWatch(self, name, args, kwargs)
        self._frames.append(frame)
        for key, index in frame.places.items():
            self._users.setdefault(key, []).append((frame.crossing, index))
        return frame

    def end(self, frame: UseWatch) -> None:
        """A call is over, and with it those inside that did not say so."""
        while self._frames:
            last = self._frames.pop()
            for key in last.places:
                users = self._users[key]
                users.pop()
                if not users:
                    del self._users[key]
            if last is frame:
                break

    def aliased(self, args: Any, kwargs: Any, in_place: bool = False, may_be_rows: bool = True) -> tuple[Any, Any]:
        """The arguments of one operation with aliases in their place. What is written to in place stays itself.

        ``may_be_rows``: whether the operation may give a leaf's gradient as rows of a table.
        """
        kept: set[int] = set()
        if in_place:
            for written in tensors_in(args, _Tensor, [])[:1]:
                self._spoil(written)
                kept.add(id(written))

        def swap(value: Any) -> Any:
            if not isinstance(value, _Tensor) or value.stop_gradient:
                return value
            users = self._users.get(id(value), ())
            # A leaf that no running call has taken needs no alias: its parts are added in the same order anyway.
            if (not users and value.is_leaf) or not value.is_dense():
                return value
            if id(value) in kept:
                return value
            # One for each place: of an operation that takes a tensor twice, Paddle adds the two parts one by one.
            return share(value, self._listener(users), may_be_rows)

        return replaced(tuple(args), swap), replaced(kwargs, swap)

    def _listener(self, users: Collection[User]) -> Heard | None:
        if not users:
            return None
        for crossing, index in users:
            crossing.expect(index)
        return partial(self.recorder.work, _HEARING, _left, tuple(users))

    def _spoil(self, tensor: Any) -> None:
        """An input was written to in place: its gradient from before the write can no longer be told apart."""
        self._users.pop(id(tensor), None)
        for frame in self._frames:
            index = frame.places.pop(id(tensor), None)
            if index is not None:
                frame.crossing.give_up(index)


def _left(users: Collection[User], gradient: Any) -> None:
    for crossing, index in users:
        crossing.leave(index, gradient)


class UseWatch:
    """One call of a layer or an API between its start and its end."""

    def __init__(self, graph: UseGraph, name: str, args: Any, kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self.places: dict[int, int] = {}
        self._graph = graph
        self._inputs = tensors_in(args, _Tensor, [])  # held, so that their numbers stay theirs
        if kwargs:
            tensors_in(kwargs, _Tensor, self._inputs)
        for tensor in self._inputs:
            if is_differentiable(tensor):
                self.places.setdefault(id(tensor), len(self.places))
        self.crossing = Crossing(graph.recorder.crossings, name, len(self.places))

    def after(self, outputs: list[Any]) -> None:
        """The call ended: wait for the gradients of what it made itself."""
        self.cancel()
        crossing = self.crossing
        crossing.incoming = [None] * len(outputs)
        awaited = 0
        for index, tensor in enumerate(outputs):
            if tensor.stop_gradient or id(tensor) in self.places:  # what it was given is not its own
                continue
            awaited += 1
            # It stays, silent once the crossing is done: removing one in a hook crashes.
            _register_hook(tensor, partial(self._graph.recorder.work, _HEARING, crossing.arrive, index))
        if awaited:
            crossing.awaited = awaited
            self._graph.recorder.crossings.add(crossing)

    def cancel(self) -> None:
        """The call is over."""
        self._graph.end(self)


# Paddle's single operations, where tensors are used: wrapped so that every use gets an alias of its own.

# Operators and methods that are compiled code: they bypass the namespace of operations.
COMPILED_METHODS = words(
    """
    __add__ __sub__ __mul__ __truediv__ __div__ __floordiv__ __mod__ __pow__ __matmul__ __radd__ __rsub__ __rmul__
    __rtruediv__ __rdiv__ __rpow__ __rmatmul__ __rmod__ __rfloordiv__ clone contiguous copy_
    _getitem_dygraph _setitem_dygraph _tensor_use_gpudnn
    """
)
_PROGRAMS = frozenset({"run_program"})  # a traced program: its lists of tensors are not arguments of one operation


def wrapped(site: Site, recorder: Any, graph: UseGraph) -> Any:
    """An operation that passes aliases on."""
    aliased, in_place, rows = graph.aliased, site.api.in_place, gives_rows(site.attribute)
    original = writing(recorder.row_cache)(site.original) if writes(site.attribute) else site.original

    @functools.wraps(original)
    def operation(*args: Any, **kwargs: Any) -> Any:
        if not recorder.busy and recorder.listening() and paddle.is_grad_enabled():
            given = args, kwargs
            args, kwargs = recorder.work("following gradients", aliased, *given, in_place, rows) or given
        return original(*args, **kwargs)

    return operation


@functools.cache
def operation_sites() -> tuple[Site, ...]:
    """All operations, looked up once."""
    return tuple(_find())


def _find() -> Iterator[Site]:
    for space in (paddle._C_ops, paddle._legacy_C_ops):
        for name, function in sorted(vars(space).items()):
            ours = not name.startswith("_") and not name.rstrip("_").endswith("_grad") and name not in _PROGRAMS
            if ours and type(function) is BuiltinFunctionType:
                yield Site(space, name, function, _operation(name))
    for name in sorted(COMPILED_METHODS):
        method = vars(paddle.Tensor).get(name)
        if type(method).__name__ == "method_descriptor":
            yield Site(paddle.Tensor, name, method, _operation(name))


def writes(name: str) -> bool:
    """Whether an operation may change an argument, the running statistics of a normalisation among them."""
    return _operation(name).in_place or "batch_norm" in name or name.startswith(("fused_", "set_", "merged_"))


def gives_rows(name: str) -> bool:
    """Whether an operation may give the gradient of a table as some of its rows."""
    return name == "nce" or any(part in name for part in ("embedding", "lookup", "hsigmoid"))


def _operation(name: str) -> Api:
    in_place = (name.endswith("_") and not name.endswith("__")) or name == "_setitem_dygraph"
    return Api(name, FOCUS, in_place)


def _compiled_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    base: Any = super(PyLayer, cls)
    return base.apply(*args, **kwargs)


def custom_layers(recorder: Any, graph: UseGraph) -> Replaced:
    """``PyLayer.apply`` uses tensors too: functions with a backward of their own, recomputation among them."""

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is LeafShare:
            return _compiled_apply(cls, *args, **kwargs)
        if not recorder.busy and recorder.listening() and paddle.is_grad_enabled():
            args, kwargs = recorder.work("following gradients", graph.aliased, args, kwargs) or (args, kwargs)
        recorder.row_cache.settle()  # its kernels may write to anything
        return _compiled_apply(cls, *args, **kwargs)

    return Replaced(PyLayer, "apply", lambda _original: classmethod(apply))
