"""Calls of modules while they run: who encloses whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from twinprobe.record.stacks import Stack


@dataclass(slots=True, eq=False)
class ModuleInfo:
    """A watched module and the front of its names: ``Cell.layers.0.Dense.``. API calls inside a closed one are not
    recorded."""

    module: Any
    prefix: str
    whole: bool = False
    compiled: bool = False
    closed: bool = False


class ModuleCall:
    """One call of a module while it runs."""

    __slots__ = ("backward", "crossing", "frame", "info", "name", "number", "parent", "parts", "stack")

    def __init__(self, info: ModuleInfo, number: int, parent: ModuleCall | None) -> None:
        self.info = info
        self.number = number
        self.name = f"{info.prefix}forward.{number}"
        self.backward = f"{info.prefix}backward.{number}"
        self.parent = parent
        self.parts: dict[str, Any] | None = None
        self.crossing: Any = None
        self.stack: Stack | None = None
        self.frame = 0

    def chain(self) -> Iterator[str]:
        """This call's name and those of the enclosing calls, innermost first."""
        call: ModuleCall | None = self
        while call is not None:
            yield call.name
            call = call.parent

    def ancestors(self) -> Iterator[str]:
        """Names of the enclosing module calls, innermost first."""
        return self.parent.chain() if self.parent else iter(())
