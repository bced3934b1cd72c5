"""Module calls, seen by standing before the base class's ``__call__``: no hook is left on any module."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from twinprobe.record.eager.calls import ModuleCall, ModuleInfo
from twinprobe.record.eager.flatten import tensors_in

if TYPE_CHECKING:
    from twinprobe.record.eager.recorder import EagerRecorder


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
