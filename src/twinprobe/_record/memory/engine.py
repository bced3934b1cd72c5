"""Recordings in memory: the rows of their calls, the engine that takes them, recorders that are kept between runs, and
tensors that are noted without a copy.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from operator import is_
from pathlib import Path
from threading import get_ident
from typing import Any, Protocol, cast

import numpy as np

from twinprobe._record.calls import NameFilter
from twinprobe._record.config import RecordConfig
from twinprobe._record.engine import Engine, Framework, Step
from twinprobe._record.entries import Entry, Note, Problems
from twinprobe._record.entries import Leaf as PlainLeaf
from twinprobe._record.recorder import emit_gradients
from twinprobe._runs.names import BACKWARD, FORWARD
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, TENSOR, Leaf, settle
from twinprobe._runs.tensors.elements import HostTensor

# Inputs and outputs of a call, in the order of roles, in which its rows stand.
_PARTS = {
    FORWARD: (
        ("input_args", INPUT, "input"), ("input_kwargs", INPUT, "input"), ("parameters", PARAMETER, "parameters"),
        ("output", OUTPUT, "output"),
    ),
    BACKWARD: (("input", INPUT, "input"), ("output", OUTPUT, "output")),
}  # fmt: skip
_NO_LIST: list[Any] = []
_NO_DICT: dict[str, Any] = {}
_NOTES = {Note}

# The role of each row of a call, and what follows the call's name in the row's, such as ``output.0``.
Layout = tuple[tuple[int, ...], tuple[str, ...]]


@lru_cache(maxsize=4096)
def _layout(direction: str, *places: int | tuple[str, ...]) -> Layout:
    """The layout of a call whose inputs and outputs are all tensors. Thousands of calls share a few layouts."""
    rows = []
    for (_, role, front), held in zip(_PARTS[direction], places, strict=True):
        rows += [(role, f"{front}.{key}") for key in (range(held) if isinstance(held, int) else held)]
    return tuple(role for role, _ in rows), tuple(suffix for _, suffix in rows)


@lru_cache(maxsize=4096)
def _gradients(*names: str) -> Layout:
    """The layout of a module's gradients of parameters."""
    return (GRADIENT,) * len(names), names


@dataclass
class LiveRows:
    """The calls of a run in the order in which they ended, each with its layout, and the values of all of them.

    ``starts`` has the first row of each call, and one past the last row of all. ``plain`` has what is no tensor by its
    row.
    """

    names: list[str] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    value: list[Any] = field(default_factory=list)
    plain: dict[int, Leaf] = field(default_factory=dict)

    def append(self, entry: Entry) -> None:
        """Take over a call as soon as it has ended: what it is made of is at hand now, and need not be kept."""
        parts = entry.parts
        if entry.boxed:
            self._add(entry.name, _gradients(*parts), list(parts.values()))
            return
        if "input" in parts:
            direction = BACKWARD
            arrived, left = parts["input"], parts["output"]
            values = arrived + left
            layout = _layout(BACKWARD, len(arrived), len(left))
        else:
            direction = FORWARD
            args, given = parts.get("input_args", _NO_LIST), parts.get("output", _NO_LIST)
            kwargs, own = parts.get("input_kwargs", _NO_DICT), parts.get("parameters", _NO_DICT)
            values = [*args, *kwargs.values(), *own.values(), *given]
            layout = _layout(FORWARD, len(args), tuple(kwargs), tuple(own), len(given))
        if values and set(map(type, values)) != _NOTES:
            # Other values than tensors, or tensors inside of others.
            rows: list[tuple[int, str, Any]] = []
            for key, role, front in _PARTS[direction]:
                if parts.get(key):
                    _flatten(role, front, parts[key], rows)
            self._add_mixed(entry.name, rows)
        else:
            self._add(entry.name, layout, values)

    def _add(self, name: str, layout: Layout, values: list[Any]) -> None:
        self.names.append(name)
        self.layouts.append(layout)
        self.value += values
        self.starts.append(len(self.value))

    def _add_mixed(self, name: str, rows: list[tuple[int, str, Any]]) -> None:
        numbered = enumerate(rows, len(self.value))
        self.plain |= {row: settle(plain_leaf(value), "") for row, (_, _, value) in numbered if type(value) is not Note}
        layout = tuple(role for role, _, _ in rows), tuple(suffix for _, suffix, _ in rows)
        self._add(name, layout, [value for _, _, value in rows])

    def take(self, name: str, source: LiveRows, *parts: tuple[int, frozenset[int]]) -> None:
        """Append a call made of another's rows: of each of these calls those in these roles."""
        rows: list[tuple[int, str, Any]] = []
        for call, roles in parts:
            values = source.value[source.starts[call] : source.starts[call + 1]]
            rows += [row for row in zip(*source.layouts[call], values, strict=True) if row[0] in roles]
        self._add_mixed(name, rows)

    def release(self) -> None:
        """Release all tensors; their dtypes and shapes stay."""
        for row in self.plain:
            self.value[row] = None
        for note in self.value:
            if note is not None:
                note.row = None


