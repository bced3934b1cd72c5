"""Hooks on the parameters of MindSpore and Paddle."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from twinprobe.record.eager.calls import ModuleInfo
from twinprobe.record.parameter_groups import Group, ParameterGroups


class ParameterGradients(ParameterGroups):
    """Each hook sees the gradient of one backward pass, summed over all uses."""

    def attach(self, infos: Iterable[ModuleInfo]) -> None:
        """Watch the own parameters of every watched module."""
        adapter = self._recorder.adapter
        for info in infos:
            own = adapter.parameters(info.module, info.compiled)
            named = {name: one for name, one in own.items() if adapter.needs_gradient(one)}
            if not named:
                continue
            group = self._group(info.module, info.prefix, len(named))
            for name, parameter in named.items():
                self._handles.append(parameter.register_hook(partial(self._arrived, group, name)))

    def _arrived(self, group: Group, name: str, gradient: Any) -> None:
        recorder = self._recorder
        if recorder.active and not recorder.muted:
            note = recorder.parameter_gradient
            doing = "recording a parameter's gradient"
            recorder.work(doing, self._take, group, name, note, group.module, name, gradient)
