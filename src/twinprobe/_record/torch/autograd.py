"""The incoming and outgoing gradients of one call, taken from the autograd graph without touching it.

Before a call the gradient edges of its inputs are noted. After it, the graph is walked from the outputs down to those
edges. A pre-hook on an output's node shows the incoming gradient; a post-hook on each node that feeds an input's edge
shows the outgoing one. No identity function, no tensor hook: views and in-place operations stay what they were.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

import torch

from twinprobe._record.calls import SCALARS, tensors_in

# The graph as one call needs it: where gradients of its inputs go, and which node feeds which edge.
#
# Every node is walked once: what feeds which edge is kept while the outermost call runs, so that an enclosing module
# finds what its children found. A node belongs to a call when it was created during it, by its sequence number.

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


# One call's place in the autograd graph, and the hooks that see gradients arrive there and leave.

_DOING = "recording gradients"
Slots = list[tuple[int, int]]  # the position among a node's gradients, and among the call's outputs or inputs
Grads = tuple[Any, ...]
# Gradients noted in one run of a node's hook: outgoing ones from 1, incoming ones from -1. At 0 is the short way to
# note one, where every call wants the same of it.
Notes = dict[int, Any]
_is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
_no_functions: Any = torch._C.DisableTorchFunction
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack


class Crossing:
    """One call's place in the graph: what arrives at its outputs and what leaves through its inputs.

    ``incoming`` has one slot per output tensor, ``outgoing`` one per differentiable input tensor. ``finish`` comes by
    itself when everything has come, or from Graph when the rest never will.
    """

    __slots__ = ("_graph", "_missing", "_parts", "depth", "done", "hooks", "incoming", "name", "outgoing", "task")

    def __init__(self, graph: Graph, name: str, outputs: int, inputs: int, depth: int, parts: dict[int, int]) -> None:
        self.name = name
        self.depth = depth  # of a module call; -1 for an API call, which encloses nothing
        self.incoming: list[Any] = [None] * outputs
        self.outgoing: list[Any] = [None] * inputs
        self.task: int | None = None
        self.done = False
        self.hooks: list[NodeHook] = []
        self._parts: dict[int, list[torch.Tensor]] = {}
        self._missing = parts  # input to the number of parts in which its gradient will come
        self._graph = graph

    def arrive(self, task: int, slots: Slots, grads: Grads, _arrived: Grads, notes: Notes) -> None:
        """Gradients reached an output's node."""
        if self.task is None:
            self.task = task
            self._graph.begin(self)
        self._note(slots, grads, self.incoming, notes)
        if not self._missing:
            self.finish()

    def leave(self, _task: int, slots: Slots, grads: Grads, _arrived: Grads, notes: Notes) -> None:
        """A node passed gradients on to inputs."""
        missing = self._missing
        whole = []
        for slot, index in slots:
            left = missing.get(index)
            if left is None:
                continue
            if left == 1 and index not in self._parts:  # the common case: all in one part
                del missing[index]
                whole.append((slot, index))
                continue
            if slot < len(grads) and grads[slot] is not None:
                self._parts.setdefault(index, []).append(grads[slot])
            if left > 1:
                missing[index] = left - 1
            else:
                del missing[index]
                self._settle(index)
        self._note(whole, grads, self.outgoing, notes)
        if not missing:
            self.finish()

    def see(self, task: int, slots: tuple[Slots, Slots], grads: Grads, arrived: Grads, notes: Notes) -> None:
        """The call's only node is done: what came and what went."""
        self.task = task
        if not self._graph.recorder.takes_all:
            self._graph.recorder.backward_begins(self.name)
        arriving, leaving = slots
        self._note(arriving, arrived, self.incoming, notes, -1)
        self._note(leaving, grads, self.outgoing, notes)
        self.finish()

    def _note(self, slots: Slots, grads: Grads, places: list[Any], notes: Notes, kind: int = 1) -> None:
        """Note gradients, unless another call has done so at this moment."""
        for slot, place in slots:
            if slot < len(grads) and grads[slot] is not None:
                known = notes.get(kind * (slot + 1))
                if known is None:
                    gradient, short = grads[slot], notes.get(0)
                    if short is not None and type(gradient) is _tensor:
                        try:
                            known = notes[kind * (slot + 1)] = short(gradient)
                        except Exception:  # the long way reports the error
                            short = None
                    if known is None:
                        recorder = self._graph.recorder
                        known = recorder.note_gradient(self.name, gradient)
                        if recorder.shares_notes:
                            notes[kind * (slot + 1)] = known
                places[place] = known

    def _settle(self, index: int) -> None:
        parts = self._parts.pop(index, None)
        if not parts:
            return
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        self.outgoing[index] = self._graph.recorder.note_gradient(self.name, total)

    def finish(self) -> None:
        """Everything that can be known is known."""
        if self.done:
            return
        self.done = True
        if self._parts:
            for index in list(self._parts):
                self._settle(index)
        for hook in self.hooks:
            hook.waiting -= 1
            if not hook.waiting:
                if type(hook.handle) is OrderedDict:
                    hook.handle.pop(hook, None)
                else:
                    hook.handle.remove()
                hook.handle = None
        self.hooks.clear()
        self._graph.end(self)


