"""API calls: a wrapper around each function, silent inside another one."""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from twinprobe.record.eager.adapter import LOW, MINOR, Api, Site
from twinprobe.record.eager.flatten import tensors_in
from twinprobe.record.pending import is_pending, without_values

if TYPE_CHECKING:
    from twinprobe.record.eager.recorder import EagerRecorder

_RISK = {"ALL": MINOR, "FOCUS": LOW - 1, "CORE": 0}


class ApiWatch:
    """Wraps functions and records their calls."""

    def __init__(self, recorder: EagerRecorder) -> None:
        self._recorder = recorder
        config = recorder.config
        self._wanted_rank = MINOR if config.scope or config.names else _RISK[config.risk_level]
        self._tree_rank = max(self._wanted_rank, LOW)

    def wrap(self, site: Site) -> Any:
        """The function to put in the original's place."""
        recorder, api, original = self._recorder, site.api, site.original

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if recorder.busy or recorder.in_api or not recorder.listening() or api.rank > self._tree_rank:
                if not api.in_place:
                    return original(*args, **kwargs)
                recorder.adapter.known.settle()
                try:
                    return original(*args, **kwargs)
                finally:
                    recorder.adapter.known.forget()
            return self.record(api, original, args, kwargs, sys._getframe(1))

        return recorded

    def record(self, api: Api, original: Any, args: Any, kwargs: Any, frame: FrameType, skip: int = 0) -> Any:
        """Call and record. ``skip`` leaves out leading arguments, such as the primitive itself."""
        recorder = self._recorder
        recorder.busy = True
        call = ApiCall(recorder, api)
        try:
            with recorder.guard("recording an API's inputs"):
                call.before(args[skip:], kwargs, frame, api.rank <= self._wanted_rank)
            if call.watch is not None:
                args, kwargs = (*args[:skip], *call.watch.args), call.watch.kwargs
            if api.in_place:
                recorder.adapter.known.settle()
            recorder.busy, recorder.in_api = False, True
            try:
                output = original(*args, **kwargs)
            except BaseException:
                call.fail()
                raise
            finally:
                if api.in_place:
                    recorder.adapter.known.forget()
            recorder.busy = True
            with recorder.guard("recording an API's outputs"):
                given = (*args[skip:], *kwargs.values()) if api.collective else output
                call.after(given, pending=_communicates(api) and is_pending(output))
            return output
        finally:
            recorder.busy = recorder.in_api = False


def _communicates(api: Api) -> bool:
    return "istributed." in api.prefix


class ApiCall:
    """One call of an API: numbered, noted before, noted after."""

    __slots__ = ("_api", "_parts", "_recorder", "_stub", "watch")

    def __init__(self, recorder: EagerRecorder, api: Api) -> None:
        self._recorder = recorder
        self._api = api
        self._stub = f"{api.prefix}{recorder.engine.count(api.prefix)}"
        self._parts: dict[str, Any] | None = None
        self.watch: Any = None

    def before(self, args: Any, kwargs: Any, frame: FrameType, wanted: bool) -> None:
        """Note arguments and prepare for their gradients."""
        recorder = self._recorder
        calls = recorder.modules.calls
        enclosing = calls[-1] if calls else None
        name, backward = f"{self._stub}.forward", f"{self._stub}.backward"
        recorder.link(name, enclosing.name if enclosing else recorder.loose_parent(), backward)
        if not wanted:
            return
        engine = recorder.engine
        engine.filter.entering(name)
        chain = enclosing.chain() if enclosing and not engine.filter.everything else ()
        if recorder.forward and recorder.wants(name, chain):
            self._parts = {}
            if enclosing and enclosing.stack:
                engine.stack(name, frame, enclosing.stack, enclosing.frame)
            else:
                engine.stack(name, frame)
            if recorder.inputs:
                self._parts["input_args"] = [recorder.capture(item) for item in args]
                self._parts["input_kwargs"] = recorder.capture.mapping(kwargs) if kwargs else {}
                recorder.adapter.mark(self._api.prefix, self._parts["input_args"], self._parts["input_kwargs"])
        if recorder.backward and recorder.adapter.grad_enabled():
            self.watch = recorder.adapter.before_call(recorder.crossings, backward, args, kwargs, self._api.in_place)

    def fail(self) -> None:
        """The call raised."""
        if self.watch is not None:
            self.watch.cancel()

    def after(self, output: Any, *, pending: bool = False) -> None:
        """Note the result and wait for its gradients. What is ``pending`` is still being written."""
        recorder = self._recorder
        name = f"{self._stub}.forward"
        if self._parts is not None:
            if recorder.outputs:
                items = output if type(output) is tuple else (output,)
                captured = [recorder.capture(item) for item in items]
                self._parts["output"] = without_values(captured) if pending else captured
            if pending:
                recorder.adapter.known.forget()
            recorder.emit_forward(name, self._parts)
        recorder.engine.filter.leaving(name)
        if self.watch is not None:
            self.watch.after(tensors_in(output, recorder.adapter.is_tensor, []))
