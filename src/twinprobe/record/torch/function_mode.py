"""API calls, seen through a TorchFunctionMode: names imported before the recorder are seen too."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from twinprobe.record.torch.call_site import arguments_as_written, caller_of
from twinprobe.record.torch.collectives import COLLECTIVE_NAMES, as_written
from twinprobe.record.torch.compiled import in_compiled_code
from twinprobe.record.torch.flatten import differentiable
from twinprobe.record.torch.graph_index import sequence_number
from twinprobe.record.torch.names import LOW, MINOR, Api, ApiTable
from twinprobe.record.torch.operators import Spelling
from twinprobe.record.torch.quiet import Quiet
from twinprobe.record.torch.watch_mode import WatchMode
from twinprobe.record.torch.writes import UNSEEN

if TYPE_CHECKING:
    from twinprobe.record.torch.recorder import TorchRecorder

_is_grad_enabled: Any = torch.is_grad_enabled
_RISK = {"ALL": MINOR, "FOCUS": LOW - 1, "CORE": 0}


class ApiMode(WatchMode):
    """Records each API call's arguments, result and gradients, and passes the call on unchanged."""

    def __init__(self, recorder: TorchRecorder) -> None:
        super().__init__(recorder)
        self.table = ApiTable()
        self._spelling = Spelling()
        config = recorder.config
        self._wanted_rank = MINOR if config.scope or config.names else _RISK[config.risk_level]
        self._tree_rank = max(self._wanted_rank, LOW)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        try:
            effect = self._effects.get(func)
            if effect is None or _is_grad_enabled() is not self._gradients:
                effect = self.effect(func)
            api = self.table(func)
        except Exception as error:
            recorder.trouble("looking a function up", error)
            effect, api = UNSEEN, None
        if api is None and not effect and not kwargs:
            return func(*args)
        idle = not recorder.engine.active or recorder.paused or recorder.muted or recorder.collectives.inside
        if api is None or idle or api.rank > self._tree_rank:
            if effect == UNSEEN and not idle and getattr(func, "__name__", None) in COLLECTIVE_NAMES:
                return self._collective(func, args, kwargs)
            if effect >= UNSEEN:
                return self.pass_on(effect, func, args, kwargs)
            self.settle_before(effect, args, kwargs)
            return func(*args, **kwargs)
        frame = caller = sys._getframe(1)
        written = None
        try:
            if torch._C._current_graph_task_id() >= 0 and in_compiled_code(frame):
                api = None
            else:
                caller = caller_of(frame)
                if caller is frame:
                    api = self._spelling(api, frame)
                else:
                    written = arguments_as_written(func, args, kwargs, caller)
        except Exception as error:
            recorder.trouble("asking how a call was written", error)
        if api is None:
            return func(*args, **kwargs)
        return self._record(effect, api, func, args, kwargs, caller, written)

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = COLLECTIVE_NAMES[func.__name__]
        written = as_written(func, kwargs)
        return self._recorder.collectives.record(name, func, args, kwargs, sys._getframe(1), written)

    def custom(self, api: Api, func: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        """Record a function that was registered by hand; nothing inside it is recorded."""
        recorder = self._recorder
        if not self.attached or not recorder.active or recorder.muted:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return self._record(UNSEEN, api, func, args, kwargs, frame)

    def _record(
        self, effect: int, api: Api, func: Any, args: Any, kwargs: Any, frame: FrameType, written: Any = None
    ) -> Any:
        try:
            call = ApiCall(self._recorder, api, frame)
        except Exception as error:
            self._recorder.trouble("counting an API's calls", error)
            return self.pass_on(UNSEEN, func, args, kwargs)
        shown_args, shown_kwargs = written or (args, kwargs)
        try:
            with Quiet():
                call.before(shown_args, shown_kwargs, api.rank <= self._wanted_rank)
        except Exception as error:
            call.mark("recording an API's inputs", error)
        try:
            if effect == UNSEEN:
                output = self.pass_on(effect, func, args, kwargs)
            else:
                self.settle_before(effect, args, kwargs)
                output = func(*args, **kwargs)
        except BaseException:
            self._recorder.safely("recording an API that failed", call.failed)
            raise
        try:
            with Quiet():
                call.after(output)
        except Exception as error:
            self._recorder.trouble("recording an API's outputs", error)
        return output


class ApiCall:
    """One call of an API: numbered, noted before, noted after."""

    __slots__ = ("_edges", "_frame", "_inputs", "_parts", "_recorder", "_since", "_stub")

    def __init__(self, recorder: TorchRecorder, api: Api, frame: FrameType) -> None:
        self._recorder = recorder
        self._frame = frame
        self._stub = f"{api.prefix}{recorder.engine.count(api.prefix)}"
        self._parts: dict[str, Any] | None = None
        self._edges: Any = None
        self._since = 0

    def before(self, args: Any, kwargs: Any, wanted: bool) -> None:
        """Note arguments and where their gradients go."""
        recorder = self._recorder
        calls = recorder.modules.calls
        enclosing = calls[-1] if calls else None
        parent = enclosing.name if enclosing else recorder.optimizer.loose_parent(self._frame)
        name, backward = f"{self._stub}.forward", f"{self._stub}.backward"
        recorder.link(name, parent, backward)
        if not wanted:
            return
        engine = recorder.engine
        engine.filter.entering(name)
        chain = (enclosing.name, *enclosing.ancestors()) if enclosing and not engine.filter.everything else ()
        if recorder.forward and recorder.wants(name, chain):
            self._parts = {}
            if enclosing and enclosing.stack:
                engine.stack(name, self._frame, enclosing.stack, enclosing.frame)
            else:
                engine.stack(name, self._frame)
            if recorder.inputs:
                capture = recorder.capture
                self._parts["input_args"] = [capture(item) for item in args]
                self._parts["input_kwargs"] = capture.mapping(kwargs) if kwargs else {}
        if recorder.backward and torch.is_grad_enabled():
            inputs = differentiable(args, [])
            if kwargs:
                inputs += differentiable(kwargs, [])
            self._edges = recorder.graph.edges(inputs)
            self._since = sequence_number()

    def mark(self, doing: str, error: Exception) -> None:
        """The recorder failed at this call."""
        self._parts = self._recorder.mark(doing, error, self._parts)

    def failed(self) -> None:
        """The call raised, or a recomputation was cut short: what went in is still worth having."""
        if self._parts is not None:
            self._recorder.emit_forward(f"{self._stub}.forward", self._parts)

    def after(self, output: Any) -> None:
        """Note the result and hook its gradients."""
        recorder = self._recorder
        name = f"{self._stub}.forward"
        if self._parts is not None:
            if recorder.outputs:
                items = output if isinstance(output, tuple) and not isinstance(output, torch.Size) else (output,)
                self._parts["output"] = [recorder.capture(item) for item in items]
            recorder.emit_forward(name, self._parts)
        recorder.engine.filter.leaving(name)
        if self._edges is not None and any(edge is not None for edge in self._edges):
            recorder.watch_gradients(f"{self._stub}.backward", self._edges, output, self._since)
            if not recorder.modules.calls:
                recorder.graph.index.clear()
