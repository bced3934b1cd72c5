"""Gradients of parameters, one entry per module and backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from twinprobe.record.eager.calls import ModuleInfo
from twinprobe.record.rows import Entry

if TYPE_CHECKING:
    from twinprobe.record.eager.recorder import EagerRecorder


class _Group:
    """The parameters of one module and the gradients of this pass that have come."""

    __slots__ = ("expected", "found", "module", "prefix")

    def __init__(self, module: Any, prefix: str, expected: int) -> None:
        self.module = module
        self.prefix = prefix
        self.expected = expected
        self.found: dict[str, Any] = {}


class ParameterGradients:
    """Hooks on parameters: each sees the gradient of one backward pass, summed over all uses."""

    def __init__(self, recorder: EagerRecorder) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._groups: list[_Group] = []

    def attach(self, infos: Iterable[ModuleInfo]) -> None:
        """Watch the own parameters of every watched module."""
        adapter = self._recorder.adapter
        for info in infos:
            own = adapter.parameters(info.module, info.compiled)
            named = {name: one for name, one in own.items() if adapter.needs_gradient(one)}
            if not named:
                continue
            group = _Group(info.module, info.prefix, len(named))
            self._groups.append(group)
            for name, parameter in named.items():
                self._handles.append(parameter.register_hook(self._hook(group, name)))

    def detach(self) -> None:
        """Emit what came and remove every hook."""
        self.flush()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._groups.clear()

    def flush(self) -> None:
        """The pass is over: emit what came, even where some gradients did not."""
        for group in self._groups:
            if group.found:
                self._emit(group)

    def _hook(self, group: _Group, name: str) -> Callable[[Any], None]:
        recorder = self._recorder

        def arrived(gradient: Any) -> None:
            if not recorder.active or recorder.muted:
                return
            with recorder.hearing("recording a parameter's gradient"):
                if name in group.found:
                    self._emit(group)
                recorder.wants("" if recorder.takes_all else f"{group.prefix}parameters_grad.")
                group.found[name] = recorder.parameter_gradient(group.module, name, gradient)
                if len(group.found) == group.expected:
                    self._emit(group)

        return arrived

    def _emit(self, group: _Group) -> None:
        recorder = self._recorder
        found, group.found = group.found, {}
        name = f"{group.prefix}parameters_grad.{recorder.engine.count(f'{group.prefix}parameters_grad')}"
        if recorder.wants(name):
            recorder.engine.emit(Entry(name, {key: (key, value) for key, value in found.items()}, boxed=True))
