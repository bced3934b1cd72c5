"""Hooks on the parameters of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from twinprobe.record.parameter_groups import Group, ParameterGroups
from twinprobe.record.torch.quiet import Quiet

if TYPE_CHECKING:
    from twinprobe.record.torch.hooks import ModuleInfo
    from twinprobe.record.torch.recorder import TorchRecorder


class ParameterGradients(ParameterGroups):
    """Each hook sees the gradient of one backward pass, summed over all uses, before accumulation."""

    def __init__(self, recorder: TorchRecorder) -> None:
        super().__init__(recorder)
        self._waiting: set[int] = set()

    def attach(self, infos: dict[torch.nn.Module, ModuleInfo]) -> None:
        """Watch the own parameters of every watched module."""
        for module, info in infos.items():
            named = [(name, one) for name, one in module._parameters.items() if one is not None and one.requires_grad]
            if not named or info.compiled:
                continue
            group = self._group(module, info.prefix, len(named))
            for name, parameter in named:
                self._handles.append(parameter.register_hook(self._hook(group, name, id(parameter))))

    def flush(self) -> None:
        """The pass is over: emit what came, even where some gradients did not."""
        self._waiting.clear()
        super().flush()

    def _hook(self, group: Group, name: str, parameter: int) -> Callable[[torch.Tensor], None]:
        recorder = self._recorder

        def arrived(gradient: torch.Tensor) -> None:
            if not recorder.active or recorder.muted:
                return
            gradients = torch.is_grad_enabled()
            if gradients:
                torch._C._set_grad_enabled(False)
            try:
                with Quiet():
                    self._expect(group, name)
                    if parameter in self._waiting:  # a pass inside a pass: this one will be added to the first
                        recorder.book.settle()
                    self._waiting.add(parameter)
                    recorder.graph.note_pass()
                    self._take(group, name, recorder.note_parameter_gradient(gradient))
            except Exception as error:
                recorder.engine.problems.note("recording a parameter's gradient", error)
            finally:
                if gradients:
                    torch._C._set_grad_enabled(True)

        return arrived
