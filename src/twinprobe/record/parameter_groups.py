"""Gradients of parameters by module: one entry for each module and backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinprobe.record.rows import Entry


class Group:
    """The parameters of one module and the gradients of this pass that have come."""

    __slots__ = ("expected", "found", "module", "prefix")

    def __init__(self, module: Any, prefix: str, expected: int) -> None:
        self.module = module
        self.prefix = prefix
        self.expected = expected
        self.found: dict[str, Any] = {}


class ParameterGroups:
    """The groups that are watched and the hooks on their parameters, which each framework sets in its own way."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._groups: list[Group] = []

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

    def _group(self, module: Any, prefix: str, expected: int) -> Group:
        group = Group(module, prefix, expected)
        self._groups.append(group)
        return group

    def _take(self, group: Group, name: str, note: Callable[..., Any], *what: Any) -> None:
        """Note a gradient with ``note(*what)``. A second one of a parameter is of another pass."""
        found = group.found
        if name in found:
            self._emit(group)
            found = group.found
        recorder = self._recorder
        recorder.wants("" if recorder.takes_all else f"{group.prefix}parameters_grad.")
        found[name] = note(*what)
        if len(found) == group.expected:
            self._emit(group)

    def _emit(self, group: Group) -> None:
        recorder = self._recorder
        found, group.found = group.found, {}
        name = f"{group.prefix}parameters_grad.{recorder.engine.count(f'{group.prefix}parameters_grad')}"
        if recorder.wants(name):
            recorder.engine.emit(Entry(name, found, boxed=True))