class NodeHook:
    """The hook on a node, before or after it runs. Calls inside each other often end at the same node: one hook serves
    them all, in the order in which they ended."""

    __slots__ = ("_graph", "acts", "handle", "waiting")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.acts: list[tuple[Crossing, Callable[..., None], Any]] = []
        self.waiting = 0  # for so many calls
        self.handle: Any = None  # the hooks of its node, or what PyTorch gave instead

    def __call__(self, grads: Grads, arrived: Grads = ()) -> None:
        if _is_grad_enabled() or _dispatch_modes():
            self._graph.recorder.work(_DOING, self._see, grads, arrived)
        else:
            with _no_functions():
                self._see(grads, arrived)

    def _see(self, grads: Grads, arrived: Grads) -> None:
        graph = self._graph
        notes: Notes = {}
        try:
            task = graph.note_pass()
            recorder = graph.recorder
            if recorder.shares_notes and recorder.active and not recorder.muted:
                notes[0] = recorder.registry.note
        except Exception as error:
            graph.recorder.trouble(_DOING, error)
            return
        for crossing, act, slots in self.acts:
            if not crossing.done:
                try:
                    act(task, slots, grads, arrived, notes)
                except Exception as error:
                    graph.recorder.trouble(_DOING, error)


# While recording, our hooks are put on nodes without a handle for each. PyTorch asks a function of its class
# Function for it, whose handles count themselves in their class, which makes that class slow.
FUNCTION: Any = torch.autograd.Function
REGISTER = "_register_hook"
_with_handle: Any = getattr(FUNCTION, REGISTER, None)


@staticmethod  # type: ignore[misc]  # as an attribute of that class
def without_handle(hooks: Any, hook: Any) -> tuple[Any, Any]:
    """Put a hook among those of a node. PyTorch keeps the first of what it gets, and returns the second."""
    if type(hook) is not NodeHook:
        return _with_handle(hooks, hook)  # type: ignore[no-any-return]
    if hooks is None:
        hooks = OrderedDict()
    hooks[hook] = hook  # those of others are found by a number
    return hooks, hooks


_tensor, _parameter = torch.Tensor, torch.nn.Parameter
_DIFFERENTIABLE = frozenset(
    one for one in vars(torch).values() if isinstance(one, torch.dtype) and (one.is_floating_point or one.is_complex)
)
# The hooks through which goes what nodes save now, those of checkpoints among them. Old versions do not tell.
_packing: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


