"""The incoming and outgoing gradients of one call, taken from MindSpore's own graph without touching it.

Before a call the places are noted where its inputs' gradients go. After it, the graph is walked from the outputs down
to those places. A pre-hook on an output's node shows the incoming gradient; a post-hook on each node that feeds an
input's place shows the outgoing one. A node belongs to a call when it is younger than everything seen before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from typing import Any

import mindspore as ms
from mindspore import ops

from twinprobe._record.calls import replaced, tensors_in
from twinprobe._record.eager.modules import Crossing
from twinprobe._record.mindspore.framework import Reading

Edge = tuple[int, int]
_LEAF_NUMBER = (1 << 64) - 1  # leaves carry the largest number
_WALK_LIMIT = 100_000
_FLOATS = frozenset({"Float16", "Float32", "Float64", "BFloat16", "Complex64", "Complex128"})


def is_differentiable(tensor: Any) -> bool:
    """Whether a tensor could carry a gradient by its element type."""
    return str(tensor.dtype) in _FLOATS


class NodeIndex:
    """Which node feeds which place, for the nodes walked since the outermost call began.

    A walk stops at nodes older than its call; they wait at the border until an enclosing call goes on from there.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # holds the nodes, so that their numbers are not given out again
        self._feeds: dict[Edge, list[tuple[Any, int, int]]] = {}
        self._border: list[tuple[int, int]] = []
        self._waiting: dict[int, Any] = {}
        self.youngest = -1

    def walk(self, roots: Iterable[Any], since: int) -> None:
        """Index all nodes numbered ``since`` or later that the roots reach."""
        seen, border = self._seen, self._border
        todo = list(roots)
        while border and -border[0][0] >= since:
            node = self._waiting.pop(heappop(border)[1], None)
            if node is not None:
                todo.append(node)
        budget = _WALK_LIMIT
        while todo and budget:
            node = todo.pop()
            key = node._unique_id()
            if key in seen:
                continue
            budget -= 1
            seen[key] = node
            number = node._sequence_nr()
            self.meet(number)
            for slot, (target, target_slot) in enumerate(node.next_functions):
                if target is None:
                    continue
                target_key = target._unique_id()
                self._feeds.setdefault((target_key, target_slot), []).append((node, slot, number))
                age = target._sequence_nr()
                if target_key in seen or age >= _LEAF_NUMBER:
                    continue
                if age >= since:
                    todo.append(target)
                elif target_key not in self._waiting:
                    self._waiting[target_key] = target
                    heappush(border, (-age, target_key))

    def meet(self, number: int) -> None:
        """A node with this number exists."""
        if self.youngest < number < _LEAF_NUMBER:
            self.youngest = number

    def feeding(self, edge: Edge, since: int) -> list[tuple[Any, int]]:
        """The nodes numbered ``since`` or later that send gradients to this place, with their slot."""
        return [(node, slot) for node, slot, number in self._feeds.get(edge, ()) if since <= number < _LEAF_NUMBER]

    def clear(self) -> None:
        """Forget the nodes; what is youngest stays known."""
        self._seen.clear()
        self._feeds.clear()
        self._border.clear()
        self._waiting.clear()


