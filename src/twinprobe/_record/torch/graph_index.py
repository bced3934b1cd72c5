"""The autograd graph as one call needs it: where gradients of its inputs go, and which node feeds which edge.

Every node is walked once: what feeds which edge is kept while the outermost call runs, so that an enclosing module
finds what its children found. A node belongs to a call when it was created during it, by its sequence number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

import torch

Node = Any
Edge = tuple[Node, int]
_WALK_LIMIT = 100_000
_LEAF_NUMBER = (1 << 64) - 1  # accumulation into leaves carries the largest number
_CAST = "ToCopyBackward0"

CUSTOM = torch.autograd.function.BackwardCFunction
# The number that the next autograd node of this thread will get; older versions do not tell.
sequence_number: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", None) or (lambda: 0)


class LeafEdges:
    """Gradient edges of leaves: asking for one creates a view, so each is asked once per stretch of recording."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, Node]] = {}
        self.nodes: set[Node] = set()  # those that were asked for

    def edge(self, tensor: torch.Tensor) -> Edge:
        """Where gradients of this tensor go."""
        node = tensor.grad_fn
        if node is not None:
            return node, tensor.output_nr
        cached = self._known.get(id(tensor))
        if cached is None:
            with torch.enable_grad():
                view = tensor.view_as(tensor)
            assert view.grad_fn is not None
            cached = self._known[id(tensor)] = (tensor, view.grad_fn.next_functions[0][0])
            self.nodes.add(cached[1])
        return cached[1], 0

    def clear(self) -> None:
        self._known.clear()
        self.nodes.clear()


class GraphIndex:
    """Which node feeds which edge, for the nodes walked since the outermost call began.

    A walk stops at nodes older than its call; they wait at the border until an enclosing call, which began earlier,
    goes on from there.
    """

    def __init__(self, leaves: set[Node]) -> None:
        self._leaves = leaves  # those that are inputs of a call; what feeds other leaves is never asked for
        self._seen: set[Node] = set()
        self.feeds: dict[Edge, list[tuple[Node, int, int]]] = {}
        self._border: list[tuple[int, int, Node]] = []
        self.custom: list[Node] = []  # nodes of autograd functions written in Python, met since last asked
        self._later: list[tuple[int, Node]] = []  # roots of calls that needed no walk, for those that enclose them

    def direct_slots(self, node: Node, inputs: list[Edge | None], since: int) -> list[tuple[int, int]] | None:
        """By which slots a call whose one result came from this node feeds which of its inputs; None where that takes a
        walk. So it is with most calls: one node, and beside it what turns a weight."""
        border, later = self._border, self._later
        if (border and -border[0][0] >= since) or (later and later[-1][0] >= since) or isinstance(node, CUSTOM):
            return None  # calls inside this one may feed an input by another way than the result
        places: dict[Edge, int] = {}
        for index, edge in enumerate(inputs):
            if edge is not None and edge not in places:
                if edge in self.feeds and self.feeding(edge, since):
                    return None
                places[edge] = index
        slots = []
        for slot, edge in enumerate(node.next_functions):
            target = edge[0]
            if target is None:
                continue
            place = places.get(edge)
            if place is not None:
                if place < 0:
                    return None  # a gradient in two parts
                slots.append((slot, place))
                places[edge] = -1
            elif self._needs_walk(target, since):
                return None
        if not slots:
            return None
        later.append((node._sequence_nr(), node))
        return slots

    def _needs_walk(self, node: Node, since: int) -> bool:
        """Whether gradients may reach an input through this node, which is not an input itself."""
        number = node._sequence_nr()
        if number >= _LEAF_NUMBER:
            return False
        if number < since:
            return self._cast_leaf(node) is not None
        return isinstance(node, CUSTOM) or any(
            target is not None and (target._sequence_nr() < _LEAF_NUMBER or target in self._leaves)
            for target, _ in node.next_functions
        )

    def _cast_leaf(self, node: Node) -> Edge | None:
        """The leaf that this node casts, if it is an input of a call. Autocast casts a weight once for all calls that
        use it: what goes through the cast is the sum of their gradients."""
        if node.name() != _CAST:
            return None
        edge: Edge = node.next_functions[0]
        return edge if edge[0] in self._leaves else None

    def walk(self, roots: Iterable[Node], since: int) -> None:
        """Index all nodes created at or after ``since`` that the roots reach."""
        seen, border, feeds = self._seen, self._border, self.feeds
        todo = [(node, node._sequence_nr()) for nodes in (roots, self._waiting(since)) for node in nodes]
        budget = _WALK_LIMIT
        while todo and budget:
            node, number = todo.pop()
            if node in seen:
                continue
            budget -= 1
            seen.add(node)
            if isinstance(node, CUSTOM):
                self.custom.append(node)
            for slot, edge in enumerate(node.next_functions):
                target = edge[0]
                if target is None:
                    continue
                age = target._sequence_nr()
                if age >= _LEAF_NUMBER and target not in self._leaves:
                    continue
                fed = feeds.get(edge)
                if fed is None:
                    feeds[edge] = [(node, slot, number)]
                else:
                    fed.append((node, slot, number))
                if target not in seen:
                    if since <= age < _LEAF_NUMBER:
                        todo.append((target, age))
                    elif age < since:
                        heappush(border, (-age, id(target), target))
                        leaf = self._cast_leaf(target)
                        if leaf is not None and (target, 0, age) not in feeds.setdefault(leaf, []):
                            feeds[leaf].append((target, 0, age))

    def _waiting(self, since: int) -> Iterator[Node]:
        """Nodes that calls inside this one left to it."""
        while self._border and -self._border[0][0] >= since:
            yield heappop(self._border)[2]
        while self._later and self._later[-1][0] >= since:
            yield self._later.pop()[1]

    def feeding(self, edge: Edge, since: int) -> list[tuple[Node, int]]:
        """The nodes created at or after ``since`` that send gradients along this edge, with their slot."""
        feeding = []
        for node, slot, number in self.feeds.get(edge, ()):
            if number < _LEAF_NUMBER and edge[0] in self._leaves and node.name() == _CAST:
                feeding += self.feeding((node, 0), since)
            elif since <= number < _LEAF_NUMBER:
                feeding.append((node, slot))
        return feeding

    def clear(self) -> None:
        self._seen.clear()
        self.feeds.clear()
        self._border.clear()
        self.custom.clear()
        self._later.clear()
