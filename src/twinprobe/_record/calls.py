"""Calls of modules and APIs while they run: numbered, noted before and after, and who encloses whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from twinprobe._record.apis import Api
from twinprobe._record.rows import without_values
from twinprobe._record.stacks import Stack


@dataclass(slots=True, eq=False)
class ModuleInfo:
    """A watched module and the front of its names: ``Module.layers.0.Linear.``."""

    module: Any
    prefix: str
    compiled: bool = False
    whole: bool = False  # nothing inside it is recorded
    closed: bool = False  # no API call directly inside it is recorded


class ModuleCall:
    """One call of a module while it runs."""

    __slots__ = (
        "backward", "depth", "error", "frame", "info", "name", "number", "parent", "parts", "stack", "watch", "whole",
    )  # fmt: skip

    def __init__(self, info: ModuleInfo, number: int, parent: ModuleCall | None) -> None:
        self.info = info
        self.number = number
        self.name = f"{info.prefix}forward.{number}"
        self.backward = f"{info.prefix}backward.{number}"
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.parts: dict[str, Any] | None = None
        self.watch: Any = None  # what waits for its gradients
        self.stack: Stack | None = None
        self.frame = 0
        self.whole = False
        self.error: BaseException | None = None  # the one being handled when the call began

    def chain(self) -> Iterator[str]:
        """This call's name and those of the enclosing calls, innermost first."""
        call: ModuleCall | None = self
        while call is not None:
            yield call.name
            call = call.parent

    def ancestors(self) -> Iterator[str]:
        """Names of the enclosing module calls, innermost first."""
        return self.parent.chain() if self.parent else iter(())