def _flatten(role: int, suffix: str, value: Any, rows: list[tuple[int, str, Any]]) -> None:
    """Append a value, or all that are in it."""
    kind = type(value)
    if kind is list or kind is dict:
        for key, item in value.items() if kind is dict else enumerate(value):
            _flatten(role, f"{suffix}.{key}", item, rows)
    elif kind is not PlainLeaf or "value" in value.json:
        rows.append((role, suffix, value))


class Columns(dict[str, list[Any]]):
    """The columns that a comparison needs, each made when it is first used."""

    def __init__(self, rows: LiveRows) -> None:
        super().__init__()
        self._rows = rows

    def __missing__(self, name: str) -> list[Any]:
        rows = self._rows
        if name == "op":
            column: list[Any] = [op for op, (first, end) in enumerate(pairwise(rows.starts)) for _ in range(first, end)]
        elif name == "role":
            column = [role for roles, _ in rows.layouts for role in roles]
        elif name == "name":
            suffixes = zip(rows.names, rows.layouts, strict=True)
            column = [f"{call}.{suffix}" for call, (_, own) in suffixes for suffix in own]
        elif name == "kind":
            column = [TENSOR] * rows.starts[-1]
        else:
            column = [type(value) is Note and getattr(value, name) for value in rows.value]
            column = list(map(_shown, column)) if name == "shape" else column
        field = "shown_shape" if name == "shape" else name
        for row, leaf in rows.plain.items() if name in ("kind", "shape", "dtype") else ():
            column[row] = getattr(leaf, field)
        self[name] = column
        return column


def plain_leaf(value: Any) -> Leaf | None:
    """A value that is no tensor."""
    if value is None:
        return None
    if isinstance(value, PlainLeaf):
        return Leaf(str(value.json.get("type")), value=value.json["value"])
    return Leaf(type(value).__name__, value=value)


@lru_cache(maxsize=10_000)
def _shown(shape: tuple[int, ...] | bool) -> str:
    return str(list(shape)) if isinstance(shape, tuple) else ""


_MODULES = ("Module.", "Cell.")
_PACKAGE = str(Path(__file__).resolve().parents[2]) + "/"


