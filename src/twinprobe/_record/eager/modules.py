"""Module calls, seen by standing before the base class's ``__call__``: no hook is left on any module."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinprobe._record.stacks import Stack

if TYPE_CHECKING:
    from twinprobe._record.eager.recorder import EagerRecorder

# Calls of modules while they run: who encloses whom.


@dataclass(slots=True, eq=False)
class ModuleInfo:
    """A watched module and the front of its names: ``Cell.layers.0.Dense.``. API calls inside a closed one are not
    recorded."""

    module: Any
    prefix: str
    whole: bool = False
    compiled: bool = False
    closed: bool = False


class ModuleCall:
    """One call of a module while it runs."""

    __slots__ = ("backward", "crossing", "frame", "info", "name", "number", "parent", "parts", "stack")

    def __init__(self, info: ModuleInfo, number: int, parent: ModuleCall | None) -> None:
        self.info = info
        self.number = number
        self.name = f"{info.prefix}forward.{number}"
        self.backward = f"{info.prefix}backward.{number}"
        self.parent = parent
        self.parts: dict[str, Any] | None = None
        self.crossing: Any = None
        self.stack: Stack | None = None
        self.frame = 0

    def chain(self) -> Iterator[str]:
        """This call's name and those of the enclosing calls, innermost first."""
        call: ModuleCall | None = self
        while call is not None:
            yield call.name
            call = call.parent

    def ancestors(self) -> Iterator[str]:
        """Names of the enclosing module calls, innermost first."""
        return self.parent.chain() if self.parent else iter(())


# Tensors inside nested arguments: found in the order in which they are recorded, or replaced where they stand.

_DEPTH_LIMIT = 400
_SCALARS = frozenset({int, float, bool, str, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})


