"""The gradients that one call received and handed on, taken from the autograd graph without touching it.

Before a call the gradient edges of its inputs are noted. After it, the graph is walked from the outputs down to those
edges. A pre-hook on an output's node shows the incoming gradient; a post-hook on each node that feeds an input's edge
shows the outgoing one. No identity function, no tensor hook: views and in-place operations stay what they were.

Every node is walked once: what feeds which edge is kept while the outermost call runs, so that an enclosing module
finds what its children found. A node belongs to a call when it was created during it, by its sequence number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, Protocol

import torch

from twinprobe.record.torch.quiet import Quiet

Node = Any
Edge = tuple[Node, int]
_WALK_LIMIT = 100_000

_CUSTOM = torch.autograd.function.BackwardCFunction

_is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
_set_grad_enabled: Callable[[bool], Any] = torch._C._set_grad_enabled
_sequence_number: Callable[[], int] | None = getattr(torch._C._autograd, "_get_sequence_nr", None)


def sequence_number() -> int:
    """The number that the next autograd node of this thread will get."""
    return int(_sequence_number()) if _sequence_number is not None else 0


class LeafEdges:
    """Gradient edges of leaves: asking for one creates a view, so each is asked once per stretch of recording."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, Node]] = {}

    def edge(self, tensor: torch.Tensor) -> Edge:
        """Where gradients of this tensor go."""
        node = tensor.grad_fn
        if node is not None:
            return node, tensor.output_nr
        known = self._known.get(id(tensor))
        if known is None:
            with torch.enable_grad():
                view = tensor.view_as(tensor)
            assert view.grad_fn is not None
            known = self._known[id(tensor)] = (tensor, view.grad_fn.next_functions[0][0])
        return known[1], 0

    def clear(self) -> None:
        self._known.clear()


class GraphIndex:
    """Which node feeds which edge, for the nodes walked since the outermost call began.

    A walk stops at nodes older than its call; they wait at the border until an enclosing call, which began earlier,
    goes on from there.
    """

    def __init__(self) -> None:
        self._seen: set[Node] = set()
        self.feeds: dict[Edge, list[tuple[Node, int, int]]] = {}
        self._border: list[tuple[int, int, Node]] = []
        self.custom: list[Node] = []  # nodes of autograd functions written in Python, met since last asked

    def walk(self, roots: Iterable[Node], since: int) -> None:
        """Index all nodes created at or after ``since`` that the roots reach."""
        seen, border, feeds = self._seen, self._border, self.feeds
        todo = [node for node in roots if node not in seen]
        while border and -border[0][0] >= since:
            todo.append(heappop(border)[2])
        budget = _WALK_LIMIT
        while todo and budget:
            node = todo.pop()
            if node in seen:
                continue
            budget -= 1
            seen.add(node)
            if isinstance(node, _CUSTOM):
                self.custom.append(node)
            number = node._sequence_nr()
            for slot, edge in enumerate(node.next_functions):
                target = edge[0]
                if target is None:
                    continue
                fed = feeds.get(edge)
                if fed is None:
                    feeds[edge] = [(node, slot, number)]
                else:
                    fed.append((node, slot, number))
                if target not in seen:
                    age = target._sequence_nr()
                    if since <= age < _LEAF_NUMBER:
                        todo.append(target)
                    elif age < since:
                        heappush(border, (-age, id(target), target))

    def feeding(self, edge: Edge, since: int) -> list[tuple[Node, int]]:
        """The nodes created at or after ``since`` that send gradients along this edge, with their slot."""
        return [(node, slot) for node, slot, number in self.feeds.get(edge, ()) if since <= number < _LEAF_NUMBER]

    def clear(self) -> None:
        self._seen.clear()
        self.feeds.clear()
        self._border.clear()
        self.custom.clear()


_LEAF_NUMBER = (1 << 64) - 1  # accumulation into leaves carries the largest number


class Crossing:
    """One call's place in the graph: what arrives at its outputs and what leaves through its inputs.

    ``incoming`` has one slot per output tensor, ``outgoing`` one per differentiable input tensor. ``finish`` comes by
    itself when everything has come, or from Graph when the rest never will.
    """

    __slots__ = ("_graph", "_missing", "_parts", "depth", "done", "handles", "incoming", "name", "outgoing", "task")

    def __init__(self, graph: Graph, name: str, outputs: int, inputs: int, depth: int) -> None:
        self.name = name
        self.depth = depth  # of a module call; -1 for an API call, which encloses nothing
        self.incoming: list[Any] = [None] * outputs
        self.outgoing: list[Any] = [None] * inputs
        self.task: int | None = None
        self.done = False
        self.handles: list[Any] = []
        self._parts: dict[int, list[torch.Tensor]] = {}
        self._missing: dict[int, int] = {}
        self._graph = graph

    def expect(self, index: int, count: int) -> None:
        """Input ``index`` will get its gradient in so many parts."""
        self._missing[index] = count

    def arrive(self, at: list[tuple[int, int]], grads: tuple[Any, ...]) -> None:
        """Gradients reached an output's node."""
        graph = self._graph
        if self.task is None:
            self.task = graph.begin(self)
        for slot, output in at:
            if slot < len(grads) and grads[slot] is not None:
                self.incoming[output] = graph.owner.note_gradient(self.name, grads[slot])
        if not self._missing:
            self.finish()

    def leave(self, at: list[tuple[int, int]], grads: tuple[Any, ...]) -> None:
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


