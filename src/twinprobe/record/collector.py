"""Python's garbage collector while a step is recorded."""

from __future__ import annotations

import gc

_FACTOR = 20


class CalmCollector:
    """The recorder allocates far more objects than the step it watches, none of them in cycles; counted as they are,
    the collector would run many times as often as in a plain run. While recording it counts slower, about as often
    for each object of the program's own. One that the program switched off or adjusts itself is left alone.
    """

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None
        self._ours: tuple[int, int, int] | None = None

    def attach(self) -> None:
        """Count slower from here on."""
        first, second, third = gc.get_threshold()
        if self._before is None and first:
            self._before, self._ours = (first, second, third), (first * _FACTOR, second, third)
            gc.set_threshold(*self._ours)

    def detach(self) -> None:
        """As it was, unless somebody else has changed it since."""
        if self._before is not None and gc.get_threshold() == self._ours:
            gc.set_threshold(*self._before)
        self._before = self._ours = None