class MemoryEngine(Engine):
    """Takes entries as they come. ``rows``, ``parents`` and ``stacks`` are what a dump folder would hold.

    What runs outside the model (the loss, say) is not the model's, and no call is inside of it: it is left out.
    """

    def __init__(self, config: RecordConfig, framework: Framework, *, hidden: tuple[str, ...] = ()) -> None:
        # Engine's own __init__ opens the writer; nothing of that is wanted here.
        self.config = config
        self.framework = framework
        self.filter = NameFilter(config)
        self.problems = Problems()
        self.bench = None
        self.active = self.failed = self.begun = False
        self.step_number = 0
        step = self.step = Step(0, cast(Any, None), (_PACKAGE, *hidden))
        self.parents = step.construct  # the enclosing call of each call
        self._trees = True
        self.rows = LiveRows()

    def begin(self) -> bool:
        """Start taking entries."""
        self.begun = self.active = True
        return True

    def end(self) -> None:
        """Stop; what still lies on a device is brought to the host."""
        self.begun = self.active = False
        job = self.framework.collect()
        if job is not None:
            job()

    def next_step(self) -> None:
        """Runs are kept apart by their engines, so there is nothing to do."""

    def flush(self) -> None:
        """Nothing to do: entries are kept as they come."""

    def close(self) -> None:
        """Nothing is open."""

    def link(self, child: str, parent: str | None) -> None:
        """Note the enclosing call."""
        if parent or child.startswith(_MODULES):
            self.parents[child] = parent

    def emit(self, entry: Entry) -> None:
        """Keep a finished entry."""
        name = entry.name
        if name.startswith(_MODULES) or name in self.parents:
            self.rows.append(entry)


class RecorderPool:
    """Recorders for reuse: one at a time for each user, and none whose framework has changed since.

    Finding and wrapping a framework's thousands of functions takes longer than running a small model.
    """

    def __init__(self, make: Callable[[RecordConfig, Any], Any]) -> None:
        self._make = make
        self._free: dict[tuple[str, frozenset[str]], tuple[Any, list[_Snapshot]]] = {}

    @contextmanager
    def borrow(self, config: RecordConfig) -> Iterator[Any]:
        """A recorder with an empty engine."""
        key = config.level, frozenset(config.data_mode)
        recorder, seen = self._free.pop(key, (None, []))
        fresh = recorder is None or not all(snapshot.still_holds() for snapshot in seen)
        if fresh:
            recorder = self._make(config, MemoryEngine)
        yield recorder  # one that met an exception is not kept
        if fresh:  # not before: a recorder looks for functions only when some of them are replaced already
            sites: Any = getattr(recorder, "sites", tuple)()  # PyTorch's recorder replaces none
            owners = {id(site.owner): site.owner for site in sites}
            seen = [_Snapshot(owner) for owner in owners.values()]
        recorder.engine = MemoryEngine(config, recorder)
        self._free[key] = recorder, seen


class _Snapshot:
    """The content of a module or class; a function of it may be replaced between two runs."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._held = dict(vars(owner))

    def still_holds(self) -> bool:
        """Whether nothing has been replaced since."""
        now = vars(self._owner)
        return len(now) == len(self._held) and all(map(is_, now.values(), self._held.values()))


# Tensors noted without a copy, until they are written to.
#
# Copying what two models compute takes longer than computing it. So a tensor is held, and copied before the first
# call that writes to memory: the recorder observes these calls. Where memory may be written unobserved (exposed
# arrays, scripted code) tensors are copied at once, and so is everything outside ``held_until_compared``.


class Holder(Protocol):
    """Knows the tensors of one framework."""

    @property
    def version_of(self) -> Callable[[Any], int]:
        """The version of a tensor, which changes with each write that the framework itself notices."""

    def copy_of(self, tensor: Any) -> Any:
        """The copy that a row keeps of a tensor that may change."""


Holding = tuple[Note, Any, int, Holder]  # what has the tensor, the tensor, its number then, who knows it


class Aliases:
    """The rows that are no copies yet, of all models: what one run writes may be what another one holds."""

    def __init__(self) -> None:
        self._waiting: list[Holding] = []
        self._thread: int | None = None
        self._foreign: set[int] = set()  # addresses of held tensors whose owner may free them

    @property
    def allowed(self) -> bool:
        """Whether this thread may hold tensors."""
        return self._thread == get_ident()

    def hold(self, held: Holding) -> bool:
        """Keep track of a note whose row has the tensor itself; False where this thread may not hold any."""
        if self._thread != get_ident():
            return False
        self._waiting.append(held)
        return True

    def mark_foreign(self, address: int) -> None:
        """The tensor at this address is held, but its owner may free it."""
        self._foreign.add(address)

    def settle_before_freeing(self, address: int) -> None:
        """The tensor at this address is about to be freed."""
        if address in self._foreign:
            self.settle()

    def settle(self) -> None:
        """Memory is about to be written to: copy all held tensors."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._foreign.clear()
            for note, tensor, _, holder in waiting:
                row = note.row
                if row is None:
                    continue
                row.address = 0
                shown = row.payload
                if isinstance(shown, HostTensor):  # it was already read in place
                    row.payload = HostTensor(shown.dtype, shown.shape, shown.data.copy())
                else:
                    row.payload = holder.copy_of(tensor)

    def drop_changed(self) -> int:
        """Drop tensors that were overwritten unobserved: their values are lost. Returns how many."""
        waiting = self._waiting
        lost = [note.row for note, tensor, version, holder in waiting if holder.version_of(tensor) != version]
        for row in lost:
            if row is not None:
                row.payload, row.address = None, 0
        return len(lost)

    @contextmanager
    def held_until_compared(self, *, allowed: bool) -> Iterator[None]:
        """Hold tensors while this block runs; they must not be read after it. A nested block belongs to the outer one;
        other threads copy."""
        if not allowed or self._thread is not None:
            yield
            return
        self._thread = get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._waiting = []
            self._foreign.clear()


