"""The engine of small work: this process, one piece after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinprobe.scale.stream import Outcome, carry_out


class InlineEngine:
    """Does a piece of work when its result is asked for."""

    slots = 1

    def __init__(self) -> None:
        self._next: list[tuple[int, Callable[[Any], Any], Any]] = []

    def start(self, ticket: int, function: Callable[[Any], Any], item: Any) -> None:
        """Keep the piece until its result is wanted."""
        self._next.append((ticket, function, item))

    def finished(self) -> list[tuple[int, Outcome]]:
        """Do the piece and give its outcome."""
        ticket, function, item = self._next.pop(0)
        return [(ticket, carry_out(function, item))]

    def close(self) -> None:
        """There is nothing to end."""
        self._next.clear()
