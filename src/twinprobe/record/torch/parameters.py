"""Hooks on the parameters of PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch

from twinprobe.record.parameter_groups import Group, ParameterGroups
from twinprobe.record.torch.crossing import guarded

if TYPE_CHECKING:
    from twinprobe.record.torch.hooks import ModuleInfo
    from twinprobe.record.torch.recorder import TorchRecorder


class ParameterGradients(ParameterGroups):
    """Each hook sees the gradient of one backward pass, summed over all uses, before accumulation."""

    def __init__(self, recorder: TorchRecorder) -> None:
        super().__init__(recorder)
        self._waiting: set[int] = set()

    def attach(self, infos: Iterable[ModuleInfo]) -> None:
        """Watch the own parameters of every watched module."""
        for info in infos:
            own = info.module._parameters
            named = [(name, one) for name, one in own.items() if one is not None and one.requires_grad]
            if not named or info.compiled:
                continue
            group = self._group(info.module, info.prefix, len(named))
            for name, parameter in named:
                hook = partial(guarded, self._recorder.graph, self._arrived, group, name, id(parameter))
                self._handles.append(parameter.register_hook(hook))

    def flush(self) -> None:
        """The pass is over: emit what came, even where some gradients did not."""
        self._waiting.clear()
        super().flush()

    def _arrived(self, group: Group, name: str, parameter: int, gradient: torch.Tensor) -> None:
        recorder = self._recorder
        if not recorder.active or recorder.muted:
            return
        if parameter in self._waiting:  # a pass inside a pass: this one will be added to the first
            recorder.book.settle()
        self._waiting.add(parameter)
        recorder.graph.note_pass()
        self._take(group, name, recorder.note_parameter_gradient, gradient)