class Graph:
    """Installs crossings for calls and knows which of them still wait for gradients."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.leaves = LeafEdges()
        self.index = GraphIndex(self.leaves.nodes)
        self.waiting: dict[Crossing, None] = {}  # whose gradients may still come
        self._before: dict[Node, NodeHook] = {}  # while the outermost call runs, as the index
        self._after: dict[Node, NodeHook] = {}
        self._open: dict[Crossing, None] = {}
        self._tasks: set[int] = set()
        self._guards: list[Any] = []

    def edges(self, arguments: Iterable[Any]) -> list[Edge | None]:
        """The gradient edges of the tensors in arguments that could have a gradient, None for those that get none."""
        edges: list[Edge | None] = []
        for value in arguments:
            kind = type(value)
            if kind in SCALARS:
                continue
            plain = kind is _tensor or kind is _parameter
            for tensor in (value,) if plain else tensors_in(value, _tensor, []):
                if tensor.requires_grad:
                    node = tensor.grad_fn
                    edges.append(self.leaves.edge(tensor) if node is None else (node, tensor.output_nr))
                elif tensor.dtype in _DIFFERENTIABLE:
                    edges.append(None)
        return edges

    def install(
        self, name: str, inputs: list[Edge | None], outputs: list[torch.Tensor], since: int, depth: int = -1
    ) -> bool:
        """Hook the nodes of one finished call; False when it made no node, so that it has no backward of its own."""
        # A node that unpacks tensors may recompute a module inside.
        may_recompute = depth >= 0 and (_packing is None or _packing(True) is not None)
        if len(outputs) == 1 and not may_recompute:
            node = outputs[0].grad_fn
            if node is None or node._sequence_nr() < since:
                return False
            leaving = self.index.direct_slots(node, inputs, since)
            if leaving is not None:
                one = Crossing(self, name, 1, len(inputs), depth, {})
                self._hook(one, one.see, self._after, node, ([(outputs[0].output_nr, 0)], leaving))
                self.waiting[one] = None
                return True
        arriving: dict[Node, Slots] = {}
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
            slots[:] = [
                (slot, at)
                for slot, at in slots
                if (node, slot) not in feeds or not self.index.feeding((node, slot), since)
            ]
        sending, parts = self._leaving(inputs, since)
        single = None if may_recompute else self._single_node(arriving, sending, parts)
        crossing = Crossing(self, name, len(outputs), len(inputs), depth, parts)
        if single is not None:
            ends = arriving[single], sending.get(single, [])
            self._hook(crossing, crossing.see, self._after, single, ends)
        else:
            for node, slots in arriving.items():
                self._hook(crossing, crossing.arrive, self._before, node, slots)
            for node, slots in sending.items():
                self._hook(crossing, crossing.leave, self._after, node, slots)
        self.waiting[crossing] = None
        return True

    def _hook(
        self, crossing: Crossing, act: Callable[..., None], hooks: dict[Node, NodeHook], node: Node, slots: Any
    ) -> None:
        hook = hooks.get(node)
        if hook is None or not hook.waiting:  # a pass inside the forward may have come and gone
            hook = hooks[node] = NodeHook(self)
            hook.handle = node.register_prehook(hook) if hooks is self._before else node.register_hook(hook)
        hook.acts.append((crossing, act, slots))
        hook.waiting += 1
        crossing.hooks.append(hook)

    def outermost_call_ended(self) -> None:
        """What was kept of the graph for enclosing calls is let go."""
        self.index.clear()
        self._before.clear()
        self._after.clear()

    def _leaving(self, inputs: list[Edge | None], since: int) -> tuple[dict[Node, Slots], dict[int, int]]:
        """The nodes that hand gradients to inputs, and in how many parts each input gets its own."""
        leaving: dict[Node, Slots] = {}
        parts: dict[int, int] = {}
        claimed: set[Edge] = set()
        for index, edge in enumerate(inputs):
            if edge is None or edge in claimed:
                continue
            claimed.add(edge)
            feeding = self.index.feeding(edge, since)
            if feeding:
                parts[index] = len(feeding)
            for node, slot in feeding:
                leaving.setdefault(node, []).append((slot, index))
        return leaving, parts

    @staticmethod
    def _single_node(arriving: dict[Node, Slots], leaving: dict[Node, Slots], parts: dict[int, int]) -> Node | None:
        if len(arriving) > 1 or len(leaving) > 1 or any(count > 1 for count in parts.values()):
            return None
        (node,) = arriving
        if (leaving and node not in leaving) or isinstance(node, CUSTOM):  # whose backward may write to what it got
            return None
        return node

    @property
    def in_pass(self) -> bool:
        """Whether a backward pass is under way, as far as gradients of watched calls tell."""
        return bool(self._tasks)

    def note_pass(self) -> int:
        """Make sure that the end of the backward pass at work, if there is one, will be noticed."""
        task = int(torch._C._current_graph_task_id())
        if task >= 0 and task not in self._tasks:
            self._tasks.add(task)
            self.recorder.pass_begins()
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._pass_ended(task))
        return task

    def _guard_custom_nodes(self) -> None:
        """The backward of a custom autograd function may write to gradients: measure waiting tensors before it runs."""

        def guard(_grads: Any) -> None:
            self.recorder.work(_DOING, self.recorder.registry.settle)

        for node in self.index.custom:
            self._guards.append(node.register_prehook(guard))
        self.index.custom.clear()

    def begin(self, crossing: Crossing) -> None:
        """The first gradient of a call arrived."""
        if crossing.depth >= 0:
            self._open[crossing] = None
        if not self.recorder.takes_all:
            self.recorder.backward_begins(crossing.name)

    def end(self, crossing: Crossing) -> None:
        """All that will come has come."""
        self.waiting.pop(crossing, None)
        self._open.pop(crossing, None)
        if crossing.task is not None:
            self.recorder.backward_ended(crossing)

    def enclosing(self) -> str | None:
        """The innermost module call whose gradients are being computed: the parent of a recomputation."""
        best = max(self._open, key=lambda crossing: crossing.depth, default=None)
        return best.name if best is not None else None

    def _pass_ended(self, task: int) -> None:
        self._tasks.discard(task)
        for crossing in [waiting for waiting in self.waiting if waiting.task == task]:
            self.recorder.work(_DOING, crossing.finish)
        self.recorder.work(_DOING, self.recorder.pass_ended)

    def close(self) -> None:
        """No more gradients will come: emit what has begun, remove every hook."""
        if vars(FUNCTION).get(REGISTER) is without_handle:
            delattr(FUNCTION, REGISTER)
        for crossing in list(self.waiting):
            self.recorder.work(_DOING, crossing.finish)
        for guard in self._guards:
            guard.remove()
        self._guards.clear()
        self.waiting.clear()
        self._open.clear()
        self.leaves.clear()
        self.outermost_call_ended()