class NodeWatch:
    """One call between its start and its end."""

    def __init__(self, recorder: Any, index: NodeIndex, name: str, args: Any, kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self._recorder = recorder
        self._index = index
        tensors = tensors_in((args, kwargs), ms.Tensor, [])
        self._places: list[Edge | None] = []
        self._held: list[Any] = []
        with Reading():
            nodes = [
                (tensor, tensor._grad_node if tensor._requires_grad else None)
                for tensor in tensors
                if is_differentiable(tensor)
            ]
        for tensor, node in nodes:
            self._places.append(None if node is None else (node._unique_id(), int(tensor._output_index)))
            if node is not None:
                self._held.append(node)
                index.meet(node._sequence_nr())
        self._since = index.youngest + 1
        self.crossing = Crossing(recorder.crossings, name, len(self._places))

    def after(self, outputs: list[Any]) -> None:
        """Hook the nodes of the finished call."""
        index, since, crossing = self._index, self._since, self.crossing
        arriving: dict[int, tuple[Any, list[tuple[int, int]]]] = {}
        with Reading():
            nodes = [(tensor, tensor._grad_node) for tensor in outputs]
        for at, (tensor, node) in enumerate(nodes):
            if node is not None and since <= node._sequence_nr() < _LEAF_NUMBER:
                arriving.setdefault(node._unique_id(), (node, []))[1].append((int(tensor._output_index), at))
        if arriving:
            index.walk([node for node, _ in arriving.values()], since)
            crossing.incoming = [None] * len(outputs)
            self._install(arriving)
            self._recorder.crossings.add(crossing)
        self.cancel()

    def cancel(self) -> None:
        """The call is over. What no enclosing call will ask for is forgotten."""
        if not self._recorder.modules.calls:
            self._index.clear()

    def _install(self, arriving: dict[int, tuple[Any, list[tuple[int, int]]]]) -> None:
        index, since, crossing = self._index, self._since, self.crossing
        leaving: dict[int, tuple[Any, list[tuple[int, int]]]] = {}
        claimed: set[Edge] = set()
        for place, edge in enumerate(self._places):
            if edge is None or edge in claimed:
                continue
            claimed.add(edge)
            feeding = index.feeding(edge, since)
            if feeding:
                crossing.expect(place, len(feeding))
            for node, slot in feeding:
                leaving.setdefault(node._unique_id(), (node, []))[1].append((slot, place))
        crossing.awaited = 0
        for key, (node, slots) in arriving.items():
            # What the call consumed itself arrives mixed with its own use of it: not the gradient of an output.
            pure = [(slot, place) for slot, place in slots if not index.feeding((key, slot), since)]
            crossing.awaited += len(pure)
            crossing.handles.append(node.register_prehook(self._hook(crossing.arrive, pure)))
        for node, slots in leaving.values():
            crossing.handles.append(node.register_hook(self._hook(crossing.leave, slots)))

    def _hook(self, act: Any, slots: list[tuple[int, int]]) -> Any:
        work = self._recorder.work

        def see(gradients: Any) -> None:
            for slot, place in slots:
                act(place, gradients[slot] if slot < len(gradients) else None)

        def hook(gradients: Any, _received: Any = None) -> None:
            work("recording gradients", see, gradients)

        return hook


class AliasWatch:
    """The same for versions whose tensors do not show their node: an identity function in front of each input.

    A hook on a tensor shows the sum over everything that used it. What one call contributes is seen only where that
    call alone uses the tensor: on an alias that hands the gradient on unchanged. ``kept`` is written to in place and
    stays itself.
    """

    def __init__(self, recorder: Any, name: str, args: Any, kwargs: Any, kept: Any = None) -> None:
        self._recorder = recorder
        places: dict[int, int] = {}
        for tensor in filter(is_differentiable, tensors_in((args, kwargs), ms.Tensor, [])):
            places.setdefault(id(tensor), len(places))
        crossing = self.crossing = Crossing(recorder.crossings, name, len(places))
        aliases: dict[int, Any] = {}

        def swap(value: Any) -> Any:
            index = places.get(id(value)) if isinstance(value, ms.Tensor) else None
            if index is None or value is kept or isinstance(value, ms.Parameter):
                return value
            if id(value) not in aliases:
                aliases[id(value)] = ops.HookBackward(self._hook(partial(crossing.leave, index)))(value)
                crossing.expect(index)
            return aliases[id(value)]

        self.args = replaced(tuple(args), swap)
        self.kwargs = replaced(dict(kwargs), swap)

    def after(self, outputs: list[Any]) -> None:
        """Wait for the gradients of these outputs."""
        crossing = self.crossing
        crossing.incoming = [None] * len(outputs)
        crossing.awaited = 0
        for index, tensor in enumerate(outputs):
            if is_differentiable(tensor):
                tensor.register_hook(self._hook(partial(crossing.arrive, index)))
                crossing.awaited += 1
        if crossing.awaited:
            self._recorder.crossings.add(crossing)

    def cancel(self) -> None:
        """The call failed; nothing is waited for."""

    def _hook(self, act: Callable[[Any], None]) -> Callable[[Any], None]:
        def hook(gradient: Any) -> None:
            self._recorder.work("recording gradients", act, gradient[0] if isinstance(gradient, tuple) else gradient)

        return hook
