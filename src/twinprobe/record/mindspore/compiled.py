"""Cells that run as compiled graphs: found before the recording begins, said by name, seen from outside only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms

from twinprobe.record.eager.patches import Replaced, around, nothing
from twinprobe.record.mindspore.versions import GraphExecutor, JitExecutor
from twinprobe.record.problems import logger

_GRAPH_MODE = 0


def is_jitted(cell: Any) -> bool:
    """Whether ``construct`` was given to mindspore.jit."""
    construct = getattr(cell.construct, "__func__", cell.construct)
    code = getattr(construct, "__code__", None)
    return code is not None and code.co_name == "staging_specialize" and hasattr(construct, "__wrapped__")


def in_graph_mode() -> bool:
    """Whether every cell is compiled."""
    return bool(ms.get_context("mode") == _GRAPH_MODE)


def watched_cells(model: Any) -> Iterator[tuple[str, Any, bool]]:
    """The cells to watch: path, cell, and whether it is the boundary of a compiled region.

    Nothing inside a compiled region is seen. A model that is compiled as a whole is itself the boundary.
    """
    if in_graph_mode() or is_jitted(model):
        yield "network", model, True
        return
    inside: list[str] = []
    for path, cell in model.cells_and_names():
        if not path or any(path.startswith(f"{one}.") for one in inside):
            continue
        compiled = is_jitted(cell)
        if compiled:
            inside.append(path)
        yield path, cell, compiled


def warn_of(models: list[Any]) -> bool:
    """Say which cells are compiled; True if there is one."""
    found = [(path, cell) for model in models for path, cell, compiled in watched_cells(model) if compiled]
    for path, cell in found:
        logger.warning(
            "%s (%s) runs as a compiled graph, where Python sees nothing: only what goes in and comes out is recorded, "
            "under pynative/; no graph/ folder is produced. For the inside use MindSpore's own kernel dump, whose "
            "folders 'compare' reads",
            path,
            type(cell).__name__,
        )
    return bool(found)


class JitCalls:
    """Functions given to mindspore.jit that a recorded program calls: each is said once, and may write to anything."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after
        self._said: set[str] = set()

    def watch(self) -> list[Replaced]:
        """Stand before the compiled code; returns handles with remove()."""
        found = [(JitExecutor, self._function), (GraphExecutor, around(nothing, self._after))]
        return [Replaced(owner, "__call__", make) for owner, make in found if owner is not None]

    def _function(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self._say(executor)
            try:
                return original(executor, *args, **kwargs)
            finally:
                self._after()

        return call

    def _say(self, executor: Any) -> None:
        name = getattr(getattr(executor, "fn", None), "__qualname__", "")
        if name and getattr(executor, "obj", None) is None and name not in self._said:
            self._said.add(name)
            logger.warning(
                "%s is given to mindspore.jit and runs as a compiled graph: no call inside it is recorded", name
            )


def around_compilation(aside: Callable[[], None], back: Callable[[], None]) -> list[Replaced]:
    """A compiler reads the source of the functions it meets: it must meet the framework's own."""
    owners = [one for one in (JitExecutor, GraphExecutor) if one is not None and hasattr(one, "compile")]
    return [Replaced(owner, "compile", around(aside, back)) for owner in owners]
