"""Recorders, kept between runs: finding and wrapping a framework's thousands of functions takes
longer than running a small model.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from operator import is_
from threading import get_ident
from typing import Any, Protocol

import numpy as np

from twinprobe._record.config import RecordConfig
from twinprobe._record.memory.engine import MemoryEngine
from twinprobe._record.rows import Note, emit_gradients
from twinprobe._runs.names import BACKWARD
from twinprobe._runs.tensors.elements import HostTensor


class RecorderPool:
    """Recorders for reuse: one at a time for each user, and none whose framework has changed since."""

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
# call that writes to memory: the watchers of the recorder see these calls. Where memory may be written unseen (arrays
# handed out, scripted code) tensors are copied at once, and so is everything outside ``held_until_compared``.


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
        """Look after a note whose row has the tensor itself; False where this thread may not hold any."""
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
        """Drop tensors that were written to unseen: their values are lost. Returns how many."""
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
        # A module of which nothing is known comes last.
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
