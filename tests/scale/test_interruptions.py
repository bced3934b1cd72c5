"""Ctrl-C reaches the command, whatever library was at work when it came."""

from __future__ import annotations

from contextlib import suppress

import pytest

from twinprobe._scale import engine as interrupts
from twinprobe._scale.engine import EngineOptions
from twinprobe._scale.spread import spread


def dropped(item: int) -> int:
    """Work during which Ctrl-C comes, and is dropped as a library drops what is raised in its callbacks."""
    with suppress(KeyboardInterrupt):
        raise interrupts.note(KeyboardInterrupt())
    return item


@pytest.mark.parametrize("items", [[1], [1, 2, 3]])
def test_an_interruption_that_was_dropped_ends_the_work_after_the_piece(items: list[int]) -> None:
    results = spread(dropped, items, options=EngineOptions("inline"))
    try:
        assert next(results) == (0, 1)
        with pytest.raises(KeyboardInterrupt):
            next(results)
    finally:
        interrupts.forget()
