"""API calls, seen through a TorchFunctionMode: names imported before the recorder are seen too."""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from twinprobe.record.torch.backward import sequence_number
from twinprobe.record.torch.call_site import arguments_as_written, caller_of
from twinprobe.record.torch.collectives import COLLECTIVE_NAMES, as_written
from twinprobe.record.torch.flatten import differentiable, tensors_in
from twinprobe.record.torch.names import LOW, MINOR, Api, ApiTable
from twinprobe.record.torch.operators import Spelling
from twinprobe.record.torch.quiet import Quiet

if TYPE_CHECKING:
    from twinprobe.record.torch.recorder import TorchRecorder

_RISK = {"ALL": MINOR, "FOCUS": LOW - 1, "CORE": 0}
_BACKWARD = torch.Tensor.backward
_DATA_GETTER = torch.Tensor.data.__get__


class ApiMode(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed by mypy
    """Records each API call's arguments, result and gradients, and passes the call on unchanged."""

    def __init__(self, recorder: TorchRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self.table = ApiTable()
        self._spelling = Spelling()
        config = recorder.config
        self._wanted_rank = MINOR if config.scope or config.names else _RISK[config.risk_level]
        self._tree_rank = max(self._wanted_rank, LOW)
        self.attached = False
        self._aside = 0

    def attach(self) -> None:
        """Become the innermost mode."""
        _push_mode(self)
        self.attached = True

    def detach(self) -> None:
        """Leave the stack of modes, wherever in it this mode is by now."""
        if not self.attached:
            return
        self.attached = False
        above = []
        while torch._C._len_torch_function_stack():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def step_aside(self) -> None:
        """A compiled region begins: it must not see the mode, or it would be compiled anew."""
        self._aside += 1
        if self._aside == 1 and self.attached:
            self.detach()
            self._aside = -1

    def step_back(self) -> None:
        """The compiled region ended."""
        if self._aside == -1:
            self.attach()
        self._aside = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        api = self.table(func)
        if api is None:
            return self._unrecorded(func, args, kwargs)
        if not recorder.active or recorder.muted or recorder.collectives.inside:
            return func(*args, **kwargs)
        if api.rank > self._tree_rank:
            if api.in_place:
                recorder.book.settle()
            return func(*args, **kwargs)
        frame = sys._getframe(1)
        caller = caller_of(frame)
        if caller is frame:
            return self._record(self._spelling(api, frame), func, args, kwargs, frame)
        return self._record(api, func, args, kwargs, caller, arguments_as_written(func, args, kwargs, caller))

    def _unrecorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        if func is _BACKWARD and not torch._C._len_torch_function_stack():
            return self._run_backward(*args, **kwargs)
        if getattr(func, "__module__", None) == "torch.distributed.distributed_c10d":
            return self._collective(func, args, kwargs)
        if func == _DATA_GETTER:
            recorder.book.forget_storage(args[0])  # writes through .data leave no trace
        return func(*args, **kwargs)

    def _run_backward(
        self,
        tensor: torch.Tensor,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        # What Tensor.backward does, with this mode on: what backward recomputes is seen as well.
        with self:
            torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)

    def _collective(self, func: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        name = COLLECTIVE_NAMES.get(func.__name__)
        if name is None or not recorder.active or recorder.muted or recorder.collectives.inside:
            return func(*args, **kwargs)
        return recorder.collectives.record(name, func, args, kwargs, sys._getframe(2), as_written(func, kwargs))

    def custom(self, api: Api, func: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        """Record a function that was registered by hand; nothing inside it is recorded."""
        recorder = self._recorder
        if not self.attached or not recorder.active or recorder.muted:
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return self._record(api, func, args, kwargs, frame)

    def _record(self, api: Api, func: Any, args: Any, kwargs: Any, frame: FrameType, written: Any = None) -> Any:
        call = ApiCall(self._recorder, api, frame)
        shown_args, shown_kwargs = written or (args, kwargs)
        try:
            with Quiet():
                call.before(shown_args, shown_kwargs, api.rank <= self._wanted_rank)
        except Exception as error:
            self._recorder.trouble("recording an API's inputs", error)
        if api.in_place or "out" in kwargs or kwargs.get("inplace"):
            self._recorder.book.settle()
        output = func(*args, **kwargs)
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
            graph = recorder.graph
            graph.install(f"{self._stub}.backward", self._edges, tensors_in(output, []), self._since)
            if not recorder.modules.calls:
                graph.index.clear()