def tensors_in(value: Any, is_tensor: Callable[[Any], bool], found: list[Any], depth: int = 0) -> list[Any]:
    """Append every tensor inside ``value``."""
    kind = type(value)
    if kind in _SCALARS:
        return found
    if kind is not tuple and kind is not list and is_tensor(value):
        found.append(value)
    elif depth < _DEPTH_LIMIT:
        if isinstance(value, list | tuple):
            for item in value:
                if is_tensor(item):
                    found.append(item)
                elif type(item) not in _SCALARS:
                    tensors_in(item, is_tensor, found, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                tensors_in(getattr(value, field.name, None), is_tensor, found, depth + 1)
        elif isinstance(value, Mapping):
            for item in value.values():
                tensors_in(item, is_tensor, found, depth + 1)
    return found


def replaced(value: Any, swap: Callable[[Any], Any]) -> Any:
    """``value`` with ``swap`` applied to what is no list, tuple or dict; the same object where nothing changed."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list or kind is tuple:
        items = None  # a new list only where something changes
        for at, item in enumerate(value):
            inner = type(item)
            if inner in _SCALARS:
                continue
            new = replaced(item, swap) if inner in _CONTAINERS else swap(item)
            if new is not item:
                if items is None:
                    items = list(value)
                items[at] = new
        return value if items is None else kind(items)
    if kind is dict:
        if not value:
            return value
        pairs = {key: replaced(item, swap) for key, item in value.items()}
        return pairs if any(pairs[key] is not item for key, item in value.items()) else value
    return swap(value)


class ModuleWatch:
    """Watches the submodules of the given models. The models themselves are not recorded, only what is inside."""

    def __init__(self, recorder: EagerRecorder) -> None:
        self._recorder = recorder
        self.infos: dict[int, ModuleInfo] = {}
        self.calls: list[ModuleCall] = []
        self._roots: tuple[Any, ...] = ()
        self._root: Any = None
        self._tokens: tuple[int, int] | None = None
        self._token = -1
        self._original: Any = None
        self._without_gradient: dict[str, list[int]] = {}

    @property
    def attached(self) -> bool:
        return self._original is not None

    def attach(self) -> None:
        """Stand before ``__call__``."""
        owner = self._recorder.adapter.module_class
        original = self._original = owner.__call__

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            return self._called(original, module, args, kwargs)

        owner.__call__ = call

    def watch_models(self, models: list[Any], several: bool) -> None:
        """Name every submodule; ``several`` puts the model's position into the names."""
        recorder = self._recorder
        for position, model in enumerate(models):
            front = f"{recorder.adapter.container}.{position}." if several else f"{recorder.adapter.container}."
            for path, module, compiled in recorder.adapter.modules(model):
                if id(module) not in self.infos:
                    prefix = f"{front}{path}.{type(module).__name__}."
                    self.infos[id(module)] = ModuleInfo(module, prefix, compiled=compiled)

    def watch_roots(self, models: list[Any]) -> None:
        """Between two calls of a model its caller may fill the memory of its inputs anew: begin afresh there."""
        self._roots = tuple(models)

    def watch_tokens(self, models: list[Any], token_range: tuple[int, int]) -> None:
        """Record only while the model runs for the tokens first..last of a generation loop."""
        self._root, self._tokens, self._token = models[0] if models else None, token_range, -1

    def watch_whole(self, module: Any, name: str) -> None:
        """Record one module as a whole: nothing inside it is recorded."""
        prefix = f"{self._recorder.adapter.container}.{name}.{type(module).__name__}."
        self.infos[id(module)] = ModuleInfo(module, prefix, whole=True)

    def end_whole(self) -> None:
        """From here on modules are recorded with what is inside them."""
        for info in self.infos.values():
            info.whole = False

    def detach(self) -> None:
        """Step away from ``__call__`` and forget every module."""
        if self._original is not None:
            self._recorder.adapter.module_class.__call__ = self._original
        self._original = self._root = self._tokens = None
        self._roots = ()
        self.infos.clear()
        self.calls.clear()
        self._without_gradient.clear()

    # -- one call ---------------------------------------------------------------------------------------------------

    def _called(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        for root in self._roots:
            if module is root:
                recorder.adapter.known.forget()
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
            watch = call.crossing
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
            recorder.work("recording a module's outputs", self._leave, call, output)
            return output
        finally:
            recorder.in_api = in_api
            while self.calls and self.calls.pop() is not call:
                continue

    def _enter(self, call: ModuleCall, args: Any, kwargs: Any, frame: Any) -> None:
        recorder = self._recorder
        gradients = recorder.backward and recorder.adapter.grad_enabled()
        if recorder.backward:
            self._number_backward(call, gradients)
        recorder.link(call.name, call.parent.name if call.parent else recorder.loose_parent(), call.backward)
        if not recorder.takes_all:
            recorder.engine.filter.entering(call.name)
        if recorder.forward and recorder.wants(call.name, () if recorder.takes_all else call.ancestors()):
            self._place(call, frame)
            call.parts = {}
            if recorder.inputs:
                call.parts["input_args"] = [recorder.capture(item) for item in args]
                call.parts["input_kwargs"] = recorder.capture.mapping(kwargs) if kwargs else {}
                call.parts["parameters"] = recorder.parameters_of(call.info)
        if gradients:
            call.crossing = recorder.adapter.before_call(recorder.crossings, call.backward, args, kwargs, False)

    def _number_backward(self, call: ModuleCall, gradients: bool) -> None:
        """A module recomputed in backward takes the number of the forward that ran without gradients."""
        recorder, prefix = self._recorder, call.info.prefix
        if not gradients:
            self._without_gradient.setdefault(prefix, []).append(call.number)
        elif recorder.passes:
            waiting = self._without_gradient.get(prefix)
            if waiting:
                call.backward = f"{prefix}backward.{waiting.pop()}"

    def _place(self, call: ModuleCall, frame: Any) -> None:
        # The frames outside the module are shared by all calls inside it, so they are walked once.
        engine, parent = self._recorder.engine, call.parent
        base, stop = (parent.stack, parent.frame) if parent else (None, 0)
        call.stack = engine.stack(call.name, frame, base, stop)

    def _leave(self, call: ModuleCall, output: Any, failed: bool = False, /) -> None:
        recorder = self._recorder
        if call.parts is not None:
            if not recorder.takes_all:
                recorder.wants(call.name, call.ancestors())  # sets again whether tensors are kept
            if recorder.outputs and not failed:
                items = output if isinstance(output, tuple) and not hasattr(output, "_fields") else (output,)
                call.parts["output"] = [recorder.capture(item) for item in items]
            recorder.emit_forward(call.name, call.parts)
        if call.crossing is not None:
            if failed:
                call.crossing.cancel()
            else:
                call.crossing.after(tensors_in(output, recorder.adapter.is_tensor, []))
        if not recorder.takes_all:
            recorder.engine.filter.leaving(call.name)