class ModuleWatch:
    """The watched modules of a recorder and their calls under way. How calls are seen is each framework's own."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self.infos: dict[int, ModuleInfo] = {}  # by the id of a module
        self.calls: list[ModuleCall] = []
        self._token = -1

    def watch_models(self, models: list[Any], several: bool) -> None:
        """Watch every submodule; ``several`` puts the model's position into the names. The models themselves are not
        recorded, only what is inside."""
        recorder = self._recorder
        for position, model in enumerate(models):
            front = f"{recorder.container}.{position}." if several else f"{recorder.container}."
            for path, module, compiled in recorder.watched_modules(model):
                if id(module) not in self.infos:
                    self.watch(module, f"{front}{path}.{class_name(module)}.", compiled)

    def watch(self, module: Any, prefix: str, compiled: bool = False) -> ModuleInfo:
        """Watch one module under the given name."""
        info = self.infos[id(module)] = ModuleInfo(module, prefix, compiled)
        return info

    def watch_whole(self, module: Any, name: str) -> None:
        """Record one module as a whole: nothing inside it is recorded."""
        prefix = f"{self._recorder.container}.{name}.{class_name(module)}."
        info = self.infos.get(id(module)) or self.watch(module, prefix)
        info.prefix, info.whole = prefix, True

    def end_whole(self) -> None:
        """From here on modules are recorded with what is inside them."""
        for info in self.infos.values():
            info.whole = False

    def _enter(self, call: ModuleCall, args: Any, kwargs: Any, frame: FrameType) -> None:
        recorder = self._recorder
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
        if recorder.backward and recorder.grad_enabled():
            call.watch = recorder.before_call(call.backward, args, kwargs, False)

    def _place(self, call: ModuleCall, frame: FrameType) -> None:
        # The frames outside the module are shared by all calls inside it, so they are walked once.
        parent = call.parent
        base, stop = (parent.stack, parent.frame) if parent else (None, 0)
        call.stack = self._recorder.engine.stack(call.name, frame, base, stop)

    def _leave(self, call: ModuleCall, output: Any, failed: bool) -> None:
        recorder = self._recorder
        if call.parts is not None:
            if not recorder.takes_all:
                recorder.wants(call.name, call.ancestors())  # sets again whether tensors are kept
            if recorder.outputs and not failed:
                items = output if isinstance(output, tuple) and not hasattr(output, "_fields") else (output,)
                call.parts["output"] = [recorder.capture(item) for item in items]
            recorder.emit_forward(call.name, call.parts)
        if call.watch is not None:
            if failed:
                recorder.call_failed(call.watch)
            else:
                recorder.after_call(call.backward, call.watch, output, call.depth)
        if not recorder.takes_all:
            recorder.engine.filter.leaving(call.name)


def class_name(module: Any) -> str:
    """The class of a module, or of the one that was compiled into it."""
    return type(getattr(module, "_orig_mod", module)).__name__


def outside_compiled(
    named: Iterator[tuple[str, Any]], is_compiled: Callable[[Any], bool]
) -> Iterator[tuple[str, Any, bool]]:
    """The modules to watch: path, module, and whether it is the boundary of a compiled region, inside which nothing is
    seen. The model itself, whose path is empty, is left out."""
    inside: list[str] = []
    for path, module in named:
        if not path or any(path.startswith(f"{one}.") for one in inside):
            continue
        compiled = is_compiled(module)
        if compiled:
            inside.append(path)
        yield path, module, compiled


class ApiCall:
    """One call of an API."""

    __slots__ = ("_api", "_frame", "_recorder", "_stub", "parts", "watch")

    def __init__(self, recorder: Any, api: Api, frame: FrameType) -> None:
        self._recorder = recorder
        self._api = api
        self._frame = frame
        self._stub = f"{api.prefix}{recorder.engine.count(api.prefix)}"
        self.parts: dict[str, Any] | None = None
        self.watch: Any = None  # what waits for its gradients

    def before(self, args: Any, kwargs: Any) -> None:
        """Note arguments and prepare for their gradients."""
        recorder, api = self._recorder, self._api
        calls = recorder.modules.calls
        enclosing = calls[-1] if calls else None
        name, backward = f"{self._stub}.forward", f"{self._stub}.backward"
        recorder.link(name, enclosing.name if enclosing else recorder.loose_parent(self._frame), backward)
        if api.rank > recorder.wanted_rank:
            return
        engine = recorder.engine
        engine.filter.entering(name)
        if recorder.forward and recorder.wants(
            name, enclosing.chain() if enclosing and not engine.filter.everything else ()
        ):
            self.parts = {}
            if enclosing and enclosing.stack:
                engine.stack(name, self._frame, enclosing.stack, enclosing.frame)
            else:
                engine.stack(name, self._frame)
            if recorder.inputs:
                capture = recorder.capture
                self.parts["input_args"] = [capture(item) for item in args]
                self.parts["input_kwargs"] = capture.mapping(kwargs) if kwargs else {}
                recorder.mark_layouts(api.prefix, self.parts["input_args"], self.parts["input_kwargs"])
        if recorder.backward and recorder.grad_enabled():
            self.watch = recorder.before_call(backward, args, kwargs, api.in_place)

    def after(self, output: Any, pending: bool = False) -> None:
        """Note the result and wait for its gradients. What is ``pending`` is still being written."""
        recorder = self._recorder
        if self.parts is not None:
            if recorder.outputs:
                captured = [recorder.capture(item) for item in recorder.output_items(output)]
                self.parts["output"] = without_values(captured) if pending else captured
            self.emit()
        recorder.engine.filter.leaving(f"{self._stub}.forward")
        if self.watch is not None:
            recorder.after_call(f"{self._stub}.backward", self.watch, output)

    def emit(self) -> None:
        """Hand over what is known; of a call that raised, that is what went in."""
        if self.parts is not None:
            self._recorder.emit_forward(f"{self._stub}.forward", self.parts)


# Tensors inside nested arguments: found in the order in which they are recorded, or replaced where they stand.

_DEPTH_LIMIT = 400
_SCALARS = frozenset({int, float, bool, str, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})


def tensors_in(value: Any, kind: type, found: list[Any], depth: int = 0) -> list[Any]:
    """Append every tensor inside ``value``; ``kind`` is the framework's class of tensors."""
    if type(value) in _SCALARS:
        return found
    if isinstance(value, kind):
        found.append(value)
    elif depth < _DEPTH_LIMIT:
        if isinstance(value, list | tuple):
            for item in value:
                tensors_in(item, kind, found, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                tensors_in(getattr(value, field.name, None), kind, found, depth + 1)
        elif isinstance(value, Mapping):
            for item in value.values():
                tensors_in(item, kind, found, depth + 1)
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