class Owner(Protocol):
    """Who wants the gradients."""

    def backward_begins(self, name: str) -> None: ...
    def note_gradient(self, name: str, gradient: torch.Tensor) -> Any: ...
    def backward_ended(self, crossing: Crossing) -> None: ...
    def pass_ended(self) -> None: ...
    def before_foreign_code(self) -> None: ...
    def trouble(self, doing: str, error: BaseException) -> None: ...


class _Hook:
    """A hook on a node: torch functions off, no gradient graph, and no error let through."""

    __slots__ = ("_act", "_at", "_graph")

    def __init__(self, graph: Graph, act: Callable[..., None], at: list[tuple[int, int]]) -> None:
        self._graph = graph
        self._act = act
        self._at = at

    def __call__(self, grads: tuple[Any, ...], _received: Any = None) -> None:
        gradients = _is_grad_enabled()  # only in a pass that builds a graph itself
        if gradients:
            _set_grad_enabled(False)
        try:
            with Quiet():
                self._act(self._at, grads)
        except Exception as error:
            self._graph.owner.trouble("recording gradients", error)
        finally:
            if gradients:
                _set_grad_enabled(True)


class Graph:
    """Installs crossings for calls and knows which of them still wait for gradients."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.leaves = LeafEdges()
        self.index = GraphIndex()
        self._waiting: dict[Crossing, None] = {}
        self._open: dict[Crossing, None] = {}
        self._tasks: set[int] = set()
        self._guards: list[Any] = []

    def edges(self, tensors: Iterable[torch.Tensor]) -> list[Edge | None]:
        """The gradient edges of tensors, None for those that get no gradient."""
        return [self.leaves.edge(tensor) if tensor.requires_grad else None for tensor in tensors]

    def install(
        self, name: str, inputs: list[Edge | None], outputs: list[torch.Tensor], since: int, depth: int = -1
    ) -> bool:
        """Hook the nodes of one finished call; False when it made no node, so that it has no backward of its own."""
        arriving: dict[Node, list[tuple[int, int]]] = {}
        for at, tensor in enumerate(outputs):
            node = tensor.grad_fn
            if node is not None and node._sequence_nr() >= since:
                arriving.setdefault(node, []).append((tensor.output_nr, at))
        if not arriving:
            return False
        self.index.walk(arriving, since)
        if self.index.custom:
            self._guard_custom_nodes()
        feeds = self.index.feeds
        for node, slots in arriving.items():
            # What the call consumed itself arrives mixed with its own use of it: not the gradient of an output.
            if any((node, slot) in feeds for slot, _ in slots):
                slots[:] = [(slot, at) for slot, at in slots if not self.index.feeding((node, slot), since)]
        crossing = Crossing(self, name, len(outputs), len(inputs), depth)
        leaving: dict[Node, list[tuple[int, int]]] = {}
        claimed: set[Edge] = set()
        for index, edge in enumerate(inputs):
            if edge is None or edge in claimed:
                continue
            claimed.add(edge)
            feeding = self.index.feeding(edge, since)
            if feeding:
                crossing.expect(index, len(feeding))
            for node, slot in feeding:
                leaving.setdefault(node, []).append((slot, index))
        handles = crossing.handles
        for node, slots in arriving.items():
            handles.append(node.register_prehook(_Hook(self, crossing.arrive, slots)))
        for node, slots in leaving.items():
            handles.append(node.register_hook(_Hook(self, crossing.leave, slots)))
        self._waiting[crossing] = None
        return True

    def note_pass(self) -> int:
        """Make sure that the end of the backward pass at work, if there is one, will be noticed."""
        task = int(torch._C._current_graph_task_id())
        if task >= 0 and task not in self._tasks:
            self._tasks.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._pass_ended(task))
        return task

    def _guard_custom_nodes(self) -> None:
        def guard(_grads: Any) -> None:
            self.owner.before_foreign_code()

        for node in self.index.custom:
            self._guards.append(node.register_prehook(guard))
        self.index.custom.clear()

    def begin(self, crossing: Crossing) -> int:
        """The first gradient of a call arrived; returns the backward pass that it belongs to."""
        task = self.note_pass()
        if crossing.depth >= 0:
            self._open[crossing] = None
        self.owner.backward_begins(crossing.name)
        return task

    def end(self, crossing: Crossing) -> None:
        """All that will come has come."""
        self._waiting.pop(crossing, None)
        self._open.pop(crossing, None)
        if crossing.task is not None:
            self.owner.backward_ended(crossing)

    def enclosing(self) -> str | None:
        """The innermost module call whose gradients are being computed: the parent of a recomputation."""
        best = max(self._open, key=lambda crossing: crossing.depth, default=None)
        return best.name if best is not None else None

    def _pass_ended(self, task: int) -> None:
        self._tasks.discard(task)
        with Quiet(), torch.no_grad():
            for crossing in [one for one in self._waiting if one.task == task]:
                crossing.finish()
            self.owner.pass_ended()

    def close(self) -> None:
        """No more gradients will come: emit what has begun, remove every hook."""
        for crossing in list(self._waiting):
            crossing.finish()
        for guard in self._guards:
            guard.remove()
        self._guards.clear()
        self._waiting.clear()
        self._open.clear()
        self.leaves.clear()
        self.index.clear()
