"""Module calls, seen by standing before the base class's ``__call__``: no hook is left on any module."""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import Any

from twinprobe._record.calls import ModuleCall, ModuleInfo, ModuleWatch


class CallWatch(ModuleWatch):
    """Watches the calls of modules of one base class."""

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._roots: tuple[Any, ...] = ()
        self._root: Any = None
        self._tokens: tuple[int, int] | None = None
        self._original: Any = None
        self._without_gradient: dict[str, list[int]] = {}

    @property
    def attached(self) -> bool:
        return self._original is not None

    def attach(self) -> None:
        """Stand before ``__call__``."""
        owner = self._recorder.module_class
        original = self._original = owner.__call__

        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            return self._called(original, module, args, kwargs)

        owner.__call__ = call

    def watch_roots(self, models: list[Any]) -> None:
        """Between two calls of a model its caller may fill the memory of its inputs anew: begin afresh there."""
        self._roots = tuple(models)

    def watch_tokens(self, models: list[Any], token_range: tuple[int, int]) -> None:
        """Record only while the model runs for the tokens first..last of a generation loop."""
        self._root, self._tokens, self._token = models[0] if models else None, token_range, -1

    def detach(self) -> None:
        """Step away from ``__call__`` and forget every module."""
        if self._original is not None:
            self._recorder.module_class.__call__ = self._original
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
                recorder.known.forget()
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
