"""Pairs that all agree: counted at once, told one by one only to who asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinprobe.live.findings import Finding


class Calm:
    """So many findings, none of which differs. ``make`` makes them; it must hold no tensor."""

    def __init__(self, count: int, make: Callable[[], list[Finding]]) -> None:
        self._count = count
        self._make = make
        self._made: list[Finding] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Finding]:
        if self._made is None:
            self._made = self._make()
        return iter(self._made)


Found = list["Finding"] | Calm


def differing(found: Found) -> list[Finding]:
    """Those that differ."""
    return [] if isinstance(found, Calm) else [one for one in found if one.differs]
