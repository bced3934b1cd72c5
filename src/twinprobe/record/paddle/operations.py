"""Paddle's single operations, where tensors are used: wrapped so that every use gets an alias of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import paddle
from paddle.autograd import PyLayer

from twinprobe.record.eager.adapter import FOCUS, Api, Site
from twinprobe.record.paddle.gradients import LeafShare, UseGraph
from twinprobe.record.torch.api_lists import words

if TYPE_CHECKING:
    from twinprobe.record.eager.recorder import EagerRecorder

# Operators and methods that are compiled code: they do not come by the namespace of operations.
COMPILED_METHODS = words(
    """
    __add__ __sub__ __mul__ __truediv__ __div__ __floordiv__ __mod__ __pow__ __matmul__ __radd__ __rsub__ __rmul__
    __rtruediv__ __rdiv__ __rpow__ __rmatmul__ __rmod__ __rfloordiv__ clone contiguous copy_
    _getitem_dygraph _setitem_dygraph
    """
)
_PROGRAMS = frozenset({"run_program"})  # a traced program: its lists of tensors are not arguments of one operation


class Operations:
    """Makes the wrappers and finds their places."""

    def __init__(self, recorder: EagerRecorder, graph: UseGraph) -> None:
        self._recorder = recorder
        self._graph = graph

    def wrap(self, site: Site) -> Any:
        """An operation that passes aliases on."""
        recorder, aliased, original, in_place = self._recorder, self._graph.aliased, site.original, site.api.in_place
        changes, rows = writes(site.attribute), gives_rows(site.attribute)

        @functools.wraps(original)
        def operation(*args: Any, **kwargs: Any) -> Any:
            if not recorder.busy and recorder.listening() and paddle.is_grad_enabled():
                given = args, kwargs
                args, kwargs = recorder.work("following gradients", aliased, *given, in_place, rows) or given
            if not changes:
                return original(*args, **kwargs)
            recorder.adapter.known.settle()
            try:
                return original(*args, **kwargs)
            finally:
                recorder.adapter.known.forget()

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


class CustomLayers:
    """``PyLayer.apply`` uses tensors too: functions with a backward of their own, recomputation among them."""

    def __init__(self, recorder: EagerRecorder, graph: UseGraph) -> None:
        self._own = vars(PyLayer).get("apply")

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if cls is LeafShare:
                return _compiled_apply(cls, *args, **kwargs)
            if not recorder.busy and recorder.listening() and paddle.is_grad_enabled():
                args, kwargs = recorder.work("following gradients", graph.aliased, args, kwargs) or (args, kwargs)
            recorder.adapter.known.settle()  # nobody knows what its kernels write to
            return _compiled_apply(cls, *args, **kwargs)

        PyLayer.apply = classmethod(apply)

    def remove(self) -> None:
        """Put the original back."""
        if self._own is None:
            del PyLayer.apply
        else:
            PyLayer.apply = self._own