aliases = Aliases()  # of this process: two models may share memory


# Gradients of parameters, read where a backward pass left them: without a hook on each of thousands of parameters.

OwnParameters = Callable[[Any], Mapping[str, Any]]  # of a watched module; some may be None
TakeNote = Callable[[Any, str, Any], Note]  # of a module, the name of its parameter, and the gradient


class LeftGradients:
    """Takes the place of the hooks on parameters where a run begins without gradients.

    A second pass adds to what the first one left, so its gradients are the sums of both.
    """

    def __init__(self, recorder: Any, parameters: OwnParameters, note: TakeNote) -> None:
        self._recorder = recorder
        self._parameters = parameters
        self._note = note
        self._infos: list[Any] = []
        self._read = False

    def attach(self, infos: Iterable[Any]) -> None:
        """Read the own parameters of these modules."""
        self._infos, self._read = list(infos), False

    def detach(self) -> None:
        """Read what a pass left that touched no watched module."""
        if not self._read:
            self.flush()
        self._infos = []

    def flush(self) -> None:
        """A pass is over: note what it left, in the order in which the modules ran backward."""
        recorder = self._recorder
        if not recorder.active:
            return
        recorder.wants("")  # tensors are kept
        names = recorder.engine.rows.names
        mark = f".{BACKWARD}."
        turns = {name.rpartition(mark)[0] + ".": turn for turn, name in enumerate(names) if mark in name}
        # A module that did not run backward comes last.
        for info in sorted(self._infos, key=lambda info: turns.get(info.prefix, len(names))):
            notes = {}
            for name, parameter in self._parameters(info).items():
                gradient = None if parameter is None else parameter.grad
                if gradient is not None:
                    notes[name] = self._note(info.module, name, gradient)
            if notes:
                self._read = True
                emit_gradients(recorder, info.prefix, notes)


# The largest block from which glibc learns how much free memory to keep, less its own header and a page.
_LARGEST_LEARNED = (32 << 20) - 8192


@cache
def keep_freed_memory() -> None:
    """Let glibc keep what a comparison frees, for the next one.

    By default it may give the end of its heap back at once: with 200 layers some processes then take 1,200 page faults
    in each call, with this none. A large block that is freed, untouched, raises its bound, as any large tensor would.
    """
    np.empty(_LARGEST_LEARNED, np.uint8)


@contextmanager
def collector_paused() -> Iterator[None]:
    """A step makes thousands of small objects and keeps them: searching them for garbage takes longer than the models.

    Afterwards the collector goes on as before; what the step left behind is young to it and is looked at first.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
