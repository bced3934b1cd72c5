"""Rows of tensors that were measured in this step, used again while nothing can have written to them.

No framework counts every write: MindSpore's own version misses assignments to elements and primitives, Paddle's misses
``set_value``, ``copy_``, the optimisers and the running statistics of a normalisation. So a row is believed only while
the functions that write are watched, and every one of them makes all rows forgotten.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

from twinprobe.record.rows import Row

_PURGE_AT = 8192


class KnownRows:
    """Rows by tensor object, for the class that notes tensors. ``stamp`` is what the framework itself can tell: version
    and address."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[weakref.ref[Any], Hashable, Row]] = {}
        self._trusted = False

    def trust(self) -> None:
        """All functions that write are watched from here on."""
        self.forget()
        self._trusted = True

    def distrust(self) -> None:
        """Writes may go unseen: use nothing again until trust()."""
        self._trusted = False
        self.forget()

    def settle(self) -> None:
        """Something is about to be written; for rows that are not measured yet."""

    def forget(self) -> None:
        """Something may have been written."""
        self._rows.clear()

    def find(self, tensor: Any, stamp: Hashable) -> Row | None:
        """The row of this very tensor, if it is as it was."""
        known = self._rows.get(id(tensor))
        return known[2] if known is not None and known[0]() is tensor and known[1] == stamp else None

    def keep(self, tensor: Any, stamp: Hashable, row: Row) -> None:
        """Remember a row."""
        if self._trusted:
            if len(self._rows) >= _PURGE_AT:
                self._rows.clear()
            self._rows[id(tensor)] = (weakref.ref(tensor), stamp, row)
