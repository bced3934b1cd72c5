"""Gradients of parameters by module: one entry for each module and backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from twinprobe.record.rows import Entry


class GradientWatch(Protocol):
    """Whatever learns the gradients of watched modules' parameters."""

    def attach(self, infos: Iterable[Any]) -> None:
        """Learn those of these modules."""

    def flush(self) -> None:
        """A pass is over."""

    def detach(self) -> None:
        """Hand over what came, and learn no more."""


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
        found, group.found = group.found, {}
        emit_gradients(self._recorder, group.prefix, found)


def emit_gradients(recorder: Any, prefix: str, found: dict[str, Any]) -> None:
    """Hand over the gradients of one module, as the next pass of it."""
    front = f"{prefix}parameters_grad"
    name = f"{front}.{recorder.engine.count(front)}"
    if recorder.wants(name):
        recorder.engine.emit(Entry(name, found, boxed=True))
