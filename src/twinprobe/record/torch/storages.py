"""Storages told apart while they live and after: an address that comes back never means the same storage."""

from __future__ import annotations

from typing import Any

import torch

_PURGE_AT = 8192
_expired: Any = torch.UntypedStorage._expired
_free: Any = torch.UntypedStorage._free_weak_ref


class StorageNumbers:
    """Gives every storage a number of its own.

    A weak reference keeps the storage's record, not its memory, so that its identity cannot be given to another one.
    """

    def __init__(self) -> None:
        self.known: dict[int, int] = {}  # read by who cannot afford a call; always the same dictionary
        self._references: dict[int, int] = {}
        self._next = 0

    def __call__(self, storage: Any) -> int:
        """The number of a live storage."""
        identity = storage._cdata
        number = self.known.get(identity)
        if number is None:
            if identity not in self._references:
                self._references[identity] = storage._weak_ref()
            number = self.known[identity] = self._next
            self._next += 1
        return number

    @property
    def many(self) -> bool:
        """Whether it is time to purge."""
        return len(self.known) >= _PURGE_AT

    def renumber(self, storage: Any) -> None:
        """Whatever is known by this storage's number is known no more."""
        self.known.pop(storage._cdata, None)

    def purge(self) -> set[int]:
        """Forget storages that are gone, all of them if too many live; returns the numbers that still stand."""
        if sum(1 for one in self._references.values() if not _expired(one)) >= _PURGE_AT:
            self.clear()
            return set()
        for identity in [at for at, one in self._references.items() if _expired(one)]:
            _free(self._references.pop(identity))
            self.known.pop(identity, None)
        return set(self.known.values())

    def clear(self) -> None:
        """Forget every storage; numbers are not used again."""
        references, self._references = self._references, {}
        self.known.clear()
        for one in references.values():
            _free(one)

    def __del__(self) -> None:
        self.clear()
