"""A function mode that records nothing: it sees to it that what waits is measured before anyone writes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from twinprobe.record.torch.writes import BACKWARD, REACHES, UNSEEN, WRITES, effect_of, writes_by_keyword

if TYPE_CHECKING:
    from twinprobe.record.torch.recorder import TorchRecorder


_is_grad_enabled: Any = torch.is_grad_enabled
_INSIDE_BACKWARD = ("_tensor_or_tensors_to_tuple", "_make_grads", "_engine_run_backward")


class WatchMode(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed by mypy
    """Settles before calls that write. Backward passes run under it too, on whatever thread the engine uses."""

    def __init__(self, recorder: TorchRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._effects: dict[Any, int] = {}
        self._gradients = True
        self.attached = False
        self._aside = 0
        self._removed = False

    def attach(self) -> None:
        """Become the innermost mode."""
        _push_mode(self)
        self.attached = True

    def detach(self) -> None:
        """Leave the stack of modes for good."""
        self._aside = 0
        self._removed = False
        if self.attached:
            self._leave()
            self.attached = False

    def _leave(self) -> bool:
        """Leave the stack of modes, wherever in it this mode is by now; False when it is not in it."""
        above = []
        found = False
        while torch._C._len_torch_function_stack() and not found:
            above.append(_pop_mode())
            found = above[-1] is self
        for mode in reversed(above[:-1] if found else above):
            _push_mode(mode)
        return found

    def step_aside(self) -> None:
        """A compiled region begins: it must not see the mode, or it would be compiled anew. Regions may be nested."""
        self._recorder.safely("measuring", self._recorder.book.settle)  # nobody will see what it writes
        self._aside += 1
        if self._aside == 1 and self.attached and self._leave():
            self._removed = True
            self.attached = False

    def step_back(self) -> None:
        """The compiled region ended."""
        self._aside = max(0, self._aside - 1)
        if not self._aside and self._removed:
            self._removed = False
            self.attach()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            effect = self._effects.get(func)
            if effect is None or _is_grad_enabled() is not self._gradients:
                effect = self.effect(func)
        except Exception as error:
            self._recorder.trouble("looking a function up", error)
            effect = UNSEEN
        if not effect:  # PLAIN
            if not kwargs:
                return func(*args)
        elif effect >= UNSEEN:
            return self.pass_on(effect, func, args, kwargs or {})
        self.settle_before(effect, args, kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)

    def effect(self, func: Any) -> int:
        """What the function does to memory. Also notices where gradients are switched off: the forward of a custom
        autograd function begins like this, and its kernels may write to what they were given."""
        gradients = torch.is_grad_enabled()
        if gradients is not self._gradients:
            self._gradients = gradients
            if not gradients:
                self._recorder.book.settle()
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = effect_of(func)
        return effect

    def settle_before(self, effect: int, args: Any, kwargs: Any) -> None:
        """Measure what waits if the call writes; believe no row of memory that the call hands out."""
        try:
            if effect == WRITES or (kwargs and writes_by_keyword(kwargs)):
                self._recorder.book.settle()
            elif effect == REACHES and args and isinstance(args[0], torch.Tensor):
                self._recorder.book.forget_storage(args[0])
        except Exception as error:
            self._recorder.trouble("measuring what is about to be written", error)

    def pass_on(self, effect: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls that run other code or leave no trace: backward, collectives, foreign operators that write."""
        if effect == BACKWARD:
            if torch._C._len_torch_function_stack():
                return func(*args, **kwargs)
            if func is torch.Tensor.backward:
                return self._run_backward(*args, **kwargs)
            return self._run_engine(*args, **kwargs)
        safely, forget = self._recorder.safely, self._recorder.book.forget
        safely("measuring before a call that writes", forget)
        try:
            return func(*args, **kwargs)
        finally:
            safely("measuring after a call that writes", forget)

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

    def _run_engine(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
        **more: Any,
    ) -> None:
        # What torch.autograd.backward does after asking the modes (it asks from 2.12 on), with this mode on.
        autograd: Any = torch.autograd
        if more or not all(hasattr(autograd, name) for name in _INSIDE_BACKWARD):
            options = {"retain_graph": retain_graph, "create_graph": create_graph, "inputs": inputs, **more}
            autograd.backward(tensors, grad_tensors, **options)
            return
        given = autograd._tensor_or_tensors_to_tuple(grad_tensors, len(tensors))
        gradients = autograd._make_grads(tensors, given, is_grads_batched=False)
        keep = create_graph if retain_graph is None else retain_graph
        with self:
            autograd._engine_run_backward(
                tensors, gradients, keep, create_graph, inputs or (), allow_unreachable=True, accumulate_grad=True
            )

    def custom(self, _api: Any, func: Any, args: Any, kwargs: Any, _frame: Any) -> Any:
        """A function that was registered by hand: this mode records none."""
        return func(*args, **kwargs)
