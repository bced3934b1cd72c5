"""One call's place in the autograd graph, and the hooks that see gradients arrive there and leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from twinprobe.record.torch.quiet import Quiet

if TYPE_CHECKING:
    from twinprobe.record.torch.backward import Graph

Slots = list[tuple[int, int]]  # the position among a node's gradients, and among the call's outputs or inputs

_is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
_set_grad_enabled: Callable[[bool], Any] = torch._C._set_grad_enabled


class Crossing:
    """One call's place in the graph: what arrives at its outputs and what leaves through its inputs.

    ``incoming`` has one slot per output tensor, ``outgoing`` one per differentiable input tensor. ``finish`` comes by
    itself when everything has come, or from Graph when the rest never will.
    """

    __slots__ = ("_graph", "_missing", "_parts", "depth", "done", "handles", "incoming", "name", "outgoing", "task")

    def __init__(self, graph: Graph, name: str, outputs: int, inputs: int, depth: int, parts: dict[int, int]) -> None:
        self.name = name
        self.depth = depth  # of a module call; -1 for an API call, which encloses nothing
        self.incoming: list[Any] = [None] * outputs
        self.outgoing: list[Any] = [None] * inputs
        self.task: int | None = None
        self.done = False
        self.handles: list[Any] = []
        self._parts: dict[int, list[torch.Tensor]] = {}
        self._missing = parts  # input to the number of parts in which its gradient will come
        self._graph = graph

    def arrive(self, at: Slots, grads: tuple[Any, ...]) -> None:
        """Gradients reached an output's node."""
        graph = self._graph
        if self.task is None:
            self.task = graph.begin(self)
        for slot, output in at:
            if slot < len(grads) and grads[slot] is not None:
                self.incoming[output] = graph.owner.note_gradient(self.name, grads[slot])
        if not self._missing:
            self.finish()

    def leave(self, at: Slots, grads: tuple[Any, ...]) -> None:
        """A node handed gradients to inputs."""
        for slot, index in at:
            left = self._missing.get(index)
            if left is None:
                continue
            arrived = grads[slot] if slot < len(grads) else None
            if left == 1 and index not in self._parts:  # the common case: all in one part
                del self._missing[index]
                if arrived is not None:
                    self.outgoing[index] = self._graph.owner.note_gradient(self.name, arrived)
                continue
            if arrived is not None:
                self._parts.setdefault(index, []).append(arrived)
            if left > 1:
                self._missing[index] = left - 1
            else:
                del self._missing[index]
                self._settle(index)
        if not self._missing:
            self.finish()

    def _settle(self, index: int) -> None:
        parts = self._parts.pop(index, None)
        if not parts:
            return
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        self.outgoing[index] = self._graph.owner.note_gradient(self.name, total)

    def finish(self) -> None:
        """Everything that can be known is known."""
        if self.done:
            return
        self.done = True
        for index in list(self._parts):
            self._settle(index)
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self._graph.end(self)


class Hook:
    """A hook on a node, for one end of a crossing."""

    __slots__ = ("_act", "_at", "_graph")

    def __init__(self, graph: Graph, act: Callable[..., None], at: Slots) -> None:
        self._graph = graph
        self._act = act
        self._at = at

    def __call__(self, grads: tuple[Any, ...], _received: Any = None) -> None:
        guarded(self._graph, self._act, self._at, grads)


class OneNode:
    """A call that made a single node, as most do: one hook after it sees what came and what went."""

    __slots__ = ("_arriving", "_graph", "_handle", "_leaving", "incoming", "name", "outgoing", "task")

    def __init__(
        self, graph: Graph, name: str, node: Any, arriving: Slots, leaving: Slots, outputs: int = 1, inputs: int = 1
    ) -> None:
        self.name = name
        self.incoming: list[Any] = [None] * outputs
        self.outgoing: list[Any] = [None] * inputs
        self.task: int | None = None
        self._graph = graph
        self._arriving, self._leaving = arriving, leaving
        self._handle = node.register_hook(self)

    def __call__(self, left: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
        guarded(self._graph, self._see, left, arrived)

    def _see(self, left: tuple[Any, ...], arrived: tuple[Any, ...]) -> None:
        graph, name = self._graph, self.name
        note = graph.owner.note_gradient
        self.task = graph.note_pass()
        graph.owner.backward_begins(name)
        for grads, slots, places in ((arrived, self._arriving, self.incoming), (left, self._leaving, self.outgoing)):
            for slot, at in slots:
                if slot < len(grads) and grads[slot] is not None:
                    places[at] = note(name, grads[slot])
        self.finish()

    def finish(self) -> None:
        """All has come, or nothing will."""
        self._handle.remove()
        self._graph.end(self)


def guarded(graph: Graph, act: Callable[..., None], *what: Any) -> None:
    """Torch functions off, no gradient graph, and no error let through."""
    gradients = _is_grad_enabled()  # only in a pass that builds a graph itself
    if gradients:
        _set_grad_enabled(False)
    try:
        with Quiet():
            act(*what)
    except Exception as error:
        graph.owner.trouble("recording gradients", error)
    finally:
        if gradients:
            _set_grad_enabled(True)
