"""Tensors noted without a copy, for as long as nobody writes to them.

Copying what two models compute takes longer than computing it. So a tensor is held, and copied before the first call
that writes to memory: the watchers of the recorder see these calls. Where memory may be written unseen (arrays handed
out, scripted code) tensors are copied at once, and so is everything outside ``held_until_compared``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Protocol

from twinprobe.record.rows import Note
from twinprobe.runs.host_tensor import HostTensor


class Holder(Protocol):
    """Knows the tensors of one framework."""

    @property
    def version_of(self) -> Callable[[Any], int]:
        """Tells the number of a tensor that is another one after each write that the framework itself notices."""

    def copy_of(self, tensor: Any) -> Any:
        """What a row keeps of a tensor that may change."""


Holding = tuple[Note, Any, int, Holder]  # what has the tensor, the tensor, its number then, who knows it


class Aliases:
    """The rows that are no copies yet, of all models: what one run writes may be what another one holds."""

    def __init__(self) -> None:
        self._waiting: list[Holding] = []
        self._thread: int | None = None
        self._lent: set[int] = set()  # where held tensors lie whose memory somebody else may free

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

    def lend(self, address: int) -> None:
        """What lies here is held, but belongs to somebody who may free it."""
        self._lent.add(address)

    def settle_before_freeing(self, address: int) -> None:
        """Somebody is about to free what lies here."""
        if address in self._lent:
            self.settle()

    def settle(self) -> None:
        """Somebody is about to write."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._lent.clear()
            for note, tensor, _, holder in waiting:
                row = note.row
                if row is None:
                    continue
                row.address = 0
                shown = row.payload
                if isinstance(shown, HostTensor):  # somebody has looked at it, where it lies
                    row.payload = HostTensor(shown.dtype, shown.shape, shown.data.copy())
                else:
                    row.payload = holder.copy_of(tensor)

    def drop_changed(self) -> int:
        """Take out what was written to unseen: its value is lost. Returns how many."""
        waiting = self._waiting
        lost = [note.row for note, tensor, version, holder in waiting if holder.version_of(tensor) != version]
        for row in lost:
            if row is not None:
                row.payload, row.address = None, 0
        return len(lost)

    @contextmanager
    def held_until_compared(self, *, allowed: bool) -> Iterator[None]:
        """Hold tensors while this block runs; after it nobody may look at them. A block inside another belongs to that;
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
            self._lent.clear()


aliases = Aliases()  # of this process: two models may share memory
