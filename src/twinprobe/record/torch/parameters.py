"""Gradients of parameters, one entry per module and backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from twinprobe.record.rows import Entry
from twinprobe.record.torch.quiet import Quiet

if TYPE_CHECKING:
    from twinprobe.record.torch.hooks import ModuleInfo
    from twinprobe.record.torch.recorder import TorchRecorder


class _Group:
    """The parameters of one module and the gradients of this pass that have come."""

    __slots__ = ("expected", "found", "prefix")

    def __init__(self, prefix: str, expected: int) -> None:
        self.prefix = prefix
        self.expected = expected
        self.found: dict[str, Any] = {}


class ParameterGradients:
    """Hooks on parameters: each sees the gradient of one backward pass, summed over all uses, before accumulation."""

    def __init__(self, recorder: TorchRecorder) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._groups: list[_Group] = []
        self._waiting: set[int] = set()

    def attach(self, infos: dict[torch.nn.Module, ModuleInfo]) -> None:
        """Watch the own parameters of every watched module."""
        for module, info in infos.items():
            named = [(name, one) for name, one in module._parameters.items() if one is not None and one.requires_grad]
            if not named or info.compiled:
                continue
            group = _Group(info.prefix, len(named))
            self._groups.append(group)
            for name, parameter in named:
                self._handles.append(parameter.register_hook(self._hook(group, name, id(parameter))))

    def detach(self) -> None:
        self.flush()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._groups.clear()

    def flush(self) -> None:
        """The pass is over: emit what came, even where some gradients did not."""
        self._waiting.clear()
        for group in self._groups:
            if group.found:
                self._emit(group)

    def _hook(self, group: _Group, name: str, parameter: int) -> Callable[[torch.Tensor], None]:
        recorder = self._recorder

        def arrived(gradient: torch.Tensor) -> None:
            if not recorder.active or recorder.muted:
                return
            gradients = torch.is_grad_enabled()
            if gradients:
                torch._C._set_grad_enabled(False)
            try:
                with Quiet():
                    if name in group.found:
                        self._emit(group)
                    recorder.wants("" if recorder.takes_all else f"{group.prefix}parameters_grad.")
                    if parameter in self._waiting:  # a pass inside a pass: this one will be added to the first
                        recorder.book.settle()
                    self._waiting.add(parameter)
                    recorder.graph.note_pass()
                    group.found[name] = recorder.note_parameter_gradient(gradient)
                    if len(group.found) == group.expected:
                        self._emit(group)
            except Exception as error:
                recorder.engine.problems.note("recording a parameter's gradient", error)
            finally:
                if gradients:
                    torch._C._set_grad_enabled(True)

        return arrived

    def _emit(self, group: _Group) -> None:
        recorder = self._recorder
        found, group.found = group.found, {}
        name = f"{group.prefix}parameters_grad.{recorder.engine.count(f'{group.prefix}parameters_grad')}"
        if recorder.wants(name):
            recorder.engine.emit(Entry(name, {key: (key, value) for key, value in found.items()}, boxed=True))
